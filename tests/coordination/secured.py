"""A ZooKeeper with TLS, certificates and logins, next to its plaintext port."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path

from pybroker.development.server_process import HOST
from pybroker.development.zookeeper_server import More, ZooKeeper
from tests.certificates import Identity
from tests.harness import free_port, until

SECRET = "store secret"
DIGEST = "org.apache.zookeeper.server.auth.DigestLoginModule"


class Secured:
    """One server, or an ensemble. `connect` is its plaintext port, `tls` the other one.

    Users are those of its JAAS file; a login is optional unless `more` lines of zoo.cfg require it. `client_auth` is
    need, want or none: whether a TLS client must show a certificate of the authority.
    """

    def __init__(
        self, home: Path, users: Mapping[str, str] | None = None, *, servers: int = 1, client_auth: str = "none",
        host: str = HOST, days: tuple[int, int] = (-1, 30), more: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.home = home
        self.authority = Identity("authority")
        self.identity = Identity("zookeeper", self.authority, hosts=[host], days=days)
        self.trusted = self.authority.trust_p12(home / "trust.p12", SECRET)
        # PEM, as a server reads both stores for each connection, and a PKCS12 file takes 0.3 s of one core.
        keys, trusted = self.identity.pem(home / "zookeeper.pem"), self.authority.trust_pem(home / "trust.pem")
        self.ports = [free_port() for _ in range(servers)]
        self._jaas = home / "jaas.conf"
        self.let_in(users or {})
        common = [
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
            "authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider",
            f"ssl.keyStore.location={keys}", "ssl.keyStore.type=PEM", f"ssl.trustStore.location={trusted}",
            "ssl.trustStore.type=PEM", f"ssl.clientAuth={client_auth}", "ssl.protocol=TLSv1.3",
            "ssl.enabledProtocols=TLSv1.3,TLSv1.2", "ssl.clientHostnameVerification=false",
            "ssl.quorum.hostnameVerification=false", *more,
        ]  # fmt: skip
        extra = More(
            lambda number: [*common, f"secureClientPort={self.ports[number - 1]}"],
            [f"-Djava.security.auth.login.config={self._jaas}"] if users else [],
        )
        self.zookeeper = ZooKeeper(servers, more=extra)
        for port in self.ports:
            until("the server speaks TLS", lambda port=port: _speaks(port))  # type: ignore[misc]
        self.connect = self.zookeeper.connect
        self.tls = ",".join(f"localhost:{port}" if host == "localhost" else f"{HOST}:{port}" for port in self.ports)

    def let_in(self, users: Mapping[str, str]) -> None:
        """Set the users, from the next start on."""
        lines = "\n".join(f'  user_{user}="{password}"' for user, password in users.items())
        self._jaas.write_text(f"Server {{\n  {DIGEST} required\n{lines};\n}};\n")

    def settings(self, **more: object) -> dict[str, object]:
        """A broker's settings for TLS."""
        said = {
            "zookeeper.connect": self.tls, "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.truststore.location": self.trusted, "zookeeper.ssl.truststore.password": SECRET,
        }  # fmt: skip
        return {**said, **{name.replace("_", "."): value for name, value in more.items()}}

    def client(self, name: str = "broker") -> dict[str, object]:
        """A broker's settings for its own certificate."""
        keys = Identity(name, self.authority, hosts=["localhost"]).p12(self.home / f"{name}.p12", SECRET)
        return {"zookeeper.ssl.keystore.location": keys, "zookeeper.ssl.keystore.password": SECRET}

    def __enter__(self) -> Secured:
        return self

    def __exit__(self, *_: object) -> None:
        self.zookeeper.close()


def _speaks(port: int) -> bool:
    """True once the TLS port answers: it opens later than the other, and a JVM's first handshake takes long."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), 30) as made:
        context.wrap_socket(made).close()
        return True
    return False
