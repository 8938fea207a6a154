"""Test certificates, made at run time and signed by an authority that exists only for the tests."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

HERE: Final = ("localhost", "127.0.0.1", "::1")
DAYS: Final = 365
RSA_BITS: Final = 2048

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class Certificate(NamedTuple):
    """A certificate and its key, as PEM."""

    chain: bytes
    key: bytes


class Authority:
    """A certificate authority; clients trust its own certificate, `certificate` (PEM)."""

    def __init__(self, name: str = "pybroker test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        own = _begun(self._name, self._name, self._key, DAYS).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self._identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        own = own.add_extension(self._identifier, critical=False).add_extension(_SIGNS, critical=True)
        self.certificate = own.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def sign(
        self,
        name: str | x509.Name,
        hosts: Sequence[str] = HERE,
        *,
        days: int = DAYS,
        kind: str = "EC",
        password: bytes | None = None,
    ) -> Certificate:
        """Return a certificate for a common name (or a whole x509.Name) and these hosts. Negative `days` make one that
        has expired. `kind` is EC or RSA."""
        key: Key = rsa.generate_private_key(65537, RSA_BITS)
        if kind == "EC":
            key = ec.generate_private_key(ec.SECP256R1())
        subject = name if isinstance(name, x509.Name) else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        begun = _begun(subject, self._name, key, days)
        if hosts:
            begun = begun.add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), False)
        begun = begun.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        begun = begun.add_extension(_BOTH_ENDS, critical=False)
        begun = begun.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._identifier), critical=False
        )
        signed = begun.sign(self._key, hashes.SHA256())
        secret = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        return Certificate(
            signed.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret),
        )


_BOTH_ENDS: Final = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
_SIGNS: Final = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _begun(subject: x509.Name, issuer: x509.Name, key: Key, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    until = now + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, until) - datetime.timedelta(days=1))
        .not_valid_after(until)
    )
