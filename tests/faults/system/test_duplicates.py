"""A producer's retry after a restart is recognised or refused, and never stored twice."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from tests.faults.sequenced import Sequenced
from tests.harness import BrokerProcess
from tests.marks import long
from tests.wire import BASE_MS, Wire, batch

NONE, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH = 0, 45, 47
COUNT = 40
WINDOW = 5
SEQUENCE_MAX = 2**31 - 1

End = Callable[[BrokerProcess], None]


def stay(broker: BrokerProcess) -> None:
    """Do nothing: rules that hold after an end must hold without one."""


def stop(broker: BrokerProcess) -> None:
    broker.stop()
    broker.restart()


def kill(broker: BrokerProcess) -> None:
    broker.kill()
    broker.restart()


def stop_and_kill(broker: BrokerProcess) -> None:
    stop(broker)
    kill(broker)


at_each_end = pytest.mark.parametrize(
    ("producer", "end"),
    [
        ("one segment", stay), long("one segment", stop), ("one segment", kill), long("one segment", stop_and_kill),
        long("a segment a batch", stay), ("a segment a batch", stop), ("a segment a batch", kill),
        long("a segment a batch", stop_and_kill),
    ],
    indirect=True,
)  # fmt: skip


@pytest.fixture
def end(request: pytest.FixtureRequest) -> End:
    """The event between a batch and its retry."""
    return request.param


@pytest.fixture
def producer(request: pytest.FixtureRequest, broker: BrokerProcess, topic: str) -> Sequenced:
    """An idempotent producer whose window is in one segment, or in five."""
    config = {"segment.bytes": "300"} if request.param == "a segment a batch" else {}
    with Wire(broker.port) as w:
        assert w.create_topic(topic, config=config) == 0
    return Sequenced(broker, topic, pad=200)


@at_each_end
def test_the_last_five_batches_get_their_offsets_again(producer: Sequenced, end: End) -> None:
    """Retries of the last five batches get their offsets in any order; older ones are out of order."""
    producer.send_range(0, COUNT)
    end(producer.broker)
    with Wire(producer.broker.port) as w:
        for n in (COUNT - 3, COUNT - 1, COUNT - WINDOW, COUNT - 3, COUNT - 2, COUNT - 4):
            assert producer.send(w, n)[:2] == (NONE, n)
        for n in (COUNT - WINDOW - 1, 0):
            assert producer.send(w, n)[:2] == (OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        assert producer.send(w, COUNT + 1)[:2] == (OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    producer.assert_stored(COUNT)
    producer.send_range(COUNT, COUNT + 3)
    producer.assert_stored(COUNT + 3)


@at_each_end
def test_producers_do_not_push_each_other_out(producer: Sequenced, end: End) -> None:
    """Twenty producers in turn each keep their own window, however many batches of others lie between."""
    others = [Sequenced(producer.broker, producer.topic) for _ in range(19)]
    first: dict[int, list[int]] = {}
    with Wire(producer.broker.port) as w:
        for n in range(6):
            for each in [producer, *others]:
                produced = each.send(w, n)
                assert produced.error == NONE
                first.setdefault(each.producer_id, []).append(produced.base_offset)
    end(producer.broker)
    with Wire(producer.broker.port) as w:
        for each in [producer, *others]:
            assert [each.send(w, n).base_offset for n in range(1, 6)] == first[each.producer_id][1:]
            assert each.send(w, 0).error == OUT_OF_ORDER_SEQUENCE_NUMBER
        assert w.list_offset(producer.topic, -1)[2] == 6 * 20


@at_each_end
def test_an_old_epoch_is_fenced(producer: Sequenced, end: End) -> None:
    """A new producer epoch starts at sequence 0 and fences the old one, including its duplicates."""
    producer.send_range(0, 10)
    producer.epoch += 1
    with Wire(producer.broker.port) as w:
        assert producer.send(w, 5).error == OUT_OF_ORDER_SEQUENCE_NUMBER
        assert producer.send(w, 0)[:2] == (NONE, 10)
    end(producer.broker)
    with Wire(producer.broker.port) as w:
        assert producer.send(w, 0)[:2] == (NONE, 10)
        assert producer.send(w, 1)[:2] == (NONE, 11)
        producer.epoch -= 1
        for n in (9, 10):
            assert producer.send(w, n).error == INVALID_PRODUCER_EPOCH
        assert w.list_offset(producer.topic, -1)[2] == 12


@at_each_end
def test_sequences_wrap(producer: Sequenced, end: End) -> None:
    """Sequence 2^31-1 is followed by 0, also within a batch, and duplicates are recognised on both sides."""
    ids = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    start = SEQUENCE_MAX - 3
    sent = [batch([b"a", b"b"], sequence=start, **ids), batch([b"c", b"d", b"e"], sequence=start + 2, **ids)]
    sent += [batch([b"f"], sequence=1, **ids)]
    with Wire(producer.broker.port) as w:
        assert [w.produce(producer.topic, b)[:2] for b in sent] == [(NONE, 0), (NONE, 2), (NONE, 5)]
    end(producer.broker)
    with Wire(producer.broker.port) as w:
        assert [w.produce(producer.topic, b)[:2] for b in sent] == [(NONE, 0), (NONE, 2), (NONE, 5)]
        assert w.produce(producer.topic, batch([b"g"], sequence=3, **ids)).error == OUT_OF_ORDER_SEQUENCE_NUMBER
        assert w.produce(producer.topic, batch([b"g"], sequence=2, **ids))[:2] == (NONE, 6)


@at_each_end
def test_records_of_long_ago_are_retried_as_well(producer: Sequenced, end: End) -> None:
    """Records with old timestamps are retried too: a timestamp does not date the producer's last batch."""
    old_ms = BASE_MS - 3 * 24 * 3600 * 1000
    ids = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    sent = [batch([b"%d" % n], sequence=n, base_ms=old_ms, **ids) for n in range(8)]
    with Wire(producer.broker.port) as w:
        assert [w.produce(producer.topic, b)[:2] for b in sent] == [(NONE, n) for n in range(8)]
    end(producer.broker)
    with Wire(producer.broker.port) as w:
        assert [w.produce(producer.topic, b)[:2] for b in sent[3:]] == [(NONE, n) for n in range(3, 8)]
        assert w.list_offset(producer.topic, -1)[2] == 8


@at_each_end
def test_producer_ids_are_new_after_every_end(producer: Sequenced, end: End) -> None:
    """No producer id is given twice, however the broker ended."""
    seen = {producer.producer_id}
    for _ in range(3):
        end(producer.broker)
        with Wire(producer.broker.port) as w:
            for _ in range(10):
                error, producer_id, epoch = w.init_producer_id()
                assert (error, epoch) == (NONE, 0)
                assert producer_id not in seen
                seen.add(producer_id)


def test_the_second_batch_is_not_taken_for_the_first(start_broker: Callable[..., BrokerProcess], topic: str) -> None:
    """A producer's second batch is refused after its first failed for lack of space, so that the order is kept."""
    broker = start_broker(failpoints=f"segment.write=errno:{errno.ENOSPC}:0:1")
    with Wire(broker.port) as w:
        assert w.create_topic(topic) == 0
        producer = Sequenced(broker, topic)
        answers = [producer.send(w, n) for n in (0, 1, 0, 1)]
    assert [(a.error, a.base_offset) for a in answers] == [(56, -1), (56, -1), (0, 0), (0, 1)]
    producer.assert_stored(2)
