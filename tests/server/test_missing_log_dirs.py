"""A missing log dir or partition directory is offline until it is back or is named with --give-up."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pybroker.coordination.embedded import EmbeddedStore
from pybroker.coordination.store import Session
from pybroker.errors import KAFKA_STORAGE_ERROR, StartError
from pybroker.metadata import nodes
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.replication.disks.logdirs import LogDir
from pybroker.server.cluster.directories import STORE_FILE
from tests.server.live import Live, Wire, batch

COUNT = 3
"""The number of records that each topic starts with."""


class Home:
    """A broker with log dirs `one`, which has the store, and `two`, and topics t0 to t3, two in each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.live = Live(path / "one")

    def dirs(self, *names: str) -> str:
        return "log.dirs=" + ",".join(str(self.path / name) for name in names or ("one", "two"))

    async def fill(self) -> None:
        await self.live.start(self.dirs())
        wire = await self.live.connect()
        for n in range(4):
            assert (await wire.create(f"t{n}")).error_code == 0
            for value in range(COUNT):
                assert (await wire.produce(f"t{n}", batch(b"%d" % value))).error_code == 0
        await self.live.stop()

    def topics(self, name: str = "two") -> set[str]:
        return {path.name[:-2] for path in (self.path / name).glob("t?-0")}

    async def ends(self) -> dict[str, int]:
        """Append one record to each topic; return its offset, or the negated error code."""
        wire = await self.live.connect()
        answers = {f"t{n}": await wire.produce(f"t{n}", batch(b"more")) for n in range(4)}
        return {name: -a.error_code if a.error_code else a.base_offset for name, a in answers.items()}

    def expected(self, lost: set[str], end: int = COUNT) -> dict[str, int]:
        return {f"t{n}": -KAFKA_STORAGE_ERROR if f"t{n}" in lost else end for n in range(4)}

    def id(self, name: str) -> str:
        lines = (self.path / name / "meta.properties").read_text().splitlines()
        return next(line.split("=")[1] for line in lines if line.startswith("directory.id="))


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    made = Home(tmp_path)
    await made.fill()
    yield made
    await made.live.stop()


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]


async def described(wire: Wire) -> dict[str, int]:
    answer: Any = await wire.call("DescribeLogDirs", 4, topics=None)
    return {Path(result.log_dir).name: result.error_code for result in answer.results}


@pytest.mark.parametrize("how", ["empty", "absent", "no directory", "not in log.dirs"])
async def test_a_log_dir_that_is_not_there(home: Home, caplog: pytest.LogCaptureFixture, how: str) -> None:
    """One line names the log dir and the ways out; its partitions get KAFKA_STORAGE_ERROR and are not created
    elsewhere. New topics go to the other log dir; when it is back, all is as before."""
    two, away, lost = home.path / "two", home.path / "away", home.topics()
    assert len(lost) == 2
    name = home.id("two")
    two.rename(away)
    if how == "empty":
        two.mkdir()
    elif how == "no directory":
        two.write_text("")
    for life in range(2):  # each start finds it missing
        caplog.clear()
        await home.live.start(home.dirs("one") if how == "not in log.dirs" else home.dirs())
        [line] = errors_in(caplog)
        assert line.startswith(f"log dir offline directory={two} ")
        assert how == "no directory" or (name in line and "2 partitions" in line and "--give-up" in line)
        assert await home.ends() == home.expected(lost, COUNT + life)
        wire = await home.live.connect()
        assert (await wire.create(f"new{life}")).error_code == 0
        assert (home.path / "one" / f"new{life}-0").is_dir()
        assert await described(wire) == {"one": 0, "two": KAFKA_STORAGE_ERROR}
        await home.live.stop()
    assert how != "empty" or {path.name for path in two.iterdir()} == {".lock"}
    if two.exists():
        shutil.rmtree(two) if two.is_dir() else two.unlink()
    away.rename(two)
    caplog.clear()
    await home.live.start(home.dirs())
    assert await home.ends() == {n: COUNT if n in lost else COUNT + 2 for n in home.expected(set())}
    assert not errors_in(caplog)


