"""SCRAM: the RFCs' vectors, both of our sides against each other, and invalid client messages."""

from __future__ import annotations

import base64
import random

import pytest

from pybroker.security.mechanism import BadCredentials
from pybroker.security.scram import HASHES, Credential, ScramClient, ScramServer, salted
from pybroker.security.unknown_users import made_up
from tests.rows import with_each

SHA_256, SHA_512 = HASHES
SALT = b"0123456789abcdef"
CREDENTIALS = {
    mechanism: Credential.of_salted(mechanism, salted(mechanism, "pencil", SALT, 4096), SALT, 4096)
    for mechanism in HASHES
}


def server(mechanism: str = SHA_256, users: tuple[str, ...] = ("user",), nonce: str | None = None) -> ScramServer:
    def look_up(user: str) -> Credential | None:
        return CREDENTIALS[mechanism] if user in users else None

    return ScramServer(mechanism, look_up, lambda user, _: made_up(b"secret", mechanism, user), nonce)


def talk(client: ScramClient, to: ScramServer) -> None:
    """Run the whole exchange. Raises BadCredentials."""
    token: bytes | None = client.start()
    while token is not None:
        token = client.step(to.step(token))


def test_the_exchange_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    held = Credential.of_salted(SHA_256, salted(SHA_256, "pencil", salt, 4096), salt, 4096)
    client = ScramClient(SHA_256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    there = ScramServer(SHA_256, lambda _: held, lambda user, _: held, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert client.start() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    first = there.step(client.start())
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = client.step(first)
    assert final is not None
    assert final.endswith(b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    assert final.startswith(b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,")
    verdict = there.step(final)
    assert verdict == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert client.step(verdict) is None
    assert client.done and there.user == "user"


@with_each("mechanism", HASHES)
@with_each("user", ["user", "a,b", "a=b", "=2C", "x y"])
def test_both_sides_understand_each_other(mechanism: str, user: str) -> None:
    client, there = ScramClient(mechanism, user, "pencil"), server(mechanism, (user,))
    talk(client, there)
    assert client.done and there.user == user


@pytest.mark.parametrize("mechanism", HASHES)
def test_a_wrong_password_and_an_unknown_user_are_told_alike(mechanism: str) -> None:
    """A wrong password and an unknown user fail alike: at the second message, with the same words; an unknown user's
    salt is stable."""
    told, salts = [], []
    for user, password in (("user", "pen"), ("nobody", "pencil"), ("nobody", "pencil")):
        there, client = server(mechanism), ScramClient(mechanism, user, password)
        first = there.step(client.start())
        salts.append(first.split(b",")[1])
        final = client.step(first)
        assert final is not None
        with pytest.raises(BadCredentials) as refused:
            there.step(final)
        told.append(str(refused.value))
        assert there.user is None
    assert len(set(told)) == 1 and mechanism in told[0]
    assert salts[1] == salts[2]


@with_each(
    "first",
    [
        b"",
        b"n,,",
        b"n,,n=user",
        b"n,,n=user,r=",
        b"n,,r=abc,n=user",
        b"n,,n=,r=abc",
        b"y,,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,a=other,n=user,r=abc",
        b"n,,m=mandatory,n=user,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,,n=us=2cer,r=abc",
        b"n,,n=user,r=abc,",
        b"n,,n=user,r=abc,x",
        b"n,,n=user,r=a c",
        b"n,,n=us\x00er,r=abc",
        "n,,n=üser,r=abc".encode(),
        b"n,,n=user,r=" + b"a" * 5000,
        b"\xff" * 40,
    ],
)
def test_a_first_message_that_is_none_is_refused(first: bytes) -> None:
    with pytest.raises(BadCredentials):
        server().step(first)


@pytest.mark.parametrize("first", [b"n,a=user,n=user,r=abc", b"n,,n=user,r=abc,tokenauth=true,y=x"])
def test_what_may_be_in_a_first_message_besides_is_taken(first: bytes) -> None:
    assert server().step(first).startswith(b"r=abc")


def final_of(to: ScramServer) -> bytes:
    """A client's correct second message to a server."""
    client = ScramClient(to.mechanism, "user", "pencil")
    final = client.step(to.step(client.start()))
    assert final is not None
    return final


def changed(final: bytes, name: str, value: bytes) -> bytes:
    parts = dict(part.split(b"=", 1) for part in final.split(b","))
    parts[name.encode()] = value
    return b",".join(key + b"=" + text for key, text in parts.items())


@pytest.mark.parametrize("channel", [b"eSws", b"bixhPXVzZXIs", b"biws=", b"", b"cD10bHMtdW5pcXVlLCw="])
def test_the_binding_is_that_of_the_first_message(channel: bytes) -> None:
    there = server()
    with pytest.raises(BadCredentials):
        there.step(changed(final_of(there), "c", channel))


def test_a_client_s_nonce_may_be_said_twice() -> None:
    """A client may send its nonce twice, as older librdkafka does, kcat of Debian 12 included; the proof is computed
    over it."""
    there = server()
    client = ScramClient(SHA_256, "user", "pencil", "mine")
    first = there.step(client.start())
    nonce = first.split(b",")[0][2:].decode()
    final = client._prove(first.decode(), "mine" + nonce, SALT, 4096)
    assert b",r=minemine" in final
    assert there.step(final).startswith(b"v=") and there.user == "user"


@with_each("how", ["prefix", "suffix", "empty", "the client's", "another's", "longer", "thrice"])
def test_the_nonce_is_compared_whole(how: str) -> None:
    """The nonce is compared whole; Kafka accepts one that ends with the right one (CVE-2024-56128: it once compared
    none)."""
    there = server()
    final = final_of(there)
    nonce = dict(part.split(b"=", 1) for part in final.split(b","))[b"r"]
    wrong = {
        "prefix": b"x" + nonce, "suffix": nonce + b"x", "empty": b"", "the client's": nonce[:24],
        "another's": nonce[:24] + b"A" * 24, "longer": nonce + nonce, "thrice": nonce[:24] * 2 + nonce,
    }[how]  # fmt: skip
    with pytest.raises(BadCredentials):
        there.step(changed(final, "r", wrong))
    assert there.user is None


def test_there_is_one_try_and_no_replay() -> None:
    there = server()
    final = final_of(there)
    with pytest.raises(BadCredentials):
        there.step(changed(final, "p", base64.b64encode(bytes(32))))
    with pytest.raises(BadCredentials):
        there.step(final)
    again = server()
    again.step(b"n,,n=user,r=abc")
    with pytest.raises(BadCredentials):
        again.step(final)
    done = server()
    done.step(final_of(done))
    with pytest.raises(BadCredentials):
        done.step(final)


@pytest.mark.parametrize("mechanism", HASHES)
def test_nothing_that_is_changed_logs_in_and_nothing_fails_otherwise(mechanism: str) -> None:
    chance = random.Random(7)
    for _ in range(300):
        there = server(mechanism)
        client = ScramClient(mechanism, "user", "pencil")
        messages = [client.start()]
        final = client.step(server(mechanism).step(messages[0])) if chance.random() < 0.2 else None
        try:
            first = there.step(mutated(messages[0], chance) if chance.random() < 0.3 else messages[0])
            final = final or client.step(first)
            assert final is not None
            wrong = mutated(final, chance)
            there.step(wrong)
        except BadCredentials:
            assert there.user is None
        else:
            assert wrong == final


def mutated(data: bytes, chance: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(made) + 1)
        match chance.randrange(4):
            case 0 if made:
                del made[at - 1 :]
            case 1:
                made[at:at] = bytes([chance.randrange(256)])
            case 2 if made:
                made[at - 1] = chance.choice(b"=,npcrs\0\xff")
            case _:
                made += chance.randbytes(3)
    return bytes(made)


@with_each(
    "answer",
    [b"", b"r=,s=,i=", b"r=short,s=QQ==,i=4096", b"r={n},s=QQ==,i=4096", b"r={n}x,s=Q,i=4096", b"r={n}x,s=QQ==,i=4095",
     b"r={n}x,s=QQ==,i=1000001", b"r={n}x,s=QQ==,i=99999999999999999999", b"e=other-error", b"\xff\xfe"],
)  # fmt: skip
def test_a_client_believes_no_server_that_is_none(answer: bytes) -> None:
    client = ScramClient(SHA_256, "user", "pencil", "nonce")
    client.start()
    with pytest.raises(BadCredentials):
        client.step(answer.replace(b"{n}", b"nonce"))


def test_a_server_that_does_not_know_the_credential_is_not_believed() -> None:
    there, client = server(), ScramClient(SHA_256, "user", "pencil")
    final = client.step(there.step(client.start()))
    assert final is not None
    with pytest.raises(BadCredentials, match="did not prove"):
        client.step(b"v=" + base64.b64encode(bytes(32)))


# -- stored credentials ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", HASHES)
def test_a_credential_is_read_as_it_was_written(mechanism: str) -> None:
    held = Credential.of_password(mechanism, "pencil", 8192)
    assert Credential.parse(mechanism, held.text()) == held
    text = ",".join(sorted(held.text().split(","), reverse=True))
    assert Credential.parse(mechanism, text) == held, "in any order"


@with_each(
    "change",
    [
        lambda text: "",
        lambda text: text.replace("salt=", "salt"),
        lambda text: text.replace("iterations=4096", "iterations=many"),
        lambda text: text.replace("iterations=4096", "iterations=0"),
        lambda text: text + ",salt=QQ==",
        lambda text: text + ",more=QQ==",
        lambda text: text.replace("server_key=", "server_key=!"),
        lambda text: text.split(",iterations")[0],
        lambda text: text.replace("stored_key=", "stored_key=QQ=="),
    ],
)
def test_a_credential_that_is_none_is_refused_and_not_told(change: object) -> None:
    assert callable(change)
    held = CREDENTIALS[SHA_256].text()
    with pytest.raises(ValueError, match="it is not a ") as refused:
        Credential.parse(SHA_256, change(held))
    assert held.split(",")[1][11:] not in str(refused.value)
    with pytest.raises(ValueError, match=f"not a credential of {SHA_512}"):
        Credential.parse(SHA_512, held)
