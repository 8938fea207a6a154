"""The handling of Fetch answers by a consumer, without a broker: batches of several leader epochs, with
transactions."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pybroker import errors
from pybroker.client.consuming.fetch_collector import FetchCollector
from pybroker.client.consuming.fetcher import ConsumerFetcher, whole_batches
from pybroker.client.consuming.positions import Bell, Place, Positions
from pybroker.client.net import list_offsets
from pybroker.model import TopicPartition
from tests.wire import batch

TRANSACTIONAL, CONTROL = 0x10, 0x20
OF_PRODUCER: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}


def marker(base_offset: int, *, commit: bool) -> bytes:
    key, value = struct.pack(">hh", 0, commit), struct.pack(">hi", 0, 0)
    return batch([value], key=key, attributes=TRANSACTIONAL | CONTROL, base_offset=base_offset, **OF_PRODUCER)


def stand() -> tuple[ConsumerFetcher, FetchCollector, Place]:
    """A consumer of one partition, from offset 0, without a broker."""
    positions = Positions(None)
    positions.assign([TopicPartition("t", 0)])
    place = positions.get(("t", 0))
    place.move(0)
    topic = SimpleNamespace(id=b"i" * 16, error=0, partitions=[0])
    view = SimpleNamespace(
        leader=lambda *tp: 1, leader_epoch=lambda *tp: 3, topics={"t": topic}, nodes={1: 1}, names={topic.id: "t"}
    )
    network = SimpleNamespace(
        listen=lambda call: None, loop=SimpleNamespace(call_soon=lambda call: None), view=view, send=None
    )
    settings = SimpleNamespace(
        isolation_level="read_committed", max_partition_fetch_bytes=1 << 20, auto_offset_reset="earliest",
        fetch_max_bytes=1 << 24, fetch_max_wait_ms=1, fetch_min_bytes=1, client_rack="", request_timeout_ms=1000,
    )  # fmt: skip
    fetcher = ConsumerFetcher(network, settings, positions, Bell())  # type: ignore[arg-type]
    return fetcher, FetchCollector(fetcher, positions, check_crcs=True), place


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str, Callable[[], object]], None]:
    """Have the consumer's thread do something once, between two lines of the loop: before a call of that name."""

    def prepare(where: Any, name: str, act: Callable[[], object]) -> None:
        call = getattr(where, name)

        def with_it(*args: Any, **kwargs: Any) -> Any:
            monkeypatch.setattr(where, name, call)
            act()
            return call(*args, **kwargs)

        monkeypatch.setattr(where, name, with_it)

    return prepare


def sent_by(fetcher: ConsumerFetcher) -> list[tuple[Any, Callable[[Any, Any], object]]]:
    """The requests that are sent from now on, each with the handler of its answer."""
    sent: list[tuple[Any, Callable[[Any, Any], object]]] = []
    fetcher._network.send = lambda node, request, done, **how: sent.append((request, done))  # type: ignore[method-assign]
    return sent


@pytest.mark.parametrize("to", [42, list_offsets.LATEST], ids=["seek", "seek_to_end"])
@pytest.mark.parametrize("line", ["by_leader", "request"])
def test_a_seek_while_a_position_is_asked_for(to: int, line: str, between: Callable[..., None]) -> None:
    """A seek while a position is looked up discards that answer, and the new position is looked up."""
    fetcher, _, place = stand()
    place.reset(list_offsets.EARLIEST)
    between(list_offsets, line, lambda: place.move(to) if to >= 0 else place.reset(to))
    sent = sent_by(fetcher)
    fetcher.pump()
    told = SimpleNamespace(partition_index=0, error_code=0, offset=7, timestamp=-1, leader_epoch=3)
    sent[0][1](SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=[told])]), None)
    assert place.position == to
    asks, _ = sent[1]
    (now,) = asks.topics[0].partitions
    assert (now.timestamp if to < 0 else now.fetch_offset) == to


