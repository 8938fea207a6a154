"""The client side of SASL DIGEST-MD5 (RFC 2831), as far as ZooKeeper needs it: one login, without a security layer.

    client                                    server
    (nothing)                        ->
                                     <-       realm="zk-sasl-md5",nonce="...",charset=utf-8,algorithm=md5-sess
    username=,realm=,nonce=,cnonce=,
    nc=,qop=,digest-uri=,response=   ->
                                     <-       rspauth=...       the server knows the password, too

The password is never sent, but an eavesdropper on the login can guess passwords offline, as the hash is only MD5.
"""

import hashlib
import hmac
import re
import secrets
from typing import Final

CHALLENGE_BYTES_MAX: Final = 2048
"""The longest challenge by RFC 2831."""
_DIRECTIVE: Final = re.compile(
    rb'[\s,]*([A-Za-z-]{1,40})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]*))\s*(?:,|$)', re.DOTALL
)
_COUNT: Final = b"00000001"
_QOP: Final = b"auth"


class DigestError(Exception):
    """The server's message does not fit this login; the text completes "the server ..."."""


class DigestMd5:
    """One login of a user at a service: `respond` to the challenge, then `check` the last message."""

    def __init__(self, user: str, password: str, uri: str, cnonce: str | None = None) -> None:
        """`uri`: the service and its host, as zookeeper/zk-sasl-md5. `cnonce` is random if not given."""
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
            raise DigestError("did not send a DIGEST-MD5 challenge")
        if told.get(b"algorithm") != b"md5-sess":
            raise DigestError("requires an algorithm other than md5-sess")
        if _QOP not in [word.strip() for word in told.get(b"qop", _QOP).split(b",")]:
            raise DigestError("requires a security layer (qop)")
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
        """Check that the server knows the password. Raises DigestError."""
        if not self._expected or not hmac.compare_digest(_directives(last).get(b"rspauth", b""), self._expected):
            raise DigestError("did not prove that it knows the password")

    @staticmethod
    def _encoded(text: bytes, utf8: bool) -> bytes:
        """The text in ISO 8859-1 if possible, otherwise in UTF-8 (RFC 2831, 2.1.2.1)."""
        try:
            return text.decode().encode("latin-1")
        except UnicodeError:
            if not utf8:
                raise DigestError("accepts only characters of ISO 8859-1 in user and password") from None
            return text


def _directives(text: bytes) -> dict[bytes, bytes]:
    """{name: value}. Raises DigestError."""
    if len(text) > CHALLENGE_BYTES_MAX:
        raise DigestError(f"sent {len(text)} bytes in one message of the login: {CHALLENGE_BYTES_MAX} are allowed")
    found: dict[bytes, bytes] = {}
    position = 0
    while position < len(text):
        match = _DIRECTIVE.match(text, position)
        if match is None:
            raise DigestError("sent a malformed DIGEST-MD5 message")
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
