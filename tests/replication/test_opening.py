"""A replica's log is looked for, created, opened or missed in two log dirs, of which one may be gone."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from pybroker import core
from pybroker.config import BrokerConfig, TopicConfig
from pybroker.decisions.image import PartitionState
from pybroker.errors import StartError
from pybroker.model import TopicPartition
from pybroker.replication.disks import damage
from pybroker.replication.disks.checkpoints import HIGH_WATERMARKS, Meta
from pybroker.replication.disks.disk import DiskThreads
from pybroker.replication.disks.logdirs import FoundPartition, LogDir
from pybroker.replication.opening import Opener, Opening
from pybroker.replication.replica import Replica
from pybroker.replication.validation import RecordRules
from tests.core.following import EPOCH, content
from tests.core.following import batch as copied
from tests.server.live import batch

ID = b"\1" * 16
STATE = PartitionState((1,), 1, 3, (1,), 1, 0)
T0 = TopicPartition("t", 0)
Start = Callable[..., "Life"]


class Life:
    """One life of a broker on two log dirs, a and b."""

    def __init__(self, path: Path, *given_up: str) -> None:
        self.dirs = [LogDir(str(path / name)) for name in "ab"]
        for log_dir in self.dirs:
            log_dir.open()
            log_dir.recall()
            log_dir.claim(Meta("cluster", 1, f"id-{log_dir.path[-1]}"))
        self.core = core.LogManager()
        for log_dir in self.dirs:
            log_dir.core = self.core
        self.opener = Opener(self.core, self.dirs, given_up)

    @property
    def found(self) -> Mapping[TopicPartition, FoundPartition]:
        return self.opener._found

    def replica(
        self, key: TopicPartition = T0, recorded: str | None = None, new: bool = False,
        state: PartitionState | None = STATE, topic_id: bytes = ID,
    ) -> Replica:  # fmt: skip
        """Place the replica and open it if it has a place; without a state it has no role, as in a cluster."""
        settings = TopicConfig(BrokerConfig.load(None, []), {}, stored=True)
        made = Replica(key, topic_id, settings, settings.core(), RecordRules.of(settings), DiskThreads())
        log_dir, is_made = self.opener.place(made, recorded, new)
        if log_dir is not None:
            log_dir.placed += 1
            self.opener.open_share(log_dir, [Opening(made, None if state is None else state.leader_epoch, is_made)])
            if made.log is not None and state is not None:
                made.log.become_leader(state.leader_epoch, state.partition_epoch)
        return made

    def end(self) -> None:
        self.core.close(clean=False)
        for log_dir in self.dirs:
            log_dir.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A function that begins a life after ending the previous one."""
    lives: list[Life] = []

    def begin(*given_up: str) -> Life:
        if lives:
            lives.pop().end()
        lives.append(Life(tmp_path, *given_up))
        lives[0].opener.survey({"t": ID})
        return lives[0]

    yield begin
    lives.pop().end()


def append(replica: Replica, count: int = 1) -> None:
    for _ in range(count):
        replica.partition().append(batch(b"a"), now_ms=1)


def test_new_ones_go_where_the_fewest_are(start: Start) -> None:
    """New logs go to the log dir with fewest logs, are led in the recorded epoch, and are found at the next start."""
    life = start()
    made = [life.replica(TopicPartition("t", n), new=True) for n in range(4)]
    assert [r.directory is life.dirs[n % 2] for n, r in enumerate(made)] == [True] * 4
    assert {r.partition().leader_epoch for r in made} == {3}
    append(made[1])
    life = start()
    again = life.replica(TopicPartition("t", 1), recorded="id-b")
    assert again.directory is life.dirs[1] and again.partition().log_end_offset == 1
    assert (
        life.opener.directory_of(T0) == f"{life.dirs[0].path}/t-0"
        and life.opener.directory_of(TopicPartition("t", 9)) is None
    )


def test_new_ones_go_to_a_full_disk_last(start: Start) -> None:
    """A full disk gets new logs only if no other log dir is online."""
    life = start()
    full, other = life.dirs
    full.space.begin(life.core)
    life.core.arm("disk.reserve", "errno", errno.ENOSPC, times=1 << 30)
    assert full.space.lacks()
    assert [life.replica(TopicPartition("t", n), new=True).directory for n in range(3)] == [other] * 3
    other.fail("lost")
    assert life.opener.place(life.replica(T0), None, True)[0] is full


def test_one_that_was_never_made_is_made(start: Start) -> None:
    """A log that is neither recorded nor on disk is created, as its creation was cut short."""
    assert start().replica().partition().log_end_offset == 0