def test_a_seek_while_a_fetch_is_made(between: Callable[..., None]) -> None:
    """A seek while a fetch is built is not undone by that fetch's result."""
    fetcher, _, place = stand()
    between(fetcher, "_node", lambda: place.reset(list_offsets.LATEST))
    sent = sent_by(fetcher)
    fetcher.pump()
    ((_, done),) = sent
    refused = SimpleNamespace(partition_index=0, error_code=errors.OFFSET_OUT_OF_RANGE)
    topic = SimpleNamespace(topic="t", topic_id=b"", partitions=[refused])
    done(SimpleNamespace(error_code=0, session_id=0, node_endpoints=[], responses=[topic]), None)
    assert (place.reset_to, place.error) == (list_offsets.LATEST, None)


def answer_of(*batches: bytes) -> Any:
    return SimpleNamespace(
        error_code=0, high_watermark=5, last_stable_offset=5, preferred_read_replica=-1, diverging_epoch=None,
        records=memoryview(b"".join(batches)), aborted_transactions=[SimpleNamespace(producer_id=7, first_offset=0)],
    )  # fmt: skip


def answered(epochs: tuple[int, ...]) -> tuple[FetchCollector, Place]:
    """A reader of an aborted and a committed transaction of one producer, each batch of another leader epoch."""
    fetcher, reader, place = stand()
    batches = (
        batch([b"aborted"], attributes=TRANSACTIONAL, sequence=0, base_offset=0, **OF_PRODUCER),
        marker(1, commit=False),
        batch([b"one", b"two"], attributes=TRANSACTIONAL, sequence=1, base_offset=2, **OF_PRODUCER),
        marker(4, commit=True),
    )
    stamped = (
        each[:12] + struct.pack(">i", epoch) + each[16:] for each, epoch in zip(batches, epochs, strict=True)
    )
    assert fetcher._take_of(1, place.asked(), answer_of(*stamped))
    return reader, place


@pytest.mark.parametrize("epochs", [(3, 3, 3, 3), (3, 3, 4, 4), (3, 4, 5, 6)], ids=str)
def test_a_transaction_is_known_across_leader_epochs(epochs: tuple[int, ...]) -> None:
    """A transaction is known across leader epochs: an abort under one leader removes no record that was committed under
    the next."""
    reader, place = answered(epochs)
    assert [record.value for record in reader.records(100)] == [b"one", b"two"]
    assert (place.position, place.epoch, place.fetch_epoch) == (5, epochs[-1], epochs[-1])


def test_the_epoch_of_a_position_is_that_of_the_record_before_it() -> None:
    reader, place = answered((3, 3, 4, 5))
    assert [record.value for record in reader.records(1)] == [b"one"]
    assert (place.position, place.epoch, place.fetch_epoch) == (3, 4, 5)


def test_a_seek_while_an_answer_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seek while an answer is handled discards its records, which are of the old position."""
    fetcher, reader, place = stand()
    seek, read = threading.Thread(target=lambda: place.move(100)), whole_batches

    def slow(*given: Any) -> Any:
        seek.start()
        seek.join(0.05)
        return read(*given)

    monkeypatch.setattr("pybroker.client.consuming.fetcher.whole_batches", slow)
    asked = place.asked()
    assert fetcher._take_of(1, asked, answer_of(batch([b"x"])))
    seek.join()
    assert reader.records(10) == []
    assert (place.position, place.fetch_offset) == (100, 100)
    assert fetcher._take_of(1, asked, answer_of(batch([b"x"]))) is None


def test_a_mistake_of_ours_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of ours in handling an answer is raised by poll(), and an outdated partition's is not."""
    fetcher, reader, place = stand()

    def wrong(*_: Any) -> Any:
        raise RuntimeError("wrong")

    monkeypatch.setattr("pybroker.client.consuming.fetcher.whole_batches", wrong)
    assert fetcher._take_of(1, place.asked(), answer_of(batch([b"x"])))
    assert str(place.error) == "UNKNOWN_SERVER_ERROR: t-0: RuntimeError: wrong"
    assert reader.records(10) == []
