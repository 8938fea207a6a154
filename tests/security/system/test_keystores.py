"""Key stores and trust stores of each form, and the one sentence that describes a fault of one."""

from __future__ import annotations

import base64
import os
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat, load_pem_private_key

from pybroker.config.settings import ConfigError
from pybroker.security import tls
from pybroker.security.keystores import FILE_BYTES_MAX, KeyPair, key_store, trust_store
from tests.certificates import Identity

ROOT_CA = Identity("root")
BETWEEN = Identity("between", ROOT_CA)
OWN = Identity("own", BETWEEN, hosts=["localhost", "127.0.0.1"])
OTHER = Identity("other", ROOT_CA, hosts=["other.example"])
PREFIX = "listener.name.clients.ssl."


def certificates(pem: bytes) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(pem)


def is_own(found: KeyPair | None) -> bool:
    """Check that a pair is OWN's key without a password, and its chain in the order of a handshake."""
    assert found is not None
    return (
        certificates(found.chain) == [OWN.certificate, BETWEEN.certificate, ROOT_CA.certificate]
        and load_pem_private_key(found.key, None).public_key() == OWN.key.public_key()
    )


def _mangled(identity: Identity) -> bytes:
    """A certificate that parses until its subject is read."""
    der = identity.certificate.public_bytes(Encoding.DER)
    name = identity.certificate.subject.public_bytes()
    at = der.rindex(name)
    broken = base64.encodebytes(der[:at] + name[:4] + b"\x05" + name[5:] + der[at + len(name) :])
    return b"-----BEGIN CERTIFICATE-----\n" + broken + b"-----END CERTIFICATE-----\n"


def refused(call: Any, *arguments: Any, **named: Any) -> str:
    """The one sentence of the refusal."""
    with pytest.raises(ConfigError) as problem:
        call(*arguments, **named)
    message = problem.value.message
    assert "\n" not in message and "secret" not in message
    return message


# -- what is read -----------------------------------------------------------------------------------------------------


def test_a_pem_file_has_key_and_chain_in_any_order(tmp_path: Path) -> None:
    file = tmp_path / "own.pem"
    before = Identity("between", ROOT_CA)  # the key that this authority used before it took another
    parts = [each.certificate_pem for each in (before, ROOT_CA, OWN, BETWEEN)] + [OWN.key_pem()]
    file.write_bytes(b"Bag Attributes\n    friendlyName: own\n" + b"".join(parts))
    assert is_own(key_store(PREFIX, type="PEM", location=str(file)))
    assert is_own(key_store(PREFIX, type=None, location=str(file))), "the file's name says what it is"


@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL], ids=["pkcs8", "traditional"])
def test_a_key_may_be_encrypted(tmp_path: Path, form: PrivateFormat) -> None:
    file = tmp_path / "own.pem"
    file.write_bytes(OWN.key_pem("secret", form) + OWN.chain_pem)
    assert is_own(key_store(PREFIX, type="PEM", location=str(file), key_password="secret"))
    assert f"{PREFIX}key.password does not decrypt" in refused(
        key_store, PREFIX, type="PEM", location=str(file), key_password="not it"
    )
    assert f"has an encrypted private key: set {PREFIX}key.password" in refused(
        key_store, PREFIX, type="PEM", location=str(file)
    )
    assert "set zookeeper.ssl.keystore.password" in refused(
        key_store, "zookeeper.ssl.", type=None, location=str(file),
        key_password_setting="zookeeper.ssl.keystore.password",
    )  # fmt: skip


def test_pem_may_stand_in_the_settings() -> None:
    key, chain = OWN.key_pem("secret").decode(), OWN.chain_pem.decode()
    assert is_own(key_store(PREFIX, type="PEM", key=key, chain=chain, key_password="secret"))
    found = trust_store(PREFIX, type="PEM", certificates=(ROOT_CA.certificate_pem + OTHER.certificate_pem).decode())
    assert found is not None and certificates(found) == [ROOT_CA.certificate, OTHER.certificate]


@pytest.mark.parametrize("kind", ["PKCS12", "JKS", None])
def test_pkcs12_is_read_whatever_java_calls_it(tmp_path: Path, kind: str | None) -> None:
    """PKCS12 is read with the type JKS too: since Java 9, keytool's JKS files may be PKCS12."""
    keys = OWN.p12(tmp_path / "own.p12", "secret")
    trusts = ROOT_CA.trust_p12(tmp_path / "trust.p12", "secret")
    assert is_own(key_store(PREFIX, type=kind, location=keys, password="secret", key_password="secret"))
    found = trust_store(PREFIX, type=kind, location=trusts, password="secret")
    assert found is not None and certificates(found) == [ROOT_CA.certificate]


def test_where_nothing_is_set_there_is_none() -> None:
    assert key_store(PREFIX, type="JKS") is None
    assert trust_store(PREFIX, type="JKS") is None


