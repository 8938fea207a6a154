"""A disk that fails while the broker runs: its log dir goes offline, which is visible, and the others serve."""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pybroker.errors import KAFKA_STORAGE_ERROR
from pybroker.replication.replicas import Replicas
from tests.server.live import Live, Wire, batch
from tests.server.test_metrics import get, of, scrape

SECONDS_MAX = 20


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    """A broker with two log dirs and a metrics listener."""
    dirs = f"log.dirs={tmp_path / 'one'},{tmp_path / 'two'}"
    made = Live(tmp_path, [dirs, "metrics.listener=127.0.0.1:0"])
    await made.start()
    yield made
    await made.stop()


def replicas(live: Live) -> Replicas:
    assert live.broker is not None and live.broker.replicas is not None
    return live.broker.replicas


async def two_topics(live: Live, wire: Wire, **config: str) -> tuple[str, str]:
    """Create one topic in log dir `two`, which has no store, and one in the other, with a record each."""
    for name in ("a", "b"):
        assert (await wire.create(name, **config)).error_code == 0
        assert (await wire.produce(name, batch(b"0"))).error_code == 0
    return ("a", "b") if (live.data_dir / "two" / "a-0").exists() else ("b", "a")


async def refused(wire: Wire, topic: str) -> int:
    """Produce until a batch is refused; return the number of batches that were not."""
    async with asyncio.timeout(SECONDS_MAX):
        taken = 0
        while not (code := (await wire.produce(topic, batch(b"more"))).error_code):
            taken += 1
            await asyncio.sleep(0.01)
    assert code == KAFKA_STORAGE_ERROR
    return taken


async def told(live: Live, caplog: pytest.LogCaptureFixture) -> str:
    """The one log line about an offline log dir."""
    async with asyncio.timeout(SECONDS_MAX):
        while not (lines := [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]):
            await asyncio.sleep(0.01)
    [line] = lines
    assert line.startswith(f"log dir offline directory={live.data_dir / 'two'} ")
    return line


async def codes(wire: Wire) -> dict[str, int]:
    """The error of each log dir, by the last part of its path."""
    answer: Any = await wire.call("DescribeLogDirs", 4, topics=None)
    return {Path(result.log_dir).name: result.error_code for result in answer.results}


@pytest.mark.parametrize(
    ("point", "error", "config"),
    [
        ("segment.write", errno.EIO, {}),
        ("segment.write", errno.EROFS, {}),
        ("segment.create", errno.EIO, {"segment_bytes": "100"}),
        ("segment.sync", errno.EIO, {"flush_messages": "1"}),
    ],
)
async def test_a_disk_that_fails(
    live: Live, wire: Wire, caplog: pytest.LogCaptureFixture, point: str, error: int, config: dict[str, str]
) -> None:
    """One failed call takes its log dir offline. The log, metrics, readiness and DescribeLogDirs report it; the other
    log dir serves and gets all new partitions."""
    broken, sound = await two_topics(live, wire, **config)
    assert await get(live, "/readyz") == (200, "ok\n")
    replicas(live).arm(point, error, 1)
    for _ in range(3):
        assert (await wire.produce(broken, batch(b"x"))).error_code == KAFKA_STORAGE_ERROR
    assert (await wire.produce(sound, batch(b"1"))).base_offset == 1
    for name in ("c", "d", "e"):
        assert (await wire.create(name)).error_code == 0
        assert (await wire.produce(name, batch(b"0"))).error_code == 0
        assert (live.data_dir / "one" / f"{name}-0").exists()
    assert await codes(wire) == {"one": 0, "two": KAFKA_STORAGE_ERROR}
    assert error == errno.EROFS or "input/output error" in await told(live, caplog)
    seen, offline = await scrape(live), str(live.data_dir / "two")
    assert of(seen, "pybroker_log_dir_offline", dir=offline) == 1
    assert of(seen, "pybroker_offline_log_directory_count") == 1
    assert of(seen, "pybroker_partitions_offline") == 1
    status, reason = await get(live, "/readyz")
    assert status == 503 and offline in reason
    assert (await get(live, "/healthz"))[0] == 200
    await live.restart()
    wire = await live.connect()
    assert (await wire.produce(broken, batch(b"y"))).error_code == 0
    assert await codes(wire) == {"one": 0, "two": 0}


