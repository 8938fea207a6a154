"""SASL's DIGEST-MD5 as a client, of RFC 2831, as far as ZooKeeper wants it: one login, without a security layer.

    client                                    server
    (nothing)                        ->
                                     <-       realm="zk-sasl-md5",nonce="...",charset=utf-8,algorithm=md5-sess
    username=,realm=,nonce=,cnonce=,
    nc=,qop=,digest-uri=,response=   ->
                                     <-       rspauth=...       the server knows the password, too

The password is never sent, but whoever sees the login can try to guess it: it is no better than MD5.
"""

import hashlib
import hmac
import re
import secrets
from typing import Final

CHALLENGE_BYTES_MAX: Final = 2048
"""RFC 2831 allows a challenge to be this long."""
_DIRECTIVE: Final = re.compile(
    rb'[\s,]*([A-Za-z-]{1,40})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]*))\s*(?:,|$)', re.DOTALL
)
_COUNT: Final = b"00000001"
_QOP: Final = b"auth"


class DigestError(Exception):
    """What the server said is not what this login needs; its text completes "the server ..."."""


class DigestMd5:
    """One login of a user at a service: `respond` to the challenge, then `check` what comes back."""

    def __init__(self, user: str, password: str, uri: str, cnonce: str | None = None) -> None:
        """`uri`: the service and its host, as zookeeper/zk-sasl-md5. `cnonce` is drawn if it is not given."""
        self._user = user.encode()
        self._password = password.encode()
        self._uri = uri.encode()
        self._cnonce = (cnonce or secrets.token_hex(16)).encode()
        self._expected = b""

    def respond(self, challenge: bytes) -> bytes:
        """The answer to a challenge. Raises DigestError."""
        told = _directives(challenge)
        nonce, realm = told.get(b"nonce"), told.get(b"realm", b"")
        if not nonce:
            raise DigestError("does not begin a login by DIGEST-MD5")
        if told.get(b"algorithm") != b"md5-sess":
            raise DigestError("asks for another algorithm than md5-sess")
        if _QOP not in [word.strip() for word in told.get(b"qop", _QOP).split(b",")]:
            raise DigestError("asks for more than a login (qop)")
        utf8 = told.get(b"charset") == b"utf-8"
        secret = _md5(b":".join(self._encoded(part, utf8) for part in (self._user, realm, self._password)))
        session = _hex(secret + b":" + nonce + b":" + self._cnonce)
        middle = b":".join((nonce, _COUNT, self._cnonce, _QOP))
        answers = [_hex(b":".join((session, middle, _hex(kind + self._uri)))) for kind in (b"AUTHENTICATE:", b":")]
        self._expected = answers[1]
        said = [
            b"username=" + _quoted(self._user if utf8 else self._encoded(self._user, utf8)),
            b"realm=" + _quoted(realm),
            b"nonce=" + _quoted(nonce),
            b"nc=" + _COUNT,
            b"cnonce=" + _quoted(self._cnonce),
            b"digest-uri=" + _quoted(self._uri),
            b"response=" + answers[0],
            b"qop=" + _QOP,
        ]
        return b",".join([b"charset=utf-8", *said] if utf8 else said)

    def check(self, last: bytes) -> None:
        """See that the server knows the password. Raises DigestError."""
        if not self._expected or not hmac.compare_digest(_directives(last).get(b"rspauth", b""), self._expected):
            raise DigestError("does not know the password itself")

    @staticmethod
    def _encoded(text: bytes, utf8: bool) -> bytes:
        """In ISO 8859-1 where a text can be written so, whatever else is sent (RFC 2831, 2.1.2.1)."""
        try:
            return text.decode().encode("latin-1")
        except UnicodeError:
            if not utf8:
                raise DigestError("takes no letters beyond ISO 8859-1") from None
            return text


def _directives(text: bytes) -> dict[bytes, bytes]:
    """{name: value}. Raises DigestError."""
    if len(text) > CHALLENGE_BYTES_MAX:
        raise DigestError(f"sends {len(text)} bytes at a login")
    found: dict[bytes, bytes] = {}
    position = 0
    while position < len(text):
        match = _DIRECTIVE.match(text, position)
        if match is None:
            raise DigestError("sends what is no part of a login by DIGEST-MD5")
        name, quoted, bare = match.groups()
        found.setdefault(name.lower(), bare if quoted is None else re.sub(rb"\\(.)", rb"\1", quoted, flags=re.DOTALL))
        position = match.end()
    return found


def _quoted(text: bytes) -> bytes:
    return b'"' + re.sub(rb'(["\\])', rb"\\\1", text) + b'"'


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _hex(data: bytes) -> bytes:
    return _md5(data).hex().encode()
