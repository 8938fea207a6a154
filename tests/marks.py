"""The mark `long`, which `make test-all` leaves out, on some of a test's parameters; on a test it is a decorator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def long(*values: object, id: str | None = None, marks: Iterable[pytest.MarkDecorator] = ()) -> Any:
    """`values` as one set of parameters that makes a test long."""
    return pytest.param(*values, id=id, marks=[*marks, pytest.mark.long])


def long_for(names: Iterable[object], *of_them: object) -> list[Any]:
    """A parameter for each name; those in `of_them` make a test long."""
    names = list(names)
    assert set(of_them) <= set(names), f"none of {names}: {set(of_them) - set(names)}"
    return [long(name) if name in of_them else name for name in names]
