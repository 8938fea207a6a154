"""Batches that follow a refused one are refused with its error until the refused batch is sent again."""

import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from pybroker.core import LogError, Partition
from tests.core import probes
from tests.core.logs import NOW, Home, batch, batch_of, code_of
from tests.core.slow_sequences import DUPLICATE, SEQUENCES, Sent, SlowSequences
from tests.harness import until

probe = probes.load()

NOT_LEADER_OR_FOLLOWER, MESSAGE_TOO_LARGE, NOT_ENOUGH_REPLICAS = 6, 10, 19
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
PID = 7
REFUSED_MAX, REFUSED_MS, OPENED_MS = 1024, 120_000, 1000


def send(partition: Partition, sequence: int, *, epoch: int = 1, acks: int = -1) -> int:
    """Append one record; return 0, DUPLICATE, a Kafka error code, or -errno."""
    data = batch_of(100, producer=(PID, epoch, sequence))
    try:
        return DUPLICATE if partition.append(data, now_ms=NOW, acks=acks).duplicate else 0
    except LogError as refused:
        return refused.code
    except OSError as failed:
        return -(failed.errno or 0)


class Cause(NamedTuple):
    """A reason for refusing batches that can be started and ended."""

    begin: Callable[[Home], None]
    end: Callable[[Home], None]
    status: int
    acks: int = -1


def full(point: str, error: int = errno.ENOSPC) -> Cause:
    def begin(home: Home) -> None:
        assert home.broker is not None
        home.broker.arm(point, "errno", error, times=1 << 30)

    def end(home: Home) -> None:
        assert home.broker is not None
        home.broker.disarm()

    return Cause(begin, end, -error)


def few(home: Home) -> None:
    home.partition.min_isr = 2


def enough(home: Home) -> None:
    home.partition.min_isr = 1


def lapse(home: Home) -> None:
    assert home.broker is not None
    home.broker.set_lease(1)


def renew(home: Home) -> None:
    assert home.broker is not None
    home.broker.set_lease(0)


CAUSES = {
    "no space for a write": full("segment.write"),
    "the quota is used up": full("segment.write", errno.EDQUOT),
    "no space to reserve": full("segment.reserve"),
    "no space for a segment": full("segment.create"),
    "before a roll": full("roll.before"),
    "after a roll": full("roll.after"),
    "no memory": full("segment.write", errno.ENOMEM),
    "too few in sync": Cause(few, enough, NOT_ENOUGH_REPLICAS),
    "the lease has lapsed": Cause(lapse, renew, NOT_LEADER_OR_FOLLOWER, acks=1),
}
BEFORE = {"first": [], "known": [0, 1, 2], "at the end of the circle": [SEQUENCES - 3, SEQUENCES - 2]}


def begin(home: Home, before: list[int]) -> tuple[Partition, int]:
    """A partition with a follower, whose next append must roll, and the producer's next sequence."""
    home.config |= {"segment.bytes": 100}
    partition = home.open()
    partition.become_leader(3, 1, followers=(2,), isr=())
    partition.append(batch_of(100), now_ms=NOW)
    for sequence in before:
        data = batch_of(100, producer=(PID, 1, sequence))
        assert partition.append(data, now_ms=NOW, internal=True).duplicate is False
    return partition, (before[-1] + 1) if before else 0


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
@pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES)
def test_a_pipeline_sees_one_cause(home: Home, cause: Cause, before: list[int]) -> None:
    """A pipeline gets the refused batch's error, in any order, until that batch is sent again."""
    partition, first = begin(home, before)
    pipeline = [(first + n) % SEQUENCES for n in range(4)]
    cause.begin(home)
    assert [send(partition, s, acks=cause.acks) for s in (*pipeline, *pipeline[:2])] == [cause.status] * 6
    cause.end(home)
    assert [send(partition, s, acks=cause.acks) for s in pipeline[:0:-1]] == [cause.status] * 3
    if before and cause.acks == -1:
        assert send(partition, before[-1]) == DUPLICATE
    assert [send(partition, s, acks=cause.acks) for s in pipeline] == [0] * 4
    assert send(partition, pipeline[0]) == DUPLICATE
    assert partition.log_end_offset == 1 + len(before) + 4


@pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES)
def test_a_new_epoch_has_a_beginning_too(home: Home, cause: Cause) -> None:
    partition, _ = begin(home, [0, 1])
    cause.begin(home)
    assert send(partition, 0, epoch=2, acks=cause.acks) == cause.status
    cause.end(home)
    assert send(partition, 1, epoch=2, acks=cause.acks) == cause.status
    assert [send(partition, s, epoch=2, acks=cause.acks) for s in (0, 1)] == [0, 0]


