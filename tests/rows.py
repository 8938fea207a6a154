"""A rule with many rows as one test: it checks every row, and fails at its end with each row that broke, by name.

    failures = Failures()                         @with_each("text", ["", "1.5", "ten"])
    for path in PATHS:                            def test_what_is_no_integer_is_refused(text: str) -> None:
        with failures.of(path):                       ...
            assert is_refused(path)
    failures.show()

`with_each` has the arguments of `pytest.mark.parametrize`, but makes one test of all rows, which share its fixtures. If
a row leaves something that affects the next one, use `parametrize`, or a loop that cleans up.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

NAME_MAX = 80
COLLECTED = (Exception, pytest.fail.Exception)
"""The exceptions that end a row; those that end the run, or skip the test, end it at once."""


class Failures:
    """A collector of the failures of rows; as a context manager it raises them at its end."""

    def __init__(self) -> None:
        self.rows = 0
        self.failed: list[tuple[str, BaseException]] = []

    @contextlib.contextmanager
    def of(self, row: object) -> Iterator[None]:
        """Record a failure inside the block as the row's, and go on with the next row."""
        self.rows += 1
        try:
            yield
        except COLLECTED as error:
            self.failed.append((str(row), error))
            error.add_note(f"in the row {row}")

    def show(self) -> None:
        """Fail if a row failed, or if there was none: a rule without rows checks nothing."""
        assert self.rows, "there are no rows"
        if self.failed:
            names = ", ".join(name for name, _ in self.failed)
            lines = [f"  {name}: {type(error).__name__}: {error}" for name, error in self.failed]
            told = "\n".join([f"{len(self.failed)} of {self.rows} rows failed: {names}", *lines])
            raise BaseExceptionGroup(told, [error for _, error in self.failed])

    def __enter__(self) -> Failures:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Show the failures, also if another exception ended the test."""
        if kind is None or (self.failed and not issubclass(kind, KeyboardInterrupt)):
            self.show()


def name_of(values: Iterable[Any], ids: Any = None) -> str:
    """The name of a row: by `ids` for each value, or the values' repr."""
    told = [(ids(value) if callable(ids) else None) or repr(value) for value in values]
    return "-".join(map(str, told))[:NAME_MAX]


def rows_of(names: list[str], rows: Iterable[Any], ids: Any) -> list[tuple[str, dict[str, Any]]]:
    """The (name, arguments) of each row, as parametrize reads them. Rows that share a name get their index appended."""
    found = []
    for at, row in enumerate(rows):
        of_row = row if isinstance(row, type(pytest.param())) else None
        assert of_row is None or not of_row.marks, "a row with a mark of its own is a case of its own"
        values = tuple(of_row.values if of_row else [row] if len(names) == 1 else row)
        given = of_row.id if of_row else None
        name = given or (str(list(ids)[at]) if ids and not callable(ids) else name_of(values, ids))
        found.append((name, dict(zip(names, values, strict=True))))
    told = Counter(name for name, _ in found)
    return [(f"{name} (row {at})" if told[name] > 1 else name, given) for at, (name, given) in enumerate(found)]


def with_each(argnames: str | tuple[str, ...], rows: Iterable[Any], ids: Any = None) -> Callable[[Any], Any]:
    """Run a test with each of these rows, and fail with all failures; stacked decorators make each pair of rows."""
    names = [name.strip() for name in argnames.split(",")] if isinstance(argnames, str) else list(argnames)
    own = rows_of(names, rows, ids)

    def decorate(decorated: Callable[..., Any]) -> Callable[..., Any]:
        test, below = getattr(decorated, "with_each", (decorated, [("", {})]))
        known = [(f"{b}-{a}" if b else a, {**others, **arguments}) for a, arguments in own for b, others in below]
        assert known, f"{test.__name__} has no rows"

        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            with Failures() as failures:
                for name, arguments in known:
                    with failures.of(name):
                        test(**fixtures, **arguments)

        @functools.wraps(test)
        async def run_async(**fixtures: Any) -> None:
            with Failures() as failures:
                for name, arguments in known:
                    with failures.of(name):
                        await test(**fixtures, **arguments)

        made: Any = run_async if inspect.iscoroutinefunction(test) else run
        asked = inspect.signature(test)
        missing = known[0][1].keys() - asked.parameters.keys()
        assert not missing, f"{test.__name__} takes no {missing}"
        left = [parameter for name, parameter in asked.parameters.items() if name not in known[0][1]]
        made.__signature__ = asked.replace(parameters=left)
        made.with_each = test, known
        del made.__wrapped__  # pytest looks for fixtures there
        return made  # type: ignore[no-any-return]

    return decorate
