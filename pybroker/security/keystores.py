"""Key stores and trust stores named by settings: files of PEM or PKCS#12, or PEM in the settings themselves.

    {prefix}keystore.type      PEM       PKCS12, JKS                 {prefix}truststore.type ...
    {prefix}keystore.location  a file    a file                      {prefix}truststore.location
    {prefix}keystore.password  -         of the file                 {prefix}truststore.password
    {prefix}key.password       of the key, if it is encrypted        -
    {prefix}keystore.key       in place of the file, with
    {prefix}keystore.certificate.chain                               {prefix}truststore.certificates

`prefix` is ssl., listener.name.NAME.ssl. or zookeeper.ssl. Every error names the file and the setting in one sentence.
With type JKS a PKCS#12 file is accepted, as in Java: keytool has written these since Java 9. Only Java reads real JKS.
"""

from __future__ import annotations

import os
import re
import ssl
import stat
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from pybroker.config.settings import ConfigError, shown
from pybroker.errors import system_words
from pybroker.security.tls_errors import ssl_words

if TYPE_CHECKING:  # its import is too slow for a start
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.x509 import Certificate

PEM: Final = "PEM"
PKCS12: Final = "PKCS12"
JKS: Final = "JKS"
TYPES: Final = (PEM, PKCS12, JKS)
SUFFIXES: Final = {".pem": PEM, ".p12": PKCS12, ".pfx": PKCS12, ".jks": JKS}
"""The type by the file's suffix, used if no type is set, as by ZooKeeper's clients."""
FILE_BYTES_MAX: Final = 4 << 20
"""The largest file that is read: more than any list of certificates needs."""
BAD_CERTIFICATE: Final = "has a certificate that cannot be read"
_MAGICS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
"""The first bytes of a JKS and of a JCEKS."""
_EDGE: Final = re.compile(rb"-----(BEGIN|END) ([A-Z0-9 ]{1,40})-----")
_KEY: Final = "PRIVATE KEY"
_TRADITIONAL: Final = ("RSA PRIVATE KEY", "EC PRIVATE KEY", "DSA PRIVATE KEY")
_CERTIFICATES: Final = ("CERTIFICATE", "X509 CERTIFICATE")


class KeyPair(NamedTuple):
    """An unencrypted private key and its certificate chain, its own certificate first; both PEM."""

    chain: bytes
    key: bytes

    def __repr__(self) -> str:
        return "KeyPair(...)"

    @property
    def last(self) -> bytes:
        """The last certificate of the chain, the highest issuer in the store."""
        return self.chain[self.chain.rindex(b"-----BEGIN ") :]

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load the pair into a context. The ssl module reads only files, so this uses one in memory."""
        fd = os.memfd_create("key store", os.MFD_CLOEXEC)
        try:
            os.write(fd, self.key + b"\n" + self.chain)
            context.load_cert_chain(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)


class Ending(NamedTuple):
    """The certificate whose expiry makes a store unusable: the store's name, its subject, its end."""

    store: str
    subject: str
    ends: datetime


class _Source(NamedTuple):
    """The bytes of a store, and their name in errors."""

    name: str
    data: bytes

    def refuse(self, why: str) -> ConfigError:
        return ConfigError(f"{self.name} {why}")