@pytest.mark.parametrize("first", [0, 1, 41])
@pytest.mark.parametrize("count", [2, 5, 70])
def test_a_turn_sees_one_cause(tmp_path: Path, first: int, count: int) -> None:
    """Batches of one turn, in any number of writes, and of the next turn get the same error."""
    home = Home(tmp_path, {"segment.bytes": 1 << 20})
    partition = home.open()
    assert home.broker is not None
    batches = [batch(producer=(PID, 1, first + n)) for n in range(count)]
    home.broker.arm("segment.write", "errno", errno.ENOSPC, times=1)
    assert [w[0] for w in probe.append_together(partition, batches, NOW)] == [-errno.ENOSPC] * count
    assert [w[0] for w in probe.append_together(partition, batches[1:], NOW)] == [-errno.ENOSPC] * (count - 1)
    assert [w[0] for w in probe.append_together(partition, batches, NOW)] == [0] * count
    home.crash()


def test_an_answer_for_good_holds_up_nobody(home: Home) -> None:
    """A batch that is refused for good blocks no later one: those get OUT_OF_ORDER_SEQUENCE_NUMBER, as in Kafka."""
    home.config |= {"max.message.bytes": 200}
    partition = home.open()
    assert send(partition, 0) == 0
    assert code_of(partition.append, batch(size=500, producer=(PID, 1, 1)), now_ms=NOW) == MESSAGE_TOO_LARGE
    assert send(partition, 2) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(partition, 1) == 0


def test_a_new_epoch_ends_a_refusal(home: Home) -> None:
    """A new producer epoch ends a refusal, as the client has given the batch up."""
    partition, _ = begin(home, [0])
    few(home)
    assert send(partition, 1) == NOT_ENOUGH_REPLICAS
    enough(home)
    assert [send(partition, s, epoch=2) for s in (0, 1)] == [0, 0]


def test_a_restart_ends_a_refusal(home: Home) -> None:
    """A restart ends a refusal, as it also ended the connections, and later batches arrive in order."""
    partition = home.open()
    assert home.broker is not None and send(partition, 0) == 0
    home.broker.arm("segment.write", "errno", errno.ENOSPC, times=1)
    assert [send(partition, s) for s in (1, 2)] == [-errno.ENOSPC] * 2
    partition = home.reopen(clean=False)
    assert [send(partition, s) for s in (2, 1, 2)] == [OUT_OF_ORDER_SEQUENCE_NUMBER, 0, 0]


def test_a_refused_producer_is_in_no_snapshot(home: Home) -> None:
    """A snapshot has no producer whose only batch was refused, as it wrote nothing."""
    partition = home.open()
    assert home.broker is not None
    home.broker.arm("segment.write", "errno", errno.ENOSPC, times=1)
    assert send(partition, 0) == -errno.ENOSPC
    assert partition.producers() == []


def new_leader(home: Home, before: list[int]) -> Partition:
    """A leader since two seconds, whose log has these sequences from the leader before it."""
    partition = home.open()
    for sequence in before:
        partition.append(batch_of(100, producer=(PID, 1, sequence)), now_ms=NOW, internal=True)
    partition.become_leader(3, 1, followers=(2,), isr=())
    probe.led_earlier(partition, 2 * OPENED_MS)
    return partition


@pytest.mark.parametrize("before", [[], [0, 1, 2]], ids=["unknown", "known"])
def test_a_pipeline_whose_beginning_another_leader_refused_is_sent_again(home: Home, before: list[int]) -> None:
    """A new leader refuses what follows a batch that it has not seen, as the client sends that one again, however late.

    The next sequences of a pipeline whose first batch was answered with NOT_LEADER_OR_FOLLOWER arrive seconds later.
    """
    partition = new_leader(home, before)
    first = len(before)
    assert [send(partition, first + n) for n in (1, 2, 3)] == [NOT_ENOUGH_REPLICAS] * 3
    assert [send(partition, first + n) for n in range(4)] == [0] * 4
    assert send(partition, first + 5) == OUT_OF_ORDER_SEQUENCE_NUMBER, "it has written in this leader epoch"


def test_a_gap_that_comes_again_is_one(home: Home) -> None:
    """A batch that comes again without its predecessor gets OUT_OF_ORDER_SEQUENCE_NUMBER, in each leader epoch."""
    partition = new_leader(home, [0])
    for epoch in (4, 5):
        assert [send(partition, s) for s in (2, 3)] == [NOT_ENOUGH_REPLICAS] * 2
        assert [send(partition, s) for s in (2, 3, 2)] == [
            OUT_OF_ORDER_SEQUENCE_NUMBER, NOT_ENOUGH_REPLICAS, OUT_OF_ORDER_SEQUENCE_NUMBER,
        ]
        partition.become_leader(epoch, epoch, followers=(2,), isr=())
        probe.led_earlier(partition, 2 * OPENED_MS)


def test_an_unknown_producer_that_goes_on_is_refused_once(home: Home) -> None:
    """A producer whose records were deleted goes on behind them, as in Kafka, at its second attempt."""
    partition = new_leader(home, [])
    assert [send(partition, 7), send(partition, 7), send(partition, 8)] == [NOT_ENOUGH_REPLICAS, 0, 0]


