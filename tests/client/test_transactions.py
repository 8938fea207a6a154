"""Transactions of our producer, against Apache Kafka."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

import pybroker
from pybroker import errors
from pybroker.client.admin import Admin, Alteration, ConfigOperation, ConfigResource, ResourceType
from pybroker.client.net.group_offsets import OffsetAndMetadata
from pybroker.client.producing.producer import Producer
from pybroker.config import ConfigError
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from tests.client.kit import WAIT_S, create, read
from tests.harness import Server, until

NOBODY: Any = {"bootstrap_servers": "127.0.0.1:1"}


def producer_of(server: Server, name: str, **settings: Any) -> Producer:
    return Producer(bootstrap_servers=server.bootstrap, transactional_id=name, **settings)


def committed(server: Server, topic: str, count: int, partitions: int = 1) -> list[bytes | None]:
    """The values that a consumer with read_committed gets, sorted: exactly `count`."""
    consumer = pybroker.Consumer(bootstrap_servers=server.bootstrap, isolation_level="read_committed")
    with consumer:
        consumer.assign([(topic, p) for p in range(partitions)])
        consumer.seek_to_beginning()
        found = read(consumer, count)
        ends = consumer.end_offsets([(topic, p) for p in range(partitions)])
        assert all(consumer.position(tp) <= end for tp, end in ends.items())
        return sorted(r.value or b"" for r in found)


def test_a_commit_shows_all_records_and_an_abort_none(target: Server, topic: str) -> None:
    """A consumer with read_committed gets the records of committed transactions, over partitions, and no others."""
    create(target, topic, partitions=3)
    with producer_of(target, topic) as producer:
        for n in range(6):
            producer.begin_transaction()
            for partition in range(3):
                producer.send(topic, f"{n}-{partition}", partition=partition)
            if n % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    assert committed(target, topic, 9, 3) == sorted(b"%d-%d" % (n, p) for n in (0, 2, 4) for p in range(3))


def test_a_with_commits_or_aborts(target: Server, topic: str) -> None:
    """The end of a `with` commits, an exception aborts and is raised; records not sent yet fail."""
    create(target, topic)
    with producer_of(target, topic, linger_ms=60_000) as producer:
        with producer.transaction():
            producer.send(topic, b"kept")
        with pytest.raises(ZeroDivisionError), producer.transaction() as same:
            lost = same.send(topic, b"lost")
            raise ZeroDivisionError
        error = lost.exception(WAIT_S)
        assert isinstance(error, KafkaError) and error.code == errors.TRANSACTION_ABORTABLE
        with producer.transaction():
            producer.send_columns(topic, [b"columns"])
    assert committed(target, topic, 2) == [b"columns", b"kept"]


def test_offsets_are_committed_with_the_records(target: Server, topic: str) -> None:
    """Offsets sent to a transaction count once it is committed, and not if it is aborted."""
    create(target, topic)
    tp = TopicPartition(topic, 0)
    with (
        producer_of(target, topic) as producer,
        pybroker.Consumer(topic, bootstrap_servers=target.bootstrap, group_id=topic) as consumer,
    ):
        consumer.poll(1000)
        for offset, commit in ((5, False), (7, True), (9, False)):
            producer.begin_transaction()
            producer.send(topic, b"x")
            producer.send_offsets_to_transaction({tp: offset}, consumer.group_metadata())
            if commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
        assert consumer.committed([tp])[tp] == OffsetAndMetadata(7)
        with producer.transaction():
            producer.send_offsets_to_transaction({tp: 11}, topic)
        assert consumer.committed([tp])[tp] == OffsetAndMetadata(11)


def test_a_consumer_that_lost_its_group_aborts(target: Server, topic: str) -> None:
    """Offsets of a member that has left are refused, and the transaction with them."""
    create(target, topic)
    tp = TopicPartition(topic, 0)
    with producer_of(target, topic) as producer:
        with pybroker.Consumer(topic, bootstrap_servers=target.bootstrap, group_id=topic) as consumer:
            consumer.poll(1000)
            before = consumer.group_metadata()
        producer.begin_transaction()
        producer.send(topic, b"lost")
        with pytest.raises(KafkaError) as caught:
            producer.send_offsets_to_transaction({tp: 1}, before)
        assert caught.value.code in (errors.UNKNOWN_MEMBER_ID, errors.ILLEGAL_GENERATION)
        with pytest.raises(KafkaError, match="has to be aborted"):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"kept")
    assert committed(target, topic, 1) == [b"kept"]


def test_a_second_producer_fences_the_first(target: Server, topic: str) -> None:
    """The transaction of an earlier producer is aborted, and that producer says why it cannot go on."""
    create(target, topic)
    with producer_of(target, topic) as first:
        first.begin_transaction()
        first.send(topic, b"lost").result(WAIT_S)
        with producer_of(target, topic) as second:
            with second.transaction():
                second.send(topic, b"kept")
            with pytest.raises(KafkaError, match="another producer has the transactional id"):
                first.commit_transaction()
            with pytest.raises(KafkaError, match="another producer has the transactional id"):
                first.send(topic, b"x")
            with pytest.raises(KafkaError, match="another producer has the transactional id"):
                first.begin_transaction()
    assert committed(target, topic, 1) == [b"kept"]


def test_a_record_that_fails_leaves_only_an_abort(target: Server, topic: str) -> None:
    """A refused record fails its transaction; after the abort the producer goes on, under a new epoch."""
    create(target, topic, config={"max.message.bytes": "1000"})
    with producer_of(target, topic) as producer:
        producer.begin_transaction()
        producer.send(topic, b"before").result(WAIT_S)
        refused = producer.send(topic, b"x" * 2000)
        assert isinstance(refused.exception(WAIT_S), KafkaError)
        with pytest.raises(KafkaError, match="has to be aborted"):
            producer.commit_transaction()
        with pytest.raises(KafkaError, match="has to be aborted"):
            producer.send(topic, b"more")
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"after")
    assert committed(target, topic, 1) == [b"after"]


def test_an_open_transaction_is_aborted_at_the_end(target: Server, topic: str) -> None:
    """A producer that is closed aborts its open transaction, so that no reader waits for its timeout."""
    create(target, topic)
    with producer_of(target, topic) as producer:
        producer.begin_transaction()
        producer.send(topic, b"lost").result(WAIT_S)
    with producer_of(target, f"{topic}-2") as producer, producer.transaction():
        producer.send(topic, b"kept")
    assert committed(target, topic, 1) == [b"kept"]


async def test_asyncio(target: Server, topic: str) -> None:
    """The producer for asyncio has the same transactions."""
    create(target, topic)
    async with pybroker.AsyncProducer(bootstrap_servers=target.bootstrap, transactional_id=topic) as producer:
        async with producer.transaction():
            await producer.send(topic, b"kept")
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                await producer.send(topic, b"lost")
                raise ZeroDivisionError
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({(topic, 0): 3}, topic)
        await producer.commit_transaction()
    assert committed(target, topic, 1) == [b"kept"]


# -- without a broker --------------------------------------------------------------------------------------------------


def test_calls_out_of_order() -> None:
    """Calls out of order, and without a transactional id, say what is wrong."""
    with Producer(**NOBODY) as plain, pytest.raises(KafkaError, match="needs a producer with transactional_id"):
        plain.begin_transaction()
    with Producer(**NOBODY, transactional_id="t", max_block_ms=200) as producer:
        with pytest.raises(KafkaError, match="no transaction can be committed"):
            producer.commit_transaction()
        with pytest.raises(KafkaError, match=r"within a transaction, and init_transactions\(\) has not"):
            producer.send("t", b"x")
        with pytest.raises(KafkaError, match="gave no producer id for 't'"):
            producer.begin_transaction()
        with pytest.raises(TypeError, match="a group is"):
            producer.send_offsets_to_transaction({}, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [{"acks": 1}, {"retries": 0}, {"enable_idempotence": False}])
def test_settings_that_exclude_transactions(settings: Any) -> None:
    with pytest.raises(ConfigError, match="transactional_id needs"):
        Producer(**NOBODY, transactional_id="t", **settings)


# -- the admin client --------------------------------------------------------------------------------------------------


def test_what_coordinators_and_leaders_know(target: Server, topic: str) -> None:
    """Admin lists and describes transactional ids, and where open transactions begin in partitions."""
    create(target, topic, partitions=2)
    tp = TopicPartition(topic, 1)
    with Admin(target.bootstrap) as admin, producer_of(target, topic) as producer:
        with producer.transaction():
            producer.send(topic, b"before", partition=1)
        producer.begin_transaction()
        producer.send(topic, b"open", partition=1).result(WAIT_S)
        (listed,) = [t for t in admin.transactions(states=["Ongoing"]) if t.id == topic]
        (known,) = admin.describe_transactions([topic])
        assert (known.state, known.producer_id, known.partitions) == ("Ongoing", listed.producer_id, (tp,))
        assert known.start_ms is not None and known.timeout_ms == 60_000
        assert topic not in {t.id for t in admin.transactions(open_for_ms=600_000)}
        (at,) = admin.describe_producers([tp])[tp]
        assert (at.producer_id, at.transaction_start, at.last_sequence) == (listed.producer_id, 2, 1)
        assert admin.hanging_transactions([tp], open_for_ms=0) == []
        with pytest.raises(KafkaError, match=r"no open transaction of .* begins at offset 1"):
            admin.abort_transaction(tp, 1)
        with pytest.raises(KafkaError) as caught:
            admin.describe_transactions([f"{topic}-absent"])
        assert caught.value.code == errors.TRANSACTIONAL_ID_NOT_FOUND
        producer.abort_transaction()


def test_an_admin_fences_producers(target: Server, topic: str) -> None:
    """A fenced producer's transaction is aborted, and the producer refused."""
    create(target, topic)
    with Admin(target.bootstrap) as admin, producer_of(target, topic) as producer:
        producer.begin_transaction()
        producer.send(topic, b"lost").result(WAIT_S)
        admin.fence_producers([topic])
        until("the abort is done", lambda: admin.describe_transactions([topic])[0].state == "CompleteAbort")
        with pytest.raises(KafkaError, match="another producer has the transactional id"):
            producer.commit_transaction()