def key_store(
    prefix: str, *, type: str | None, location: str | None = None, password: str | None = None,
    key_password: str | None = None, key: str | None = None, chain: str | None = None,
    key_password_setting: str | None = None, dated: bool = True,
) -> KeyPair | None:  # fmt: skip
    """The key and certificates of the settings with this prefix; None if there are none. Raises ConfigError.

    `type` is one of TYPES; None: by the file's suffix. `key_password_setting`: the name of the setting with the key's
    password, if it is not {prefix}key.password. `dated`: refuse a certificate that is not valid now."""
    setting = f"{prefix}keystore"
    key_password_setting = key_password_setting or f"{prefix}key.password"
    if key is not None or chain is not None:
        inline = {f"{setting}.key": key, f"{setting}.certificate.chain": chain}
        missing = next((name for name, text in inline.items() if text is None), None)
        if missing is not None:
            raise ConfigError(f"{missing} is not set, but {next(n for n in inline if n != missing)} needs it")
        _only_inline(setting, f"{setting}.key", type, location)
        _no_store_password(setting, password, key_password_setting)
        sources = [_inline(name, text) for name, text in inline.items() if text is not None]
        return _pair_of_pem(sources[0], sources[1], key_password, key_password_setting, dated)
    if location is None:
        if password is not None:
            raise ConfigError(f"{setting}.password is set, but {setting}.location is not")
        return None
    kind, source = _type(setting, type, location), _read(f"{setting}.location", location)
    if kind == PEM:
        _no_store_password(setting, password, key_password_setting)
        return _pair_of_pem(source, source, key_password, key_password_setting, dated)
    found, certificate, others = _pkcs12(source, password, f"{setting}.password")
    if found is None or certificate is None:
        raise source.refuse("has no private key with its certificate")
    return _pair(source, found, _in_order(certificate, others), dated)


def trust_store(
    prefix: str, *, type: str | None, location: str | None = None, password: str | None = None,
    certificates: str | None = None, dated: bool = True,
) -> bytes | None:  # fmt: skip
    """The trusted certificates as PEM; None if no setting names any. Raises ConfigError; with `dated` also if all have
    expired."""
    setting = f"{prefix}truststore"
    if certificates is not None:
        _only_inline(setting, f"{setting}.certificates", type, location)
        _no_store_password(setting, password)
        source = _inline(f"{setting}.certificates", certificates)
        return _anchors(source, _certificates(source), dated)
    if location is None:
        if password is not None:
            raise ConfigError(f"{setting}.password is set, but {setting}.location is not")
        return None
    kind, source = _type(setting, type, location), _read(f"{setting}.location", location)
    if kind == PEM:
        _no_store_password(setting, password)
        return _anchors(source, _certificates(source), dated)
    _, certificate, others = _pkcs12(source, password, f"{setting}.password")
    return _anchors(source, [each for each in (certificate, *others) if each is not None], dated)


def ending_of(store: str, pem: bytes, *, trusted: bool) -> Ending:
    """The certificate whose expiry makes a store (PEM) unusable: the first to expire, or with `trusted` the last."""
    found = _certificates(_Source(store, pem))
    each = (max if trusted else min)(found, key=lambda certificate: certificate.not_valid_after_utc)
    return Ending(store, each.subject.rfc4514_string(), each.not_valid_after_utc)


def is_pem(type: str | None, location: str) -> bool:
    """True if a file is PEM, by its type or, without one, by its suffix."""
    return (type.upper() if type is not None else SUFFIXES.get(os.path.splitext(location)[1].lower())) == PEM


# -- types and sources ------------------------------------------------------------------------------------------------


def _type(setting: str, type: str | None, location: str) -> str:
    if type is None:
        suffix = os.path.splitext(location)[1].lower()
        if suffix not in SUFFIXES:
            raise ConfigError(
                f"{setting}.type is not set, and {location} ({setting}.location) has none of the known suffixes: "
                f"set the type to one of {', '.join(TYPES)}"
            )
        return SUFFIXES[suffix]
    if type.upper() not in TYPES:
        raise ConfigError(f"{setting}.type = {shown(type)} is not supported: it takes {', '.join(TYPES)}")
    return type.upper()


def _only_inline(setting: str, name: str, type: str | None, location: str | None) -> None:
    if type is None or type.upper() != PEM:
        raise ConfigError(f"{name} is PEM: {setting}.type has to be {PEM}")
    if location is not None:
        raise ConfigError(f"{setting}.location and {name} are both set: set only one of them")


