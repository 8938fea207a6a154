"""Compaction in a broker: which logs, when, and the recorded progress."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pybroker import core
from pybroker.core import build_batch
from pybroker.decisions.compaction import Dirt, dirt, first_dirty, is_due
from pybroker.protocol import messages as m
from pybroker.replication.compaction import Compactor
from pybroker.replication.disks.checkpoints import CLEANED
from pybroker.replication.replicas import Replicas
from tests.core.slow_clean import latest, stored
from tests.harness import eventually
from tests.server.live import BASE_MS, Live

SEGMENTS = [(0, 100, 10), (10, 100, 20), (20, 100, 30), (30, 50, 40)]


def replicas(live: Live) -> Replicas:
    assert live.broker is not None and live.broker.replicas is not None
    return live.broker.replicas


def pair(key: bytes, value: bytes | None) -> bytes:
    return build_batch([(BASE_MS, key, value, [])])


# -- the decision ------------------------------------------------------------------------------------------------------


def test_how_dirty_a_log_is() -> None:
    """The dirty part is the whole segments below the bound, except the last one and from the first too young one on."""
    assert dirt(SEGMENTS, 0, 100, now_ms=50, min_lag_ms=0) == Dirt(0, 30, 0, 300)
    assert dirt(SEGMENTS, 10, 100, now_ms=50, min_lag_ms=0) == Dirt(10, 30, 100, 200)
    assert dirt(SEGMENTS, 15, 100, now_ms=50, min_lag_ms=0) == Dirt(15, 30, 100, 200)
    assert dirt(SEGMENTS, 10, 29, now_ms=50, min_lag_ms=0) == Dirt(10, 20, 100, 100)
    assert dirt(SEGMENTS, 0, 100, now_ms=50, min_lag_ms=30) == Dirt(0, 20, 0, 200)
    assert dirt(SEGMENTS, 0, 100, now_ms=50, min_lag_ms=31) == Dirt(0, 10, 0, 100)
    assert dirt(SEGMENTS, 30, 100, now_ms=50, min_lag_ms=0) == Dirt(30, 30, 300, 0)


def test_when_a_log_is_compacted() -> None:
    """A dirty log is compacted above min.cleanable.dirty.ratio or after max.compaction.lag.ms; a clean one never."""
    half = Dirt(10, 20, 100, 100)
    assert not is_due(half, min_ratio=0.5, overdue=False)
    assert is_due(half, min_ratio=0.49, overdue=False)
    assert is_due(half, min_ratio=0.9, overdue=True)
    assert not is_due(Dirt(20, 20, 100, 0), min_ratio=0.0, overdue=True)


def test_a_record_that_does_not_fit_the_log_is_no_record() -> None:
    """A recorded offset outside the log is ignored: the log was truncated or recreated since."""
    assert [first_dirty(recorded, 5, 9) for recorded in (None, 4, 5, 9, 10)] == [5, 5, 5, 9, 5]


# -- the broker --------------------------------------------------------------------------------------------------------


async def test_a_compacted_topic_is_compacted_and_others_are_not(live: Live) -> None:
    """The last record of each key stays, cleaner-offset-checkpoint has the end, and a restart continues there."""
    await live.restart("log.cleaner.backoff.ms=20")
    wire = await live.connect()
    await wire.create("compacted", cleanup_policy="compact", segment_bytes="1000", min_cleanable_dirty_ratio="0")
    await wire.create("kept", segment_bytes="1000")
    for i in range(60):
        for name in ("compacted", "kept"):
            await wire.produce(name, pair(b"key-%d" % (i % 4), b"%d" % i))
    checkpoint = live.data_dir / "cleaner-offset-checkpoint"
    active = replicas(live).leader("compacted", 0).partition().segments()[-1][0]
    wanted = f"0\n1\ncompacted 0 {active}\n"
    await eventually("it is compacted", lambda: checkpoint.exists() and checkpoint.read_text() == wanted)
    expected = {b"key-%d" % k: b"%d" % (56 + k) for k in range(4)}
    for _ in range(2):
        wire = await live.connect()
        found = dict.fromkeys(("compacted", "kept"), b"")
        for name in found:
            end = replicas(live).leader(name, 0).partition().log_end_offset
            while not found[name] or offset_after(found[name]) < end:
                at = offset_after(found[name])
                found[name] += bytes((await wire.fetch(name, at)).records or b"")
        assert latest(stored(found["compacted"])) == latest(stored(found["kept"])) == expected
        assert len(stored(found["compacted"])) < len(stored(found["kept"])) == 60
        await live.restart("log.cleaner.backoff.ms=20")
    assert replicas(live).log_dirs[0].recorded[CLEANED] == {("compacted", 0): active}


def offset_after(data: bytes) -> int:
    at, end = 0, 0
    while at < len(data):
        end = int.from_bytes(data[at : at + 8], "big") + int.from_bytes(data[at + 23 : at + 27], "big") + 1
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return end


async def test_what_is_recorded_goes_with_its_topic(live: Live) -> None:
    """A topic created again with the same name starts without recorded progress."""
    await live.restart("log.cleaner.backoff.ms=20")
    wire = await live.connect()
    for _ in range(2):
        await wire.create("again", cleanup_policy="compact", segment_bytes="300")
        assert not replicas(live).log_dirs[0].recorded[CLEANED]
        for i in range(20):
            await wire.produce("again", pair(b"k", b"%d" % i))
        await eventually("a round is recorded", lambda: replicas(live).log_dirs[0].recorded[CLEANED])
        topics = [m.DeleteTopicsRequest.Topics(name="again")]
        await wire.call("DeleteTopics", 6, topics=topics, timeout_ms=5000)
    assert (live.data_dir / "cleaner-offset-checkpoint").read_text() == "0\n0\n"


async def test_no_log_is_compacted_where_the_cleaner_is_off(live: Live) -> None:
    before = set(threading.enumerate())  # another broker of this process may have a cleaner
    await live.restart("log.cleaner.backoff.ms=1", "log.cleaner.enable=false")
    wire = await live.connect()
    await wire.create("t", cleanup_policy="compact", segment_bytes="300")
    for i in range(20):
        await wire.produce("t", pair(b"k", b"%d" % i))
    replicas(live).leader("t", 0).partition().flush()
    assert "log-cleaner" not in {thread.name for thread in set(threading.enumerate()) - before}
    assert not replicas(live).log_dirs[0].recorded[CLEANED]
    await live.restart("log.cleaner.backoff.ms=1")
    await eventually("it is compacted where it is on", lambda: replicas(live).log_dirs[0].recorded[CLEANED])


async def test_as_many_logs_are_compacted_at_once_as_are_set(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """log.cleaner.threads changes while the broker runs; the threads share the one dedupe buffer."""
    await live.restart("log.cleaner.enable=false", f"log.cleaner.dedupe.buffer.size={1 << 20}")
    wire = await live.connect()
    for name in ("a", "b"):
        await wire.create(name, cleanup_policy="compact", segment_bytes="300", min_cleanable_dirty_ratio="0")
        for i in range(20):
            await wire.produce(name, pair(b"k", b"%d" % i))
    assert live.broker is not None
    compactor = Compactor(replicas(live), live.broker.config)
    replicas(live).each(lambda partition: partition.flush())
    for count in (1, 2):
        kind = m.IncrementalAlterConfigsRequest.Resources
        change = kind.Configs(name="log.cleaner.threads", config_operation=0, value=str(count))
        asked = [kind(resource_type=4, resource_name="", configs=[change])]
        assert (await wire.call("IncrementalAlterConfigs", 1, resources=asked)).responses[0].error_code == 0
        together, shares = threading.Barrier(count), []

        def clean(*_: object, map_bytes: int, **__: object) -> None:
            shares.append(map_bytes)  # noqa: B023  # called before the next iteration
            together.wait(30)  # noqa: B023

        monkeypatch.setattr(core, "clean", clean)
        await asyncio.to_thread(compactor.run)
        assert shares == [(1 << 20) // count] * 2
