"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, 7677): the credential that a broker keeps, and both sides of the exchange.

    client  n,,n=user,r=nonce                    >
            < r=nonce+more,s=salt,i=iterations      server
    client  c=biws,r=nonce+more,p=proof          >
            < v=signature                           server

The credential holds no password. Its text in `/config/users` is Kafka's: salt=.,stored_key=.,server_key=.,iterations=N.
A user that does not exist gets the same answers as one that does, and fails with the proof. Until some version of 2.x
librdkafka sends its own nonce twice in its second message: this is accepted. Kafka accepts any nonce with the right
ending.
"""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from pybroker.security.mechanism import BadCredentials

HASHES: Final[Mapping[str, str]] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
KEY_BYTES: Final[Mapping[str, int]] = {name: hashlib.new(name).digest_size for name in HASHES.values()}
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
"""Kafka's limits for a new credential."""
CLIENT_ITERATIONS_MAX: Final = 1_000_000
"""The most iterations that a server can make a client compute; librdkafka has the same limit."""
TOKEN_BYTES_MAX: Final = 4096
"""The largest message of the exchange: far more than needed."""
TOKENAUTH: Final = "tokenauth=true"
"""Kafka's extension for delegation tokens (KIP-48)."""
SALT_BYTES: Final = 24
NONCE_BYTES: Final = 18

_VALUE: Final = r"[\x21-\x2b\x2d-\x7e]"
_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_CLIENT_FIRST: Final = re.compile(
    rf"(?P<gs2>n,(?:a=(?P<authzid>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<user>{_NAME}),r=(?P<nonce>{_VALUE}+)(?P<extensions>(?:,[A-Za-z]+=[^,\x00]+)*))",
    re.ASCII,
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<unproven>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>{_VALUE}+)(?:,[A-Za-z]+=[^,\x00]+)*),"
    r"p=(?P<proof>[A-Za-z0-9+/=]+)",
    re.ASCII,
)
_SERVER_FIRST: Final = re.compile(
    rf"r=(?P<nonce>{_VALUE}+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<iterations>[1-9][0-9]{{0,8}})(?:,.*)?", re.ASCII
)


class Credential(NamedTuple):
    """The data that a broker keeps to verify a password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    @classmethod
    def parse(cls, mechanism: str, text: str) -> "Credential":
        """Read a credential from `/config/users`. ValueError if it is malformed; the message does not quote it."""
        fields: dict[str, str] = {}
        for part in text.split(","):
            name, equals, value = part.partition("=")
            if not equals or name in fields:
                raise ValueError("it is not a SCRAM credential")
            fields[name] = value
        if fields.keys() != {"salt", "stored_key", "server_key", "iterations"}:
            raise ValueError("it is not a SCRAM credential")
        try:
            found = cls(
                base64.b64decode(fields["salt"], validate=True),
                base64.b64decode(fields["stored_key"], validate=True),
                base64.b64decode(fields["server_key"], validate=True),
                int(fields["iterations"]),
            )
        except ValueError:
            raise ValueError("it is not a SCRAM credential") from None
        size = KEY_BYTES[HASHES[mechanism]]
        if not found.salt or {len(found.stored_key), len(found.server_key)} != {size} or found.iterations < 1:
            raise ValueError(f"it is not a credential of {mechanism}")
        return found

    @classmethod
    def of_salted(cls, mechanism: str, salted_password: bytes, salt: bytes, iterations: int) -> "Credential":
        """Make a credential from a salted password, as AlterUserScramCredentials sends it."""
        name = HASHES[mechanism]
        client_key = hmac.digest(salted_password, b"Client Key", name)
        stored_key = hashlib.new(name, client_key).digest()
        return cls(salt, stored_key, hmac.digest(salted_password, b"Server Key", name), iterations)

    @classmethod
    def of_password(
        cls, mechanism: str, password: str, iterations: int = ITERATIONS_MIN, salt: bytes | None = None
    ) -> "Credential":
        """Make a credential from a password, with a random salt if none is given. Takes milliseconds."""
        salt = salt or secrets.token_bytes(SALT_BYTES)
        return cls.of_salted(mechanism, salted(mechanism, password, salt, iterations), salt, iterations)

    def is_of(self, mechanism: str, password: str) -> bool:
        """True if the credential was made from this password. Takes milliseconds."""
        made = self.of_salted(mechanism, salted(mechanism, password, self.salt, self.iterations), self.salt, 0)
        return hmac.compare_digest(made.stored_key, self.stored_key)

    def text(self) -> str:
        """The text for `/config/users`."""
        salt, stored, server = (_base64(each) for each in self[:3])
        return f"salt={salt},stored_key={stored},server_key={server},iterations={self.iterations}"


def salted(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """The salted password (PBKDF2)."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