def test_a_key_pair_goes_into_a_context_and_shows_itself_nowhere(tmp_path: Path) -> None:
    """A key pair can be loaded into a context, which completes a handshake in memory, and its repr has no key."""
    found = key_store(PREFIX, type="PEM", location=OWN.pem(tmp_path / "own.pem"))
    assert found is not None and "PRIVATE" not in repr(found)
    shows, looks = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    before = os.listdir("/proc/self/fd")
    found.load_into(shows)
    assert len(os.listdir("/proc/self/fd")) == len(before)
    tls.believe(looks, ROOT_CA.certificate_pem)
    assert handshake(shows, looks) == "TLSv1.3"


@pytest.mark.parametrize("anchor", [ROOT_CA, BETWEEN, OWN, OTHER], ids=["root", "between", "itself", "another"])
@pytest.mark.parametrize("version", list(tls.VERSIONS))
def test_whoever_is_trusted_ends_a_chain(anchor: Identity, version: str) -> None:
    """A trusted certificate ends a chain, as in Java: an intermediate authority's, or the other side's own. Any other
    fails."""
    shows, looks = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    KeyPair(OWN.chain_pem, OWN.key_pem()).load_into(shows)
    tls.narrow(looks, [version], (), "cipher.suites")
    tls.believe(looks, anchor.certificate_pem)
    if anchor is OTHER:
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(shows, looks)
    else:
        assert handshake(shows, looks) == version


