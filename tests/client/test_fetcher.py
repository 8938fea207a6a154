"""What a consumer makes of a Fetch answer, without a broker: batches of several leader epochs, with transactions."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from pybroker.client.fetcher import Fetcher
from pybroker.client.positions import Bell, Place, Positions
from pybroker.client.reader import Reader
from pybroker.model import TopicPartition
from tests.wire import batch

TRANSACTIONAL, CONTROL = 0x10, 0x20
OF_PRODUCER: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}


def marker(base_offset: int, *, commit: bool) -> bytes:
    key, value = struct.pack(">hh", 0, commit), struct.pack(">hi", 0, 0)
    return batch([value], key=key, attributes=TRANSACTIONAL | CONTROL, base_offset=base_offset, **OF_PRODUCER)


def answered(epochs: tuple[int, ...]) -> tuple[Reader, Place]:
    """A reader of an aborted and a committed transaction of one producer, each batch of a leader epoch."""
    positions = Positions(None)
    positions.assign([TopicPartition("t", 0)])
    place = positions.get(("t", 0))
    place.move(0)
    network = SimpleNamespace(listen=lambda call: None, loop=SimpleNamespace(call_soon=lambda call: None))
    settings = SimpleNamespace(
        isolation_level="read_committed", max_partition_fetch_bytes=1 << 20, auto_offset_reset="earliest"
    )
    fetcher = Fetcher(network, settings, positions, Bell())  # type: ignore[arg-type]
    batches = (
        batch([b"aborted"], attributes=TRANSACTIONAL, sequence=0, base_offset=0, **OF_PRODUCER),
        marker(1, commit=False),
        batch([b"one", b"two"], attributes=TRANSACTIONAL, sequence=1, base_offset=2, **OF_PRODUCER),
        marker(4, commit=True),
    )
    stamped = (
        each[:12] + struct.pack(">i", epoch) + each[16:] for each, epoch in zip(batches, epochs, strict=True)
    )
    answer = SimpleNamespace(
        error_code=0, high_watermark=5, last_stable_offset=5, preferred_read_replica=-1, diverging_epoch=None,
        records=memoryview(b"".join(stamped)), aborted_transactions=[SimpleNamespace(producer_id=7, first_offset=0)],
    )  # fmt: skip
    assert fetcher._take(1, place, answer)
    return Reader(fetcher, positions, check_crcs=True), place


@pytest.mark.parametrize("epochs", [(3, 3, 3, 3), (3, 3, 4, 4), (3, 4, 5, 6)], ids=str)
def test_a_transaction_is_known_across_leader_epochs(epochs: tuple[int, ...]) -> None:
    """What was aborted under one leader takes nothing with it of what was committed under the next."""
    reader, place = answered(epochs)
    assert [record.value for record in reader.records(100)] == [b"one", b"two"]
    assert (place.position, place.epoch, place.fetch_epoch) == (5, epochs[-1], epochs[-1])


def test_the_epoch_of_a_position_is_that_of_the_record_before_it() -> None:
    reader, place = answered((3, 3, 4, 5))
    assert [record.value for record in reader.records(1)] == [b"one"]
    assert (place.position, place.epoch, place.fetch_epoch) == (3, 4, 5)
