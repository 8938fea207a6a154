"""The house rule of types: Any, which turns a checker off, is rare."""

import ast
from pathlib import Path

import pytest

from tests.sources import ROOT, files, parsed

pytestmark = pytest.mark.xdist_group("house")  # each file is read and parsed once

ANY_LINES_MAX = 99


def any_lines(path: Path) -> set[int]:
    """The lines of a file whose code says Any; imports and prose do not count."""
    return {node.lineno for node in ast.walk(parsed(path)) if isinstance(node, ast.Name) and node.id == "Any"}


def test_any_is_rare() -> None:
    """Any is rare: a request is typed from its frame to its handler, so handlers do not need it; elsewhere it is for
    values that libraries leave untyped. If this fails, use a type, object or a TypeVar."""
    found = {
        str(path.relative_to(ROOT)): n for path in files(".py", ".pyi", under="pybroker") if (n := len(any_lines(path)))
    }
    assert not [path for path in found if path.startswith("pybroker/server/api/handlers/")]
    assert sum(found.values()) <= ANY_LINES_MAX, sorted(found.items(), key=lambda each: -each[1])[:10]
