"""Validation of OAuth tokens: good ones of each algorithm, and attacks."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from pybroker.config.oauth_settings import OAuth
from pybroker.security.mechanism import BadCredentials, NotYet
from pybroker.security.oauth import jwks as keys
from pybroker.security.oauth.jwks import Jwks
from pybroker.security.oauth.oauthbearer import INVALID, OAuthBearerServer
from pybroker.security.oauth.tokens import BadToken, SignedTokens, UnsecuredTokens
from tests.rows import with_each
from tests.tokens import AUDIENCE, ISSUER, Signer, by_hand, claims, jwks

SIGNER = Signer()
OTHER = Signer("k2", "ES256")
STRANGER = Signer()
NAMELESS = Signer(None)
NAMELESS.private = SIGNER.private
SETTINGS = OAuth("https://keys.example", (AUDIENCE, "more"), ISSUER, "sub", "scope", 30, 3600, 0.1, 10)


def now(more_s: float) -> Callable[[], float]:
    """A clock that is ahead by these seconds."""
    return lambda: int(time.time()) + more_s


def at_once(but: dict[str, Any]) -> dict[str, Any]:
    return {name: value() if callable(value) else value for name, value in but.items()}


def validator(settings: OAuth = SETTINGS, *signers: Signer) -> SignedTokens:
    held = Jwks("https://keys.example", 3600, 0.1, 10)
    held.keys = keys.parse(jwks(*(signers or (SIGNER, OTHER))))
    return SignedTokens(settings, held)


@with_each("algorithm", ["RS256", "RS384", "RS512", "PS256", "PS512", "ES256", "ES384", "ES512", "EdDSA"])
def test_a_good_token_of_each_algorithm(algorithm: str) -> None:
    signer = Signer("k", algorithm)
    found = validator(SETTINGS, signer).judge(signer.token("ann"))
    assert found.user == "ann" and 590_000 < found.expires_ms - time.time() * 1000 < 610_000


@with_each(
    "but",
    [
        {"aud": ["x", "more"]},
        {"aud": AUDIENCE},
        {"scope": ["a", "b"]},
        {"scope": None},
        {"exp": now(-10)},  # within the skew of the clocks
        {"exp": now(60.5)},
        {"nbf": now(10)},
        {"iat": now(-86400 * 365)},
        {"sub": "grün ö"},
    ],
)
def test_what_a_good_token_may_have(but: dict[str, Any]) -> None:
    assert validator().judge(SIGNER.token(**{"user": "ann", **at_once(but)})).user == but.get("sub", "ann")


BAD = [
    ({"exp": now(-31)}, "it has expired"),
    ({"exp": None}, "it lacks a required claim"),
    ({"iat": None}, "it lacks a required claim"),
    ({"exp": "4102444800"}, "one of its dates is invalid"),
    ({"exp": True}, "it has expired"),
    ({"exp": 10**30}, "one of its dates is invalid"),
    ({"exp": 1e300}, "one of its dates is invalid"),
    ({"exp": float("inf")}, "it is not a JSON Web Token"),
    ({"exp": float("nan")}, "it is not a JSON Web Token"),
    ({"exp": [1]}, "it is not a JSON Web Token"),
    ({"nbf": now(3600)}, "it is not valid yet"),
    ({"nbf": "soon"}, "it is not a JSON Web Token"),
    ({"iat": "then"}, "its issue date is invalid"),
    ({"aud": "brokers2"}, "it is for another audience"),
    ({"aud": "broker"}, "it is for another audience"),
    ({"aud": ["x", ["brokers"]]}, "it is for another audience"),
    ({"aud": [["brokers"]]}, "it is for another audience"),
    ({"aud": {"brokers": 1}}, "it is for another audience"),
    ({"aud": None}, "it lacks a required claim"),
    ({"aud": []}, "it lacks a required claim"),
    ({"iss": ISSUER + "/"}, "it is from another issuer"),
    ({"iss": [ISSUER]}, "it is from another issuer"),
    ({"iss": "https"}, "it is from another issuer"),
    ({"iss": None}, "it lacks a required claim"),
    ({"sub": None}, "it names no user"),
    ({"sub": ""}, "it names no user"),
    ({"sub": "  "}, "it names no user"),
    ({"sub": 7}, "it names no user"),
    ({"sub": ["alice"]}, "it names no user"),
    ({"sub": "a\0b"}, "its user name is not allowed"),
    ({"sub": "a\nb"}, "its user name is not allowed"),
    ({"scope": 7}, "its scope is neither a string nor a list of strings"),
    ({"scope": [7]}, "its scope is neither a string nor a list of strings"),
]


@with_each(("but", "words"), BAD)
def test_what_a_token_says_that_opens_no_door(but: dict[str, Any], words: str) -> None:
    with pytest.raises(BadToken) as refused:
        validator().judge(SIGNER.token(**at_once(but)))
    assert str(refused.value) == words


def _hs256_with_the_public_key() -> str:
    """A token of the classic attack: signed with the public key as a shared secret."""
    pem = SIGNER.private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    unsigned = by_hand({"alg": "HS256", "kid": "k1"}, claims()).rpartition(".")[0]
    signature = hmac.digest(pem, unsigned.encode(), hashlib.sha256)
    return f"{unsigned}.{by_hand('', signature).split('.')[1]}"


def _with_header(**header: Any) -> str:
    """A token of SIGNER with another header, and the signature over the first header."""
    _, body, signature = SIGNER.token().split(".")
    return ".".join([by_hand({"alg": "RS256", "kid": "k1", **header}, "").split(".")[0], body, signature])


def _other_body() -> str:
    first, _, last = SIGNER.token().split(".")
    return ".".join([first, by_hand("", claims("root")).split(".")[1], last])


HOSTILE = {
    "none": by_hand({"alg": "none"}, claims()),
    "none, and a key": by_hand({"alg": "none", "kid": "k1"}, claims()),
    "None": by_hand({"alg": "None", "kid": "k1"}, claims()),
    "HS256 by the public key": _hs256_with_the_public_key(),
    "no algorithm": by_hand({"kid": "k1"}, claims()),
    "an algorithm that is none": by_hand({"alg": ["RS256"], "kid": "k1"}, claims()),
    "the key of another": STRANGER.token(),
    "no signature": SIGNER.token().rpartition(".")[0] + ".",
    "another's body": _other_body(),
    "another algorithm of the key": _with_header(alg="RS512"),
    "an algorithm that the key has not": _with_header(alg="EdDSA", kid="k1"),
    "what must be understood": SIGNER.token(header={"crit": ["exp"]}),
    "a key of its own": STRANGER.token(header={"jwk": STRANGER.jwk}),
    "a URL of keys of its own": STRANGER.token(header={"jku": "http://127.0.0.1:1/"}),
    "no name of a key": NAMELESS.token(),
    "a list for a name of a key": by_hand({"alg": "RS256", "kid": ["k1"]}, claims(), b"x"),
    "a name of a key that is too long": by_hand({"alg": "RS256", "kid": "k" * 5000}, claims(), b"x"),
    "four parts": SIGNER.token() + ".x",
    "two parts": "a.b",
    "no part": "",
    "dots": "..",
    "no base64": "ä.ö.ü",
    "no JSON": by_hand("{", "{"),
    "a list for a header": by_hand([], claims()),
    "a number for a header": by_hand("1", claims()),
    "deep": by_hand("[" * 40_000, claims()),
    "a number of 10000 digits": by_hand('{"alg": "RS256", "kid": ' + "9" * 10_000 + "}", claims()),
    "large": SIGNER.token(padding="x" * 70_000),
    "five parts, as if it were encrypted": "a.b.c.d.e",
}


@with_each("name", HOSTILE)
def test_a_token_that_is_made_up(name: str) -> None:
    """A forged token is refused at once, and the error contains no part of it."""
    with pytest.raises((BadToken, NotYet)) as refused:
        validator().judge(HOSTILE[name])
    words = str(refused.value)
    assert len(words) < 100 and not any(part in words for part in HOSTILE[name].split(".") if len(part) > 5)


def test_deep_claims_under_a_good_signature_are_refused() -> None:
    body = b'{"exp":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    token = jwt.PyJWS().encode(body, SIGNER.private, algorithm="RS256", headers={"kid": "k1"})
    with pytest.raises(BadToken, match="not a JSON Web Token"):
        validator().judge(token)


def test_another_claim_may_name_the_user() -> None:
    found = validator(SETTINGS._replace(sub_claim="client_id")).judge(SIGNER.token(client_id="svc"))
    assert found.user == "svc"


def test_audience_and_issuer_may_be_whoever() -> None:
    taken = validator(SETTINGS._replace(audience=None, issuer=None))
    assert taken.judge(SIGNER.token(aud=["else"], iss="x")).user == "alice"
    assert taken.judge(SIGNER.token(aud=None, iss=None)).user == "alice"


def test_a_token_without_a_name_of_a_key() -> None:
    """A token without a key id is accepted if there is only one key, with or without an id."""
    assert validator(SETTINGS, SIGNER).judge(NAMELESS.token()).user == "alice"


# -- sets of keys ------------------------------------------------------------------------------------------------------


@with_each(
    ("document", "words"),
    [
        (b"", "not JSON"),
        (b"<html>", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON Web Key Set"),
        (b'{"keys": {}}', "not a JSON Web Key Set"),
        (b'{"keys": [1]}', "not a JSON Web Key Set"),
        (b'{"keys": []}', "no public key"),
        (json.dumps({"keys": [{"kty": "RSA"}] * 101}).encode(), "101 keys"),
        (b'{"keys": [{"kty": "oct", "k": "AAAA", "kid": "k1"}]}', "no public key"),
        (b'{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]}', "no public key"),
        (b'{"keys": [{"kty": "RSA", "n": 7, "e": "AQAB"}]}', "no public key"),
        (b'{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]}', "no public key"),
        (b'{"keys": [{"kty": "EC", "crv": ["P-256"], "x": "AA", "y": "AA"}]}', "no public key"),
        (json.dumps({"keys": [SIGNER.jwk | {"use": "enc"}]}).encode(), "no public key"),
        (json.dumps({"keys": [SIGNER.jwk | {"key_ops": ["encrypt"]}]}).encode(), "no public key"),
        (json.dumps({"keys": [SIGNER.jwk | {"alg": "RSA-OAEP"}]}).encode(), "no public key"),
        (json.dumps({"keys": [SIGNER.jwk | {"alg": "HS256"}]}).encode(), "no public key"),
    ],
    ids=lambda given: f"{len(given)} bytes" if isinstance(given, bytes) else given,
)
def test_what_is_no_set_of_keys(document: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        keys.parse(document)


def test_weak_keys_are_left_out() -> None:
    weak = Signer("weak", bits=1024)
    assert [key.kid for key in keys.parse(jwks(weak, SIGNER))] == ["k1"]


def test_a_set_that_gives_a_private_key_away_is_read_as_public() -> None:
    told = jwt.algorithms.RSAAlgorithm.to_jwk(SIGNER.private, as_dict=True) | {"kid": "k1", "key_ops": ["verify"]}
    (key,) = keys.parse(json.dumps({"keys": [told]}).encode())
    assert not hasattr(key.key, "private_numbers")


# -- messages around a token -------------------------------------------------------------------------------------------


def exchange() -> OAuthBearerServer:
    return OAuthBearerServer(validator())


def message(token: str, gs2: str = "n,,", more: str = "") -> bytes:
    return f"{gs2}\x01auth=Bearer {token}{more}\x01\x01".encode()


@with_each("gs2", ["n,,", "n,a=alice,"])
@with_each("more", ["", "\x01host=h\x01port=1", "\x01trace=a b"])
def test_a_message_with_a_good_token(gs2: str, more: str) -> None:
    made = exchange()
    assert made.step(message(SIGNER.token(), gs2, more)) == b"" and made.user == "alice"
    assert made.expires_ms is not None


@with_each(
    "said",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"n,,",
        b"y,," + message("x.y.z")[3:],
        b"p=tls-unique,," + message("x.y.z")[3:],
        b"n,a=," + message("x.y.z")[3:],
        b"n,,\x01auth=Basic eDp5\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer x y\x01\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        b"n,,\x01Auth1=Bearer x\x01\x01",
        message("x.y.z") + b"more",
        message("x.y.z")[:-1],
        message("x\xff.y.z"),
        b"n,," + b"\x01" * 60_000,
        b"n,a=" + b"=2C" * 20_000 + b"x" + message("x")[4:],
        message("x" * 70_000),
    ],
    ids=lambda said: f"{len(said)} bytes",
)
def test_a_message_that_is_none(said: bytes) -> None:
    began_s = time.process_time()
    with pytest.raises(BadCredentials, match="invalid credentials with SASL mechanism OAUTHBEARER"):
        exchange().step(said)
    assert time.process_time() - began_s < 2


def test_a_bad_token_is_told_and_acknowledged() -> None:
    made = exchange()
    assert made.step(message(STRANGER.token())) == INVALID.encode()
    with pytest.raises(BadCredentials) as refused:
        made.step(b"\x01")
    assert str(refused.value) == INVALID and refused.value.reason.endswith("its signature is wrong")
    assert made.user is None


def test_no_second_token_is_looked_at() -> None:
    made = exchange()
    made.step(message(STRANGER.token()))
    with pytest.raises(BadCredentials):
        made.step(message(SIGNER.token()))
    assert made.user is None


def test_nobody_acts_as_another() -> None:
    made = exchange()
    with pytest.raises(BadCredentials, match="authorization id that is different"):
        made.step(message(SIGNER.token(), "n,a=root,"))
    assert made.user is None


# -- unsigned tokens ---------------------------------------------------------------------------------------------------


def test_unsecured_tokens() -> None:
    now_s = time.time()
    made = UnsecuredTokens(SETTINGS, lambda: now_s)
    assert made.judge(by_hand({"alg": "none"}, claims())).user == "alice"
    for token in (
        SIGNER.token(),
        by_hand({"alg": "none"}, claims(), b"signed"),
        by_hand({"alg": "none"}, claims(exp=now_s - 60)),
        by_hand({"alg": "none"}, claims(exp=None)),
        by_hand({"alg": "none"}, claims(nbf=now_s + 60)),
        by_hand({"alg": "none"}, claims(nbf="x")),
        by_hand({"alg": "none"}, []),
    ):
        with pytest.raises(BadToken):
            made.judge(token)
