"""Encrypts and decrypts stored passwords, in the format of Kafka's EncryptingPasswordEncoder.

    initializationVector:B64,keyLength:128,salt:B64,keyFactoryAlgorithm:PBKDF2WithHmacSHA512,
    cipherAlgorithm:AES/CBC/PKCS5Padding,iterations:4096,passwordLength:17,encryptedPassword:B64

The key is PBKDF2 of the secret and the salt. Decryption uses the parameters in the text, in any order, not the broker's
settings, so a new cipher does not affect stored passwords. `passwordLength` counts UTF-16 units, as Java, and detects a
wrong secret if the padding does not. With GCM there is also authenticationTagLength.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pybroker.config.security_settings import (
    CIPHERS,
    ENCODER_CIPHER,
    ENCODER_ITERATIONS,
    ENCODER_KEY_FACTORY,
    ENCODER_KEY_LENGTH,
    ENCODER_OLD_SECRET,
    ENCODER_SECRET,
    ITERATIONS_MAX,
    KEY_BITS,
    KEY_FACTORIES,
    KEY_FACTORY,
)
from pybroker.config.settings import shown

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig

CBC_CIPHER, GCM_CIPHER = CIPHERS
SALT_BYTES: Final = 256
BLOCK_BYTES: Final = 16
GCM_VECTOR_BYTES: Final = 12
TAG_BITS: Final = 128
NO_PASSWORD: Final = "it is not an encrypted password"
NOT_DECRYPTED: Final = f"{ENCODER_SECRET} does not decrypt it: the secret was changed, or the text is damaged"


class Undecodable(ValueError):
    """A text cannot be decrypted. The message is the reason, to follow a colon, and quotes only names of algorithms."""


class PasswordEncoder:
    """Encrypts and decrypts with one secret."""

    def __init__(
        self,
        secret: str,
        *,
        cipher: str = CBC_CIPHER,
        key_factory: str = KEY_FACTORY,
        key_bits: int = 128,
        iterations: int = 4096,
    ) -> None:
        self._secret = secret.encode()
        self._cipher = cipher
        self._key_factory = key_factory
        self._key_bits = key_bits
        self._iterations = iterations

    @classmethod
    def of(cls, config: BrokerConfig, secret: str = ENCODER_SECRET) -> PasswordEncoder | None:
        """The encoder with the secret in this setting; None if it is not set."""
        text = config[secret]
        if not text:
            return None
        return cls(
            text,
            cipher=config[ENCODER_CIPHER],
            key_factory=config[ENCODER_KEY_FACTORY] or KEY_FACTORY,
            key_bits=config[ENCODER_KEY_LENGTH],
            iterations=config[ENCODER_ITERATIONS],
        )

    @classmethod
    def of_before(cls, config: BrokerConfig) -> PasswordEncoder | None:
        """The encoder with the old secret; None if it is not set."""
        return cls.of(config, ENCODER_OLD_SECRET)

    def __repr__(self) -> str:
        return "PasswordEncoder(...)"

    def encode(self, password: str) -> str:
        """The encrypted password. Takes milliseconds, without the GIL."""
        salt = os.urandom(SALT_BYTES)
        vector = os.urandom(GCM_VECTOR_BYTES if self._cipher == GCM_CIPHER else BLOCK_BYTES)
        key = self._key(self._key_factory, salt, self._iterations, self._key_bits)
        tag = {"authenticationTagLength": str(TAG_BITS)} if self._cipher == GCM_CIPHER else {}
        written = {
            "initializationVector": _text_of(vector),
            "keyLength": str(self._key_bits),
            "salt": _text_of(salt),
            "keyFactoryAlgorithm": self._key_factory,
            "cipherAlgorithm": self._cipher,
            **tag,
            "iterations": str(self._iterations),
            "passwordLength": str(_java_length(password)),
            "encryptedPassword": _text_of(_encrypted(self._cipher, key, vector, password.encode())),
        }
        return ",".join(f"{name}:{value}" for name, value in written.items())

    def decode(self, text: str) -> str:
        """The password. Raises Undecodable. As slow as `encode`, depending on the iterations in the text."""
        parts = {name.strip(): value.strip() for name, _, value in (p.rpartition(":") for p in text.split(","))}
        try:
            bits, iterations, length = (int(parts[n]) for n in ("keyLength", "iterations", "passwordLength"))
            salt, vector, data = (_bytes_of(parts, n) for n in ("salt", "initializationVector", "encryptedPassword"))
            cipher, key_factory = parts["cipherAlgorithm"], parts["keyFactoryAlgorithm"]
        except (KeyError, ValueError):
            raise Undecodable(NO_PASSWORD) from None
        for name, value, allowed in (
            ("cipherAlgorithm", cipher, CIPHERS),
            ("keyFactoryAlgorithm", key_factory, tuple(KEY_FACTORIES)),
            ("keyLength", bits, KEY_BITS),
        ):
            if value not in allowed:
                raise Undecodable(f"its {name} is {shown(str(value))}; allowed are {', '.join(map(str, allowed))}")
        if not 0 < iterations <= ITERATIONS_MAX:
            raise Undecodable(f"its iterations are {iterations}; allowed are 1 to {ITERATIONS_MAX}")
        try:
            password = _decrypted(cipher, self._key(key_factory, salt, iterations, bits), vector, data).decode()
        except ValueError:  # a UnicodeDecodeError is one
            raise Undecodable(NOT_DECRYPTED) from None
        if _java_length(password) != length:
            raise Undecodable(NOT_DECRYPTED)
        return password

    def _key(self, key_factory: str, salt: bytes, iterations: int, bits: int) -> bytes:
        return hashlib.pbkdf2_hmac(KEY_FACTORIES[key_factory], self._secret, salt, iterations, bits // 8)


def _encrypted(cipher: str, key: bytes, vector: bytes, data: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if cipher == GCM_CIPHER:
        return AESGCM(key).encrypt(vector, data, None)
    encryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).encryptor()
    padding = BLOCK_BYTES - len(data) % BLOCK_BYTES
    return encryptor.update(data + bytes([padding]) * padding) + encryptor.finalize()


def _decrypted(cipher: str, key: bytes, vector: bytes, data: bytes) -> bytes:
    """Decrypt data. Raises ValueError for a wrong key, or an invalid length."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if cipher == GCM_CIPHER:
        try:
            return AESGCM(key).decrypt(vector, data, None)
        except InvalidTag:
            raise ValueError("the tag does not match") from None
    decryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).decryptor()
    plain = decryptor.update(data) + decryptor.finalize()
    padding = plain[-1] if plain else 0
    if not 0 < padding <= BLOCK_BYTES or plain[-padding:] != bytes([padding]) * padding:
        raise ValueError("the padding is invalid")
    return plain[:-padding]


def _java_length(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def _text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes_of(parts: Mapping[str, str], name: str) -> bytes:
    return base64.b64decode(parts[name], validate=True)
