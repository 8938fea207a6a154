"""SIGKILL at every step of a compaction round leaves files that the next start handles by Kafka's rules."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pybroker.core import iter_batches
from tests.core.crash import PRODUCER, Stage, Step, Told
from tests.core.logs import NOW, Home, batch, read_all
from tests.core.slow_clean import assert_whole, latest, one_round
from tests.core.test_clean import put, seal
from tests.marks import long

CONFIG = {"cleanup.policy": 2, "segment.bytes": 300, "index.interval.bytes": 0}
KILLS_MAX = 300
KEYS = 4
COUNT = 24


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


def story() -> list[Step]:
    """Put four keys, delete one at the end, and run two rounds; the second compacts what the first left."""
    puts: list[Step] = []
    for i in range(COUNT):
        puts += [("put", i % KEYS, i), *([("roll",)] if i % 2 else [])]  # small segments, which a round merges
    more: list[Step] = [("put", i % KEYS, i) for i in range(COUNT, 2 * COUNT)]
    return [*puts, ("put", 0, -1), ("roll",), ("flush",), ("checkpoint",), ("clean",), *more, ("roll",), ("flush",),
            ("checkpoint",), ("clean",), ("put", 1, 99)]  # fmt: skip


PUTS: list[tuple[int, int]] = [(step[1], step[2]) for step in story() if step[0] == "put"]


def held(count: int) -> dict[bytes | None, bytes]:
    """The last value of each key after the first `count` puts of the story."""
    out: dict[bytes | None, bytes] = {}
    for key, value in PUTS[:count]:
        out[b"key-%d" % key] = b"%d" % value
        if value < 0:
            del out[b"key-%d" % key]
    return out


def check(home: Home, told: Told) -> None:
    """Check that the last acknowledged value of each key is at its offset, and that rounds and restarts go on."""
    home.recovery_point, home.log_start = told.last("checkpoint", (0, 0))
    home.clean = False
    partition = home.open(flush_idle_ms=1)
    partition.become_leader(0, 0)
    count = partition.log_end_offset
    assert count - len(told.all("put")) in (0, 1)  # one put may have been stored without a report
    records = assert_whole(partition)
    assert latest(records) == held(count)
    for record in records:
        key, value = PUTS[record.offset]
        assert (record.key, record.value) == (b"key-%d" % key, None if value < 0 else b"%d" % value)
    assert [p[2] for p in partition.producers() if p[0] == PRODUCER] == [count - 1] * (count > 0)
    seal(partition)
    assert one_round(partition) is not None
    for clean in (True, False):
        home.reopen(clean=clean, flush_idle_ms=1)
        assert latest(assert_whole(home.partition)) == held(count)
    home.crash()
    assert not [p for p in home.directory.iterdir() if p.suffix in (".tmp", ".deleted", ".cleaned", ".swap")]


POINTS = (
    "segment.create", "segment.truncate", "segment.read", "clean.write", "clean.sync", "index.write", "index.sync",
    "segment.rename", "segment.unlink",
)  # fmt: skip


@pytest.mark.parametrize("delay", [0, long(60000)])
@pytest.mark.parametrize("point", POINTS)
def test_at_each_step_of_a_round(stage: Stage, tmp_path: Path, point: str, delay: int) -> None:
    """A round killed at any write or rename is finished or undone at the next start, and no record is lost."""
    config = {**CONFIG, "file.delete.delay.ms": delay}
    step = 7 if point == "segment.read" else 1
    for kills in range(0, KILLS_MAX * step, step):
        home = Home(tmp_path / str(kills), config)
        home.path.mkdir()
        told = stage.tell(home.path, config, ("open",), ("arm", point, "kill", 0, kills), *story())
        if told.signal == 0:
            assert kills > 0 or (point, delay) == ("segment.rename", 0)
            return
        check(home, told)
        shutil.rmtree(home.path)
    pytest.fail(f"{point} is passed more than {KILLS_MAX * step} times")


@pytest.mark.parametrize("point", ["segment.rename", "segment.unlink"])
def test_a_start_that_finishes_a_swap_may_be_killed_too(stage: Stage, tmp_path: Path, point: str) -> None:
    """A start that finishes a swap may be killed any number of times; the next start goes on."""
    for kills in range(KILLS_MAX):
        home = Home(tmp_path / str(kills), CONFIG)
        home.path.mkdir()
        first = stage.tell(home.path, CONFIG, ("open",), ("arm", "segment.unlink", "kill", 0, 4), *story())
        assert first.signal == 9
        assert home.files(".swap")
        again = stage.tell(home.path, CONFIG, ("arm", point, "kill", 0, kills), ("open",))
        if again.signal == 0:
            assert kills > 0
            return
        check(home, first)
    pytest.fail(f"{point} is passed too often")


# -- files that a crash leaves, by Kafka's rules -----------------------------------------------------------------------


def cleaned(path: Path) -> tuple[Home, dict[str, bytes], dict[str, bytes]]:
    """A log, and its segment files before and after a round that merged all segments into one."""
    home = Home(path, {**CONFIG, "segment.bytes": 300})
    partition = home.open(flush_idle_ms=1)
    partition.become_leader(0, 0)
    for i in range(COUNT):
        put(partition, (b"key-%d" % (i % KEYS), b"%d" % i))
    seal(partition)
    home.partition.configure({**CONFIG, "segment.bytes": 1 << 20})
    before = contents(home)
    assert one_round(partition) is not None
    home.checkpoint()
    home.crash()
    return home, before, contents(home)


def contents(home: Home) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in home.directory.iterdir() if p.suffix in (".log", ".index", ".timeindex")}


def lay(home: Home, files: dict[str, bytes]) -> None:
    for path in home.directory.iterdir():
        if path.suffix in (".log", ".index", ".timeindex"):
            path.unlink()
    for name, data in files.items():
        (home.directory / name).write_bytes(data)


FIRST = f"{0:020}"
LEFT: dict[str, tuple[Callable[[str], str], bool]] = {
    "being written": (lambda kind: f"{FIRST}.{kind}.cleaned", False),
    "decided": (lambda kind: f"{FIRST}.{kind}.swap", True),
    "indexes first": (lambda kind: f"{FIRST}.{kind}.{'cleaned' if kind == 'log' else 'swap'}", False),
    "Kafka's order": (lambda kind: f"{FIRST}.{kind}.{'swap' if kind == 'log' else 'cleaned'}", False),
}


@pytest.mark.parametrize("left", LEFT)
def test_what_a_start_makes_of_a_swap(tmp_path: Path, left: str) -> None:
    """A start removes a .cleaned file and undoes its round; a .swap file replaces all segments that it covers."""
    home, before, after = cleaned(tmp_path)
    named, finished = LEFT[left]
    lay(home, before | {named(kind): after[f"{FIRST}.{kind}"] for kind in ("log", "index", "timeindex")})
    partition = home.open(flush_idle_ms=1)
    logs = {name: data for name, data in contents(home).items() if name.endswith(".log")}
    assert logs == {name: data for name, data in (after if finished else before).items() if name.endswith(".log")}
    assert latest(assert_whole(partition)) == {b"key-%d" % k: b"%d" % (COUNT - KEYS + k) for k in range(KEYS)}
    assert not [p for p in home.directory.iterdir() if p.suffix in (".cleaned", ".swap")]
    home.crash()


def test_a_swap_that_is_no_segment_replaces_nothing(tmp_path: Path) -> None:
    """A .swap file that was torn by a loss of power is dropped, and the segments that it covers stay."""
    home, before, after = cleaned(tmp_path)
    lay(home, before | {f"{FIRST}.log.swap": after[f"{FIRST}.log"][:-7]})
    partition = home.open(flush_idle_ms=1)
    assert [h.base_offset for _, h in iter_batches(read_all(partition))] == list(range(COUNT))
    home.crash()


def test_gaps_are_no_damage_where_a_log_was_compacted(tmp_path: Path) -> None:
    """Gaps of a compacted log are no damage in a full scan, even if its topic is no longer compacted."""
    home, _, after = cleaned(tmp_path)
    home.config["cleanup.policy"], home.recovery_point = 1, 0
    partition = home.open(compacted=True, flush_idle_ms=1)
    assert partition.recovery == ""
    assert contents(home)[f"{FIRST}.log"] == after[f"{FIRST}.log"]
    assert partition.append(batch(), now_ms=NOW).base_offset == COUNT
    home.crash()
