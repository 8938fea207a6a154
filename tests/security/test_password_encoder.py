"""Passwords in Kafka's format: those of its EncryptingPasswordEncoder are read, and damaged ones are refused."""

from __future__ import annotations

import pytest

from pybroker.config import BrokerConfig, ConfigError
from pybroker.config.security_settings import CIPHERS, ITERATIONS_MAX, KEY_FACTORIES
from pybroker.security.password_encoder import NO_PASSWORD, NOT_DECRYPTED, PasswordEncoder, Undecodable
from tests.rows import with_each

SECRET, PASSWORD = "secrét of the encoder", "pässword, with: \N{MUSICAL SYMBOL G CLEF}"
BY_KAFKA = (
    "initializationVector:lB7sZLRfb/Cv1U4Rbrc/Vw==,keyLength:128,salt:BLlZ0/KAwxSSrvDkIxz3ocgDZjvf9begi1+uktRErdB"
    "H3Fdfzn+PIWejnAKgNTodUxLM6HpsmnaGrDJ4LWxEYIlw1BzFrKDyRYqnYJYnJIXucmfZL9A1CKdzPAXzoLuBmFkfaphidQMsYIwd+kKRwUZ"
    "HQ3sHbZR5/IY9jqldBidM1BpJDETDK0FnSGogy2h2bSvvR5AMJNz/PFEQ/TQhVFgeShS58y3QaxIJ0QrIfJsOkFp0UHVMZOVCKuqMnOQPrWi"
    "Ewer4fuRITbQOd2HNvN83qvdGOA+bEx9w+3GFAPnv720vTctwrInZ0BJa9WeTqzbBgrRgr7JtrBlPhtgvUw==,keyFactoryAlgorithm:PB"
    "KDF2WithHmacSHA512,cipherAlgorithm:AES/CBC/PKCS5Padding,iterations:4096,passwordLength:18,encryptedPassword:"
    "Adzx58x2fLyEoxk9QTJeVDyBcduWFbn/L1wr1uIMXEI=",
    "initializationVector:FB8mCHtKNuJLxKWtRstbaQ==,keyLength:256,salt:5fNcUPfdd6OXG6curANxqrDp7kA/vWGD87ElNyfqHS/"
    "ONbPRSlkJSnAKPz38YWtf5jPrReQfW7aDciWW4l6J3RRV8u5tcyoGgC+qWxtEliGwjOuZ3B8xhc5w+NwvaviThVeYwc73Tyqr5c/R1sZ75mP"
    "KliSf/N3nx37Dxs5fFoMdE1tWj5V0Aelb2R6th5gmTGN7/nDKVrEQvoX3dIVypQWVf4PSFCPj3ZRE8CnQknVYYeBby/GrUqbdBOEZS/T6j2n"
    "53Oy+ccZhDZsKm6KgvLygv3aWeVu9uGft6jaLjMY2WXt15v8t7qh6sMYpjxCP0j72AFtRxxFUir1VL9NUyg==,keyFactoryAlgorithm:PB"
    "KDF2WithHmacSHA1,cipherAlgorithm:AES/CBC/PKCS5Padding,iterations:4096,passwordLength:18,encryptedPassword:0I"
    "Ny8PHfpSGWtO6/ombk5QriDa0I0ufUN0K4NggZSSg=",
    "initializationVector:rH09DSX22V9C4TBg,keyLength:192,salt:esR8hcgmTnGmmogRUiW1PlbHnWD1o6478y9ALBeOKaR0qXtvVM1"
    "SBRcJPhthkbvrdFEaGsv8ANoQhaCUwu4t2U0AUU3cKfdyfxgcZFX4X6M1gFYiZJxdX9Tki2JGhhvW2PNSXt+htSe6hExnCTJmiyJorWd+QQu"
    "71p11K/W203xgdXKnrs8c6tFnFXEmeXtUx2pM0VkSBrAbXL2ayQhmRL4EdhU0R5xEO1cT1DFbojZbgCbrwmNntAaP164zoSg6qFqZynGUqz1"
    "aS2//bL/5sA3lKB2EcO+BQNUQBpDivgFgQfrEXfeW8ZyJ47vWj8V08FNlkdXkzhy77WWixbuLVA==,keyFactoryAlgorithm:PBKDF2With"
    "HmacSHA512,cipherAlgorithm:AES/GCM/NoPadding,authenticationTagLength:128,iterations:4096,passwordLength:18,e"
    "ncryptedPassword:UeHrkPgXitqShufpdEK3D/ogEVGHhG/rliFLPTzgJNmPNTj+tQ==",
)
"""Of Kafka 3.9.1: PasswordEncoder.encrypting(new Password(SECRET), null, "AES/CBC/PKCS5Padding", 128, 4096)
.encode(new Password(PASSWORD)), then the same with PBKDF2WithHmacSHA1 and 256 bits, then AES/GCM/NoPadding and 192."""


