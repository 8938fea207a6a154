"""The check of pipelines that are killed finds each kind of wrong row."""

from __future__ import annotations

import pytest

from tests.spark.ledger import Row, Verdict, judge

LOG: dict[tuple[int, int], bytes | None] = {(0, 0): b"a", (0, 1): b"b", (1, 0): None}
OTHER = "another value in the table than in the log"
WHOLE = [Row(0, 0, b"a"), Row(0, 1, b"b"), Row(1, 0, None)]


def test_a_whole_table_has_no_problem() -> None:
    assert judge(LOG, reversed(WHOLE)) == Verdict(3, [], [], [], [])
    assert judge(LOG, WHOLE).problems() == []


@pytest.mark.parametrize(
    ("rows", "kind", "place", "sentence"),
    [
        (WHOLE[1:], "lost", (0, 0), "1 records of the log are not in the table: 0@0"),
        ([*WHOLE, WHOLE[1]], "twice", (0, 1), "1 records are in the table more than once: 0@1"),
        ([*WHOLE[:2], Row(1, 0, b"")], "wrong", (1, 0), f"1 records have {OTHER}: 1@0"),
        ([*WHOLE, Row(1, 1, b"c")], "foreign", (1, 1), "1 records are in the table and not in the log: 1@1"),
    ],
    ids=["missing", "twice", "wrong value", "foreign"],
)
def test_each_kind_of_wrong_is_told(rows: list[Row], kind: str, place: tuple[int, int], sentence: str) -> None:
    verdict = judge(LOG, rows)
    kinds = {name: places for name, places in verdict._asdict().items() if name != "rows" and places}
    assert kinds == {kind: [place]}
    assert verdict.problems() == [sentence]


def test_one_row_may_be_wrong_in_two_ways() -> None:
    """One row may be wrong in two ways: a second row with another value is double and wrong. In another's place, it
    makes that one lost too."""
    verdict = judge(LOG, [*WHOLE, Row(0, 0, b"b")])
    assert (verdict.twice, verdict.wrong, verdict.lost) == ([(0, 0)], [(0, 0)], [])
    verdict = judge(LOG, [WHOLE[0], WHOLE[0], WHOLE[2]])
    assert (verdict.twice, verdict.wrong, verdict.lost) == ([(0, 0)], [], [(0, 1)])