def test_what_lies_at_the_place_of_a_new_one_is_set_aside(start: Start, tmp_path: Path) -> None:
    """An unknown directory in the place of a new log is set aside, and its checkpoint entries are removed."""
    life = start()
    append(life.replica(new=True), 3)
    life.dirs[0]._replace(HIGH_WATERMARKS, {T0: 3})
    life = start()
    assert life.replica(new=True, topic_id=b"o" * 16).partition().log_end_offset == 0
    [aside] = list(tmp_path.glob("?/*-stray"))
    assert (aside / f"{0:020}.log").stat().st_size > 0
    assert all(log_dir.recorded[HIGH_WATERMARKS] == {} for log_dir in life.dirs)


def test_a_partition_in_two_log_dirs(start: Start, tmp_path: Path) -> None:
    start().replica(new=True)
    shutil.copytree(tmp_path / "a" / "t-0", tmp_path / "b" / "t-0")
    with pytest.raises(StartError, match=r"t-0 is in two log directories, .*/a and .*/b"):
        start()
    shutil.rmtree(tmp_path / "b" / "t-0")
    start()


def test_a_directory_of_a_deleted_topic_is_no_partition(start: Start, tmp_path: Path) -> None:
    """A directory with a deleted topic's id is no partition; one without an id is recognised by its name."""
    start().replica(new=True)
    metadata = tmp_path / "a" / "t-0" / "partition.metadata"
    metadata.write_text("version: 0\ntopic_id: AgICAgICAgICAgICAgICAg\n")
    assert dict(start().found) == {}
    metadata.unlink()
    assert list(start().found) == [T0]


def test_a_directory_that_is_missing_takes_its_partition_offline(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing directory takes its partition offline until it is back, or given up by partition or log dir name."""
    append(start().replica(new=True))
    aside = tmp_path / "aside"
    (tmp_path / "a" / "t-0").rename(aside)
    missed = start().replica(recorded="id-a")
    assert missed.log is None and missed.failure == f"its directory is missing from {tmp_path}/a"
    assert "pybroker serve --give-up t-0" in caplog.text
    aside.rename(tmp_path / "a" / "t-0")
    assert start().replica(recorded="id-a").partition().log_end_offset == 1
    shutil.rmtree(tmp_path / "a" / "t-0")
    assert start("t-0").replica(recorded="id-a").partition().log_end_offset == 0
    shutil.rmtree(tmp_path / "a" / "t-0")
    assert start("id-a").replica(recorded="id-a").partition().log_end_offset == 0


def test_a_log_dir_that_cannot_be_used(start: Start) -> None:
    """A log that is or may be in an unusable log dir stays offline, and new logs go to the other log dir."""
    life = start()
    life.dirs[0].fail("it smokes")
    assert (
        life.replica(recorded="id-a").failure == f"it is in the log directory {life.dirs[0].path}, which is "
        "offline: it smokes"
    )
    assert life.replica(recorded="id-x").failure.endswith("directory.id id-x, which is not in log.dirs")
    assert life.replica().failure == "it may be in a log directory that cannot be used"
    assert life.replica(new=True).directory is life.dirs[1]
    life.dirs[1].fail("it as well")
    for new in (True, False):
        assert life.replica(TopicPartition("t", 1), new=new).failure == "no log directory can be used"


def test_files_that_are_missing_at_an_end(start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Missing files at a log's end take it offline; after they are given up, it goes on at its recorded end."""
    life = start()
    replica = life.replica(new=True)
    append(replica, 2)
    life.dirs[0].record_high_watermarks(lambda: ([], set()))
    life.dirs[0]._replace(HIGH_WATERMARKS, {T0: 2})
    (tmp_path / "a" / "t-0" / f"{0:020}.log").unlink()
    missed = start().replica(recorded="id-a")
    assert missed.log is None and "the last segment is missing" in missed.failure
    assert "pybroker serve --give-up t-0" in caplog.text
    assert start("t-0").replica(recorded="id-a").partition().log_end_offset == 2


def test_the_gaps_of_a_copy_are_no_damage(start: Start) -> None:
    """Gaps of a copied log are no damage: after a crash it is read whole, and a scan finds no bad spot."""
    made = start().replica(state=None)
    made.partition().become_follower(2, EPOCH, 0)
    sent = copied(2, 3) + copied(2, 9) + copied(1, 12)
    made.partition().append_replica(sent)
    again = start().replica(state=None)
    assert (again.partition().log_end_offset, content(again.partition())) == (13, sent)
    damage.look(again, 0)
    assert core.bad_spots(again.partition()) == []