@pytest.mark.parametrize(
    "point", ["checkpoint.write", "epoch.write", "snapshot.write", "index.write", "directory.sync"]
)
async def test_what_is_written_beside_the_records_fails(
    live: Live, wire: Wire, caplog: pytest.LogCaptureFixture, point: str
) -> None:
    """A failed write of a checkpoint, snapshot, index or file name takes the log dir offline like one of records."""
    broken, sound = await two_topics(live, wire, segment_bytes="100")
    assert (await wire.produce(broken, batch(b"1", producer_id=7, producer_epoch=0, base_sequence=0))).error_code == 0
    log = replicas(live).leader(broken, 0).partition()
    log.flush()
    replicas(live).arm(point, errno.EIO, 1)
    if point == "checkpoint.write":
        two = next(d for d in replicas(live).log_dirs if d.path == str(live.data_dir / "two"))
        with pytest.raises(OSError, match="Input/output"):
            two.record_clean_stop(1)
    elif point == "epoch.write":
        log.become_leader(5, 5)
        with pytest.raises(OSError, match="Input/output"):
            log.write_checkpoints()
    else:
        log.roll()
    assert await refused(wire, broken) >= 0
    assert (await wire.produce(sound, batch(b"1"))).error_code == 0
    await told(live, caplog)
    assert await codes(wire) == {"one": 0, "two": KAFKA_STORAGE_ERROR}


@pytest.mark.parametrize("what", ["active segment", "before a roll", "partition", "log dir", "log dir renamed"])
async def test_a_directory_removed_beneath_the_broker(
    live: Live, wire: Wire, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """No write is acknowledged once the broker has noticed the removal: by its check once a second, or earlier, when it
    seals a segment that is gone."""
    broken, sound = await two_topics(live, wire, segment_bytes="100" if what == "before a roll" else "1000000")
    two = live.data_dir / "two"
    if what in ("active segment", "before a roll"):
        [active] = (two / f"{broken}-0").glob("*.log")
        active.unlink()
    elif what == "partition":
        shutil.rmtree(two / f"{broken}-0")
    elif what == "log dir":
        shutil.rmtree(two)
    else:
        two.rename(live.data_dir / "elsewhere")
    await refused(wire, broken)
    assert (await wire.produce(sound, batch(b"1"))).base_offset == 1
    line = await told(live, caplog)
    assert "removed" in line or "in its place" in line or what == "before a roll"
    assert await codes(wire) == {"one": 0, "two": KAFKA_STORAGE_ERROR}
    assert (await wire.create("c")).error_code == 0
    assert (await wire.produce("c", batch(b"0"))).error_code == 0


async def test_what_waits_for_the_disk_is_not_acknowledged_into_a_removed_file(live: Live, wire: Wire) -> None:
    """With flush.messages=1 not one record is acknowledged."""
    broken, _ = await two_topics(live, wire, flush_messages="1")
    shutil.rmtree(live.data_dir / "two" / f"{broken}-0")
    assert (await wire.produce(broken, batch(b"x"))).error_code == KAFKA_STORAGE_ERROR


async def test_a_full_disk_is_no_failed_disk(live: Live, wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    """A full disk, a used-up quota and a missing permission keep the log dir online: the next write is tried."""
    broken, _ = await two_topics(live, wire)
    for error in (errno.ENOSPC, errno.EDQUOT, errno.EACCES):
        replicas(live).arm("segment.write", error, 1)
        assert (await wire.produce(broken, batch(b"x"))).error_code == KAFKA_STORAGE_ERROR
    replicas(live).disarm()
    assert (await wire.produce(broken, batch(b"y"))).base_offset == 1
    assert await codes(wire) == {"one": 0, "two": 0}
    assert not [r for r in caplog.records if r.levelno == logging.ERROR]


async def test_a_full_disk_is_called_so(live: Live, wire: Wire) -> None:
    """The first refusal has only its code; later ones have a message, until a write succeeds."""
    broken, _ = await two_topics(live, wire)
    words = {
        errno.ENOSPC: "disk full: no space left in the partition's log dir: free some on the broker, then retry",
        errno.EDQUOT: "disk full: the disk quota of the partition's log dir is used up: raise it, then retry",
        errno.EACCES: "cannot write to the partition's log dir: Permission denied",
    }
    for error, message in words.items():
        replicas(live).arm("segment.write", error, 3)
        answers = [await wire.produce(broken, batch(b"x")) for _ in range(3)]
        assert [a.error_code for a in answers] == [KAFKA_STORAGE_ERROR] * 3
        assert [a.error_message for a in answers[1:]] == [message] * 2
        assert (await wire.produce(broken, batch(b"x"))).error_code == 0


async def test_a_read_that_fails_fails_alone(live: Live, wire: Wire) -> None:
    """A read that fails is answered with KAFKA_STORAGE_ERROR, and its log dir stays online."""
    topic, _ = await two_topics(live, wire)
    log = replicas(live).leader(topic, 0).partition()
    log.roll()
    log.flush()
    replicas(live).close_idle_files()
    replicas(live).close_idle_files()
    replicas(live).arm("segment.read", errno.EIO, 1000)  # the native plane meets one error, Python's retry the next
    assert (await wire.fetch(topic, 0)).error_code == KAFKA_STORAGE_ERROR
    replicas(live).disarm()
    assert (await wire.fetch(topic, 0)).error_code == 0
    assert (await wire.produce(topic, batch(b"1"))).base_offset == 1
    assert await codes(wire) == {"one": 0, "two": 0}
