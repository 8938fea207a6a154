"""Start and stop of a broker: the owner of its directories, the files that it finds, and the files that it leaves."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from pybroker import errors
from pybroker.coordination.embedded import EmbeddedStore
from pybroker.coordination.tree import Tree
from pybroker.errors import KafkaError
from pybroker.metadata import nodes
from pybroker.server.cluster.directories import STORE_FILE
from tests.harness import eventually, until
from tests.rows import with_each
from tests.server.live import Live, Wire, batch, values

RECOVERY, STARTS, MARKS = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
)
CLEAN = ".kafka_cleanshutdown"


async def refusal(live: Live, *sets: str) -> str:
    """The message of a start that must fail; afterwards the directories are free again."""
    with pytest.raises(KafkaError) as caught:
        await live.start(*sets)
    message: str = caught.value.message
    assert "\n" not in message and "Traceback" not in message
    return message


async def filled(live: Live, name: str = "t", partitions: int = 1, count: int = 3) -> Wire:
    wire = await live.connect()
    assert (await wire.create(name, partitions)).error_code == 0
    for partition in range(partitions):
        for n in range(count):
            assert (await wire.produce(name, batch(b"%d" % n), partition=partition)).base_offset == n
    return wire


async def read(live: Live, name: str = "t", **how: Any) -> list[bytes | None]:
    return values((await (await live.connect()).fetch(name, 0, **how)).records)


# -- owners of directories ---------------------------------------------------------------------------------------------


async def test_a_second_broker_on_the_same_directory_refuses(live: Live) -> None:
    """The refusal names the directory and the reason, and the first broker goes on."""
    second = Live(live.data_dir)
    assert str(live.data_dir) in (message := await refusal(second)) and "another broker" in message
    await filled(live)
    assert await read(live) == [b"0", b"1", b"2"]


async def test_another_broker_id_refuses(live: Live) -> None:
    await live.stop()
    assert "broker.id is 7" in (message := await refusal(live, "broker.id=7")) and "1001" in message
    await live.start("broker.id=1001")


async def test_directories_of_another_cluster_refuse(live: Live, tmp_path: Path) -> None:
    """A start with another cluster's store, or with another cluster's log dir, is refused."""
    await live.stop()
    other = Live(tmp_path / "other")
    await other.start()
    await other.stop()
    shutil.copy(live.data_dir / STORE_FILE, tmp_path / "kept")
    shutil.copy(other.data_dir / STORE_FILE, live.data_dir / STORE_FILE)
    assert "cluster" in await refusal(live)
    shutil.copy(tmp_path / "kept", live.data_dir / STORE_FILE)
    assert "different brokers" in await refusal(live, f"log.dirs={live.data_dir},{other.data_dir}")
    await live.start()


async def test_meta_properties_of_the_future_refuses(live: Live) -> None:
    await live.stop()
    meta = live.data_dir / "meta.properties"
    meta.write_text(meta.read_text().replace("version=0", "version=9"))
    assert "version is '9'" in await refusal(live)


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\x00",
        b"version=0\nbroker.id=4294967296\n",
        b"version=0\nbroker.id=" + b"9" * 5000,
        b"version=" + b"9" * 5000,
    ],
    ids=["binary", "64 bits", "5000 digits", "long version"],
)
async def test_meta_properties_that_is_none_refuses(live: Live, content: bytes) -> None:
    """The refusal is one short sentence."""
    await live.stop()
    (live.data_dir / "meta.properties").write_bytes(content)
    message = await refusal(live)
    assert "meta.properties cannot be used" in message and len(message) < 500


async def test_file_names_that_no_offset_has(live: Live) -> None:
    """Files named with twenty digits of another script, or above 64 bits, are ignored: they are no segments."""
    await filled(live)
    await live.stop()
    for stem in ("²" * 20, "९" * 20, "9" * 20):
        for suffix in (".log", ".log.swap", ".index", ".snapshot"):
            (live.data_dir / "t-0" / f"{stem}{suffix}").write_bytes(b"not ours")
    await live.start()
    assert await read(live) == [b"0", b"1", b"2"]


async def test_a_directory_cannot_make_a_topic_of_a_billion_partitions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A first start adopts topics from directory names: an impossible partition is logged and left alone."""
    home = Live(tmp_path / "data")
    for name in ("t-999999999", "u-0"):
        (home.data_dir / name).mkdir(parents=True)
    await home.start("broker.id=1")
    try:
        metadata = await (await home.connect()).call("Metadata", 12, topics=None)
        assert [(t.name, len(t.partitions)) for t in metadata.topics] == [("u", 1)]
        assert [r for r in caplog.records if r.levelno == logging.ERROR and "topic=t" in r.getMessage()]
    finally:
        await home.stop()


