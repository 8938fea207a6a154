"""A disk that is slow, failed, missing, damaged or full: what is lost, what goes on, and the repair."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Producer

from pybroker.errors import KAFKA_STORAGE_ERROR, KafkaError
from pybroker.testing import BrokerHandle
from tests.cli.conftest import run
from tests.harness import BrokerProcess, until
from tests.testing.kit import send
from tests.wire import Wire, batch

Start = Callable[..., BrokerProcess]
COUNT, BAD = 12, 5
SIZE = len(batch([b"00"]))


def two_dirs(home: Path) -> dict[str, str]:
    """The settings of a broker with two log dirs: the first topic with one partition is in one, the second in the
    other."""
    return {"log.dirs": f"{home / 'one'},{home / 'two'}"}


def values(wire: Wire, topic: str) -> list[int]:
    return [found.base_offset for found in wire.fetch_all(topic)]


def test_a_slow_disk_delays_only_requests_that_need_it(start_broker: Start, tmp_path: Path) -> None:
    """While the sync of one log dir hangs, a producer to the other one, readers of both and Metadata are answered."""
    broker = start_broker(sets=two_dirs(tmp_path), failpoints="segment.sync=sleep:600000:0:1")
    with Wire(broker.port) as slow, Wire(broker.port) as wire, ThreadPoolExecutor(1) as beside:
        assert wire.create_topic("payments", config={"flush.messages": "1"}) == 0
        assert wire.create_topic("orders") == 0
        waiting = beside.submit(slow.produce, "payments", batch([b"x"]))
        until("it is appended", lambda: wire.list_offset("payments", -1)[2] == 1)
        for offset in range(20):
            assert wire.produce("orders", batch([b"x"]))[:2] == (0, offset)
            assert len(wire.metadata()[1]) == 2
        assert values(wire, "orders") == list(range(20)) and values(wire, "payments") == [0]
        assert not waiting.done()
        broker.kill()
        assert isinstance(waiting.exception(), ConnectionError)


def test_a_disk_that_fails_takes_its_log_dir_offline(start_broker: Start, tmp_path: Path) -> None:
    """The partitions there refuse records, and can be read; those of the other log dir go on. A restart uses it."""
    broker = start_broker(sets=two_dirs(tmp_path), failpoints="segment.write=errno:5:2:1")
    with Wire(broker.port) as wire:
        assert [wire.create_topic(topic) for topic in ("broken", "sound")] == [0, 0]
        told = [wire.produce(topic, batch([b"x"])).error for topic in ("broken", "sound", "broken", "broken", "sound")]
        assert told == [0, 0, KAFKA_STORAGE_ERROR, KAFKA_STORAGE_ERROR, 0]
        assert (values(wire, "broken"), values(wire, "sound")) == ([0], [0, 1])
    until("the log says so", lambda: broker.count("log dir offline"))
    broker.failpoints = ""
    broker.stop()
    broker.restart()
    with Wire(broker.port) as wire:
        assert [wire.produce(topic, batch([b"x"]))[:2] for topic in ("broken", "sound")] == [(0, 1), (0, 2)]


def test_a_disk_that_is_not_there_is_not_made_anew(start_broker: Start, tmp_path: Path) -> None:
    """A log dir that is not mounted is offline: no offset is used twice. Once it is back, so are its records."""
    broker = start_broker(sets=two_dirs(tmp_path))
    with Wire(broker.port) as wire:
        for topic in ("a", "b"):
            assert wire.create_topic(topic) == 0 and wire.produce(topic, batch([b"x"])).error == 0
    away, here = ("a", "b") if (tmp_path / "two" / "a-0").exists() else ("b", "a")
    broker.stop()
    (tmp_path / "two").rename(tmp_path / "unmounted")
    broker.restart()
    with Wire(broker.port) as wire:
        assert wire.produce(away, batch([b"x"])).error == KAFKA_STORAGE_ERROR
        assert wire.produce(here, batch([b"x"]))[:2] == (0, 1)
    broker.stop()
    if (tmp_path / "two").exists():
        (tmp_path / "two").rename(tmp_path / "empty")
    (tmp_path / "unmounted").rename(tmp_path / "two")
    broker.restart()
    with Wire(broker.port) as wire:
        assert values(wire, away) == [0] and values(wire, here) == [0, 1]
        assert wire.produce(away, batch([b"x"]))[:2] == (0, 1)


def test_damage_costs_only_the_records_that_it_hit(broker: BrokerProcess, topic: str) -> None:
    """`pybroker doctor` finds a damaged batch; a consumer stops there with the offset, or continues after it."""
    with Wire(broker.port) as wire:
        assert wire.create_topic(topic, config={"segment.bytes": str(4 * SIZE)}) == 0
        assert [wire.produce(topic, batch([b"%02d" % n])).base_offset for n in range(COUNT)] == list(range(COUNT))
    broker.stop()
    with (broker.partition_dir(topic) / f"{4:020}.log").open("r+b") as file:
        file.seek((BAD - 4 + 1) * SIZE - 3)
        file.write(b"\xff")
    assert run("doctor", broker.data_dir).code == 1
    broker.restart()
    read = ("consume", topic, "--from-beginning", "--exit-at-end", "-b", broker.bootstrap)
    stopped = run(*read)
    assert stopped.code != 0 and stopped.out.split() == [f"{n:02}" for n in range(BAD)]
    assert f"offset {BAD}" in stopped.err
    assert run(*read, "--skip-damaged").out.split() == [f"{n:02}" for n in range(COUNT) if n != BAD]


@pytest.mark.pybroker(mode="subprocess")
def test_a_full_disk_refuses_records_until_there_is_room(pybroker: BrokerHandle) -> None:
    """Reads go on. An idempotent producer waits and goes on without a restart: no record is lost or stored twice."""
    producer = Producer(pybroker.confluent_config(enable_idempotence=True))
    assert send(producer, "orders", "before") == [None]
    with pybroker.faults.full_disk():
        producer.produce("orders", "while it is full")
        with pytest.raises(KafkaError) as refused:
            pybroker.produce("orders", "no")
        assert refused.value.code == KAFKA_STORAGE_ERROR
        assert [record.value for record in pybroker.records("orders")] == [b"before"]
    assert producer.flush(60) == 0
    assert [record.value for record in pybroker.records("orders")] == [b"before", b"while it is full"]