def handshake(shows: ssl.SSLContext, looks: ssl.SSLContext) -> str | None:
    """Run a handshake in memory, and return the negotiated version."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = shows.wrap_bio(to_server, to_client, server_side=True)
    client = looks.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    for side in (client, server, client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert client.version() == server.version()
    return client.version()


# -- what is refused --------------------------------------------------------------------------------------------------


def test_a_file_that_is_none(tmp_path: Path) -> None:
    missing, pipe, large = tmp_path / "none.pem", tmp_path / "pipe.pem", tmp_path / "large.pem"
    assert refused(key_store, PREFIX, type="PEM", location=str(missing)) == (
        f"{missing} ({PREFIX}keystore.location) cannot be read: no such file or directory"
    )
    assert f"{missing} ({PREFIX}truststore.location) cannot be read" in refused(
        trust_store, PREFIX, type="PEM", location=str(missing)
    )
    os.mkfifo(pipe)  # a FIFO without a writer must not block
    assert "is not a regular file" in refused(key_store, PREFIX, type="PEM", location=str(pipe))
    assert "is not a regular file" in refused(key_store, PREFIX, type="PEM", location="/dev/zero")
    assert "is not a regular file" in refused(key_store, PREFIX, type="PEM", location=str(tmp_path))
    assert "is not a file name" in refused(key_store, PREFIX, type="PEM", location="a\0b")
    large.write_bytes(OWN.chain_pem + b"\n" * FILE_BYTES_MAX)
    assert "larger than" in refused(key_store, PREFIX, type="PEM", location=str(large))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is not PEM"),
        (b"no text at all", "is not PEM"),
        (OWN.key_pem(), "has no certificate"),
        (OWN.chain_pem, "has no private key"),
        (OWN.key_pem() + OTHER.key_pem() + OWN.chain_pem, "has 2 private keys"),
        (OTHER.key_pem() + OWN.chain_pem, "no certificate that matches the private key"),
        (OWN.key_pem() + OWN.certificate_pem.replace(b"MII", b"MIJ", 1), "certificate that cannot be read"),
        (OWN.key_pem() + _mangled(OWN), "certificate that cannot be read"),
        (OWN.key_pem().replace(b"MIG", b"MIH", 1) + OWN.chain_pem, "private key that cannot be read"),
        (b"\xfe\xed\xfe\xed\0\0\0\2", "keytool -importkeystore"),
        (b"-----BEGIN CERTIFICATE-----" * 100_000, "is not PEM"),
    ],
    ids=[
        "empty", "text", "no chain", "no key", "two keys", "another's", "bad chain", "bad name", "bad key", "jks",
        "no end",
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_pem_file(tmp_path: Path, content: bytes, why: str) -> None:
    file = tmp_path / "own.pem"
    file.write_bytes(content)
    message = refused(key_store, PREFIX, type="PEM", location=str(file))
    assert message.startswith(f"{file} ({PREFIX}keystore.location) ") and why in message


def test_a_key_that_openssl_does_not_take(tmp_path: Path) -> None:
    """A key that OpenSSL refuses is reported: one too short, and one of RSA-PSS, which Python sees without its type."""
    file = tmp_path / "own.pem"
    for kind in ("rsa:1024", "rsa-pss"):
        made = ["openssl", "req", "-x509", "-newkey", kind, "-noenc", "-subj", "/CN=own", "-days", "3"]
        done = subprocess.run([*made, "-keyout", "-", "-out", "-"], check=True, capture_output=True)
        file.write_bytes(done.stdout)
        message = refused(key_store, PREFIX, type="PEM", location=str(file))
        assert message.startswith(f"{file} ({PREFIX}keystore.location) has a key or a certificate that OpenSSL")


def test_time_has_passed_or_not_come(tmp_path: Path) -> None:
    """An own certificate must be valid now, and at least one trusted certificate."""
    late = Identity("late", ROOT_CA, hosts=["x"], days=(-9, -2))
    early = Identity("early", ROOT_CA, hosts=["x"], days=(2, 9))
    gone = Identity("gone", days=(-9, -2))
    assert "has a certificate that expired on 20" in refused(
        key_store, PREFIX, type="PEM", location=late.pem(tmp_path / "late.pem")
    )
    assert "is not valid before 20" in refused(
        key_store, PREFIX, type="PKCS12", location=early.p12(tmp_path / "early.p12", "secret"), password="secret"
    )
    assert "has only expired certificates" in refused(
        trust_store, PREFIX, type="PEM", location=gone.trust_pem(tmp_path / "gone.pem")
    )
    both = tmp_path / "both.pem"
    both.write_bytes(gone.certificate_pem + ROOT_CA.certificate_pem)
    assert trust_store(PREFIX, type="PEM", location=str(both)) is not None


@pytest.mark.parametrize("load", [key_store, trust_store])
def test_what_is_wrong_with_pkcs12(tmp_path: Path, load: Any) -> None:
    store = "keystore" if load is key_store else "truststore"
    file = tmp_path / "own.p12"
    OWN.p12(file, "secret")
    where = f"{file} ({PREFIX}{store}.location)"
    assert refused(load, PREFIX, type="PKCS12", location=str(file), password="not it") == (
        f"{where} cannot be read as PKCS#12: {PREFIX}{store}.password is wrong, or the file is damaged"
    )
    assert f"{PREFIX}{store}.password is not set" in refused(load, PREFIX, type="PKCS12", location=str(file))
    file.write_bytes(file.read_bytes()[:-20])
    assert "the file is damaged" in refused(load, PREFIX, type="PKCS12", location=str(file), password="secret")
    file.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    assert "is a JKS, which only Java can read: convert it with keytool" in refused(
        load, PREFIX, type="JKS", location=str(file), password="secret"
    )
    OWN.pem(file)
    assert f"{PREFIX}{store}.type has to be PEM" in refused(
        load, PREFIX, type="PKCS12", location=str(file), password="secret"
    )


def test_a_pkcs12_without_a_key_is_no_key_store(tmp_path: Path) -> None:
    file = ROOT_CA.trust_p12(tmp_path / "trust.p12", "secret")
    assert "has no private key with its certificate" in refused(
        key_store, PREFIX, type="PKCS12", location=file, password="secret"
    )


def test_settings_that_contradict_each_other(tmp_path: Path) -> None:
    key, chain = OWN.key_pem().decode(), OWN.chain_pem.decode()
    file = OWN.pem(tmp_path / "own.pem")
    assert f"{PREFIX}keystore.certificate.chain is not set" in refused(key_store, PREFIX, type="PEM", key=key)
    assert f"{PREFIX}keystore.key is not set" in refused(key_store, PREFIX, type="PEM", chain=chain)
    assert f"{PREFIX}keystore.type has to be PEM" in refused(key_store, PREFIX, type="JKS", key=key, chain=chain)
    assert "are both set" in refused(key_store, PREFIX, type="PEM", key=key, chain=chain, location=file)
    assert "a PEM store has no password; set the password of an encrypted key in" in refused(
        key_store, PREFIX, type="PEM", location=file, password="secret"
    )
    assert "is set, but" in refused(key_store, PREFIX, type="PKCS12", password="secret")
    assert "is set, but" in refused(trust_store, PREFIX, type="PKCS12", password="secret")
    assert "it takes PEM, PKCS12, JKS" in refused(key_store, PREFIX, type="BCFKS", location=file)
    assert f"{PREFIX}keystore.type is not set, and " in refused(
        key_store, PREFIX, type=None, location=str(Path(file).rename(tmp_path / "own"))
    )


# -- Java's own -------------------------------------------------------------------------------------------------------


@pytest.mark.java
def test_what_keytool_makes_is_read(tmp_path: Path) -> None:
    """keytool's stores are read: PKCS#12 with a key, and with trusted certificates. Its JKS format is refused."""

    def keytool(*arguments: str) -> None:
        subprocess.run(["keytool", *arguments, "-storepass", "secret"], check=True, capture_output=True)

    keys, trusts, old = (str(tmp_path / name) for name in ("keys.jks", "trust.p12", "old.jks"))
    made = ["-genkeypair", "-alias", "a", "-keyalg", "RSA", "-dname", "CN=a"]
    keytool(*made, "-keystore", keys)
    keytool("-exportcert", "-rfc", "-alias", "a", "-keystore", keys, "-file", str(tmp_path / "a.pem"))
    keytool("-importcert", "-noprompt", "-alias", "b", "-keystore", trusts, "-file", str(tmp_path / "a.pem"))
    keytool(*made, "-keystore", old, "-storetype", "JKS", "-keypass", "secret")
    found = key_store(PREFIX, type="JKS", location=keys, password="secret")
    assert found is not None
    assert trust_store(PREFIX, type="PKCS12", location=trusts, password="secret") == found.chain
    assert "keytool -importkeystore" in refused(key_store, PREFIX, type="JKS", location=old, password="secret")
