"""Rights of a connection under authorization come with Python's replies and hold until the rules change."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.protocol import codec
from pybroker.protocol.apis import SERVED
from tests.core.stage import FETCH, PRODUCE, TOPIC_ID, Client, Stage, batch

READ, WRITE = 1, 2
MANY = 8192
"""The number of rights that one connection keeps."""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def judged(stage: Stage) -> Client:
    return Client(stage, judged=True)


def asked(stage: Stage) -> int | None:
    """The token of the request that reached Python; None if there is none."""
    stage.step()
    letters = [letter for letter in stage.plane.take() if letter[0] == "request"]
    assert len(letters) <= 1
    return letters[0][2] if letters else None


def answered(stage: Stage, client: Client, rights: dict[bytes, int], rules: int = 0) -> None:
    """Send a Produce that reaches Python, and reply with rights."""
    client.produce(batch(b"x"))
    token = asked(stage)
    assert token is not None
    stage.plane.reply(token, [b"\0\0\0\1"], rights=rights, rules=rules)
    stage.step()
    assert client._exactly(8) == b"\0\0\0\4\0\0\0\1"


def is_served(stage: Stage, client: Client, api: int) -> bool:
    """True if the plane executes the request; otherwise Python sends an empty reply."""
    if api == PRODUCE:
        client.produce(batch(b"y"))
    else:
        client.fetch(0)
    token = asked(stage)
    if token is None:
        client.receive(api, 9 if api == PRODUCE else 12)
        return True
    stage.plane.reply(token, [b"\0\0\0\1"])
    stage.step()
    client._exactly(8)
    return False


def test_a_reply_brings_rights(stage: Stage) -> None:
    """A reply's right to write lets the plane execute Produce but not Fetch, and only on that connection."""
    client = judged(stage)
    assert not is_served(stage, client, PRODUCE)
    answered(stage, client, {TOPIC_ID: WRITE})
    assert is_served(stage, client, PRODUCE) and not is_served(stage, client, FETCH)
    client.fetch(0)
    token = asked(stage)
    assert token is not None
    stage.plane.reply(token, [b"\0\0\0\1"], rights={TOPIC_ID: READ}, rules=0)
    stage.step()
    client._exactly(8)
    assert is_served(stage, client, FETCH) and is_served(stage, client, PRODUCE)
    assert not is_served(stage, judged(stage), PRODUCE), "another connection has its own rights"
    assert is_served(stage, Client(stage), PRODUCE), "a connection without authorization needs none"


def test_other_rules_take_them_back(stage: Stage) -> None:
    client = judged(stage)
    answered(stage, client, {TOPIC_ID: READ | WRITE})
    stage.plane.set_rules(1)
    assert not is_served(stage, client, PRODUCE) and not is_served(stage, client, FETCH)
    answered(stage, client, {TOPIC_ID: WRITE}, rules=0)
    assert not is_served(stage, client, PRODUCE), "they follow from earlier rules"
    answered(stage, client, {TOPIC_ID: WRITE}, rules=1)
    assert is_served(stage, client, PRODUCE) and not is_served(stage, client, FETCH)


def test_a_fetch_that_waited_waits_no_longer_when_python_gets_it(stage: Stage) -> None:
    """A parked Fetch whose rules changed goes to Python at its deadline without a further wait."""
    client = judged(stage)
    answered(stage, client, {TOPIC_ID: READ})
    client.fetch(0, max_wait_ms=100)
    assert asked(stage) is None
    stage.plane.set_rules(1)
    while not (letters := stage.plane.take()):
        stage.plane.step(0, 5)
    ((_, _, token, frame),) = letters
    assert waits_ms(frame) == 0
    stage.plane.reply(token, None)


def test_a_fetch_that_is_diverted_waits_as_long_as_it_would_have(stage: Stage) -> None:
    client = Client(stage)
    client.fetch(0, max_wait_ms=60_000)
    assert asked(stage) is None
    began = time.monotonic()
    while time.monotonic() < began + 0.02:
        stage.plane.step(0, 5)
    stage.plane.divert(True)
    stage.step()
    ((_, _, token, frame),) = stage.plane.take()
    assert 30_000 < waits_ms(frame) <= 59_981
    stage.plane.reply(token, None)


def waits_ms(frame: bytes) -> int:
    offset = codec.decode_request_header(frame).body_offset
    return codec.decode(SERVED[FETCH].request, 12, frame, offset)[0].max_wait_ms


def test_rights_are_kept_up_to_a_number(stage: Stage) -> None:
    """Rights beyond the limit clear the table, and forgotten topics are asked for again."""
    client = judged(stage)
    chance = random.Random(3)
    for size in (1, 15, 16, 17, 1000, MANY - 1, MANY, MANY + 1, 3 * MANY):
        others = {chance.randbytes(16): WRITE for _ in range(size - 1)}
        stage.plane.set_rules(size)
        answered(stage, client, {TOPIC_ID: WRITE, **others}, rules=size)
        assert is_served(stage, client, PRODUCE), size
        stage.plane.set_rules(size + MANY * 10)
    stage.plane.set_rules(5)
    answered(stage, client, {TOPIC_ID: WRITE}, rules=5)
    for _ in range(20):
        client.fetch(0)
        token = asked(stage)
        assert token is not None
        stage.plane.reply(token, [b"\0\0\0\1"], rights={os.urandom(16): READ for _ in range(1000)}, rules=5)
        stage.step()
        client._exactly(8)
    assert not is_served(stage, client, FETCH)


def test_ids_that_begin_alike_are_told_apart(stage: Stage) -> None:
    client = judged(stage)
    near = {TOPIC_ID[:15] + bytes([n]): WRITE for n in range(256) if n != TOPIC_ID[15]}
    answered(stage, client, near)
    assert not is_served(stage, client, PRODUCE)
    answered(stage, client, {TOPIC_ID: WRITE})
    assert is_served(stage, client, PRODUCE)


def test_what_is_no_topic_id_is_refused_and_the_request_waits_on(stage: Stage) -> None:
    client = judged(stage)
    client.produce(batch(b"x"))
    token = asked(stage)
    assert token is not None
    with pytest.raises(ValueError, match="a topic id has 16 bytes, and not 3"):
        stage.plane.reply(token, [b"\0\0\0\1"], rights={b"abc": WRITE})
    stage.plane.reply(token, [b"\0\0\0\1"], rights={TOPIC_ID: WRITE})
    stage.step()
    client._exactly(8)
    assert is_served(stage, client, PRODUCE)


def test_rights_for_a_client_that_went_are_let_go(stage: Stage) -> None:
    for late in (True, False):
        client = judged(stage)
        client.produce(batch(b"x"))
        token = asked(stage)
        assert token is not None
        client.sock.close()
        if late:
            stage.step()
        stage.plane.reply(token, [b"\0\0\0\1"], rights={TOPIC_ID: WRITE})
        stage.step()
    client = judged(stage)
    client.produce(batch(b"x"))
    token = asked(stage)
    assert token is not None
    stage.plane.reply(token, [b"\0\0\0\1"], rights={TOPIC_ID: WRITE})  # no one takes it before the plane ends
