"""The code blocks of README.md, CONTRIBUTING.md and docs/, and the test that runs each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.sources import ROOT

DOCS = ROOT / "docs"
FENCE = re.compile(r"^(?P<indent> *)```(?P<head>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S)
TITLE = re.compile(r'title="([^"]+)"')
_TYPED = "pybroker|pip|make|python3?|curl|docker|systemctl|openssl"
COMMAND = re.compile(rf"^ {{4,}}(?:\$ |\.?/?(?:\.venv/bin/)?(?:{_TYPED})\b)", re.M)
"""A line of an indented block that a reader would type."""
SHELL, PROGRAM, OUTPUT = "sh", "python", "text"
FILES = {"properties", "ini", "toml", "yaml", "dockerfile", "gitignore", "json", "xml"}
"""Languages of blocks that show a file; `title` names it."""


class Block(NamedTuple):
    """A fenced block; `title` is the name of the file that it shows, or empty."""

    page: str
    line: int
    language: str
    title: str
    text: str

    @property
    def first_line(self) -> str:
        return self.text.strip().split("\n", 1)[0]

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> dict[str, Path]:
    """The pages by name: those of docs/, README.md and CONTRIBUTING.md."""
    return {path.name: path for path in [*sorted(DOCS.glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]}


def blocks_of(page: str, text: str) -> list[Block]:
    """The fenced blocks of a page, in their order."""
    found = []
    for match in FENCE.finditer(text):
        language, _, attributes = match["head"].strip().partition(" ")
        title = TITLE.search(attributes)
        lines = (line.removeprefix(match["indent"]) for line in match["text"].splitlines(keepends=True))
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(page, line, language, title[1] if title else "", "".join(lines)))
    return found


def blocks(page: str) -> list[Block]:
    """The fenced blocks of one page of the tree."""
    return blocks_of(page, pages()[page].read_text())


def indented_commands(text: str) -> list[str]:
    """Commands in indented blocks, which a test of fenced blocks does not see."""
    return [found.strip() for found in COMMAND.findall(FENCE.sub("", text))]
