"""Core's counters: every request is counted once, every byte in its direction, every duration in its bucket."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from pybroker import core
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from tests.core.test_plane import FETCH, METADATA, PRODUCE, Client, Stage, batch


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def figures(stage: Stage) -> core.Reactor:
    return stage.plane.stats()[0]


def total(histogram: core.Histogram) -> int:
    assert len(histogram["counts"]) == len(core.BOUNDS_US) + 1
    return sum(histogram["counts"])


def received(client: Client) -> int:
    """Receive an answer; return its bytes, with the size field."""
    return 4 + len(client._exactly(int.from_bytes(client._exactly(4), "big")))


def test_bounds_grow_by_a_quarter_at_most() -> None:
    """Every bucket above the first few is at most a quarter wider than its lower bound."""
    assert all(low < high <= max(low * 1.25, low + 1) for low, high in pairwise(core.BOUNDS_US))
    assert core.BOUNDS_US[0] == 1 and core.BOUNDS_US[-1] > 30 * 60 * 1_000_000


def test_requests_and_bytes_are_counted_once(stage: Stage) -> None:
    """Three produces, a fetch, a request for Python and another API are each counted in their place, to the byte."""
    client = Client(stage)
    records = batch(b"a", b"b")
    for number in range(3):
        client.produce(records, number=number)
    stage.step()
    sent = [received(client) for _ in range(3)]
    client.fetch(0)
    stage.step()
    sent.append(received(client))
    client.produce(records, partition=9)
    stage.step()
    ((_, _, token, _),) = stage.plane.take()
    stage.plane.reply(token, None)
    client.send(codec.encode_request(METADATA, 9, 5, "c", m.MetadataRequest(topics=None)))
    stage.step()
    ((_, _, token, _),) = stage.plane.take()
    stage.plane.reply(token, [b"answer"])
    stage.step()
    seen = figures(stage)
    produce, fetch = seen["Produce"], seen["Fetch"]
    assert (produce["requests"], produce["declined"], produce["errors"]) == (3, 1, 0)
    assert (fetch["requests"], fetch["declined"], fetch["errors"]) == (1, 0, 0)
    assert (seen["others"], seen["connections"], seen["parked"]) == (1, 1, 0)
    assert (produce["bytes_out"], fetch["bytes_out"]) == (sum(sent[:3]), sent[3])
    assert seen["bytes_out"] == sum(sent) + 4 + len(b"answer")
    assert seen["bytes_in"] > produce["bytes_in"] + fetch["bytes_in"] > 3 * len(records)
    assert total(produce["times"]) == 3 and total(fetch["times"]) == 1
    assert total(seen["turns"]) > 0 and seen["busy_ns"] > 0


def test_what_goes_in_and_out_of_a_partition(stage: Stage) -> None:
    """Traffic of a partition counts both the plane and Python; a duplicate is not appended, and so not counted."""
    records = batch(b"a", b"b", producer_id=1, producer_epoch=0, base_sequence=0)
    client = Client(stage)
    for number in range(2):
        client.produce(records, number=number)
    stage.log.append(batch(b"c"), now_ms=1)
    stage.step()
    client.fetch(0)
    stage.step()
    stored = len(records) + len(batch(b"c"))
    copied = {"replication_bytes_in": 0, "replication_bytes_out": 0}
    assert stage.log.traffic == {"batches_in": 2, "records_in": 3, "bytes_in": stored, "bytes_out": stored, **copied}
    assert not any(stage.partitions[1].traffic.values())


def test_a_long_poll_counts_from_when_it_was_read(stage: Stage) -> None:
    """A long poll counts as parked while it waits, and its time includes the wait."""
    client = Client(stage)
    client.fetch(0, max_wait_ms=60_000)
    stage.step()
    assert figures(stage)["parked"] == 1 and figures(stage)["Fetch"]["requests"] == 0
    time.sleep(0.05)
    stage.log.append(batch(b"news"), now_ms=1)
    stage.step()
    assert figures(stage)["parked"] == 0
    fetch = figures(stage)["Fetch"]
    assert (fetch["requests"], total(fetch["times"])) == (1, 1)
    assert fetch["times"]["sum_us"] >= 45_000


def test_an_append_that_fails_is_an_error(stage: Stage) -> None:
    """A Produce that finds a full disk counts as a request and an error, and adds no bytes."""
    stage.broker.arm("segment.write", "errno", 28)
    client = Client(stage)
    client.produce(batch(b"x"))
    stage.step()
    assert client.receive(PRODUCE, 9)[1].responses[0].partition_responses[0].error_code == 56
    assert (figures(stage)["Produce"]["requests"], figures(stage)["Produce"]["errors"]) == (1, 1)
    assert stage.log.traffic["bytes_in"] == 0


def test_an_offset_outside_the_log_is_an_error(stage: Stage) -> None:
    """OFFSET_OUT_OF_RANGE, which the plane answers itself, is counted once."""
    client = Client(stage)
    client.fetch(9, max_wait_ms=60_000)
    stage.step()
    assert client.receive(FETCH, 12)[1].responses[0].partitions[0].error_code == 1
    assert (figures(stage)["Fetch"]["requests"], figures(stage)["Fetch"]["errors"]) == (1, 1)


def test_flushes_are_timed(stage: Stage) -> None:
    """A slow disk shows in the flush time."""
    stage.log.append(batch(b"x"), now_ms=1)
    before = stage.broker.sync_times()
    stage.broker.arm("segment.sync", "sleep", 50)
    stage.log.flush()
    after = stage.broker.sync_times()
    assert total(after) > total(before)
    assert after["sum_us"] - before["sum_us"] >= 50_000
    assert sum(after["counts"][core.BOUNDS_US.index(40960) :]) >= 1


def test_a_fetch_is_the_same_to_the_partition_whoever_sends_it(stage: Stage) -> None:
    """A slice that Python answers with is counted like one that the plane reads."""
    stage.log.append(batch(b"a"), now_ms=1)
    client = Client(stage)
    client.send(codec.encode_request(METADATA, 9, 5, "c", m.MetadataRequest(topics=None)))
    stage.step()
    ((_, _, token, _),) = stage.plane.take()
    part = stage.log.read(0, 1 << 20).slice
    assert part is not None
    stage.plane.reply(token, [b"head", part])
    part.close()
    stage.step()
    assert stage.log.traffic["bytes_out"] == len(batch(b"a"))