async def test_a_topic_of_which_a_part_is_away_grows(home: Home) -> None:
    """CreatePartitions waits for the new partitions, not for those in the missing log dir."""
    name = min(home.topics())
    (home.path / "two").rename(home.path / "away")
    await home.live.start(home.dirs())
    wire = await home.live.connect()
    topic = m.CreatePartitionsRequest.Topics(name=name, count=2, assignments=None)
    [grown] = (await wire.call("CreatePartitions", 3, topics=[topic], timeout_ms=5000)).results
    assert grown.error_code == 0
    assert (await wire.produce(name, batch(b"v"), partition=1)).base_offset == 0
    assert (await wire.produce(name, batch(b"v"))).error_code == KAFKA_STORAGE_ERROR


async def test_a_log_dir_is_known_by_its_id(home: Home) -> None:
    """A log dir at another path, or listed in another order, is the same; a copy of a present one is refused."""
    (home.path / "two").rename(home.path / "three")
    await home.live.start(home.dirs("three", "one"))
    assert await home.ends() == home.expected(set())
    await home.live.restart(home.dirs("one", "three"))
    assert await home.ends() == home.expected(set(), COUNT + 1)
    await home.live.stop()
    shutil.copytree(home.path / "three", home.path / "four")
    with pytest.raises(StartError, match=r"both have the directory\.id"):
        await home.live.start(home.dirs("one", "three", "four"))


@pytest.mark.parametrize("by", ["id", "path"])
async def test_a_log_dir_is_given_up_by_name(home: Home, caplog: pytest.LogCaptureFixture, by: str) -> None:
    """The partitions start empty elsewhere, and the log dir is no longer missing; an empty one in its place is new."""
    lost, two = home.topics(), home.path / "two"
    name = home.id("two") if by == "id" else str(two)
    two.rename(home.path / "away")
    two.mkdir()
    await home.live.start(home.dirs(), give_up=[name])
    assert await home.ends() == {n: 0 if n in lost else COUNT for n in home.expected(set())}
    await home.live.restart(home.dirs())
    assert await home.ends() == {n: 1 if n in lost else COUNT + 1 for n in home.expected(set())}
    assert not errors_in(caplog)