class TokenLogin(NamedTuple):
    """The login of a delegation token: a credential with which a client logs in as the owner, until it expires."""

    credential: Credential
    owner: str
    ends_ms: int


class ScramServer:
    """The broker's side of one exchange. A user that does not exist costs as many look-ups and hashes as another."""

    def __init__(
        self,
        mechanism: str,
        look_up: Callable[[str], Credential | None],
        made_up: Callable[[str, bool], Credential],
        nonce: str | None = None,
        look_up_token: Callable[[str], TokenLogin | None] = lambda _: None,
    ) -> None:
        """`look_up` returns the credential of a user, None if there is none; `made_up` one to answer with then, always
        the same for one name (its flag is True for a delegation token). `nonce` is appended to the client's; random if
        not given. `look_up_token` returns a delegation token by its id, which clients send in place of a user name,
        with the extension tokenauth=true."""
        self.mechanism = mechanism
        self.user: str | None = None
        self.expires_ms: int | None = None
        self.by_token = False
        self.claimed = ""
        self._look_up_token = look_up_token
        self._hash = HASHES[mechanism]
        self._look_up = look_up
        self._made_up = made_up
        self._first: re.Match[str] | None = None
        self._asked_user = ""
        self._server_first = ""
        self._more = nonce or _base64(secrets.token_bytes(NONCE_BYTES))
        self._nonce = ""
        self._credential: Credential | None = None
        self._is_known = False

    def step(self, token: bytes) -> bytes:
        """The answer to one message of the client; `user` is set once the proof is right. Raises BadCredentials."""
        if len(token) > TOKEN_BYTES_MAX:
            raise BadCredentials(self.refusal)
        try:
            text = token.decode("ascii")
        except UnicodeDecodeError:
            raise BadCredentials(self.refusal) from None
        if self._first is None:
            return self._challenge(text)
        if not self._server_first or self.user is not None:
            raise BadCredentials(self.refusal)
        return self._verify(text)

    @property
    def refusal(self) -> str:
        """Kafka's error message, for every kind of failure."""
        return (
            "Authentication failed during authentication due to invalid credentials with SASL mechanism "
            f"{self.mechanism}"
        )

    def _challenge(self, text: str) -> bytes:
        found = _CLIENT_FIRST.fullmatch(text)
        if found is None:
            raise BadCredentials(self.refusal)
        self.claimed = user = _plain(found["user"])
        if found["authzid"] is not None and _plain(found["authzid"]) != user:
            raise BadCredentials(self.refusal)
        self._first = found
        self._asked_user = user
        self.by_token = TOKENAUTH in found["extensions"].lower().split(",")
        known: Credential | None = None
        if not self.by_token:
            known = self._look_up(user)
        elif (token := self._look_up_token(user)) is not None:
            known, self._asked_user, self.expires_ms = token
        made_up = self._made_up(user, self.by_token)  # for a known user too, so that both take the same time
        self._credential, self._is_known = known or made_up, known is not None
        self._nonce = found["nonce"] + self._more
        salt, iterations = self._credential.salt, self._credential.iterations
        self._server_first = f"r={self._nonce},s={_base64(salt)},i={iterations}"
        return self._server_first.encode()

    def _verify(self, text: str) -> bytes:
        assert self._first is not None and self._credential is not None
        server_first, self._server_first = self._server_first, ""  # one try
        found = _CLIENT_FINAL.fullmatch(text)
        if found is None or found["nonce"] not in (self._nonce, self._first["nonce"] + self._nonce):
            raise BadCredentials(self.refusal)
        if found["binding"] != _base64(self._first["gs2"].encode()):
            raise BadCredentials(self.refusal)
        try:
            proof = base64.b64decode(found["proof"], validate=True)
        except ValueError:
            raise BadCredentials(self.refusal) from None
        held = self._credential
        signed = f"{self._first['bare']},{server_first},{found['unproven']}".encode()
        signature = hmac.digest(held.stored_key, signed, self._hash)
        if len(proof) != len(signature):
            raise BadCredentials(self.refusal)
        client_key = _xor(proof, signature)
        proven = hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), held.stored_key)
        if not proven or not self._is_known:
            raise BadCredentials(self.refusal)
        self.user = self._asked_user
        return b"v=" + _base64(hmac.digest(held.server_key, signed, self._hash)).encode()


