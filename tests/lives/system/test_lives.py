"""Random lives lose no record, and the judge of a campaign finds each broken rule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import BrokerProcess
from tests.lives import campaign
from tests.lives.history import History, Told
from tests.stores import AnyStore
from tests.wire import Wire, batch

SECONDS = 20
SEED = 1


def test_random_lives_lose_nothing(tmp_path: Path, store_of_one: AnyStore | None) -> None:
    """A broker that is killed, fails, is disturbed and restarts keeps every acknowledged record once, at its offset."""
    history = campaign.run(tmp_path, SECONDS, SEED, rate=50, store=store_of_one)
    print(campaign.summary(history, SEED, SECONDS))
    assert not history.problems
    assert history.counts["lives"] >= 3 and history.counts["acknowledged"] > 100 and history.counts["read"] > 100


def rows(*numbers: int) -> list[tuple[int, bytes]]:
    return [(offset, Told("w", number).content) for offset, number in enumerate(numbers)]


def judged(records: list[tuple[int, bytes]], end: int, *acknowledged: tuple[int, int]) -> list[str]:
    """The rules that a log breaks, given its acknowledged records as (offset, number)."""
    history = History()
    for offset, number in acknowledged:
        history.acknowledged(0, offset, Told("w", number))
    history.check_log(0, records, 0, end)
    return [problem.partition(":")[0] for problem in history.problems]


def test_a_whole_log_breaks_no_rule() -> None:
    assert judged(rows(0, 1, 2), 3, (0, 0), (2, 2)) == []


@pytest.mark.parametrize(
    ("records", "end", "acknowledged", "rules"),
    [
        (rows(0, 1), 2, [(2, 2)], ["kept"]),
        (rows(0, 1, 3), 3, [(2, 2)], ["kept"]),
        (rows(0, 1, 1), 3, [], ["once"]),
        (rows(0, 1, 2, 0), 4, [], ["once"]),
        (rows(0, 2, 1), 3, [], ["in order"]),
        ([rows(0)[0], (2, Told("w", 2).content)], 3, [], ["whole"]),
        (rows(0, 1), 3, [], ["whole"]),
        ([(0, b"something else")], 1, [], ["constant"]),
        (rows(0), 1, [(0, 0), (0, 1)], ["once"]),
    ],
    ids=["lost", "another", "twice", "twice, far away", "order", "hole", "short", "foreign", "one offset twice"],
)
def test_each_rule_is_held(
    records: list[tuple[int, bytes]], end: int, acknowledged: list[tuple[int, int]], rules: list[str]
) -> None:
    """The judge names the rule that a log breaks."""
    assert judged(records, end, *acknowledged) == rules


def test_what_readers_see_is_held() -> None:
    """The judge finds an offset whose content changes, and a committed offset that goes back."""
    history = History()
    history.read(0, 0, Told("w", 0).content)
    history.read(0, 0, Told("w", 1).content)
    history.committed(0, 5)
    history.check_committed(0, 5)
    history.check_committed(0, 4)
    assert [problem.partition(":")[0] for problem in history.problems] == ["constant", "committed"]


def broken(history: History) -> list[str]:
    return [problem.partition(":")[0] for problem in history.problems]


def test_where_a_partition_ends_is_held() -> None:
    """The judge finds an end below an earlier answer, or below a record acknowledged before the question."""
    history = History()
    history.check_end(0, 4, history.end(0))
    before = history.end(0)
    history.acknowledged(0, 6, Told("w", 0))
    history.check_end(0, 5, before)  # the record was acknowledged while the answer was under way
    assert broken(history) == []
    history.check_end(0, 6, history.end(0))
    assert broken(history) == ["end"]


def test_a_commit_without_an_answer_may_be_found() -> None:
    """A commit without an answer may be stored late; otherwise the last acknowledged one counts, even a lower one."""
    history = History()
    history.committing(0, 5)
    history.committing(0, 9)
    history.committed(0, 9)
    history.check_committed(0, 5)
    history.check_committed(0, 9)
    history.committing(0, 3)
    history.committed(0, 3)
    history.check_committed(0, 3)
    assert broken(history) == []
    history.check_committed(0, 2)
    assert broken(history) == ["committed"]


def test_what_a_group_was_shown_is_held() -> None:
    """The judge finds a lower committed offset than one already answered, except in answers asked before a commit."""
    history = History()
    before = history.stands("group", 0)
    history.committing(0, 8)
    history.committed(0, 8)
    history.check_committed(0, 7, before=before)
    history.check_committed(0, 8)
    history.check_committed(0, 11)
    assert broken(history) == []
    history.check_committed(0, 8)
    history.check_committed(0, 0)
    assert broken(history) == ["committed", "committed"]


def test_a_reader_that_is_set_back_is_seen() -> None:
    history = History()
    history.committing(0, 4)
    history.check_position(0, 4, 9)  # its last commit may be stored
    history.check_position(0, 9, 9)
    assert broken(history) == []
    history.check_position(0, 8, 9)
    assert broken(history) == ["position"]


def test_a_broker_that_loses_records_is_caught(start_broker: Callable[..., BrokerProcess], topic: str) -> None:
    """The judge finds a planted loss: a log whose last batch was cut off while the broker was down."""
    broker = start_broker()
    history = History()
    with Wire(broker.port) as wire:
        assert wire.create_topic(topic) == 0
        for number in range(3):
            told = Told("w", number)
            answer = wire.produce(topic, batch([told.content]))
            history.acknowledged(0, answer.base_offset, told)
    broker.kill()
    segment = broker.partition_dir(topic) / f"{0:020}.log"
    segment.write_bytes(segment.read_bytes()[:-10])
    broker.restart()
    with Wire(broker.port) as wire:
        contents = [Told("w", number).content for number in range(3)]
        found = [(b.base_offset, c) for b in wire.fetch_all(topic) for c in contents if c in b.data]
        end = wire.list_offset(topic, -1)[2]
    history.check_log(0, found, 0, end)
    assert [problem.partition(":")[0] for problem in history.problems] == ["kept"]
