"""Key stores that no client can use are refused for every listener, in one sentence; an expired one starts a broker."""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID as Use
from cryptography.x509.oid import NameOID

from pybroker.config import BrokerConfig, ConfigError
from pybroker.config.ssl_settings import Ssl
from pybroker.security.tls import server_context
from tests.certificates import DAY, Identity

AUTHORITY = Identity("ca")
NAMESAKE = Identity("ca")
NEVER = (-9, -1)


def key_usage(*has: str) -> x509.KeyUsage:
    names = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
             "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")  # fmt: skip
    return x509.KeyUsage(**{name: name in has for name in names})


def store(
    path: Path, *extensions: x509.ExtensionType, signer: Identity = AUTHORITY, shown: Sequence[Identity] = (AUTHORITY,),
    days: tuple[int, int] = (-1, 30),
) -> Path:  # fmt: skip
    """A file with a key, its certificate, and those of authorities."""
    own = Identity("broker", AUTHORITY, hosts=["localhost"])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(
        AUTHORITY.certificate.subject, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")]),
        own.key.public_key(), x509.random_serial_number(), now + days[0] * DAY, now + days[1] * DAY,
    )  # fmt: skip
    for each in extensions:
        made = made.add_extension(each, critical=False)
    certificate = made.sign(signer.key, hashes.SHA256()).public_bytes(Encoding.PEM)
    path.write_bytes(own.key_pem() + certificate + b"".join(each.certificate_pem for each in shown))
    return path


def settings(path: Path, *more: str) -> Ssl:
    sets = ["listeners=CLIENTS://127.0.0.1:0,OPEN://127.0.0.1:0", "inter.broker.listener.name=OPEN",
            "listener.security.protocol.map=CLIENTS:SSL,OPEN:PLAINTEXT", "log.dirs=/nowhere",
            "ssl.keystore.type=PEM", f"ssl.keystore.location={path}", *more]  # fmt: skip
    return BrokerConfig.load(None, sets).ssl["CLIENTS"]


@pytest.mark.parametrize(
    ("extensions", "how", "why"),
    [
        ([x509.ExtendedKeyUsage([Use.CLIENT_AUTH])], {}, "certificate purpose"),
        ([key_usage("key_cert_sign")], {}, "certificate purpose"),
        ([], {"signer": NAMESAKE}, "certificate verify failed"),
        ([], {"shown": [Identity("ca", days=NEVER)], "signer": NAMESAKE}, "certificate verify failed"),
    ],
    ids=["not for servers", "key usage", "signed by a namesake", "an old namesake"],
)
@pytest.mark.parametrize("dated", [True, False])
def test_what_no_client_can_use(
    tmp_path: Path, extensions: list[x509.ExtensionType], how: dict[str, Sequence[Identity]], why: str, dated: bool
) -> None:
    """A key store that no client can use is refused, at a start too, also for a listener that brokers do not use."""
    path = store(tmp_path / "broker.pem", *extensions, **how)  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as refused:
        server_context(settings(path), "CLIENTS", dated=dated)
    words = f"no client could connect to the listener CLIENTS with the certificates of {path}: "
    assert refused.value.message.startswith(words) and why in refused.value.message


@pytest.mark.parametrize(
    "extensions",
    [[], [x509.ExtendedKeyUsage([Use.SERVER_AUTH, Use.CLIENT_AUTH])], [key_usage("digital_signature")]],
)
@pytest.mark.parametrize("shown", [[AUTHORITY], []])
@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_what_clients_can_use(
    tmp_path: Path, extensions: list[x509.ExtensionType], shown: list[Identity], version: str
) -> None:
    """A usable key store may have the authority's certificate or not, and clients may have to show a certificate or
    not."""
    path = store(tmp_path / "broker.pem", *extensions, shown=shown)
    more = (f"ssl.enabled.protocols={version}", "ssl.client.auth=required")
    assert server_context(settings(path, *more), "CLIENTS").verify_mode == ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("days", "why"), [((-9, -1), "has a certificate that expired on"), ((1, 9), "has a certificate that is not valid")]
)
def test_an_old_certificate_starts_a_broker(tmp_path: Path, days: tuple[int, int], why: str) -> None:
    """An expired certificate starts a broker, so that a restarted fleet comes back; a config change with it is
    refused."""
    held = settings(store(tmp_path / "broker.pem", days=days))
    with pytest.raises(ConfigError, match=re.escape(why)):
        server_context(held, "CLIENTS")
    assert server_context(held, "CLIENTS", dated=False).endings


def test_an_old_authority_starts_a_broker(tmp_path: Path) -> None:
    """An expired authority starts a broker: both the authority of its own certificate, and that of clients."""
    old = Identity("ca", days=NEVER)
    own = Identity("broker", old, hosts=["localhost"])
    trust = old.trust_pem(tmp_path / "trust.pem")
    more = ("ssl.client.auth=required", "ssl.truststore.type=PEM", f"ssl.truststore.location={trust}")
    held = settings(Path(own.pem(tmp_path / "broker.pem")), *more)
    with pytest.raises(ConfigError, match="certificate has expired"):
        server_context(held, "CLIENTS")
    assert server_context(held, "CLIENTS", dated=False).endings