async def test_ids_are_recorded_as_kafka_does(live: Live) -> None:
    text = (live.data_dir / "meta.properties").read_text()
    pairs = dict(line.split("=") for line in text.splitlines() if "=" in line)
    assert live.broker is not None
    mine = pairs.pop("directory.id")
    assert pairs.pop("coordination.directory.id") == mine  # the id of the log dir that holds the store
    assert pairs == {"version": "0", "broker.id": "1001", "cluster.id": live.broker.cluster_id}
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{22}", made) for made in (live.broker.cluster_id, mine))


# -- stopping ----------------------------------------------------------------------------------------------------------


async def test_a_clean_stop_leaves_its_mark_and_a_start_takes_it(live: Live) -> None:
    """The clean shutdown file does not exist while a broker runs, so that a crash is detected."""
    await filled(live, partitions=2)
    assert not (live.data_dir / CLEAN).exists()
    await live.stop()
    mark = json.loads((live.data_dir / CLEAN).read_text())
    assert mark["version"] == 0 and mark["brokerEpoch"] > 0
    assert (live.data_dir / RECOVERY).read_text() == "0\n2\nt 0 3\nt 1 3\n"
    assert (live.data_dir / MARKS).read_text() == "0\n2\nt 0 3\nt 1 3\n"
    assert (live.data_dir / STARTS).read_text() == "0\n0\n"
    await live.start()
    assert not (live.data_dir / CLEAN).exists()
    assert await read(live) == [b"0", b"1", b"2"]


NO_CHECKPOINTS = [
    *(b"0", b"0\n9\nt 0 3\n", b"1\n0\n", b"0\n1\nt zero 3\n", b"\xff\xfe\x00", b"0\n1\nt 0"),
    *(b"0\n1\nt 0 %d\n" % n for n in (1 << 63, -(1 << 63), -1)),
    *(b"0\n1\nt %d 3\n" % n for n in (1 << 31, 1 << 64)),
    b"0\n1\nt 0 " + b"9" * 5000 + b"\n",
    "0\n1\nt 0 ३\n".encode(),
]


@pytest.fixture
async def three_records(live: Live) -> Live:
    await filled(live)
    return live


