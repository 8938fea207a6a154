"""SCRAM for unknown users: the same work as for known ones, and a first message that does not reveal them."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from typing import Any

import pytest

from pybroker.security import unknown_users
from pybroker.security.credentials import Credentials
from pybroker.security.delegation_tokens import DelegationTokens, Token
from pybroker.security.mechanism import BadCredentials
from pybroker.security.scram import HASHES, Credential, ScramClient, ScramServer
from pybroker.security.unknown_users import OF_KAFKAS_TOOLS, USUAL, Form, Forms

TOKEN = Token("a-token", "User:ann", "User:ann", (), 0, 1 << 60, 1 << 60)


def credential(mechanism: str, iterations: int = 4096, salt: bytes = b"s" * 24) -> Credential:
    return Credential.of_salted(mechanism, b"salted", salt, iterations)


def known(*iterations: int, salt: bytes = b"\x00" * 24) -> Credentials:
    """Credentials of the users u0, u1, ..., for both mechanisms."""
    found = Credentials()
    found.tokens = DelegationTokens("the key of all tokens")
    found.tokens.take(TOKEN.id, TOKEN)
    for number, each in enumerate(iterations):
        found.take(f"u{number}", {m: credential(m, each, salt).text() for m in HASHES})
    return found


def begin(credentials: Credentials, mechanism: str, counts: Counter[str]) -> ScramServer:
    """A broker's side that counts its look-ups."""

    def counted(name: str, call: Any) -> Any:
        def ask(*given: Any) -> Any:
            counts[name] += 1
            return call(mechanism, *given)

        return ask

    look_up, made_up = counted("look_up", credentials.look_up), counted("made_up", credentials.made_up)
    return ScramServer(mechanism, look_up, made_up, look_up_token=counted("token", credentials.look_up_token))


@pytest.mark.parametrize("by_token", [False, True])
@pytest.mark.parametrize("mechanism", HASHES)
def test_a_broker_works_as_much_for_nobody(
    monkeypatch: pytest.MonkeyPatch, mechanism: str, by_token: bool
) -> None:
    """An unknown user, or token, costs a broker as many look-ups and hashes as a known one."""
    credentials, counts = known(8192, 8192), Counter[str]()
    credentials.look_up_token(mechanism, TOKEN.id)  # created at its first use

    def digest(*given: Any) -> bytes:
        counts[f"hmac {given[2]}"] += 1
        return hmac_digest(*given)

    def new(*given: Any) -> Any:
        counts[f"hash {given[0]}"] += 1
        return hash_new(*given)

    hmac_digest, hash_new = hmac.digest, hashlib.new
    done = []
    for name in (TOKEN.id if by_token else "u1", "nobody"):
        counts.clear()
        client = ScramClient(mechanism, name, "wrong", by_token=by_token)
        there = begin(credentials, mechanism, counts)
        with monkeypatch.context() as patched:
            patched.setattr(hmac, "digest", digest)
            patched.setattr(hashlib, "new", new)
            first = there.step(client.start())
        final = client.step(first)
        assert final is not None
        with monkeypatch.context() as patched, pytest.raises(BadCredentials):
            patched.setattr(hmac, "digest", digest)
            patched.setattr(hashlib, "new", new)
            there.step(final)
        done.append((dict(counts), len(first)))
    assert done[0] == done[1] and sum(done[0][0].values()) >= 4


def test_every_broker_that_has_the_secret_shows_the_same() -> None:
    one, other, stranger = known(4096), known(4096), known(4096)
    other.secret = one.secret
    for mechanism in HASHES:
        shown = [each.made_up(mechanism, "nobody", False) for each in (one, other, stranger)]
        assert shown[0] == shown[1] != shown[2]
        assert shown[0].salt != one.made_up(mechanism, "nobody2", False).salt


@pytest.mark.parametrize("mechanism", HASHES)
def test_a_token_has_one_salt_at_every_broker(mechanism: str) -> None:
    """A token that does not exist has one salt at every broker: two salts for one id would reveal it."""
    one, other = known(8192), known(8192)
    other.secret = one.secret
    found = [each.look_up_token(mechanism, TOKEN.id) for each in (one, other)]
    made_up = one.made_up(mechanism, TOKEN.id, True)
    for each in found:
        assert each is not None
        assert (each.credential.salt, each.credential.iterations) == (made_up.salt, made_up.iterations)


def test_nobody_has_the_iterations_of_most_users() -> None:
    credentials = known(4096, 8192, 8192)
    assert credentials.made_up("SCRAM-SHA-256", "nobody", False).iterations == 8192
    credentials.keep({"u0"})
    assert credentials.made_up("SCRAM-SHA-256", "nobody", False).iterations == 4096
    credentials.take("u0", {})
    assert credentials.made_up("SCRAM-SHA-256", "nobody", False).iterations == 4096
    credentials.take("u1", {"SCRAM-SHA-512": credential("SCRAM-SHA-512", 16384).text()})
    assert credentials.made_up("SCRAM-SHA-256", "nobody", False).iterations == 4096
    assert credentials.made_up("SCRAM-SHA-512", "nobody", False).iterations == 16384


@pytest.mark.parametrize("salt", [b"\x01" * 16, b"\xff" * 64, b"0a9z1b8y2c7x3d6w4e5v6u7t8"])
def test_nobody_has_a_salt_of_the_form_of_most_users(salt: bytes) -> None:
    """An unknown user's salt has the form of most users' salts: ours have 24 bytes, librdkafka's 64; Kafka's tools
    write 130 bits as digits and letters."""
    made = [known(4096, 4096, salt=salt).made_up("SCRAM-SHA-256", f"nobody{n}", False).salt for n in range(50)]
    assert len(set(made)) == 50
    if salt.isalnum():
        assert all(each.isalnum() and int(each, 36) < 1 << 130 and each == each.lower() for each in made), made
        assert max(map(len, made)) > 24
    else:
        assert {len(each) for each in made} == {len(salt)} and not all(each.isalnum() for each in made)


def test_forms_are_counted() -> None:
    """Forms are counted: of two with as many users each, every broker chooses the same, in any order of reading
    users."""
    orders = []
    for order in (1, -1):
        forms = Forms()
        for each in [credential("SCRAM-SHA-256", n) for n in (8192, 4096)][::order]:
            forms.add(each)
        orders.append(forms.most())
        for n in (4096, 8192):
            forms.add(credential("SCRAM-SHA-256", n), -1)
        assert forms.most() == USUAL
    assert orders[0] == orders[1]
    assert Form.of(credential("SCRAM-SHA-256", salt=b"x" * 300)).salt_bytes == 64
    assert Form.of(credential("SCRAM-SHA-256", salt=b"0123456789abcdefghijklmno")).salt_bytes == OF_KAFKAS_TOOLS
    assert unknown_users.made_up(b"", "SCRAM-SHA-512", "x").iterations == 4096