def test_a_gap_long_after_a_change_of_leaders_is_one(home: Home) -> None:
    """A leader of two minutes answers a gap as Kafka does: the client has given up what was refused before."""
    partition = new_leader(home, [0])
    probe.led_earlier(partition, REFUSED_MS)
    assert send(partition, 2) == OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_refused_the_sequences_are_the_models(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    home = Home(tmp_path, {"segment.bytes": 400})
    partition, model = home.open(), SlowSequences()
    assert home.broker is not None
    start = {pid: chance.choice([0, 0, 5, SEQUENCES - 4]) for pid in range(3)}
    for step in range(600):
        pid = chance.randrange(3)
        window = model.windows.get(pid)
        at = model.next_of(pid) if window else start[pid]
        epoch = max(0, (window[-1].epoch if window else 0) + chance.choice([0] * 20 + [1, -1]))
        first = (at + chance.choice([0, 0, 0, 0, 1, 2, 3, -1, -2, -7])) % SEQUENCES
        sent = Sent(pid, epoch, chance.choice([first, first, first, 0]), chance.choice([1, 1, 1, 2]))
        if window and chance.random() < 0.2:
            sent = chance.choice(window)
        failure = chance.choice([0, 0, -errno.ENOSPC, -errno.EDQUOT])
        home.broker.disarm()
        if failure:
            home.broker.arm("segment.write", "errno", -failure, times=1 << 30)
        data = batch(sent.count, producer=(sent.pid, sent.epoch, sent.first))
        try:
            status = DUPLICATE if partition.append(data, now_ms=NOW).duplicate else 0
        except LogError as refused:
            status = refused.code
        except OSError as failed:
            status = -(failed.errno or 0)
        assert status == model.append(sent, failure), (step, sent, failure)
    assert {p[0]: p[2] for p in partition.producers()} == {
        pid: (model.next_of(pid) - 1) % SEQUENCES for pid in model.windows
    }
    home.crash()


# -- the table ---------------------------------------------------------------------------------------------------------


def test_a_refusal_lasts_its_time() -> None:
    """A refusal lasts REFUSED_MS from the last refusal of its first batch; later batches do not prolong it."""
    refused = probe.Refused()
    refused.note(1, 0, 5, -28, 1000)
    assert refused.find(1, 0, 6, 1000 + REFUSED_MS - 1) == -28
    assert refused.find(1, 0, 6, 1000 + REFUSED_MS) == 0
    refused.note(1, 0, 6, 19, 2000)
    assert refused.find(1, 0, 6, 2000) == -28, "6 is not the first"
    assert refused.find(1, 0, 7, 1000 + REFUSED_MS) == 0
    refused.note(1, 0, 5, 19, 3000)
    assert [refused.find(1, 0, s, 1000 + REFUSED_MS) for s in (4, 5, 6)] == [0, 0, 19]
    assert refused.find(2, 0, 6, 3000) == refused.find(1, 1, 6, 3000) == 0


def test_the_table_is_bounded() -> None:
    """The table of refusals is bounded for producers that never wrote a batch; the oldest refusal makes room."""
    refused = probe.Refused()
    for pid in range(REFUSED_MAX):
        refused.note(pid, 0, 0, -28, 1000 + pid)
    assert (refused.count, refused.find(0, 0, 1, 5000)) == (REFUSED_MAX, -28)
    refused.note(REFUSED_MAX, 0, 0, -28, 5000)
    assert refused.count == REFUSED_MAX
    assert [refused.find(pid, 0, 1, 5000) for pid in (0, 1, REFUSED_MAX)] == [0, -28, -28]
    for pid in range(REFUSED_MAX + 1):
        refused.forget(pid)
    assert refused.count == refused.capacity == 0


def test_what_follows_a_refused_batch_is_refused_like_it(home: Home) -> None:
    """Batches that a producer sent behind a refused one are refused with a retriable error too.

    If the refused batch arrived while another broker led, that lasts a while; if the ISR was too small, until the batch
    comes again. The client must not get an error about a gap in its sequence.
    """
    partition = home.open()
    partition.become_leader(5, 1, followers=(2, 3))
    partition.min_isr = 2

    def appended(sequence: int) -> int:
        return code_of(partition.append, batch(1, producer=(7, 0, sequence)), now_ms=NOW, acks=-1)

    assert appended(1) == NOT_ENOUGH_REPLICAS, "it has just begun to lead, and does not know this producer"
    assert [appended(sequence) for sequence in (0, 1)] == [0, 0]
    assert appended(3) == NOT_ENOUGH_REPLICAS
    until("it has led for a while", lambda: appended(3) == OUT_OF_ORDER_SEQUENCE_NUMBER)
    partition.set_isr([], 5, 2)
    assert [appended(sequence) for sequence in (2, 3)] == [NOT_ENOUGH_REPLICAS] * 2
    partition.set_isr([2], 5, 3)
    assert [appended(sequence) for sequence in (4, 3, 2, 3)] == [NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS, 0, 0]
    assert appended(5) == OUT_OF_ORDER_SEQUENCE_NUMBER, "the batch before it was never received"