@with_each("name", [RECOVERY, STARTS, MARKS])
@with_each("content", NO_CHECKPOINTS)
async def test_a_checkpoint_that_is_no_use_is_ignored(
    three_records: Live, name: str, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A torn file, another version, bad numbers and garbage each give a warning with the file's name, and no loss."""
    await three_records.stop()  # the stop writes valid ones
    caplog.clear()
    (three_records.data_dir / name).write_bytes(content)
    await three_records.start()
    assert [r for r in caplog.records if r.levelno == logging.WARNING and name in r.getMessage()]
    assert await read(three_records) == [b"0", b"1", b"2"]


async def test_checkpoints_are_written_at_intervals(live: Live) -> None:
    await live.restart("replica.high.watermark.checkpoint.interval.ms=50", "log.flush.offset.checkpoint.interval.ms=50")
    await filled(live)
    until("they are written", lambda: (live.data_dir / MARKS).read_text() == "0\n1\nt 0 3\n")
    assert (live.data_dir / RECOVERY).exists()


async def test_a_stop_does_not_wait_for_a_store_that_cannot_write(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk the stop ends without its last writes; the next start makes them."""

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    await filled(live)
    with monkeypatch.context() as patched:
        patched.setattr("pybroker.server.cluster.sole_member.FAREWELL_SECONDS", 0.1)
        patched.setattr(Tree, "end_session", full)
        async with asyncio.timeout(20):
            await live.stop()
    await live.start()
    assert await read(live) == [b"0", b"1", b"2"]


# -- files found at the start ------------------------------------------------------------------------------------------


async def test_several_log_dirs_share_the_partitions(live: Live, tmp_path: Path) -> None:
    """A new partition goes to the dir with the fewest; each dir has Kafka's files, and all is found after a restart."""
    dirs = [live.data_dir, tmp_path / "two", tmp_path / "three"]
    setting = f"log.dirs={','.join(map(str, dirs))}"
    await live.restart(setting)
    await filled(live, partitions=7)
    assert sorted(len(list(d.glob("t-*"))) for d in dirs) == [2, 2, 3]
    await live.restart(setting)
    for partition in range(7):
        wire = await live.connect()
        assert (await wire.produce("t", batch(b"3"), partition=partition)).base_offset == 3
    await live.stop()
    for d in dirs:
        assert {"meta.properties", RECOVERY, STARTS, MARKS, CLEAN, ".lock"} <= {p.name for p in d.iterdir()}


async def test_a_log_dir_that_cannot_be_used_does_not_stop_the_others(live: Live, tmp_path: Path) -> None:
    """Partitions of an unusable log dir get KAFKA_STORAGE_ERROR and others serve, until the log dir is back."""
    dirs = f"log.dirs={live.data_dir},{tmp_path / 'two'}"
    await live.restart(dirs)
    await filled(live, partitions=2)
    await live.stop()
    lost = 0 if (tmp_path / "two" / "t-0").exists() else 1
    (tmp_path / "two").rename(tmp_path / "away")
    (tmp_path / "two").write_text("not a directory")
    await live.start(dirs)
    wire = await live.connect()
    answers = [await wire.produce("t", batch(b"3"), partition=n) for n in range(2)]
    assert answers[lost].error_code == errors.KAFKA_STORAGE_ERROR
    assert (answers[1 - lost].error_code, answers[1 - lost].base_offset) == (0, 3)
    await live.stop()
    (tmp_path / "two").unlink()
    (tmp_path / "away").rename(tmp_path / "two")
    await live.start(dirs)
    wire = await live.connect()
    assert (await wire.produce("t", batch(b"3"), partition=lost)).base_offset == 3


async def test_no_log_dir_that_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in await refusal(Live(tmp_path / "file"))


async def test_a_partition_in_two_log_dirs_refuses(live: Live, tmp_path: Path) -> None:
    await filled(live)
    await live.stop()
    shutil.copytree(live.data_dir / "t-0", tmp_path / "two" / "t-0")
    message = await refusal(live, f"log.dirs={live.data_dir},{tmp_path / 'two'}")
    assert "t-0" in message and "two log directories" in message


async def test_strays_are_shown_and_left_alone(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    """A stray directory stays, until a topic of its name is created; then it is renamed, and nothing is deleted."""
    await filled(live)
    await live.stop()
    stray = live.data_dir / "stray-0"
    shutil.copytree(live.data_dir / "t-0", stray)
    content = {p.name: p.read_bytes() for p in stray.iterdir()}
    await live.start()
    assert any("stray-0" in r.getMessage() for r in caplog.records if r.levelno == logging.WARNING)
    assert {p.name: p.read_bytes() for p in stray.iterdir()} == content
    wire = await live.connect()
    assert (await wire.create("stray")).error_code == 0
    assert (await wire.produce("stray", batch(b"mine"))).base_offset == 0
    [aside] = live.data_dir.glob("stray-0.*-stray")
    assert {p.name: p.read_bytes() for p in aside.iterdir()} == content


async def test_a_deletion_that_was_cut_short_is_finished(live: Live) -> None:
    """The next start finishes a recorded deletion: the topic's nodes and logs, and renamed logs, are removed."""
    await filled(live)
    await filled(live, "kept")
    await live.stop()
    store = EmbeddedStore(str(live.data_dir / STORE_FILE))
    await store.open()
    session = await store.session(10_000)
    await session.create(nodes.deletion("t"))
    await session.close()
    await store.close()
    for name in (f"x-0.{'0' * 32}-delete", f"x-0.{'1' * 32}-future", f"x-0.{'2' * 32}-stray"):
        (live.data_dir / name).mkdir()
        (live.data_dir / name / "00000000000000000000.log").touch()
    await live.start()
    wire = await live.connect()
    assert [t.name for t in (await wire.call("Metadata", 12, topics=None)).topics] == ["kept"]
    assert (await wire.create("t")).error_code == 0
    assert (await wire.produce("t", batch(b"new"))).base_offset == 0
    await live.restart()
    left = {p.name for p in live.data_dir.iterdir() if p.is_dir()}
    assert left == {"t-0", "kept-0", f"x-0.{'1' * 32}-future", f"x-0.{'2' * 32}-stray"}


async def test_a_segment_missing_in_the_middle_takes_one_partition_offline(live: Live) -> None:
    """The other partitions serve, the log has partition and reason, and clients get an error code of its own."""
    wire = await live.connect()
    for name in ("broken", "fine"):
        await wire.create(name, segment_bytes="1000")
        for _ in range(6):
            await wire.produce(name, batch(b"x" * 600))
    await live.stop()
    segments = sorted((live.data_dir / "broken-0").glob("*.log"))
    assert len(segments) > 3
    segments[2].unlink()
    (live.data_dir / CLEAN).unlink()
    await live.start()
    wire = await live.connect()
    assert (await wire.produce("broken", batch(b"v"))).error_code == errors.KAFKA_STORAGE_ERROR
    assert (await wire.fetch("broken", 0)).error_code == errors.KAFKA_STORAGE_ERROR
    assert (await wire.produce("fine", batch(b"v"))).base_offset == 6
    await live.stop()
    assert not (live.data_dir / CLEAN).exists()  # a partition that did not open prevents a clean shutdown


async def test_what_could_not_be_opened_is_deleted_too(live: Live) -> None:
    """The files of a partition that could not be opened are deleted with its topic, not at the next start."""
    await filled(live)
    await filled(live, "kept")
    await live.stop()
    [segment] = (live.data_dir / "t-0").glob("*.log")
    segment.unlink()
    segment.mkdir()
    await live.start()
    wire = await live.connect()
    assert (await wire.fetch("t", 0)).error_code == errors.KAFKA_STORAGE_ERROR
    deleted = await wire.call("DeleteTopics", 5, topic_names=["t"], timeout_ms=5000)
    assert [topic.error_code for topic in deleted.responses] == [0]
    await eventually("its files are gone", lambda: not list(live.data_dir.glob("t-0*")))
    assert (await wire.fetch("kept", 0)).error_code == 0


# -- adoption ----------------------------------------------------------------------------------------------------------


async def test_log_dirs_without_a_store_are_adopted(live: Live, tmp_path: Path) -> None:
    """Kafka's log dirs keep cluster, topics, ids and records; new producer ids start above those in the logs."""
    dirs = f"log.dirs={live.data_dir},{tmp_path / 'two'}"
    await live.restart(dirs)
    wire = await filled(live, partitions=3)
    before = await wire.call("Metadata", 12, topics=None)
    records = batch(b"idempotent", producer_id=4567, producer_epoch=0, base_sequence=0)
    assert (await wire.produce("t", records)).error_code == 0
    await live.stop()
    (live.data_dir / STORE_FILE).unlink()
    await live.start(dirs)
    wire = await live.connect()
    after = await wire.call("Metadata", 12, topics=None)
    assert (after.cluster_id, after.controller_id) == (before.cluster_id, before.controller_id)
    assert [(t.name, t.topic_id, len(t.partitions)) for t in after.topics] == [("t", before.topics[0].topic_id, 3)]
    old, new = (sorted(p.leader_epoch for p in found.topics[0].partitions) for found in (before, after))
    assert all(a < b for a, b in zip(old, new, strict=True))
    assert await read(live) == [b"0", b"1", b"2", b"idempotent"]
    drawn = await wire.call("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=1)
    assert drawn.producer_id == 5000
    await live.restart(dirs)
    assert await read(live) == [b"0", b"1", b"2", b"idempotent"]


async def test_partitions_without_an_id_get_one(live: Live) -> None:
    """Logs from before Kafka's topic ids get an id; KRaft's metadata log is no topic."""
    await filled(live, partitions=2)
    await live.stop()
    for partition in range(2):
        (live.data_dir / f"t-{partition}" / "partition.metadata").unlink()
    shutil.copytree(live.data_dir / "t-0", live.data_dir / "__cluster_metadata-0")
    (live.data_dir / STORE_FILE).unlink()
    await live.start()
    wire = await live.connect()
    [topic] = (await wire.call("Metadata", 12, topics=None)).topics
    assert topic.name == "t" and any(topic.topic_id)
    written = {(live.data_dir / f"t-{n}" / "partition.metadata").read_text() for n in range(2)}
    assert len(written) == 1 and nodes.id_text(topic.topic_id) in written.pop()
    await live.restart()
    assert await read(live) == [b"0", b"1", b"2"]


async def test_a_krafts_meta_properties_is_understood(live: Live) -> None:
    await live.stop()
    assert live.broker is None
    (live.data_dir / STORE_FILE).unlink()
    (live.data_dir / "meta.properties").write_text("version=1\nnode.id=3\ncluster.id=abcdefghijklmnopqrstuv\n")
    broker = await live.start()
    assert (broker.broker_id, broker.cluster_id) == (3, "abcdefghijklmnopqrstuv")


# -- many processors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("processors", [1, 66, 96, 5000])
async def test_any_number_of_processors(live: Live, monkeypatch: pytest.MonkeyPatch, processors: int) -> None:
    """A broker starts and serves with any number of processors."""
    await live.stop()
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(processors))
    await live.start()
    await filled(live)
    assert await read(live) == [b"0", b"1", b"2"]


# -- time --------------------------------------------------------------------------------------------------------------


async def test_a_thousand_partitions_start_in_two_seconds(live: Live) -> None:
    """CPU time after a clean stop is limited, as other tests load the machine; bench/test_start.py has wall time."""
    wire = await live.connect()
    assert (await wire.create("many", 1000)).error_code == 0
    for partition in range(0, 1000, 10):
        await wire.produce("many", batch(b"v"), partition=partition)
    took = []
    for _ in range(2):
        await live.stop()
        started = time.process_time()
        await live.start()
        took.append(time.process_time() - started)
    print(f"1,000 partitions: {min(took):.2f} s of cpu")
    assert min(took) < 2