def _no_store_password(setting: str, password: str | None, instead: str | None = None) -> None:
    if password is not None:
        hint = "" if instead is None else f"; set the password of an encrypted key in {instead}"
        raise ConfigError(f"{setting}.password is set, but a {PEM} store has no password{hint}")


def _inline(name: str, text: str) -> _Source:
    return _Source(f"the value of {name}", text.encode(errors="replace"))


def _read(name: str, location: str) -> _Source:
    """Read a file, bounded in size; a pipe or device is refused, so that it cannot block a start."""
    called = f"{location} ({name})"
    try:
        fd = os.open(location, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ConfigError(f"{called} is not a regular file")
            with open(fd, "rb", closefd=False) as file:
                data = file.read(FILE_BYTES_MAX + 1)
        finally:
            os.close(fd)
    except OSError as problem:
        raise ConfigError(f"{called} cannot be read: {system_words(problem)}") from None
    except ValueError:  # a name with a NUL in it
        raise ConfigError(f"{shown(location)} ({name}) is not a file name") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{called} is larger than {FILE_BYTES_MAX} bytes: it is not a key store")
    return _Source(called, data)


# -- PEM --------------------------------------------------------------------------------------------------------------


def _blocks(source: _Source) -> list[tuple[str, bytes]]:
    """The name and text of each PEM block, from a BEGIN line to the END line of the same name."""
    found, begin = [], None
    for edge in _EDGE.finditer(source.data):
        if edge[1] == b"BEGIN":
            begin = edge
        elif begin is not None and begin[2] == edge[2]:
            found.append((edge[2].decode(), source.data[begin.start() : edge.end()]))
            begin = None
    if not found:
        is_java = source.data.startswith(_MAGICS)
        raise _convert(source) if is_java else source.refuse("is not PEM: it has no -----BEGIN ...----- block")
    return found


def _certificates(source: _Source) -> list[Certificate]:
    from cryptography import x509

    found = []
    for name, block in _blocks(source):
        if name in _CERTIFICATES:
            try:
                with warnings.catch_warnings(action="ignore"):
                    found.append(x509.load_pem_x509_certificate(block))
            except ValueError:
                raise source.refuse(BAD_CERTIFICATE) from None
    _look(source, found)
    if not found:
        raise source.refuse("has no certificate")
    return found


def _pair_of_pem(
    of_key: _Source, of_chain: _Source, password: str | None, password_setting: str, dated: bool
) -> KeyPair:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    blocks = [(name, block) for name, block in _blocks(of_key) if name.endswith(_KEY)]
    if len(blocks) != 1:
        raise of_key.refuse("has no private key" if not blocks else f"has {len(blocks)} private keys: one is allowed")
    name, block = blocks[0]
    encrypted = name == f"ENCRYPTED {_KEY}" or (name in _TRADITIONAL and b"ENCRYPTED" in block)
    if encrypted and not password:
        raise of_key.refuse(f"has an encrypted private key: set {password_setting}")
    try:
        key = load_pem_private_key(block, password.encode() if encrypted and password is not None else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as problem:
        if encrypted:
            raise of_key.refuse(
                f"has a private key that {password_setting} does not decrypt, or that is damaged"
            ) from None
        raise of_key.refuse(f"has a private key that cannot be read: {_words(problem)}") from None
    certificates = _certificates(of_chain)
    return _pair(of_chain, key, _in_order(_own(certificates, key) or certificates[0], certificates), dated)


def _own(certificates: Sequence[Certificate], key: PrivateKeyTypes) -> Certificate | None:
    public = key.public_key()
    return next((each for each in certificates if _quietly(each.public_key) == public), None)


# -- PKCS#12 ----------------------------------------------------------------------------------------------------------


def _pkcs12(
    source: _Source, password: str | None, setting: str
) -> tuple[PrivateKeyTypes | None, Certificate | None, list[Certificate]]:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

    if source.data.startswith(_MAGICS):
        raise _convert(source)
    if b"-----BEGIN " in source.data:
        raise source.refuse(f"is {PEM}: {setting.removesuffix('password')}type has to be {PEM}")
    try:
        with warnings.catch_warnings(action="ignore"):  # about files that Java accepts
            found = load_pkcs12(source.data, None if password is None else password.encode())
    except UnsupportedAlgorithm as problem:
        raise source.refuse(f"is encrypted in a way that is not supported: {_words(problem)}") from None
    except ValueError:
        if password is None:
            raise source.refuse(f"cannot be read as PKCS#12 without a password: {setting} is not set") from None
        raise source.refuse(f"cannot be read as PKCS#12: {setting} is wrong, or the file is damaged") from None
    own = None if found.cert is None else found.cert.certificate
    others = [each.certificate for each in found.additional_certs]
    _look(source, others if own is None else [own, *others])
    return found.key, own, others


def _convert(source: _Source) -> ConfigError:
    return source.refuse(
        "is a JKS, which only Java can read: convert it with keytool -importkeystore -srckeystore OLD.jks "
        "-destkeystore NEW.p12 -deststoretype PKCS12"
    )


def _look(source: _Source, certificates: Sequence[Certificate]) -> None:
    """Raise ConfigError for a malformed certificate: fields are parsed only when they are read."""
    for each in certificates:
        try:
            _ = each.subject, each.issuer, each.not_valid_before_utc, each.not_valid_after_utc
        except ValueError:
            raise source.refuse(BAD_CERTIFICATE) from None


# -- checks of key pairs and trusted certificates ---------------------------------------------------------------------


def _in_order(own: Certificate, others: Sequence[Certificate]) -> list[Certificate]:
    """The certificates in the order of a handshake: the own one, its issuer's, and so on."""
    chain, rest = [own], [each for each in others if each != own]
    while named := [each for each in rest if each.subject == chain[-1].issuer]:
        signed_by = next((each for each in named if _has_signed(each, chain[-1])), named[0])
        rest.remove(signed_by)
        chain.append(signed_by)
    return chain


def _has_signed(issuer: Certificate, certificate: Certificate) -> bool:
    """True if this issuer signed the certificate: after a change of keys two issuers have the same name."""
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, UnsupportedAlgorithm, TypeError, ValueError):
        return False
    return True


def _pair(source: _Source, key: PrivateKeyTypes, chain: Sequence[Certificate], dated: bool) -> KeyPair:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    if _own(chain[:1], key) is None:
        raise source.refuse("has no certificate that matches the private key")
    now = datetime.now(UTC)
    since, until = chain[0].not_valid_before_utc, chain[0].not_valid_after_utc
    if dated and now > until:
        raise source.refuse(f"has a certificate that expired on {_day(until)}")
    if dated and now < since:
        raise source.refuse(f"has a certificate that is not valid before {_day(since)}")
    pair = KeyPair(_as_pem(chain), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    try:
        pair.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    except ssl.SSLError as problem:  # the key is too short, or the signature too weak
        raise source.refuse(f"has a key or a certificate that OpenSSL refuses: {ssl_words(problem)}") from None
    return pair


def _anchors(source: _Source, certificates: Sequence[Certificate], dated: bool) -> bytes:
    if not certificates:
        raise source.refuse("has no certificate")
    last = max(each.not_valid_after_utc for each in certificates)
    if dated and datetime.now(UTC) > last:
        raise source.refuse(f"has only expired certificates: the last one expired on {_day(last)}")
    return _as_pem(certificates)


def _as_pem(certificates: Sequence[Certificate]) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return b"".join(each.public_bytes(Encoding.PEM) for each in certificates)


def _day(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"


def _quietly(call: Callable[[], object]) -> object:
    """The result of `call`; None if a certificate's type of key is not supported."""
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        return call()
    except (UnsupportedAlgorithm, ValueError):
        return None


def _words(problem: Exception) -> str:
    """The first sentence of a library's error."""
    return str(problem).split("\n")[0].split(". ")[0][:200] or type(problem).__name__
