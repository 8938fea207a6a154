"""SIGKILL at every step that changes files loses no acknowledged record, and the log goes on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.core import iter_batches
from tests.core.crash import PRODUCER, SIZE, Stage, Step, Told, sent
from tests.core.logs import NOW, Home, as_sent, read_all

SEGMENTS_OF_THREE = {"segment.bytes": 3 * SIZE, "index.interval.bytes": 0}
KILLS_MAX = 60


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


def ends(told: Told) -> tuple[int, int]:
    """The lowest and highest offset at which the log may end."""
    low = high = 0
    for step, result in told.said:
        if step in ("open", "truncate"):
            low = high = result
        elif step == "append":
            low = high = result + 1
        elif step == "announce_truncation":
            low = result
    return low, high + 1


def check(home: Home, told: Told) -> None:
    """Open after the crash, check that nothing acknowledged is lost, overlaps or is left over, and append more."""
    home.recovery_point, home.log_start = told.last("checkpoint", (0, 0))
    home.clean = False
    partition = home.open(flush_idle_ms=1)
    low, high = ends(told)
    assert low <= partition.log_end_offset <= high
    assert partition.log_start_offset >= home.log_start
    check_content(home)
    end = partition.log_end_offset
    assert partition.append(sent(end), now_ms=NOW).base_offset == end
    for clean in (True, False):
        assert home.reopen(clean=clean, flush_idle_ms=1).log_end_offset == end + 1
        check_content(home)
    home.crash()
    assert not [p for p in home.directory.iterdir() if p.suffix in (".tmp", ".deleted", ".cleaned")]


def check_content(home: Home) -> None:
    partition = home.partition
    stored, offset = read_all(partition), partition.log_start_offset
    for position, header in iter_batches(stored):
        assert header.base_offset == offset
        assert as_sent(stored[position : position + header.size]) == sent(offset, header.size)
        offset += 1
    assert offset == partition.log_end_offset
    bases = [base for base, _, _ in partition.segments()]
    assert bases == sorted(set(bases))
    assert [int(p.stem) for p in home.files(".log")] == bases
    if stored:
        assert [(p[0], p[2]) for p in partition.producers()] == [(PRODUCER, offset - 1)]
    for again in range(max(partition.log_start_offset, offset - 5), offset):
        assert partition.append(sent(again), now_ms=NOW).duplicate


def kill_everywhere(
    stage: Stage, path: Path, point: str, before: list[Step], story: list[Step], *, written: int = 0, delay: int = 0
) -> int:
    """Run the story once for each pass of the point, killed at that pass; return the number of passes."""
    config = {**SEGMENTS_OF_THREE, "file.delete.delay.ms": delay}
    for kills in range(KILLS_MAX):
        home = Home(path / f"{point}-{kills}", config)
        home.path.mkdir()
        told = stage.tell(home.path, config, *before, ("arm", point, "kill", written, kills), *story)
        if told.signal == 0:
            return kills
        check(home, told)
    pytest.fail(f"{point} is passed more than {KILLS_MAX} times")


def appends(n: int) -> list[Step]:
    return [("append",)] * n


@pytest.mark.parametrize("written", [0, 1, 4, 12, 16, 17, 21, 60, 61, SIZE - 1, SIZE])
def test_in_the_middle_of_a_batch(stage: Stage, tmp_path: Path, written: int) -> None:
    """A partially written batch is dropped, and no batch before it."""
    for before in (0, 2, 3):
        home = Home(tmp_path / str(before), SEGMENTS_OF_THREE)
        home.path.mkdir()
        story = [("open",), *appends(before), ("arm", "segment.write", "kill", written), ("append",)]
        told = stage.tell(home.path, SEGMENTS_OF_THREE, *story)
        assert told.signal == 9
        assert told.all("append") == list(range(before))
        partition = home.open()
        assert partition.log_end_offset == before + (written == SIZE)
        home.crash()
        check(home, told)


def test_before_the_append_and_after_it(stage: Stage, tmp_path: Path) -> None:
    """A retry after a kill is stored once: it is appended, or answered as a duplicate with the original's offset."""
    for point, stored in (("append.before", 2), ("append.after", 3)):
        home = Home(tmp_path / point, SEGMENTS_OF_THREE)
        home.path.mkdir()
        told = stage.tell(home.path, SEGMENTS_OF_THREE, ("open",), *appends(2), ("arm", point, "kill"), ("append",))
        assert told.signal == 9
        partition = home.open()
        assert partition.log_end_offset == stored
        again = partition.append(sent(2), now_ms=NOW)
        assert (again.base_offset, again.duplicate, partition.log_end_offset) == (2, stored == 3, 3)
        home.crash()


ROLL_POINTS = (
    "roll.before", "segment.create", "segment.truncate", "roll.after", "segment.reserve", "snapshot.write",
    "snapshot.sync", "snapshot.rename", "index.write", "index.sync", "segment.sync", "epoch.write", "epoch.sync",
    "epoch.rename", "checkpoint.write", "checkpoint.sync", "checkpoint.rename",
)  # fmt: skip


