"""The house rules of sizes: a file, a function, a line; and core has no unused function."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import CODE_SUFFIXES, ROOT, files, parsed, text_of

pytestmark = pytest.mark.xdist_group("house")  # each file is read and parsed once

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
LINE_MAX = 120  # ruff holds it in Python


def python_functions(path: Path) -> Iterator[tuple[str, int, int]]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            yield node.name, first, (node.end_lineno or first) - first + 1


CYTHON_FUNCTION = re.compile(
    r"^(?P<indent> *)(?:async )?(?:cdef|cpdef|def)\b(?! (?:class|struct|enum|union|extern))[^=:#]*?(?P<name>\w+)\("
)


def cython_functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """The (name, first line, lines) of each function with a body, which ends before the next line that is no deeper
    than its head."""
    lines = text_of(path).splitlines()
    for at, line in enumerate(lines):
        head = CYTHON_FUNCTION.match(line)
        if not head:
            continue
        body = at  # the signature may take several lines; a declaration in a .pxd has no body at all
        while body < len(lines) and "".join(lines[at : body + 1]).count("(") > "".join(lines[at : body + 1]).count(")"):
            body += 1
        if not lines[min(body, len(lines) - 1)].split("#")[0].rstrip().endswith(":"):
            continue
        last = body
        for number in range(body + 1, len(lines)):
            text = lines[number]
            if text.strip() and len(text) - len(text.lstrip()) <= len(head["indent"]):
                break
            if text.strip():
                last = number
        yield head["name"], at + 1, last - at + 1


def test_files_stay_below_the_wall() -> None:
    """Files stay below 500 lines, tests too, without exemption; 100 to 250 lines are the norm."""
    counted = {p.relative_to(ROOT): len(text_of(p).splitlines()) for p in files(*CODE_SUFFIXES)}
    assert not {str(p): n for p, n in counted.items() if n > FILE_LINES_MAX}


def test_lines_of_core_fit_too() -> None:
    """Lines of core keep the limit too, which the Python linter does not check."""
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files(".pyx", ".pxd")
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if len(line) > LINE_MAX
    ]
    assert not wrong, "\n".join(wrong)


def test_functions_fit_a_screen() -> None:
    """Functions fit a screen: none is longer than 70 lines, compiled ones included, without exemption."""
    wrong = []
    for path in files(".py", ".pyx", ".pxd"):
        found = python_functions(path) if path.suffix == ".py" else cython_functions(path)
        wrong += [
            f"{path.relative_to(ROOT)}:{line}: {name}: {n} lines" for name, line, n in found if n > FUNCTION_LINES_MAX
        ]
    assert not wrong, "\n".join(wrong)


def test_cython_functions_are_measured(tmp_path: Path) -> None:
    """Cython functions are measured with methods and long signatures, to the line where they end."""
    source = tmp_path / "sample.pxd"
    source.write_text(
        "cdef int declared(int a) noexcept nogil\n"
        "cdef inline int one(int a) noexcept nogil:\n    return a\n\n\n"
        "cdef class C:\n    cdef int two(\n        self,\n    ) except -1:\n        pass\n\n        pass\n"
        "    def three(self): # says why\n        pass\n"
    )
    assert list(cython_functions(source)) == [("one", 2, 2), ("two", 7, 6), ("three", 13, 2)]


CYTHON_HEAD = re.compile(r"^cdef (?:inline )?[^\n(=]*?\b(\w+)\(", re.M)


def test_core_has_no_function_that_nobody_calls() -> None:
    """core has no unused function: each is named elsewhere than in its declaration, definition and imports."""
    text = "\n".join(re.sub(r"#.*", "", text_of(p)) for p in files(".pyx", ".pxd", ".h"))
    declared = Counter(CYTHON_HEAD.findall(text))
    imported = Counter(re.findall(r"\w+", " ".join(re.findall(r"cimport\s*(\([^)]*\)|[^\n]*)", text))))
    named = Counter(re.findall(r"\w+", text))
    assert not sorted(name for name, n in declared.items() if named[name] <= n + imported[name])
