"""Topics come, grow, change and go while the broker is killed, or its disk is full; nothing is left of what went."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pybroker import Admin
from pybroker.client.admin.configs import Alteration, ConfigOperation, ConfigResource, ResourceType
from pybroker.errors import KafkaError
from tests.faults.sequenced import Sequenced
from tests.harness import BrokerProcess, until
from tests.wire import Wire, batch

Start = Callable[..., BrokerProcess]
KAFKA_STORAGE_ERROR = 56
FULL = 28  # ENOSPC


def kill_and_restart(broker: BrokerProcess) -> None:
    broker.kill()
    broker.failpoints = ""
    broker.restart()


@contextmanager
def until_death(broker: BrokerProcess) -> Iterator[None]:
    """What is done in it meets the failpoint that kills the broker; afterwards the broker runs again, without one."""
    with pytest.raises(ConnectionError):
        yield
    assert broker.wait_end() == -signal.SIGKILL
    broker.failpoints = ""
    broker.restart()


# -- the name of one that was deleted ----------------------------------------------------------------------------------


def leave_a_trimmed_topic(broker: BrokerProcess, topic: str) -> None:
    """A topic that began at offset 60, which is on record, and that is deleted."""
    with Wire(broker.port) as w:
        assert w.create_topic(topic) == 0
        Sequenced(broker, topic).send_range(0, 100)
        assert w.delete_records(topic, 60) == (0, 60)
        assert w.delete_topic(topic) == 0


def test_the_next_topic_of_a_name_keeps_what_it_was_given(broker: BrokerProcess, topic: str) -> None:
    """What was on record of the one before it is not taken for its own after a kill: it begins at 0, with all of it."""
    leave_a_trimmed_topic(broker, topic)
    with Wire(broker.port) as w:
        assert w.create_topic(topic) == 0
    producer = Sequenced(broker, topic)
    producer.send_range(0, 10)
    kill_and_restart(broker)
    producer.assert_stored(10)


@pytest.mark.parametrize("point", ["partition.create", "metadata.write", "segment.create"])
def test_killed_while_the_next_topic_of_a_name_is_made(broker: BrokerProcess, topic: str, point: str) -> None:
    """Nobody was told that it is there, and the start takes it back; made once more it begins at 0 as well."""
    leave_a_trimmed_topic(broker, topic)
    broker.kill()
    broker.failpoints = f"{point}=kill"
    broker.restart()
    with until_death(broker), Wire(broker.port) as w:
        w.create_topic(topic)
    with Wire(broker.port) as w:
        assert w.metadata()[1] == {}
        assert w.create_topic(topic) == 0
    producer = Sequenced(broker, topic)
    producer.send_range(0, 10)
    producer.assert_stored(10)
    assert "unknown topics" not in broker.output()


def test_starts_that_many_raise_at_once_are_all_on_record(start_broker: Start, topic: str) -> None:
    """Each DeleteRecords that was answered holds after a kill, whoever else's was being written at that time."""
    clients = 16
    broker = start_broker(failpoints="checkpoint.write=sleep:30:0:1000")
    with Wire(broker.port) as w:
        assert w.create_topic(topic, clients) == 0
        for index in range(clients):
            assert w.produce(topic, batch([b"x"] * 20), index).error == 0
    told = dict.fromkeys(range(clients), 0)

    def raise_it(index: int) -> None:
        try:
            with Wire(broker.port) as w:
                for offset in range(1, 20):
                    told[index] = w.delete_records(topic, offset, index)[1]
        except ConnectionError:
            pass

    threads = [threading.Thread(target=raise_it, args=(index,)) for index in told]
    for thread in threads:
        thread.start()
    until("each was answered three times", lambda: min(told.values()) >= 3)
    broker.kill()
    for thread in threads:
        thread.join()
    broker.failpoints = ""
    broker.restart()
    with Wire(broker.port) as w:
        starts = {index: w.list_offset(topic, -2, index)[2] for index in told}
    assert all(starts[index] >= told[index] for index in told), (starts, told)


# -- a disk that is full -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["partition.create", "metadata.write", "segment.create"])
def test_a_topic_that_cannot_be_made(start_broker: Start, topic: str, point: str) -> None:
    """The client is told, nothing is left of it, and with room again the same request makes it, without a restart."""
    broker = start_broker(failpoints=f"{point}=errno:{FULL}:1:1")
    with Wire(broker.port) as w:
        assert w.create_topic(topic, 3) == KAFKA_STORAGE_ERROR
        assert w.metadata()[1] == {}
        assert w.create_topic(topic, 3) == 0
        for partition in range(3):
            assert w.produce(topic, batch([b"x"]), partition)[:2] == (0, 0)
    kill_and_restart(broker)
    with Wire(broker.port) as w:
        assert {name: len(leaders) for name, leaders in w.metadata()[1].items()} == {topic: 3}
        assert [len(w.fetch_all(topic, 0, partition)) for partition in range(3)] == [1, 1, 1]
    assert not [line for line in broker.output().splitlines() if "unknown topics" in line or "Traceback" in line]


def test_a_topic_that_cannot_grow(start_broker: Start, topic: str) -> None:
    """It stays as it was, and grows once there is room."""
    broker = start_broker(failpoints=f"partition.create=errno:{FULL}:2:1")
    with Wire(broker.port) as w, Admin(broker.bootstrap) as admin:
        assert w.create_topic(topic) == 0
        with pytest.raises(KafkaError) as refused:
            admin.create_partitions(topic, 4)
        assert refused.value.code == KAFKA_STORAGE_ERROR
        assert len(w.metadata()[1][topic]) == 1
        assert w.produce(topic, batch([b"x"]))[:2] == (0, 0)
        admin.create_partitions(topic, 3)
        assert [w.produce(topic, batch([b"x"]), partition)[:2] for partition in (0, 1, 2)] == [(0, 1), (0, 0), (0, 0)]
    kill_and_restart(broker)
    with Wire(broker.port) as w:
        assert len(w.metadata()[1][topic]) == 3
        assert [len(w.fetch_all(topic, 0, partition)) for partition in range(3)] == [2, 1, 1]


# -- settings ----------------------------------------------------------------------------------------------------------


def test_a_log_is_known_to_have_gaps_from_the_first_one_on(start_broker: Start, topic: str) -> None:
    """Compaction put one segment in place, and the disk was full for the next. Not compacted any more, and killed
    before the log was recorded as flushed: the gaps are no damage, and what lies behind them is kept."""
    sets = {"log.cleaner.backoff.ms": 50, "log.cleaner.min.cleanable.ratio": 0}
    broker = start_broker(sets=sets, failpoints=f"clean.write=errno:{FULL}:1:1000000")
    compact = {"cleanup.policy": "compact", "segment.bytes": "3000"}
    with Wire(broker.port) as w:
        assert w.create_topic(topic, config=compact) == 0
        for n in range(100):
            assert w.produce(topic, batch([b"." * 100], key=b"k%d" % (n % 3))).error == 0
        until("a round ended early", lambda: "log not compacted" in broker.output())
        before = [b.base_offset for b in w.fetch_all(topic)]
        assert 0 < len(before) < 100
    to_delete = Alteration("cleanup.policy", ConfigOperation.SET, "delete")
    with Admin(broker.bootstrap) as admin:
        admin.alter_configs(ConfigResource(ResourceType.TOPIC, topic), [to_delete])
    kill_and_restart(broker)
    with Wire(broker.port) as w:
        assert [b.base_offset for b in w.fetch_all(topic)] == before
