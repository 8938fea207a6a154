"""The judge of transactions finds each broken rule, and accepts what is right."""

from __future__ import annotations

import pytest

from tests.transactions.history import Element, Found, Outcome, TransactionHistory

RECORDS = {
    0: [(0, b"w 0 0"), (3, b"w 1 0"), (6, b"v 0 0")],
    1: [(0, b"w 0 1"), (4, b"w 1 1"), (7, b"v 0 1")],
}
"""Transactions 0 and 1 of w and 0 of v; transaction 2 of w was aborted."""


def history() -> TransactionHistory:
    found = TransactionHistory()
    for writer, outcome in (
        ("w", Outcome.COMMITTED), ("w", Outcome.UNKNOWN), ("w", Outcome.ABORTED), ("v", Outcome.COMMITTED)
    ):  # fmt: skip
        transaction = found.begin(writer)
        for partition in (0, 1):
            transaction.append(partition)
        transaction.outcome = outcome
    found.transactions[0].offsets[Element("w", 0, 0)] = 0
    found.read(0, 0, b"w 0 0")
    found.read(0, 3, b"w 1 0")
    return found


def test_what_is_right_is_accepted() -> None:
    """Committed transactions, one of unknown outcome that was committed, or was not, and an aborted one."""
    whole = history()
    whole.judge(RECORDS)
    assert whole.problems == [] and whole.count(Outcome.COMMITTED) == 2
    neither = TransactionHistory()
    neither.begin("w").append(0)
    neither.judge({0: []})
    assert neither.problems == []


def without(partition: int, content: bytes) -> Found:
    return {**RECORDS, partition: [each for each in RECORDS[partition] if each[1] != content]}


def with_more(partition: int, *more: tuple[int, bytes]) -> Found:
    return {**RECORDS, partition: [*RECORDS[partition], *more]}


BROKEN: dict[str, tuple[str, Found]] = {
    "a committed record is lost": ("kept", without(1, b"v 0 1")),
    "it lies elsewhere": ("kept", {**RECORDS, 0: [(1, b"w 0 0"), *RECORDS[0][1:]]}),
    "an aborted record": ("nothing", with_more(1, (9, b"w 2 1"))),
    "a torn transaction": ("atomic", without(1, b"w 1 1")),
    "a record twice": ("once", with_more(1, (9, b"v 0 1"))),
    "a record of nobody": ("once", with_more(1, (9, b"x 0 0"))),
    "another order": ("ordered", {**RECORDS, 1: [(0, b"w 1 1"), (4, b"w 0 1"), (7, b"v 0 1")]}),
    "a record that was read is gone": ("stable", without(0, b"w 1 0")),
    "a record came up behind a reader": ("stable", {**RECORDS, 0: [(0, b"w 0 0"), (2, b"v 0 0"), (3, b"w 1 0")]}),
}


@pytest.mark.parametrize(("rule", "found"), BROKEN.values(), ids=BROKEN)
def test_a_broken_rule_is_found(rule: str, found: Found) -> None:
    judged = history()
    judged.judge(found)
    assert any(problem.startswith(f"{rule}: ") for problem in judged.problems), judged.problems


def test_two_contents_of_one_offset() -> None:
    judged = history()
    judged.read(0, 3, b"v 0 0")
    assert judged.problems == ["stable: partition 0 had b'w 1 0' at 3, and then b'v 0 0'"]


INPUTS = {0: [b"a", b"b", b"c"], 1: []}
COPIES: dict[str, Found] = {
    "one is missing": {0: [(0, b"a"), (2, b"c")]},
    "one is there twice": {0: [(0, b"a"), (1, b"b"), (3, b"c"), (5, b"a")]},
    "another order": {0: [(0, b"b"), (1, b"a"), (2, b"c")]},
    "one that was no input": {0: [(0, b"a"), (1, b"b"), (2, b"c")], 1: [(0, b"d")]},
}


@pytest.mark.parametrize("found", COPIES.values(), ids=COPIES)
def test_copies_that_are_wrong(found: Found) -> None:
    judged = TransactionHistory()
    judged.judge_copies(INPUTS, found)
    assert judged.problems and all(problem.startswith("copied: ") for problem in judged.problems)


def test_copies_that_are_right() -> None:
    judged = TransactionHistory()
    judged.judge_copies(INPUTS, {0: [(0, b"a"), (4, b"b"), (5, b"c")]})
    assert judged.problems == []


