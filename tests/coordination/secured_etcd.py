"""An etcd with TLS, client certificates, users and roles."""

from __future__ import annotations

import json
import ssl
import urllib.request
from base64 import b64encode
from pathlib import Path
from typing import Any

from pybroker.development.etcd_server import Etcd, EtcdOptions
from pybroker.development.server_process import HOST
from tests.certificates import Identity

ROOT = "of the administrator"
PASSWORD = "of the brokers alone"


class SecuredEtcd:
    """One server with authentication. Each client needs a certificate of the authority, and a user for any key.

    The user kafka has the right to read and write below /kafka/, the user other below /other/; both have PASSWORD.
    """

    def __init__(self, home: Path, *, days: tuple[int, int] = (-1, 30)) -> None:
        """`days`: the validity of the server's certificate; an expired one has no users."""
        self.home = home
        self.authority = Identity("authority")
        own = Identity("etcd", self.authority, hosts=[HOST], days=days).pem(home / "etcd.pem")
        self.trusted = self.authority.trust_pem(home / "authority.pem")
        self._tls = ssl.create_default_context(cafile=self.trusted)
        self._tls.load_cert_chain(self.certificate())
        checking = ssl.create_default_context(cafile=self.trusted)  # whether the server is up
        checking.load_cert_chain(self.certificate())
        checking.check_hostname, checking.verify_mode = False, ssl.CERT_NONE
        flags = [
            "--cert-file", own, "--key-file", own, "--trusted-ca-file", self.trusted, "--client-cert-auth",
            "--bcrypt-cost", "4",
        ]  # fmt: skip
        self.etcd = Etcd(options=EtcdOptions(checking, flags))
        if days[1] > 0:
            self._let_in()

    def _let_in(self) -> None:
        for user, password in (("root", ROOT), ("kafka", PASSWORD), ("other", PASSWORD)):
            self.ask("auth/user/add", name=user, password=password)
            self.ask("auth/role/add", name=user)
            self.ask("auth/user/grant", user=user, role=user)
        for role in ("kafka", "other"):
            first, end = (b64encode(f"/{role}{last}".encode()).decode() for last in "/0")  # 0 follows /
            self.ask("auth/role/grant", name=role, perm={"permType": "READWRITE", "key": first, "range_end": end})
        self.ask("auth/enable")

    def ask(self, path: str, token: str = "", **body: Any) -> Any:
        """The answer to a request. Raises HTTPError if it is refused."""
        headers = {"Authorization": token} if token else {}
        url = f"{self.etcd.servers[0].url}/v3/{path}"
        asked = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(asked, context=self._tls) as answer:
            return json.load(answer)

    def token(self, user: str = "root", password: str = ROOT) -> str:
        """The token of a login."""
        return str(self.ask("auth/authenticate", name=user, password=password)["token"])

    def certificate(self, name: str = "", days: tuple[int, int] = (-1, 30)) -> str:
        """A file with the key and certificate of a client; etcd takes no name in it beside a login."""
        own = Identity(name, self.authority, hosts=["localhost"], days=days)
        return own.pem(self.home / f"client{name}{days[1]}.pem")

    def settings(self, prefix: str = "/kafka", **more: object) -> dict[str, object]:
        """The settings of a broker, with a certificate and the user kafka."""
        said = {
            "etcd.connect": f"{self.etcd.url}{prefix}", "etcd.user": "kafka", "etcd.password": PASSWORD,
            "etcd.ssl.truststore.location": self.trusted, "etcd.ssl.keystore.location": self.certificate(),
        }  # fmt: skip
        return {**said, **{name.replace("_", "."): value for name, value in more.items()}}

    def __enter__(self) -> SecuredEtcd:
        return self

    def __exit__(self, *_: object) -> None:
        self.etcd.close()
