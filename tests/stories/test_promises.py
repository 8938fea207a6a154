"""docs/promises.md: its words are on the pages, its tests are in the tree, and each promise has a row."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

from tests.harness import ROOT

DOCS = ROOT / "docs"
PAGE = DOCS / "promises.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
NO_PROMISE = {"cluster.md": {"What is missing"}}
"""Headings under which nothing is promised."""


class Row(NamedTuple):
    """A row of the table; tests are (file, function or "")."""

    promise: str
    page: Path
    anchor: str
    stories: list[tuple[str, str]]
    systems: list[tuple[str, str]]


def plain(text: str) -> str:
    """The words with single spaces, without the marks of lists, tables and emphasis."""
    return " ".join(re.sub(r"^[-|] |[*|]|\]\([^)]*\)|\[", " ", text, flags=re.M).split())


def rows() -> list[Row]:
    found = []
    for line in PAGE.read_text().splitlines():
        if not line.startswith("| ") or line.startswith("| promise |"):
            continue
        promise, page, stories, systems = line.strip("| ").split(" | ")
        link = re.fullmatch(r"\[\w+\]\(([^#)]+)(?:#([^)]+))?\)", page)
        assert link, f"no link to a page: {page}"
        found.append(
            Row(promise, (DOCS / link[1]).resolve(), link[2] or "", TEST.findall(stories), TEST.findall(systems))
        )
    return found


ROWS = rows()


def anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def headings(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    return re.findall(r"^## (.+)$", text, re.M)


def first_cells(page: Path, head: str) -> list[str]:
    """The first cell of each row of the table that starts with this head."""
    table = page.read_text().split(f"| {head} |", 1)[1].split("\n\n")[0]
    return [line.strip("| ").split(" | ")[0] for line in table.splitlines()[2:]]


def test_the_words_are_those_of_the_page() -> None:
    """Each part of a promise is on its page, word for word, and so is the heading that the row links to."""
    wrong = []
    for row in ROWS:
        text = plain(row.page.read_text())
        wrong += [f"{row.page.name}: {part}" for part in row.promise.split(" … ") if plain(part) not in text]
        if row.anchor and row.anchor not in map(anchor, headings(row.page)):
            wrong.append(f"{row.page.name}: no heading #{row.anchor}")
    assert not wrong, "\n".join(wrong)


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_test_is_there() -> None:
    """Each file and function exists; `make test` runs every story, and leaves out the other tests."""
    wrong = []
    for row in ROWS:
        assert row.stories and row.systems, f"a row without tests: {row.promise}"
        for file, name in [*row.stories, *row.systems]:
            if not (ROOT / file).is_file() or (name and name not in functions(ROOT / file)):
                wrong.append(f"{file}::{name} is not there")
        wrong += [f"make test leaves out {file}" for file, _ in row.stories if "/system/" in file]
        wrong += [f"{file} is not in a folder called system" for file, _ in row.systems if "/system/" not in file]
    assert not wrong, "\n".join(wrong)


def test_every_story_has_a_promise() -> None:
    """Each test of a story file is named by a row, by its own name or with its file."""
    named = {each for row in ROWS for each in row.stories}
    own = Path(__file__)
    homeless = [
        f"{path.name}::{name}"
        for path in sorted(own.parent.glob("test_*.py"))
        if path != own
        for name in functions(path)
        if name.startswith("test_") and not {(str(path.relative_to(ROOT)), each) for each in (name, "")} & named
    ]
    assert not homeless


def test_every_promise_has_a_row() -> None:
    """Each heading of the three pages, each class of acknowledgement, and each row of "What happens when" has a row."""
    linked = {(row.page.name, row.anchor) for row in ROWS}
    missing = [
        f"{name}: {heading}"
        for name in ("durability.md", "cluster.md", "security.md")
        for heading in headings(DOCS / name)
        if heading not in NO_PROMISE.get(name, ()) and (name, anchor(heading)) not in linked
    ]
    for name, head in (("durability.md", "class"), ("cluster.md", "what fails")):
        told = [row.promise.split(" … ")[0] for row in ROWS if row.page.name == name]
        missing += [f"{name}: {cell}" for cell in first_cells(DOCS / name, head) if cell not in told]
    assert not missing, "\n".join(missing)
