"""The SCRAM credentials for names that are not users, so that salts do not reveal which names are users.

    salt = HMAC-SHA512(secret, mechanism and name), in the form of most users' salts, with their iterations

All brokers of a cluster share the secret (metadata/login_secret.py), so a name always has the same salt at all of them.
"""

import hmac
from collections import Counter
from typing import Final, NamedTuple

from pybroker.security.scram import HASHES, ITERATIONS_MIN, KEY_BYTES, SALT_BYTES, Credential

OF_KAFKAS_TOOLS: Final = 0
"""The size that stands for salts by kafka-configs: 130 random bits, written with the digits 0-9 and a-z."""
_KAFKAS_BITS: Final = 130
_KAFKAS_SIZES: Final = range(20, 27)
_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"
_SALT_BYTES_MAX: Final = 64
"""The size of an HMAC-SHA512, and of librdkafka's salts."""


class Form(NamedTuple):
    """The properties of a credential that a broker's first message shows, besides the salt's bytes."""

    iterations: int
    salt_bytes: int

    @classmethod
    def of(cls, credential: Credential) -> "Form":
        salt = credential.salt
        is_kafkas = len(salt) in _KAFKAS_SIZES and not salt.strip(_DIGITS)
        return cls(credential.iterations, OF_KAFKAS_TOOLS if is_kafkas else min(len(salt), _SALT_BYTES_MAX))


USUAL: Final = Form(ITERATIONS_MIN, SALT_BYTES)
"""The form while no user has a credential; also the form of delegation tokens."""


class Forms:
    """Counts one mechanism's credentials of each form."""

    def __init__(self) -> None:
        self._counts = Counter[Form]()
        self._most: Form | None = USUAL

    def add(self, credential: Credential, count: int = 1) -> None:
        """Count a credential; -1 for one that is gone."""
        form = Form.of(credential)
        self._counts[form] += count
        if not self._counts[form]:
            del self._counts[form]
        self._most = None

    def most(self) -> Form:
        """The most frequent form; among equals the smallest, so that all brokers choose the same."""
        if self._most is None:
            self._most = min(self._counts, key=lambda form: (-self._counts[form], form), default=USUAL)
        return self._most


def made_up(secret: bytes, mechanism: str, name: str, form: Form = USUAL) -> Credential:
    """The credential of a user, or a delegation token, that does not exist. No proof fits its keys."""
    drawn = hmac.digest(secret, f"{mechanism} {name}".encode(), "sha512")
    salt = drawn[: form.salt_bytes]
    if form.salt_bytes == OF_KAFKAS_TOOLS:
        salt = _in_digits(int.from_bytes(drawn, "big") >> (8 * len(drawn) - _KAFKAS_BITS))
    nothing = bytes(KEY_BYTES[HASHES[mechanism]])
    return Credential(salt, nothing, nothing, form.iterations)


def _in_digits(number: int) -> bytes:
    found = bytearray()
    while number:
        number, digit = divmod(number, len(_DIGITS))
        found.append(_DIGITS[digit])
    return bytes(reversed(found))
