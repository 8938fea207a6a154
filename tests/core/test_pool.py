"""The memory of the native plane: what requests hold is bounded, and who needs none of it goes on."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pybroker.protocol import codec
from pybroker.protocol import messages as m
from tests.core.stage import FETCH, METADATA, PRODUCE, Client, Stage, batch

POOL = 1 << 20
LARGE = 400_000
PATIENCE_SECONDS = 10


def until(stage: Stage, probe: Callable[[], object]) -> None:
    """Step until it is true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not probe():
        assert time.monotonic() < deadline
        for reactor in range(stage.reactors):
            stage.plane.step(reactor, 20)


class Slow:
    """A client that sends a large Produce in two halves."""

    def __init__(self, stage: Stage, size: int = LARGE) -> None:
        self.client = Client(stage)
        kind = m.ProduceRequest.TopicData
        topics = [kind(name="t", partition_data=[kind.PartitionData(index=0, records=batch(bytes(size)))])]
        frame = codec.encode_request(PRODUCE, 9, 1, "c", m.ProduceRequest(acks=1, timeout_ms=1, topic_data=topics))
        self.data = struct.pack(">i", len(frame)) + frame
        self.sent = 0

    def send(self, end: int) -> bool:
        """Send on up to `end`, as far as the socket takes it; whether all of that is sent."""
        self.client.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            self.sent += self.client.sock.send(self.data[self.sent : end])
        return self.sent == end

    @property
    def answered(self) -> bool:
        return not self.client.quiet()


def metadata(client: Client) -> None:
    client.send(codec.encode_request(METADATA, 9, 5, "c", m.MetadataRequest(topics=None)))


@pytest.fixture
def tight(tmp_path: Path) -> Stage:
    return Stage(tmp_path, pool_bytes=POOL)


def test_half_requests_stay_below_the_limit_and_one(tight: Stage) -> None:
    """Ten clients send the first half of a large request each; then all go on, and all of them are answered."""
    slow = [Slow(tight) for _ in range(10)]
    for client in slow:
        for _ in range(40):
            client.send(LARGE // 2)
            tight.step(1)
    assert POOL // 2 < tight.plane.held_bytes <= POOL + 2 * LARGE
    waiting = list(slow)

    def done() -> bool:
        for client in list(waiting):
            client.send(len(client.data))
            if client.answered:
                assert client.client.receive(PRODUCE, 9)[1].responses[0].partition_responses[0].error_code == 0
                waiting.remove(client)
        assert tight.plane.held_bytes <= POOL + 2 * LARGE
        return not waiting

    until(tight, done)
    until(tight, lambda: tight.plane.held_bytes == 0)  # large buffers are given back once their connections rest
    assert tight.log.log_end_offset == 10
    tight.close()


def filled(stage: Stage) -> list[Slow]:
    """Clients with half a request each, so that the pool is short."""
    slow: list[Slow] = []
    while stage.plane.held_bytes < POOL:
        slow.append(Slow(stage, 600_000))
        for _ in range(40):
            slow[-1].send(500_000)
            stage.step(1)
    return slow


def test_small_requests_go_on_while_memory_is_short(tight: Stage) -> None:
    """Produce, a long poll that is woken, and what Python answers need none of the pool."""
    filled(tight)
    reader, writer = Client(tight), Client(tight)
    reader.fetch(0, max_wait_ms=60_000)
    tight.step()
    assert reader.quiet()
    writer.produce(batch(b"x"))
    metadata(writer)
    writer.produce(batch(b"y"), number=9)
    tight.step()
    assert writer.receive(PRODUCE, 9)[0] == 1
    assert len(reader.receive(FETCH, 12)[1].responses[0].partitions[0].records) > 0
    ((kind, _, token, _),) = tight.plane.take()
    assert kind == "request"
    tight.plane.reply(token, codec.encode_response_parts(METADATA, 9, 5, m.MetadataResponse()))
    until(tight, lambda: tight.log.log_end_offset == 2)
    assert writer.receive(METADATA, 9)[0] == 5 and writer.receive(PRODUCE, 9)[0] == 9
    tight.close()


def test_a_holder_that_is_too_slow_is_closed(tmp_path: Path) -> None:
    """Its memory goes to who waits; the log hears why."""
    stage = Stage(tmp_path, pool_bytes=POOL, holder_ms=1000)  # the other may take as long, on a busy machine too
    filled(stage)
    held = stage.plane.held_bytes
    holder = Slow(stage, 600_000)

    def holds() -> bool:
        holder.send(500_000)
        return stage.plane.held_bytes > held

    until(stage, holds)
    late = Slow(stage, 600_000)
    reasons: list[bytes] = []

    def served() -> bool:
        late.send(len(late.data))
        reasons.extend(frame for kind, *_, frame in stage.plane.take() if kind == "closed")
        return late.answered

    until(stage, served)
    assert [b"too slow" in reason for reason in reasons] == [True]
    stage.close()


def test_what_closed_connections_held_is_given_back(tight: Stage) -> None:
    slow = filled(tight)
    away = Client(tight)
    metadata(away)
    tight.step()
    assert tight.plane.held_bytes > POOL
    for client in [*(s.client for s in slow), away]:
        client.sock.close()
    tight.step()
    for kind, _, token, _ in tight.plane.take():
        if kind == "request":
            tight.plane.reply(token, None)
    until(tight, lambda: tight.plane.held_bytes == 0)
    tight.close()


@pytest.mark.parametrize("most", [1, 3])
def test_requests_that_wait_for_python(tmp_path: Path, most: int) -> None:
    """At the limit all of them wait in the mailbox, at limit + 1 one stays with its connection until they are taken;
    Produce and Fetch are not held up."""
    stage = Stage(tmp_path, requests_max=most)
    clients = [Client(stage) for _ in range(most + 1)]
    for client in clients:
        metadata(client)
    writer = Client(stage)
    writer.produce(batch(b"x"))
    stage.step()
    assert writer.receive(PRODUCE, 9)[0] == 1
    first = stage.plane.take()
    assert [letter[0] for letter in first] == ["request"] * most
    stage.step()
    second = stage.plane.take()
    assert [letter[0] for letter in second] == ["request"]
    for _, _, token, _ in first + second:
        stage.plane.reply(token, codec.encode_response_parts(METADATA, 9, 5, m.MetadataResponse()))
    stage.step()
    assert all(client.receive(METADATA, 9)[0] == 5 for client in clients)
    stage.close()


def test_an_idle_connection_is_closed(tmp_path: Path) -> None:
    """connections.max.idle.ms: who is silent is closed, who waits for records or speaks is not."""
    stage = Stage(tmp_path, idle_ms=1500)
    idle, reader, busy = Client(stage), Client(stage), Client(stage)
    reader.fetch(0, max_wait_ms=60_000)

    def closed() -> bool:
        busy.produce(batch(b"x"), partition=1)
        stage.step(1)
        busy.receive(PRODUCE, 9)
        return any(kind == "closed" and key == idle.id for kind, key, *_ in stage.plane.take())

    until(stage, closed)
    assert idle.sock.recv(1) == b"" and reader.quiet()
    stage.close()