@contextlib.contextmanager
def unverified(admin: Admin) -> Iterator[None]:
    """A cluster that takes transactional records of partitions that were not added, as before KIP-890."""
    name = "transaction.partition.verification.enable"
    everywhere = ConfigResource(ResourceType.BROKER, "")
    admin.alter_configs(everywhere, [Alteration(name, ConfigOperation.SET, "false")])
    try:
        yield
    finally:
        admin.alter_configs(everywhere, [Alteration(name, ConfigOperation.DELETE)])


def test_a_transaction_that_hangs_is_found_and_aborted(target: Server, topic: str) -> None:
    """A transaction that no coordinator will end holds readers up until it is aborted by hand."""
    create(target, topic)
    tp = TopicPartition(topic, 0)
    with Admin(target.bootstrap) as admin, producer_of(target, topic) as producer, unverified(admin):
        producer.begin_transaction()
        assert producer._transactions is not None
        producer._transactions._added.add(tp)  # so it is not added at the coordinator
        until("it is written", lambda: producer.send(topic, b"hangs").exception(WAIT_S) is None)
        with Producer(bootstrap_servers=target.bootstrap) as other:
            other.send(topic, b"behind").result(WAIT_S)
        (hanging,) = admin.hanging_transactions([tp], open_for_ms=0)
        assert (hanging.partition, hanging.transactional_id, hanging.producer.transaction_start) == (tp, topic, 0)
        admin.abort_transaction(tp, 0)
        assert admin.hanging_transactions([tp], open_for_ms=0) == []
        producer._transactions._added.clear()
        producer.abort_transaction()
    assert committed(target, topic, 1) == [b"behind"]
