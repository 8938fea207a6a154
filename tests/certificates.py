"""Certificates for a test: an authority and the certificates that it signs, in files of every form."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


def _name(common: str) -> x509.Name:
    made = {NameOID.COMMON_NAME: common, NameOID.ORGANIZATION_NAME: "Tests"}
    return x509.Name([x509.NameAttribute(kind, text) for kind, text in made.items() if text])


_CA_USAGE = x509.KeyUsage(
    digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
    key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
)  # fmt: skip


class Identity:
    """A key, its certificate, and the certificates of the authorities above it."""

    def __init__(
        self, name: str, issuer: Identity | None = None, *, hosts: Sequence[str] = (), days: tuple[int, int] = (-1, 30),
        named_usage: bool = True,
    ) -> None:  # fmt: skip
        """Make an authority if there are no hosts; it names its key usage unless it imitates old tools. An empty name
        is none. `days`: the validity, counted from now."""
        self.key = ec.generate_private_key(ec.SECP256R1())
        now, authority = datetime.now(UTC), not hosts
        by = issuer or self
        made = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name(name) if issuer is None else issuer.certificate.subject)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + days[0] * DAY)
            .not_valid_after(now + days[1] * DAY)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(by.key.public_key()), critical=False
            )
        )  # fmt: skip
        if authority and named_usage:
            made = made.add_extension(_CA_USAGE, critical=True)
        if hosts:
            made = made.add_extension(x509.SubjectAlternativeName(list(map(_alternative, hosts))), critical=False)
        self.certificate: x509.Certificate = made.sign(by.key, hashes.SHA256())
        self.chain: list[x509.Certificate] = [self.certificate, *(issuer.chain if issuer is not None else [])]

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def chain_pem(self) -> bytes:
        return b"".join(each.public_bytes(Encoding.PEM) for each in self.chain)

    def key_pem(self, password: str | None = None, form: PrivateFormat = PrivateFormat.PKCS8) -> bytes:
        cipher = NoEncryption() if password is None else BestAvailableEncryption(password.encode())
        return self.key.private_bytes(Encoding.PEM, form, cipher)

    def pem(self, path: Path, password: str | None = None) -> str:
        """A file with key and chain."""
        path.write_bytes(self.key_pem(password) + self.chain_pem)
        return str(path)

    def p12(self, path: Path, password: str) -> str:
        cipher = BestAvailableEncryption(password.encode())
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(b"own", self.key, self.certificate, self.chain[1:], cipher)
        )
        return str(path)

    def trust_pem(self, path: Path) -> str:
        path.write_bytes(self.certificate_pem)
        return str(path)

    def trust_p12(self, path: Path, password: str) -> str:
        """Write a trust store as keytool -importcert does, but for the attribute that marks a trusted certificate in
        Java."""
        cipher = BestAvailableEncryption(password.encode())
        held = [pkcs12.PKCS12Certificate(self.certificate, b"ca")]
        path.write_bytes(pkcs12.serialize_java_truststore(held, cipher))
        return str(path)


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def server_context(identity: Identity, path: Path) -> ssl.SSLContext:
    """The TLS context of a test's server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.pem(path))
    return context