@pytest.mark.parametrize("point", ROLL_POINTS)
def test_at_each_step_of_rolls_flushes_and_a_clean_stop(stage: Stage, tmp_path: Path, point: str) -> None:
    story: list[Step] = [*appends(4), ("flush",), ("checkpoint",), *appends(4), ("lead", 3), *appends(2), ("flush",)]
    story += [("checkpoint",), *appends(3), ("stop",)]
    assert kill_everywhere(stage, tmp_path, point, [("open",)], story) > 0


@pytest.mark.parametrize("point", ["snapshot.write", "index.write", "epoch.write", "checkpoint.write"])
@pytest.mark.parametrize("written", [1, 11])
def test_in_the_middle_of_a_file_beside_the_log(stage: Stage, tmp_path: Path, point: str, written: int) -> None:
    """A file that is replaced as a whole is there old or new; an index that a crash cut short is rebuilt."""
    story: list[Step] = [*appends(8), ("flush",), ("checkpoint",), ("lead", 1), *appends(2), ("stop",)]
    assert kill_everywhere(stage, tmp_path, point, [("open",)], story, written=written) > 0


@pytest.mark.parametrize("delay", [0, 60000])
@pytest.mark.parametrize("point", ["segment.rename", "segment.unlink", "roll.after"])
def test_during_retention_and_delete_records(stage: Stage, tmp_path: Path, point: str, delay: int) -> None:
    """Retention and DeleteRecords are finished or undone by segment; an acknowledged log start never goes back."""
    before: list[Step] = [("open",), *appends(11), ("flush",), ("delete_records", 5), ("checkpoint",)]
    story: list[Step] = [("retain",), ("checkpoint",), ("retain", 0), ("checkpoint",), *appends(2)]
    kills = kill_everywhere(stage, tmp_path, point, before, story, delay=delay)
    assert kills > 0 or (point, delay) in (("segment.rename", 0), ("segment.unlink", 60000))


@pytest.mark.parametrize("point", ["segment.unlink", "segment.truncate", "snapshot.write"])
def test_during_a_truncation(stage: Stage, tmp_path: Path, point: str) -> None:
    """A truncation that was killed is redone at the restart, and leaves a log without gaps."""
    for offset in (1, 3, 4, 10):
        path = tmp_path / str(offset)
        path.mkdir()
        before: list[Step] = [("open",), *appends(11), ("flush",), ("announce_truncation", offset)]
        kill_everywhere(stage, path, point, before, [("truncate", offset), ("checkpoint",), *appends(2)])


@pytest.mark.parametrize("point", ["segment.unlink", "segment.truncate", "segment.read", "index.write"])
def test_during_recovery(stage: Stage, tmp_path: Path, point: str) -> None:
    """A start that is killed while it cuts a torn log leaves a log that the next start can recover."""
    for kills in range(KILLS_MAX):
        home = Home(tmp_path / str(kills), SEGMENTS_OF_THREE)
        home.path.mkdir()
        stage.tell(home.path, SEGMENTS_OF_THREE, ("open",), *appends(11))
        for file in home.files(".log")[1:]:
            sound = file.read_bytes()[: 100 if file == home.log_file(3) else 0]
            file.write_bytes(sound + b"\xff" * (file.stat().st_size - len(sound)))
        told = stage.tell(home.path, SEGMENTS_OF_THREE, ("arm", point, "kill", 0, kills), ("open",))
        if told.signal == 0:
            assert kills > 0
            return
        check(home, Told(9, [("open", 4)]))
    pytest.fail(f"{point} is passed too often")


@pytest.mark.parametrize("point", ["partition.create", "metadata.write", "metadata.rename"])
def test_while_a_partition_is_made(stage: Stage, tmp_path: Path, point: str) -> None:
    home = Home(tmp_path, SEGMENTS_OF_THREE)
    assert stage.tell(home.path, SEGMENTS_OF_THREE, ("arm", point, "kill", 3), ("open",)).signal == 9
    partition = home.open()
    assert partition.append(sent(0), now_ms=NOW).base_offset == 0
    home.crash()


def test_while_a_partition_is_deleted(stage: Stage, tmp_path: Path) -> None:
    """A partition whose deletion was killed has its old name or its -delete name."""
    for point in ("partition.rename", "segment.unlink"):
        home = Home(tmp_path / point, SEGMENTS_OF_THREE)
        home.path.mkdir()
        story = [("open",), *appends(5), ("arm", point, "kill"), ("delete",), ("stop",)]
        told = stage.tell(home.path, SEGMENTS_OF_THREE, *story)
        assert told.signal == (9 if point == "partition.rename" else told.signal)
        names = [p.name for p in home.path.iterdir()]
        assert names == ["t-0"] or all(n.startswith("t-0.") and n.endswith("-delete") for n in names)