class ScramClient:
    """A client's side of one exchange."""

    def __init__(
        self, mechanism: str, user: str, password: str, nonce: str | None = None, *, by_token: bool = False
    ) -> None:
        """`by_token`: user and password are the id of a delegation token and its secret in base64."""
        self.mechanism = mechanism
        self.done = False
        self._hash = HASHES[mechanism]
        self._password = password
        self._nonce = nonce or _base64(secrets.token_bytes(NONCE_BYTES))
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={self._nonce}"
        if by_token:
            self._bare += f",{TOKENAUTH}"
        self._expected: bytes | None = None

    def start(self) -> bytes:
        """The first message."""
        return f"n,,{self._bare}".encode()

    def step(self, token: bytes) -> bytes | None:
        """The answer to a message of the server; None once the server's signature is right. Raises BadCredentials."""
        if self._expected is not None:
            if not hmac.compare_digest(token, b"v=" + _base64(self._expected).encode()):
                raise BadCredentials("the broker did not prove that it knows the password's credential")
            self.done = True
            return None
        found = _SERVER_FIRST.fullmatch(token.decode("ascii", "replace")) if len(token) <= TOKEN_BYTES_MAX else None
        if found is None or not found["nonce"].startswith(self._nonce) or found["nonce"] == self._nonce:
            raise BadCredentials("the broker sent a malformed SCRAM message")
        iterations = int(found["iterations"])
        if not ITERATIONS_MIN <= iterations <= CLIENT_ITERATIONS_MAX:
            allowed = f"{ITERATIONS_MIN} to {CLIENT_ITERATIONS_MAX} are allowed"
            raise BadCredentials(f"the broker asks for {iterations} iterations: {allowed}")
        try:
            salt = base64.b64decode(found["salt"], validate=True)
        except ValueError:
            raise BadCredentials("the broker sent a malformed SCRAM message") from None
        return self._prove(token.decode(), found["nonce"], salt, iterations)

    def _prove(self, server_first: str, nonce: str, salt: bytes, iterations: int) -> bytes:
        key = salted(self.mechanism, self._password, salt, iterations)
        client_key = hmac.digest(key, b"Client Key", self._hash)
        unproven = f"c=biws,r={nonce}"
        signed = f"{self._bare},{server_first},{unproven}".encode()
        signature = hmac.digest(hashlib.new(self._hash, client_key).digest(), signed, self._hash)
        self._expected = hmac.digest(hmac.digest(key, b"Server Key", self._hash), signed, self._hash)
        return f"{unproven},p={_base64(_xor(client_key, signature))}".encode()


def _plain(name: str) -> str:
    """A user name without the escapes of the exchange."""
    return name.replace("=2C", ",").replace("=3D", "=")


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
