"""Topics are created, changed and deleted while the broker is killed or its disk is full, without leftovers."""

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
TOPIC_ALREADY_EXISTS, KAFKA_STORAGE_ERROR = 36, 56
FULL = 28  # ENOSPC


def kill_and_restart(broker: BrokerProcess) -> None:
    broker.kill()
    broker.failpoints = ""
    broker.restart()


@contextmanager
def until_death(broker: BrokerProcess) -> Iterator[None]:
    """Run the block into the failpoint that kills the broker, then restart the broker without failpoints."""
    with pytest.raises(ConnectionError):
        yield
    assert broker.wait_end() == -signal.SIGKILL
    broker.failpoints = ""
    broker.restart()


# -- a name that was deleted before ------------------------------------------------------------------------------------


def leave_a_trimmed_topic(broker: BrokerProcess, topic: str) -> None:
    """Delete a topic whose recorded log start is 60."""
    with Wire(broker.port) as w:
        assert w.create_topic(topic) == 0
        Sequenced(broker, topic).send_range(0, 100)
        assert w.delete_records(topic, 60) == (0, 60)
        assert w.delete_topic(topic) == 0


def test_the_next_topic_of_a_name_keeps_what_it_was_given(broker: BrokerProcess, topic: str) -> None:
    """A topic with a deleted topic's name starts at 0 and keeps all records after a kill, despite old checkpoints."""
    leave_a_trimmed_topic(broker, topic)
    with Wire(broker.port) as w:
        assert w.create_topic(topic) == 0
    producer = Sequenced(broker, topic)
    producer.send_range(0, 10)
    kill_and_restart(broker)
    producer.assert_stored(10)


@pytest.mark.parametrize("point", ["partition.create", "metadata.write", "segment.create"])
def test_killed_while_the_next_topic_of_a_name_is_made(broker: BrokerProcess, topic: str, point: str) -> None:
    """A topic with a deleted topic's name whose creation was killed is finished by the start, and begins at 0."""
    leave_a_trimmed_topic(broker, topic)
    broker.kill()
    broker.failpoints = f"{point}=kill"
    broker.restart()
    with until_death(broker), Wire(broker.port) as w:
        w.create_topic(topic)
    with Wire(broker.port) as w:
        assert list(w.metadata()[1]) == [topic]
        assert w.create_topic(topic) == TOPIC_ALREADY_EXISTS
    producer = Sequenced(broker, topic)
    producer.send_range(0, 10)
    producer.assert_stored(10)
    assert "unknown topics" not in broker.output()


def test_starts_that_many_raise_at_once_are_all_on_record(start_broker: Start, topic: str) -> None:
    """Each DeleteRecords that was answered survives a kill, though others were written at the same time."""
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
    until("each client got three answers", lambda: min(told.values()) >= 3)
    broker.kill()
    for thread in threads:
        thread.join()
    broker.failpoints = ""
    broker.restart()
    with Wire(broker.port) as w:
        starts = {index: w.list_offset(topic, -2, index)[2] for index in told}
    assert all(starts[index] >= told[index] for index in told), (starts, told)


# -- a full disk -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["partition.create", "metadata.write", "segment.create"])
def test_a_topic_that_cannot_be_made(start_broker: Start, topic: str, point: str) -> None:
    """A topic that could not be created gets an error and leaves nothing; with space, the same request creates it."""
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
    """A topic that could not be extended gets an error, and its new partitions get logs once there is space."""
    broker = start_broker(failpoints=f"partition.create=errno:{FULL}:2:1")
    with Wire(broker.port) as w, Admin(broker.bootstrap) as admin:
        assert w.create_topic(topic) == 0
        with pytest.raises(KafkaError) as refused:
            admin.create_partitions(topic, 4)
        assert refused.value.code == KAFKA_STORAGE_ERROR
        assert len(w.metadata()[1][topic]) == 4
        assert w.produce(topic, batch([b"x"]))[:2] == (0, 0)
        for partition in (1, 2, 3):
            until("it has a log", lambda partition=partition: w.produce(topic, batch([b"x"]), partition)[:2] == (0, 0))
    kill_and_restart(broker)
    with Wire(broker.port) as w:
        assert [len(w.fetch_all(topic, 0, partition)) for partition in range(4)] == [1, 1, 1, 1]


# -- settings ----------------------------------------------------------------------------------------------------------


def test_a_log_is_known_to_have_gaps_from_the_first_one_on(start_broker: Start, topic: str) -> None:
    """Gaps of a log that is no longer compacted are no damage after a kill, and batches behind them are kept.

    A full disk stopped the compaction after one segment, before the log was recorded as flushed.
    """
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
