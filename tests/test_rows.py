"""A rule with many rows fails with each row that broke, and with no other."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from tests.rows import Failures, with_each

pytest_plugins = ["pytester"]


def broken(test: Any, **fixtures: Any) -> BaseExceptionGroup[BaseException]:
    """The exception with which a test of rows fails."""
    with pytest.raises(BaseExceptionGroup) as caught:
        made = test(**fixtures)
        if inspect.isawaitable(made):
            asyncio.run(made)  # type: ignore[arg-type]
    return caught.value


def test_each_row_that_fails_is_named_with_its_error() -> None:
    seen = []

    @with_each("number", range(6))
    def test(number: int) -> None:
        seen.append(number)
        if number % 2 == 0:
            raise AssertionError(f"{number} is even")

    group = broken(test)
    assert seen == list(range(6)), "all have their turn"
    assert [str(error) for error in group.exceptions] == ["0 is even", "2 is even", "4 is even"]
    assert [error.__notes__ for error in group.exceptions] == [[f"in the row {n}"] for n in (0, 2, 4)]
    assert str(group).splitlines()[0].startswith("3 of 6 rows failed: 0, 2, 4")
    assert "\n  2: AssertionError: 2 is even\n" in str(group)


def test_what_every_row_may_end_with_is_a_failure() -> None:
    """Each way in which a row may fail is collected: an exception, pytest.fail, and a missing exception; a row that
    passes hides none."""

    @with_each("row", ["assert", "raises", "fail", "error", "fine"])
    def test(row: str) -> None:
        assert row != "assert"
        if row == "raises":
            with pytest.raises(ValueError):
                pass
        if row == "fail":
            pytest.fail("as it is")
        if row == "error":
            raise ZeroDivisionError

    assert str(broken(test)).startswith("4 of 5 rows failed: 'assert', 'raises', 'fail', 'error'\n")


def test_what_ends_a_test_ends_it_at_once_and_swallows_no_failure() -> None:
    for end in (KeyboardInterrupt, pytest.skip.Exception, asyncio.CancelledError):
        with pytest.raises(end), Failures() as failures:
            with failures.of("fine"):
                pass
            with failures.of("ends"):
                raise end
    with pytest.raises(ExceptionGroup, match="1 of 2 rows failed: broken"), Failures() as failures:
        with failures.of("broken"):
            raise AssertionError
        with failures.of("skips"):
            pytest.skip("no more of it")


def test_a_rule_without_rows_fails() -> None:
    with pytest.raises(AssertionError, match="no rows"):
        with_each("row", [])(lambda row: None)
    with pytest.raises(AssertionError, match="no rows"), Failures():
        pass


def test_rows_are_called_as_parametrize_calls_them() -> None:
    """Rows are named as parametrize names them: by their ids, by an id function of each value, or by their values."""
    rows = [(1, "a"), pytest.param(2, "b", id="second")]
    told = {None: "1-'a', second", ("x", "y"): "x, second", str: "1-a, second"}
    for ids, names in told.items():

        @with_each(("number", "text"), rows, ids=ids)
        def test(number: int, text: str) -> None:
            raise AssertionError

        assert str(broken(test)).splitlines()[0].startswith(f"2 of 2 rows failed: {names}")


def test_rows_of_one_name_are_told_apart() -> None:
    @with_each("text", ["a", "bc", "de"], ids=lambda text: f"{len(text)} bytes")
    def test(text: str) -> None:
        raise AssertionError

    assert str(broken(test)).startswith("3 of 3 rows failed: 1 bytes, 2 bytes (row 1), 2 bytes (row 2)\n")


def test_rows_of_two_make_a_row_of_each_pair() -> None:
    seen = []

    @with_each("outer", ["x", "y"], ids=str)
    @with_each("inner", [1, 2])
    def test(inner: int, outer: str) -> None:
        seen.append((inner, outer))
        assert inner == 1

    assert str(broken(test)).startswith("2 of 4 rows failed: 2-x, 2-y\n")
    assert seen == [(1, "x"), (2, "x"), (1, "y"), (2, "y")]


def test_fixtures_and_coroutines() -> None:
    @with_each("number", [1, 2])
    async def test(number: int, fixture: int) -> None:
        await asyncio.sleep(0)
        assert number != fixture

    assert inspect.iscoroutinefunction(test) and list(inspect.signature(test).parameters) == ["fixture"]
    assert str(broken(test, fixture=2)).startswith("1 of 2 rows failed: 2\n")
    with pytest.raises(AssertionError, match="takes no"):
        with_each("other", [1])(test)


def test_pytest_runs_it_as_one_test_and_shows_its_rows(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\n"
        "from tests.rows import with_each\n"
        "@pytest.mark.parametrize('plane', ['one', 'two'])\n"
        "@with_each('number', range(20), ids=lambda n: f'row{n}')\n"
        "def test_it(number, plane, tmp_path):\n"
        "    assert tmp_path.exists() and (number < 2 or plane == 'two')\n"
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:asyncio")
    result.assert_outcomes(passed=1, failed=1)
    told = result.stdout.str()
    assert "18 of 20 rows failed" in told and all(f"row{n}: AssertionError" in told for n in range(2, 20))
