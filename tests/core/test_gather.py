"""Batches of one reactor turn are written in one call, and each gets the result of a single append."""

import errno
import random

import pytest

from tests.core import probes
from tests.core.logs import MESSAGE_TOO_LARGE, NOW, OUT_OF_ORDER_SEQUENCE_NUMBER, Home, batch, batch_of, read_all
from tests.core.slow_log import SlowLog

probe = probes.load()
DUPLICATE = -100000
GATHER_MAX = 64


def together(home: Home, *batches: bytes) -> list[tuple[int, int, bool]]:
    """Append batches in one turn; return (status, base offset, duplicate) of each."""
    return probe.append_together(home.partition, list(batches), NOW)


def numbered(*sequences: int, pid: int = 7) -> list[bytes]:
    return [batch(producer=(pid, 0, s)) for s in sequences]


def fail_writes(home: Home, after: int = 0) -> None:
    assert home.broker is not None
    home.broker.arm("segment.write", "errno", errno.ENOSPC, after=after)


@pytest.mark.parametrize("count", [1, 2, GATHER_MAX, GATHER_MAX + 1, 3 * GATHER_MAX + 5])
@pytest.mark.parametrize("segment_bytes", [1 << 20, 250])
def test_they_lie_in_the_log_as_if_each_had_come_alone(home: Home, count: int, segment_bytes: int) -> None:
    """Batches of one turn are stored in order and with the same offsets and segment sizes as single appends."""
    home.config |= {"segment.bytes": segment_bytes, "index.interval.bytes": 100}
    home.open()
    model, chance = SlowLog(), random.Random(count)
    batches = [batch(chance.randint(1, 3), size=chance.randrange(40)) for _ in range(count)]
    assert together(home, *batches) == [(0, model.append(b, -1), False) for b in batches]
    assert read_all(home.partition) == b"".join(b.data for b in model.batches)
    assert max(size for _, size, _ in home.partition.segments()) <= segment_bytes
    assert home.reopen(clean=False).recovery == ""
    assert home.partition.log_end_offset == model.end


def test_an_empty_segment_takes_segment_bytes_too(home: Home) -> None:
    home.config["segment.bytes"] = 250
    home.open()
    together(home, *[batch_of(100)] * 7)
    assert [s[1] for s in home.partition.segments()] == [200, 200, 200, 100]


def test_a_refused_batch_holds_up_no_other(home: Home) -> None:
    home.config["max.message.bytes"] = 200
    home.open()
    went = together(home, batch(), batch_of(201), batch()[:-1], *numbered(0, 2, 1), batch())
    assert [w[0] for w in went] == [0, MESSAGE_TOO_LARGE, 2, 0, OUT_OF_ORDER_SEQUENCE_NUMBER, 0, 0]
    assert [w[1] for w in went if w[0] == 0] == [0, 1, 2, 3]


def test_a_repeat_in_the_same_turn_gets_its_originals_offset(home: Home) -> None:
    home.open()
    went = together(home, *numbered(0, 1, 0, 1, 2))
    assert went == [(0, 0, False), (0, 1, False), (DUPLICATE, 0, True), (DUPLICATE, 1, True), (0, 2, False)]
    assert home.partition.log_end_offset == 3


def test_a_repeat_of_what_could_not_be_written_is_no_duplicate(home: Home) -> None:
    """A repeat of a batch that could not be written in the same turn is appended, and is no duplicate."""
    home.open()
    fail_writes(home)
    went = together(home, *numbered(0, 0))
    assert went[0][0] == -errno.ENOSPC
    assert went[1] == (0, 0, False)
    assert home.partition.log_end_offset == 1


@pytest.mark.parametrize("batches", [3, GATHER_MAX + 3])
def test_what_follows_a_batch_that_failed_fails_like_it(home: Home, batches: int) -> None:
    """Batches of a producer behind a failed one fail too, so that its sequence has no gap; other producers go on."""
    home.config["segment.bytes"] = 1 << 20
    home.open()
    together(home, *numbered(0))
    fail_writes(home)
    went = together(home, *numbered(*range(1, batches + 1)), *numbered(0, pid=8))
    failed = min(batches, GATHER_MAX)
    assert [w[0] for w in went[:failed]] == [-errno.ENOSPC] * failed
    assert {w[0] for w in went[failed:batches]} <= {-errno.ENOSPC}
    assert [p[2] for p in home.partition.producers() if p[0] == 7] == [0]
    assert together(home, *numbered(*range(1, batches + 1)))[-1] == (0, home.partition.log_end_offset - 1, False)


def test_a_roll_that_fails_in_between(home: Home) -> None:
    """A roll that fails within a turn fails the batch that needed it and its producer's later ones, but none before."""
    home.config["segment.bytes"] = 200
    home.open()
    assert home.broker is not None
    home.broker.arm("segment.create", "errno", errno.ENOSPC)
    went = together(home, *(batch_of(100, producer=(7, 0, i)) for i in range(4)))
    assert [w[0] for w in went] == [0, 0, -errno.ENOSPC, -errno.ENOSPC]
    assert home.partition.log_end_offset == 2
    assert [w[0] for w in together(home, *(batch_of(100, producer=(7, 0, i)) for i in (2, 3)))] == [0, 0]