async def test_a_name_given_up_that_is_none(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    """A mistyped name is logged; the name of a present log dir or partition is not."""
    there = f"{min(home.topics())}-0"
    await home.live.start(home.dirs(), give_up=["orders-3", str(home.path / "tow"), home.id("two"), there])
    told = [r.getMessage() for r in caplog.records if r.getMessage().startswith("nothing to give up")]
    assert [line.split()[4] for line in told] == [f"given={home.path / 'tow'}", "given=orders-3"]


async def test_the_log_dir_with_the_store_is_not_there(home: Home) -> None:
    """Without the store the broker does not start, until that log dir is back, or given up and the other adopted."""
    one, left = home.path / "one", home.topics()
    name = home.id("one")
    one.rename(home.path / "away")
    one.mkdir()
    with pytest.raises(StartError, match=f"coordination store in .*{name} is missing.*--give-up {name}"):
        await home.live.start(home.dirs())
    shutil.rmtree(one)
    (home.path / "away").rename(one)
    await home.live.start(home.dirs())
    assert await home.ends() == home.expected(set())
    await home.live.stop()
    shutil.rmtree(one)
    await home.live.start(home.dirs(), give_up=[name])
    answers = await home.ends()
    assert {n for n, end in answers.items() if end == COUNT + 1} == left
    await home.live.restart(home.dirs())
    assert {n for n, end in (await home.ends()).items() if end == COUNT + 2} == left


async def test_two_stores_are_refused(home: Home) -> None:
    shutil.copy(home.path / "one" / STORE_FILE, home.path / "two" / STORE_FILE)
    with pytest.raises(StartError, match="both hold a coordination store"):
        await home.live.start(home.dirs())


@pytest.mark.parametrize("end", ["stop", "abort"])
async def test_a_partitions_directory_is_not_there(home: Home, caplog: pytest.LogCaptureFixture, end: str) -> None:
    """Only that partition is offline, with one log line. Returned it is as before; given up it starts empty."""
    if end == "abort":
        broker = await home.live.start(home.dirs())
        await broker.abort()
        home.live.broker = None
    directory, away = home.path / "two" / f"{min(home.topics())}-0", home.path / "away"
    topic = directory.name[:-2]
    directory.rename(away)
    await home.live.start(home.dirs())
    [line] = errors_in(caplog)
    assert line.startswith(f"partition offline partition={topic}-0 ") and f"--give-up {topic}-0" in line
    assert await home.ends() == home.expected({topic})
    await home.live.stop()
    assert not directory.exists()
    away.rename(home.path / "one" / directory.name)  # Kafka also finds it in another log dir
    await home.live.start(home.dirs())
    assert await home.ends() == {**home.expected(set(), COUNT + 1), topic: COUNT}
    await home.live.stop()
    shutil.rmtree(home.path / "one" / directory.name)
    await home.live.start(home.dirs(), give_up=[f"{topic}-0"])
    assert await home.ends() == {**home.expected(set(), COUNT + 2), topic: 0}


async def test_a_topic_deleted_while_its_log_dir_was_away(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    """A deleted topic's directory is left alone when it comes back, even if a new topic has its name."""
    lost, two = min(home.topics()), home.path / "two"
    two.rename(home.path / "away")
    await home.live.start(home.dirs())
    wire = await home.live.connect()
    deleted = await wire.call("DeleteTopics", 5, topic_names=[lost], timeout_ms=5000)
    assert deleted.responses[0].error_code == 0
    assert (await wire.create(lost)).error_code == 0
    assert (await wire.produce(lost, batch(b"new"))).base_offset == 0
    await home.live.stop()
    shutil.rmtree(two, ignore_errors=True)
    (home.path / "away").rename(two)
    await home.live.start(home.dirs())
    assert await home.ends() == {**home.expected(set()), **dict.fromkeys(home.topics(), COUNT), lost: 1}
    assert f"directory of a deleted topic ignored directory={two}/{lost}-0" in caplog.text


# -- left by earlier versions and by a crash --------------------------------------------------------------------------


async def edit_store(home: Home, edit: Any) -> None:
    store = EmbeddedStore(str(home.path / "one" / STORE_FILE))
    await store.open()
    session = await store.session(10_000)
    await edit(session)
    await session.close()
    await store.close()


async def test_log_dirs_of_a_version_without_ids(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    """Log dirs without recorded ids are all served and get ids, so that a missing one is found from then on."""

    async def forget(session: Session) -> None:
        for n in range(4):
            data = json.loads((await session.get(nodes.topic(f"t{n}")))[0])
            del data["directories"]
            await session.set(nodes.topic(f"t{n}"), json.dumps(data).encode())
        await session.delete(nodes.log_dirs(1001))

    await edit_store(home, forget)
    for name in ("one", "two"):
        path = home.path / name / "meta.properties"
        path.write_text("".join(line for line in path.read_text().splitlines(True) if "directory.id" not in line))
    await home.live.start(home.dirs())
    assert await home.ends() == home.expected(set())
    assert not errors_in(caplog)
    await home.live.stop()
    lost = home.topics()
    (home.path / "two").rename(home.path / "away")
    await home.live.start(home.dirs())
    assert await home.ends() == home.expected(lost, COUNT + 1)


async def test_a_meta_properties_that_is_gone(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    """A log dir without meta.properties that has partitions and its old path keeps its id."""
    before = home.id("two")
    (home.path / "two" / "meta.properties").unlink()
    await home.live.start(home.dirs())
    assert await home.ends() == home.expected(set())
    assert home.id("two") == before and not errors_in(caplog)


async def test_kafkas_meta_properties_keeps_what_it_says(home: Home) -> None:
    """KRaft's version and keys stay, and its directory.id is the log dir's id."""
    path = home.path / "two" / "meta.properties"
    cluster = next(line for line in path.read_text().splitlines() if line.startswith("cluster.id"))
    path.write_text(f"version=1\n{cluster}\nnode.id=1001\ndirectory.id={home.id('two')}\nother=kept\n")
    await home.live.start(home.dirs())
    assert await home.ends() == home.expected(set())
    text = path.read_text().splitlines()
    assert {"version=1", "node.id=1001", "other=kept", cluster} <= set(text)
    assert not any(line.startswith("broker.id") for line in text)


async def test_a_creation_that_was_cut_short_is_finished(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    """A topic without a recorded directory is created again: its log was never made, or never written to."""

    async def forget(session: Session) -> None:
        data = json.loads((await session.get(nodes.topic("t0")))[0])
        data["directories"] = {}
        await session.set(nodes.topic("t0"), json.dumps(data).encode())

    await edit_store(home, forget)
    [log_dir] = [name for name in ("one", "two") if "t0" in home.topics(name)]
    shutil.rmtree(home.path / log_dir / "t0-0")
    for checkpoint in (home.path / log_dir).glob("*-checkpoint"):
        checkpoint.unlink()
    await home.live.start(home.dirs())
    assert await home.ends() == {**home.expected(set()), "t0": 0}
    assert not errors_in(caplog)


async def test_a_partition_can_be_deleted_while_it_is_missing(home: Home) -> None:
    """The deletion succeeds without the partition's files."""
    lost = min(home.topics())
    shutil.rmtree(home.path / "two" / f"{lost}-0")
    await home.live.start(home.dirs())
    wire = await home.live.connect()
    assert home.live.broker is not None and home.live.broker.replicas is not None
    assert home.live.broker.replicas.directory_of(TopicPartition(lost, 0)) is None
    deleted = await wire.call("DeleteTopics", 5, topic_names=[lost], timeout_ms=5000)
    assert deleted.responses[0].error_code == 0
    assert (await wire.create(lost)).error_code == 0
    assert os.path.isdir(home.path / "two" / f"{lost}-0")


# -- files of a partition ----------------------------------------------------------------------------------------------


async def fill_segments(home: Home, end: str) -> tuple[str, Path]:
    """Fill three segments, then stop cleanly or as `kill -9` would; return (topic, its directory)."""
    topic = min(home.topics())
    broker = await home.live.start(home.dirs())
    wire = await home.live.connect()
    assert broker.replicas is not None
    for n in range(2):
        log = broker.replicas.leader(topic, 0).partition()
        log.roll()
        for value in range(COUNT):
            assert (await wire.produce(topic, batch(b"%d" % value))).base_offset == COUNT * (n + 1) + value
    if end == "stop":
        await home.live.stop()
    else:
        log.flush()
        broker.replicas.recorder.record_high_watermarks()
        await broker.abort()
        home.live.broker = None
    return topic, home.path / "two" / f"{topic}-0"


@pytest.mark.parametrize("end", ["stop", "abort"])
@pytest.mark.parametrize("which", ["first", "active", "all", "active cut"])
async def test_segments_that_are_not_there(
    home: Home, caplog: pytest.LogCaptureFixture, which: str, end: str
) -> None:
    """The partition is offline with one log line. Returned it is as before; given up, the segments left are served."""
    topic, directory = await fill_segments(home, end)
    logs = sorted(directory.glob("*.log"))
    assert len(logs) == 3
    gone = {"first": logs[:1], "active": logs[-1:], "all": logs, "active cut": logs[-1:]}[which]
    kept = {path: path.read_bytes() for path in gone}
    for path in gone:
        if which == "active cut":  # at the end of a batch
            os.truncate(path, path.stat().st_size * 2 // COUNT)
        else:
            path.unlink()
    left = sorted(directory.glob("*.log"))
    for _ in range(2):
        caplog.clear()
        await home.live.start(home.dirs())
        [line] = errors_in(caplog)
        what = "the first segment is missing" if which == "first" else "the last segment is missing"
        assert line.startswith(f"partition offline partition={topic}-0 ") and what in line
        assert f"--give-up {topic}-0" in line and str(directory) in line
        answers = await home.ends()
        assert [name for name, end in answers.items() if end < 0] == [topic]
        assert answers[topic] == -KAFKA_STORAGE_ERROR
        await home.live.stop()
        assert sorted(directory.glob("*.log")) == left
    for path, data in kept.items():
        path.write_bytes(data)
    caplog.clear()
    await home.live.start(home.dirs())
    assert (await home.ends())[topic] == 3 * COUNT and not errors_in(caplog)
    await home.live.stop()
    for path in gone:
        path.unlink()
    await home.live.start(home.dirs(), give_up=[f"{topic}-0"])
    wire = await home.live.connect()
    end_now = {"first": 3 * COUNT + 1, "all": 3 * COUNT + 1}.get(which, 2 * COUNT)
    start = {"first": COUNT, "all": end_now}.get(which, 0)
    answer = await wire.fetch(topic, start)
    assert (answer.error_code, answer.log_start_offset, answer.high_watermark) == (0, start, end_now)
    assert (await home.ends())[topic] == end_now
    caplog.clear()
    await home.live.restart(home.dirs())
    assert (await home.ends())[topic] == end_now + 1 and not errors_in(caplog)


async def test_a_log_start_beyond_the_log(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    """If the recorded log start is beyond the log's end, the partition is offline and nothing of the log is removed."""
    topic, directory = await fill_segments(home, "stop")
    checkpoint = home.path / "two" / "log-start-offset-checkpoint"
    checkpoint.write_text(f"0\n1\n{topic} 0 500\n")
    logs = {path: path.read_bytes() for path in directory.glob("*.log")}
    await home.live.start(home.dirs())
    [line] = errors_in(caplog)
    assert "there were records up to offset 500, the log ends at 9" in line
    assert (await home.ends())[topic] == -KAFKA_STORAGE_ERROR
    await home.live.stop()
    assert {path: path.read_bytes() for path in directory.glob("*.log")} == logs
    await home.live.start(home.dirs(), give_up=[f"{topic}-0"])
    assert (await home.ends())[topic] == 3 * COUNT


async def killed(home: Home, *, recorded: bool = False) -> None:
    """Abort the broker, after its high watermarks were recorded or before."""
    assert home.live.broker is not None and home.live.broker.replicas is not None
    if recorded:
        home.live.broker.replicas.recorder.record_high_watermarks()
    await home.live.broker.abort()
    home.live.broker = None


@pytest.mark.parametrize("recorded", [False, True], ids=["killed soon", "killed later"])
async def test_what_a_loss_of_power_took_is_no_missing_file(
    home: Home, caplog: pytest.LogCaptureFixture, recorded: bool
) -> None:
    """Records and file names that were not on disk yet are lost: the log continues at its end, and a line has the lost
    offsets. If that start is killed, the next one still does not report them missing."""
    topic = min(home.topics())
    log = home.path / "two" / f"{topic}-0" / f"{0:020}.log"
    on_disk = log.stat().st_size
    await home.live.start(home.dirs())
    assert (await home.ends())[topic] == COUNT
    await killed(home, recorded=True)
    os.truncate(log, on_disk)
    (home.path / "two" / ".lock").write_text("another boot\n")
    with contextlib.closing(LogDir(str(home.path / "two"))) as log_dir:
        log_dir.open()
        log_dir.recall()
    for life in range(3):
        await home.live.start(home.dirs())
        assert not errors_in(caplog)
        if life == 0:
            assert f"offsets {COUNT} to {COUNT} are lost" in caplog.text
        await killed(home, recorded=recorded)
    await home.live.start(home.dirs())
    assert (await home.ends())[topic] == COUNT
    assert not errors_in(caplog)


@pytest.mark.parametrize("recorded", [False, True], ids=["killed soon", "killed later"])
async def test_what_a_start_cut_is_missed_by_no_later_one(
    home: Home, caplog: pytest.LogCaptureFixture, recorded: bool
) -> None:
    """A log end torn in the same boot, below the recorded high watermark, is logged as recovered by one start only."""
    topic = min(home.topics())
    log = home.path / "two" / f"{topic}-0" / f"{0:020}.log"
    await home.live.start(home.dirs())
    assert (await home.ends())[topic] == COUNT
    await killed(home, recorded=True)
    os.truncate(log, log.stat().st_size - 3)
    for life in range(3):
        await home.live.start(home.dirs())
        assert not errors_in(caplog)
        assert ("partition recovered" in caplog.text) is (life == 0)
        caplog.clear()
        await killed(home, recorded=recorded)
    await home.live.start(home.dirs())
    assert (await home.ends())[topic] == COUNT


async def test_retention_leaves_no_missing_segment(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    """The log start is on disk before segments are deleted, so a stop at any point leaves no segment missing."""
    topic, _ = await fill_segments(home, "stop")
    for point in ("segment.rename", "segment.unlink", "epoch.write", "directory.sync"):
        broker = await home.live.start(home.dirs())
        assert broker.replicas is not None and not errors_in(caplog)
        log = broker.replicas.leader(topic, 0).partition()
        log.roll()
        log.set_log_start(log.segments()[-1][0])
        broker.replicas.arm(point, errno.EPERM, 1)
        with contextlib.suppress(OSError):
            log.enforce_retention(0)
        await broker.abort()
        home.live.broker = None
    await home.live.start(home.dirs())
    assert (await home.ends())[topic] == 3 * COUNT and not errors_in(caplog)
