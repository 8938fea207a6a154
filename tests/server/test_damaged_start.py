"""Files missing or damaged at a start: the broker's id and its topics are restored from the files that are left."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from pybroker.server.cluster.directories import STORE_FILE
from tests.server.live import Live, Wire, batch, values

META = "meta.properties"
COUNT = 3


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    """A stopped broker that has one topic."""
    made = Live(tmp_path / "data")
    await made.start()
    await filled(await made.connect(), "t")
    await made.stop()
    yield made
    await made.stop()


async def filled(wire: Wire, name: str, partitions: int = 1, **config: str) -> None:
    assert (await wire.create(name, partitions, **config)).error_code == 0
    for partition in range(partitions):
        for n in range(COUNT):
            assert (await wire.produce(name, batch(b"%d" % n), partition=partition)).base_offset == n


async def read(live: Live, name: str = "t") -> list[bytes | None]:
    return values((await (await live.connect()).fetch(name, 0)).records)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def numbers(count: int = COUNT) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


# -- meta.properties ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["gone", "empty"])
async def test_without_meta_properties_the_store_says_who_the_broker_is(
    live: Live, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """The broker keeps its id, as its partitions need their leader; one line reports the missing file."""
    meta = live.data_dir / META
    before = meta.read_text().splitlines()
    if how == "gone":
        meta.unlink()
    else:
        meta.write_text("")
    for life in range(2):
        caplog.clear()
        broker = await live.start()
        assert broker.broker_id == 1001
        assert await read(live) == numbers(COUNT + life)
        wire = await live.connect()
        assert (await wire.produce("t", batch(b"%d" % (COUNT + life)))).base_offset == COUNT + life
        await live.stop()
        assert [line for line in warnings(caplog) if META in line] == (
            [f"missing file written again file={meta} broker=1001"] if life == 0 else []
        )
    assert {line for line in before if "=" in line} == {line for line in meta.read_text().splitlines() if "=" in line}


async def test_another_broker_id_than_the_stores_is_refused(live: Live) -> None:
    (live.data_dir / META).unlink()
    with pytest.raises(KafkaError, match=r"broker\.id is 7, but the log directories belong to broker 1001"):
        await live.start("broker.id=7")


async def test_without_meta_properties_the_other_log_dirs_say_who_the_broker_is(live: Live, tmp_path: Path) -> None:
    """If no log dir has the broker id, the start is refused until broker.id is set: a generated id could be in use."""
    dirs = f"log.dirs={live.data_dir},{tmp_path / 'two'}"
    await live.start(dirs)
    await filled(await live.connect(), "u", 2)
    await live.stop()
    [of_store] = re.findall("^directory.id=(.*)", (live.data_dir / META).read_text(), re.M)
    (live.data_dir / META).unlink()
    (live.data_dir / STORE_FILE).unlink()
    broker = await live.start(dirs, give_up=[of_store])
    assert broker.broker_id == 1001
    await live.stop()
    (live.data_dir / STORE_FILE).unlink()
    for path in (live.data_dir, tmp_path / "two"):
        (path / META).unlink()
    with pytest.raises(KafkaError, match=r"hold partitions, but neither .* set broker\.id"):
        await live.start(dirs)
    broker = await live.start(dirs, "broker.id=1001")
    assert (broker.broker_id, await read(live)) == (1001, numbers())


# -- the coordination store --------------------------------------------------------------------------------------------


async def described(live: Live, names: list[str]) -> dict[str, tuple[bytes, int]]:
    """{name: (topic id, number of partitions)} of the existing topics among `names`."""
    answer = await (await live.connect()).call("Metadata", 12, topics=None)
    return {t.name: (t.topic_id, len(t.partitions)) for t in answer.topics if t.name in names}


async def setting(live: Live, topic: str, name: str) -> str:
    kind = m.DescribeConfigsRequest.Resources
    asked = kind(resource_type=2, resource_name=topic, configuration_keys=[name])
    answer: Any = await (await live.connect()).call("DescribeConfigs", 4, resources=[asked])
    return str(answer.results[0].configs[0].value)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "its head": lambda data: os.urandom(100) + data[100:],
    "its middle": lambda data: data[: len(data) // 2] + os.urandom(4096) + data[len(data) // 2 + 4096 :],
    "its end": lambda data: data[: len(data) // 2],
    "all of it": lambda data: bytes(len(data)),
    "a topic, which SQLite does not see": lambda data: data.replace(b'"partitions":{', b'"partytions":{'),
    "a state": lambda data: data.replace(b'"leader":1001', b'"leader"~1001'),
    "settings": lambda data: data.replace(b'"config":{', b'"config"\xff{'),
    "the name of a state": lambda data: data.replace(b"/partitions/0state{", b"/partitions/0stade{"),
    "where a topic lies": lambda data: data.replace(b"/brokers/topicswide{", b"/rokers+topicswide{"),
}


@pytest.mark.parametrize("kind", DAMAGES)
async def test_a_damaged_store_is_not_zero_topics(live: Live, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    """A damaged store is set aside and the topics in the log dirs are adopted. Their settings are lost, so retention is
    off: defaults delete nothing."""
    names = ["t", "wide"]
    await live.start()
    await filled(await live.connect(), "wide", 5, retention_ms="9")
    before = await described(live, names)
    await live.stop()
    path = live.data_dir / STORE_FILE
    damaged = DAMAGES[kind](path.read_bytes())
    assert damaged != path.read_bytes()
    path.write_bytes(damaged)
    broker = await live.start()
    assert broker.broker_id == 1001
    assert await described(live, names) == before
    assert await read(live, "t") == await read(live, "wide") == numbers()
    assert [await setting(live, name, "retention.ms") for name in names] == ["-1", "-1"]
    [line] = [line for line in warnings(caplog) if "adopted from log dirs" in line]
    assert "count=2 topics=t,wide" in line
    aside = list(live.data_dir.glob(f"{STORE_FILE}.*.damaged"))
    assert [path.stat().st_size for path in aside] == [len(damaged)]
    await live.restart()
    assert await described(live, names) == before


@pytest.mark.parametrize("how", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["gone", "empty"])
async def test_a_store_that_is_gone_is_not_a_first_start(
    live: Live, caplog: pytest.LogCaptureFixture, how: Callable[[Path], object]
) -> None:
    """Topics are adopted with retention off, so that default settings delete nothing."""
    await live.start()
    before = await described(live, ["t"])
    await live.stop()
    how(live.data_dir / STORE_FILE)
    await live.start()
    assert (await described(live, ["t"]), await setting(live, "t", "retention.ms")) == (before, "-1")
    assert [line for line in warnings(caplog) if "settings lost, retention off count=1 topics=t" in line]


async def test_a_store_that_lost_its_latest_writes(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged journal leaves an older state: topics and partitions missing there are adopted from the log dirs, and
    records of later leader epochs are kept."""
    path = live.data_dir / STORE_FILE
    older = path.read_bytes()
    for _ in range(3):  # each start adds leader epochs, which the older state lacks
        await live.start()
        await live.stop()
    await live.start()
    await filled(await live.connect(), "later", 2)
    grown = m.CreatePartitionsRequest.Topics(name="t", count=3, assignments=None)
    wire = await live.connect()
    await wire.call("CreatePartitions", 3, topics=[grown], timeout_ms=5000, validate_only=False)
    assert (await wire.produce("t", batch(b"grown"), partition=2)).error_code == 0
    assert (await wire.produce("t", batch(b"3"))).base_offset == 3
    before = await described(live, ["t", "later"])
    assert before["t"][1] == 3
    await live.stop()
    path.write_bytes(older)
    (live.data_dir / ".kafka_cleanshutdown").unlink()
    caplog.clear()
    await live.start()
    assert await described(live, ["t", "later"]) == before
    assert (await read(live, "t"), await read(live, "later")) == (numbers(4), numbers())
    assert [line for line in warnings(caplog) if "adopted from log dirs" in line and "topics=later,t" in line]
    await live.restart()
    assert await described(live, ["t", "later"]) == before


async def test_what_was_deleted_while_its_log_dir_was_away_does_not_come_back(live: Live, tmp_path: Path) -> None:
    """A deleted topic's directory is ignored: the store keeps the topic's id while such a directory may exist."""
    two, away = tmp_path / "two", tmp_path / "away"
    dirs = f"log.dirs={live.data_dir},{two}"
    await live.start(dirs)
    await filled(await live.connect(), "u", 1)
    assert (two / "u-0").is_dir()
    await live.stop()
    two.rename(away)
    await live.start(dirs)
    deleted = await (await live.connect()).call("DeleteTopics", 5, topic_names=["u"], timeout_ms=5000)
    assert deleted.responses[0].error_code == 0
    await live.stop()
    shutil.rmtree(two, ignore_errors=True)
    away.rename(two)
    for _ in range(2):
        await live.start(dirs)
        assert await described(live, ["u", "t"]) == await described(live, ["t"])
        await live.stop()
    assert (two / "u-0").is_dir()