@pytest.mark.parametrize("text", BY_KAFKA, ids=["default", "sha1", "gcm"])
def test_what_kafka_has_written(text: str) -> None:
    """A password that Kafka wrote is read with its secret, by an encoder with any settings, and with its parts in any
    order."""
    assert PasswordEncoder(SECRET, cipher=CIPHERS[1], key_bits=256, iterations=1024).decode(text) == PASSWORD
    assert PasswordEncoder(SECRET).decode(" , ".join(reversed(text.split(",")))) == PASSWORD
    with pytest.raises(Undecodable, match=NOT_DECRYPTED):
        PasswordEncoder("another").decode(text)


@with_each("cipher", CIPHERS)
@with_each("key_factory", KEY_FACTORIES)
def test_what_is_written_is_read(cipher: str, key_factory: str) -> None:
    """An encoded password can be decoded, has Kafka's format, and differs each time."""
    for bits, password in ((128, PASSWORD), (192, ""), (256, "x" * 16)):
        encoder = PasswordEncoder(SECRET, cipher=cipher, key_factory=key_factory, key_bits=bits, iterations=1024)
        texts = {encoder.encode(password), encoder.encode(password)}
        assert [encoder.decode(text) for text in texts] == [password, password]
        of_kafka = BY_KAFKA[CIPHERS.index(cipher) * 2]
        assert [part.split(":")[0] for part in texts.pop().split(",")] == [p.split(":")[0] for p in of_kafka.split(",")]


def test_the_settings_say_how() -> None:
    config = BrokerConfig.load(None, [
        f"password.encoder.secret={SECRET}", f"password.encoder.cipher.algorithm={CIPHERS[1]}",
        "password.encoder.keyfactory.algorithm=PBKDF2WithHmacSHA256", "password.encoder.key.length=256",
        "password.encoder.iterations=2048",
    ])  # fmt: skip
    encoder = PasswordEncoder.of(config)
    assert encoder is not None and SECRET not in repr(encoder) + repr(config.entries())
    text = encoder.encode("x")
    for part in (CIPHERS[1], "PBKDF2WithHmacSHA256", "keyLength:256", "iterations:2048", "passwordLength:1"):
        assert part in text
    assert PasswordEncoder.of_before(config) is None and PasswordEncoder.of(BrokerConfig.load(None, [])) is None


@pytest.mark.parametrize("setting", ["cipher.algorithm=DES/CBC/PKCS5Padding", "key.length=100", "iterations=1023",
                                     "keyfactory.algorithm=none", "old.secret=x"])  # fmt: skip
def test_settings_that_are_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=r": password\.encoder\."):
        BrokerConfig.load(None, [f"password.encoder.{setting}"])


@with_each(
    ("before", "after", "said"),
    [
        ("", None, NO_PASSWORD),
        ("salt:", "salt:%", NO_PASSWORD),
        ("keyLength:", "key:", NO_PASSWORD),
        ("iterations:4096", "iterations:many", NO_PASSWORD),
        ("iterations:4096", "iterations:0", "its iterations are 0"),
        ("iterations:4096", f"iterations:{ITERATIONS_MAX + 1}", f"allowed are 1 to {ITERATIONS_MAX}"),
        ("keyLength:128", "keyLength:64", "its keyLength is '64'; allowed are 128, 192, 256"),
        ("AES/CBC", "DES/CBC", "its cipherAlgorithm is 'DES/CBC/PKCS5Padding'"),
        ("SHA512", "MD5", "its keyFactoryAlgorithm is 'PBKDF2WithHmacMD5'"),
        ("passwordLength:18", "passwordLength:17", NOT_DECRYPTED),
        ("Vector:", "Vector:AAAA", NOT_DECRYPTED),
        ("encryptedPassword:", "encryptedPassword:AAAA", NOT_DECRYPTED),
    ],
)
def test_what_is_no_password_is_told_as_such(before: str, after: str | None, said: str) -> None:
    text = BY_KAFKA[0].replace(before, after, 1) if after is not None else PASSWORD
    assert text != BY_KAFKA[0]
    with pytest.raises(Undecodable) as refused:
        PasswordEncoder(SECRET).decode(text)
    assert said in str(refused.value) and "\n" not in str(refused.value)
