"""The chores of a broker, also on a disk that fails."""

from __future__ import annotations

import errno
import logging
import threading
from types import SimpleNamespace

import pytest

from pybroker import errors
from pybroker.model import TopicPartition
from pybroker.replication.replicas import Replicas
from pybroker.server.scheduler import Chore, Flusher, Scheduler
from tests.harness import eventually, until
from tests.server.live import BASE_MS, Live, batch, values


def replicas(live: Live) -> Replicas:
    assert live.broker is not None and live.broker.replicas is not None
    return live.broker.replicas


async def test_old_segments_are_deleted_at_intervals(live: Live) -> None:
    """Segments are deleted by retention.ms; a topic with unlimited retention and a compacted one lose nothing."""
    await live.restart("log.retention.check.interval.ms=50")
    wire = await live.connect()
    for name, config in (
        ("old", {"retention_ms": "1000"}),
        ("kept", {"retention_ms": "-1"}),
        ("compacted", {"retention_ms": "1000", "cleanup_policy": "compact"}),
    ):
        await wire.create(name, segment_bytes="1000", **config)
        for _ in range(5):
            await wire.produce(name, batch(b"x" * 600, timestamp_ms=BASE_MS))
    await eventually("old segments are gone", lambda: replicas(live).leader("old", 0).partition().log_start_offset >= 4)
    assert (await wire.fetch("old", 0)).error_code == errors.OFFSET_OUT_OF_RANGE
    for name in ("kept", "compacted"):
        assert (await wire.fetch(name, 0)).log_start_offset == 0


async def test_flush_ms_is_kept_at_the_schedulers_interval(live: Live) -> None:
    await live.restart("log.flush.scheduler.interval.ms=20")
    wire = await live.connect()
    await wire.create("soon", flush_ms="50")
    await wire.create("never", flush_ms="9000000000")
    for name in ("soon", "never"):
        await wire.produce(name, batch(b"v"))
    await eventually("it is flushed", lambda: replicas(live).leader("soon", 0).partition().recovery_point == 1)
    assert replicas(live).leader("never", 0).partition().recovery_point == 0


def test_who_is_gone_is_not_remembered() -> None:
    """The time of a partition's last flush is forgotten with the partition, as topics come and go by the thousand."""
    flushed: list[str] = []

    def held(name: str) -> SimpleNamespace:
        log = SimpleNamespace(recovery_point=0, log_end_offset=1, flush=lambda: flushed.append(name))
        return SimpleNamespace(key=TopicPartition(name, 0), log=log, config={"flush.ms": 0 if name == "soon" else 1e9})

    there = [held("soon"), held("late"), held("gone")]
    owner = SimpleNamespace(each_replica=lambda work, log_dir: [work(replica) for replica in there])
    flusher = Flusher(owner, None)  # type: ignore[arg-type]
    flusher.run()
    since = flusher._flushed_at[TopicPartition("late", 0)]
    there.pop()
    flusher.run()
    assert flusher._flushed_at.keys() == {TopicPartition("soon", 0), TopicPartition("late", 0)}
    assert flusher._flushed_at[TopicPartition("late", 0)] == since
    assert flushed == ["soon", "soon"]


def test_a_chore_that_fails_is_logged_and_done_again(caplog: pytest.LogCaptureFixture) -> None:
    """A chore that fails runs again, and so do the others; stop() ends them all."""
    turns = {"good": 0, "bad": 0}

    def good() -> None:
        turns["good"] += 1

    def bad() -> None:
        turns["bad"] += 1
        raise OSError(errno.EIO, "a disk")

    intervals = {"good": (10, good), "bad": (10, bad), "never": ((1 << 63) - 1, bad)}
    scheduler = Scheduler([Chore(name, lambda ms=ms: ms, work) for name, (ms, work) in intervals.items()])
    scheduler.start()
    until("each had three turns", lambda: min(turns.values()) >= 3)
    scheduler.stop()
    assert not intervals.keys() & {thread.name for thread in threading.enumerate()}
    assert {r.levelno for r in caplog.records} == {logging.ERROR}


@pytest.mark.both_planes
async def test_a_full_disk_refuses_a_produce_and_is_over_when_it_is_over(live: Live) -> None:
    """A full disk gives KAFKA_STORAGE_ERROR without a partial write; fetches go on, and writes once there is space."""
    wire = await live.connect()
    await wire.create("t")
    await wire.produce("t", batch(b"before"))
    replicas(live).arm("segment.write", errno.ENOSPC, 1)
    refused = await wire.produce("t", batch(b"lost"))
    assert (refused.error_code, refused.base_offset) == (errors.KAFKA_STORAGE_ERROR, -1)
    assert values((await wire.fetch("t", 0)).records) == [b"before"]
    assert (await wire.produce("t", batch(b"after"))).base_offset == 1
    assert values((await wire.fetch("t", 0)).records) == [b"before", b"after"]


async def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    """A log line names the directory, the old checkpoint stays, and the next one is written."""
    wire = await live.connect()
    await wire.create("t")
    await wire.produce("t", batch(b"v"))
    replicas(live).recorder.record_high_watermarks()
    path = live.data_dir / "replication-offset-checkpoint"
    assert path.read_text() == "0\n1\nt 0 1\n"
    await wire.produce("t", batch(b"v"))
    replicas(live).arm("checkpoint.write", errno.ENOSPC, 2)
    replicas(live).recorder.record_high_watermarks()
    assert path.read_text() == "0\n1\nt 0 1\n"
    assert any("checkpoint not written" in r.getMessage() for r in caplog.records)
    replicas(live).recorder.record_high_watermarks()
    assert path.read_text() == "0\n1\nt 0 2\n"
