"""Bad spots are found, logged and recorded once, and forgotten when the log is sound there again."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pybroker import core, errors
from pybroker.config import BrokerConfig
from pybroker.replication.disks import damage
from pybroker.replication.disks.checkpoints import Pass, Spot
from pybroker.replication.replica import Replica
from pybroker.replication.scrub import Scrubber, ask, read_last
from tests.server.handlers.desk import Desk
from tests.server.live import batch

COUNT = 4
SIZE = len(batch(b"v"))


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    made = await Desk(tmp_path / "data").begin()
    yield made
    await made.end()


async def stock(desk: Desk, name: str = "t") -> Replica:
    """A replica with a sealed segment of four batches of one record each, and an active segment of one."""
    await desk.topic(name)
    replica = desk.replica(name)
    for _ in range(COUNT):
        await replica.append(batch(b"v"), 1)
    replica.partition().roll()
    await replica.append(batch(b"v"), 1)
    replica.partition().flush()
    return replica


def spoil(replica: Replica, number: int, count: int = 1) -> Spot:
    """Make batches of the sealed segment unreadable; return their spot."""
    path = Path(damage.segment_file(replica.partition().directory, 0))
    data = bytearray(path.read_bytes())
    for n in range(number, number + count):
        data[n * SIZE + 30] ^= 0xFF
    path.write_bytes(data)
    return Spot(0, number * SIZE, (number + count) * SIZE, number, number + count)


async def test_a_read_passes_by_what_is_bad(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """A read continues behind a bad spot, which is logged and recorded once."""
    replica = await stock(desk)
    spot = spoil(replica, 1, 2)
    for offset in (1, 2, 1):
        assert replica.pass_by(offset) == 3
    assert desk.log_dir.damage == {replica.key: {spot}}
    assert caplog.text.count("damaged batches skipped") == 1
    assert f"position={SIZE} bytes={2 * SIZE} offsets_lost=1..2" in caplog.text
    for offset in (0, 3, 4):
        with pytest.raises(core.LogError) as refused:
            replica.pass_by(offset)
        assert refused.value.code == errors.CORRUPT_MESSAGE


async def test_many_spots_are_counted(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """LINES_MAX bad spots are logged in lines of their own, and the others are counted in one line."""
    replica = await stock(desk)
    spots = [Spot(0, n, n + 1, n, n + 1) for n in range(damage.LINES_MAX + 2)]
    damage.say(replica, spots[: damage.LINES_MAX])
    assert caplog.text.count("damaged batches skipped") == damage.LINES_MAX
    caplog.clear()
    damage.say(replica, spots)
    assert caplog.text.count("offsets_lost") == damage.LINES_MAX and "places=2" in caplog.text


async def test_what_cannot_be_written_down_is_passed_by(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    replica = await stock(desk)
    spot = spoil(replica, 1)
    desk.replicas.arm("checkpoint.write", errno.ENOSPC, 2)
    assert replica.pass_by(1) == 2
    assert "damage not recorded" in caplog.text and desk.log_dir.failure is None
    assert desk.log_dir.damage.get(replica.key) == {spot}


async def test_a_spot_is_still_bad_or_put_right(desk: Desk) -> None:
    """A spot is no longer bad if its segment is gone, cut, replaced, or has a sound batch there."""
    replica = await stock(desk)
    path = Path(damage.segment_file(replica.partition().directory, 0))
    sound = path.read_bytes()
    spot = spoil(replica, 1)
    spoiled = path.read_bytes()
    assert damage.is_still_bad(str(path), spot)
    for data in (sound, spoiled[: SIZE + 10], spoiled[:SIZE] + spoiled[SIZE + 1 :]):
        path.write_bytes(data)
        assert not damage.is_still_bad(str(path), spot)
    path.write_bytes(spoiled[: 2 * SIZE])
    assert damage.is_still_bad(str(path), spot), "the last batch of a shorter segment"
    path.unlink()
    assert not damage.is_still_bad(str(path), spot)


async def test_a_start_remembers_what_is_still_bad(desk: Desk) -> None:
    """After a start reads pass a recorded bad spot at once, and a repaired one is forgotten."""
    replica = await stock(desk)
    spot = spoil(replica, 1)
    desk.log_dir.damage = {replica.key: frozenset({spot, Spot(0, 3 * SIZE, 4 * SIZE, 3, 4)})}
    damage.remember(replica)
    assert [Spot(*found) for found in core.bad_spots(replica.partition())] == [spot]
    assert desk.log_dir.damage == {replica.key: {spot}}


# -- scrubbing ---------------------------------------------------------------------------------------------------------


def scrubber(desk: Desk, *sets: str) -> Scrubber:
    return Scrubber(desk.replicas, BrokerConfig.load(None, list(sets)))


async def test_a_pass_is_made_when_it_is_asked_for(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """A scrub pass runs once for each request, over the sealed segments; a new log dir counts as checked."""
    replica = await stock(desk)
    spot = spoil(replica, 2)
    work = scrubber(desk)
    work.run()
    assert desk.log_dir.damage == {} and desk.replicas.scrubbed.bytes == 0
    asked_ms = ask(desk.log_dir_path)
    for _ in range(2):
        work.run()
        assert desk.log_dir.damage == {replica.key: {spot}}
        assert desk.replicas.scrubbed.bytes == COUNT * SIZE
    last = read_last(desk.log_dir_path)
    assert last is not None and last.began_ms >= asked_ms and last.unchecked == 0
    assert caplog.text.count("damaged batches skipped") == 1


async def test_what_could_not_be_checked_is_counted(desk: Desk) -> None:
    """A pass counts a partition that is offline and a segment without a file as unchecked, and checks the others."""
    first, second, third = [await stock(desk, name) for name in "abc"]
    first.log = None
    Path(damage.segment_file(second.partition().directory, 0)).unlink()
    scrubber(desk).run()
    ask(desk.log_dir_path)
    scrubber(desk).run()
    last = read_last(desk.log_dir_path)
    assert last is not None and last.unchecked == 2
    assert desk.replicas.scrubbed.bytes == COUNT * SIZE and third.log is not None


async def test_a_log_dir_that_is_offline_is_answered_for(desk: Desk) -> None:
    """A pass over an offline log dir counts all its segments as unchecked, at least one."""
    scrubber(desk).run()
    await stock(desk)
    desk.log_dir.fail("it smokes")
    ask(desk.log_dir_path)
    scrubber(desk).run()
    last = read_last(desk.log_dir_path)
    assert last is not None and last.began_ms > 0 and last.unchecked == 1


async def test_a_broker_that_ends_makes_no_pass(desk: Desk) -> None:
    """A broker that is stopping runs no pass, so a request waits for the next broker."""
    await stock(desk)
    scrubber(desk).run()
    ask(desk.log_dir_path)
    desk.replicas.stop_cleaning()
    scrubber(desk).run()
    assert read_last(desk.log_dir_path) == Pass(0)
