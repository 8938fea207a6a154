"""The files of this tree for the house rules: the tracked files, their module names and their imports."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE_SUFFIXES = {".py", ".pyi", ".pyx", ".pxd", ".pxi", ".c", ".h"}
TEXT_SUFFIXES = CODE_SUFFIXES | {".md", ".toml", ".in", ".sh", ".properties", ".java", ".xml", ""}


@functools.cache
def tracked() -> list[Path]:
    """Every file of the project: those that git tracks or would, or, outside a checkout, all files here."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode == 0:
        paths = [ROOT / line for line in listed.stdout.splitlines()]
    else:
        paths = [p for p in ROOT.rglob("*") if not {"build", "dist", ".venv"} & set(p.relative_to(ROOT).parts)]
    return sorted(p for p in paths if p.is_file() and (ROOT / "pybroker/core") not in p.parents)


@functools.cache
def text_of(path: Path) -> str:
    return path.read_text()


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


def files(*suffixes: str, under: str = ".") -> list[Path]:
    return [p for p in tracked() if p.suffix in suffixes and (ROOT / under) in (p, *p.parents)]


def module_name(path: Path) -> str:
    """The dotted name under which a source file is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] == "core":
        parts = ("pybroker", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def python_imports(path: Path) -> Iterator[tuple[int, str]]:
    """The (line, dotted name) of everything a Python file imports, inside functions and type checks too."""
    package = module_name(path).split(".")
    if path.stem != "__init__":
        package = package[:-1]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)


CYTHON_IMPORT = re.compile(r"^\s*(?:from\s+(?P<source>[\w.]+)\s+c?import\s+(?P<names>.+)|c?import\s+(?P<plain>[\w.]+))")


def cython_imports(path: Path) -> Iterator[tuple[int, str]]:
    """The (line, dotted name) of each import and cimport of a Cython file; a relative one is resolved in
    pybroker.core."""
    for number, line in enumerate(text_of(path).splitlines(), 1):
        if found := CYTHON_IMPORT.match(line):
            name = found["source"] or found["plain"]
            if name.startswith("."):
                assert not name.startswith(".."), f"{path}:{number} reaches out of core: {line.strip()}"
                name = f"pybroker.core{name}".rstrip(".")
            elif name == "pybroker":
                name = f"pybroker.{found['names'].split()[0].strip('(,')}"
            yield number, name
