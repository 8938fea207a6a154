"""The type stubs of core name exactly what the compiled modules have.

Signatures are read from docstrings, where Cython puts them (`embedsignature`), and those of constructors from sources.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from tests.rows import with_each

CORE = Path(__file__).resolve().parents[2] / "core"
STUBS = sorted(CORE.rglob("*.pyi"))
NUMBERS = {"INT32_MAX": 2**31 - 1, "INT64_MAX": 2**63 - 1, "True": True, "False": False, "None": None}
REQUIRED = "no default"
TYPES_ONLY = {"TypedDict", "Protocol"}
"""Base classes of a stub's classes that exist only for type checkers."""


class Parameter(NamedTuple):
    """A parameter of a signature; `where` is "positional", "either" or "keyword"."""

    name: str
    where: str
    default: Any


def module_of(stub: Path) -> ModuleType:
    inside = stub.relative_to(CORE).with_suffix("").parts
    return importlib.import_module(".".join(["pybroker.core", *(part for part in inside if part != "__init__")]))


def value(text: str, module: str) -> Any:
    """The value of a default."""
    return eval(text, {**NUMBERS, **vars(importlib.import_module(module))})


def pieces(text: str) -> Iterator[str]:
    """Split a Cython signature into its parameters."""
    depth, piece = 0, ""
    for c in re.sub(r"#.*", "", text):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            yield piece.strip()
            piece = ""
        else:
            piece += c
    if piece.strip():
        yield piece.strip()


def compiled(text: str, module: str = "pybroker.core") -> list[Parameter]:
    """Parse `self, records, *, int64_t now_ms=0` as parameters; the module resolves names in defaults."""
    found: list[Parameter] = []
    where = "either"
    for piece in pieces(text):
        if piece == "/":
            found = [p._replace(where="positional") for p in found]
        elif piece == "*":
            where = "keyword"
        else:
            declared, has_default, default = piece.partition("=")
            name = declared.partition(":")[0].replace("not None", "").split()[-1].lstrip("*")
            found.append(Parameter(name, where, value(default, module) if has_default else REQUIRED))
    return [p for p in found if p.name != "self"]


def promised(args: ast.arguments, module: str) -> list[Parameter]:
    """The parameters of a stub's function."""

    def default_of(default: ast.expr | None) -> Any:
        return REQUIRED if default is None else value(ast.unparse(default), module)

    plain = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(plain) - len(args.defaults)) + list(args.defaults)
    found = [
        Parameter(a.arg, "positional" if a in args.posonlyargs else "either", default_of(d))
        for a, d in zip(plain, defaults, strict=True)
    ]
    named = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    found += [Parameter(a.arg, "keyword", default_of(d)) for a, d in named]
    return [p for p in found if p.name not in ("self", "cls")]


def within_brackets(text: str, at: int) -> str:
    """The text between the bracket at a position and its closing one."""
    depth = 0
    for end in range(at, len(text)):
        depth += (text[end] == "(") - (text[end] == ")")
        if depth == 0:
            return text[at + 1 : end]
    raise ValueError(text[at : at + 100])


def constructor(made: type) -> str | None:
    """The parameters of a class's constructor in its source; None if the class has no constructor."""
    source = CORE.joinpath(*made.__module__.split(".")[2:]).with_suffix(".pyx").read_text()
    body = re.search(rf"^(?:cdef )?class {made.__name__}\b.*?(?=^\S|\Z)", source, re.M | re.S)
    assert body, f"{made} is not in its module's source"
    head = re.search(r"^    def __(?:cinit|init)__(?=\()", body[0], re.M)
    return within_brackets(body[0], head.end()) if head else None


def signature(what: object) -> list[Parameter] | None:
    """The parameters of a function or method; None if its docstring has no signature."""
    text = (inspect.getdoc(what) or "").split("\n")[0]
    head = re.match(r"[\w.]+(?=\()", text)
    return compiled(within_brackets(text, head.end())) if head else None


def wrong_in_class(made: type, node: ast.ClassDef) -> Iterator[str]:
    """The differences of a class from its stub."""
    known = {"__init__"}
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            known.add(part.target.id)
            if not hasattr(made, part.target.id) and made.__module__.startswith("pybroker.core"):
                yield f"{node.name}.{part.target.id} is not there"
        if not isinstance(part, ast.FunctionDef):
            continue
        known.add(part.name)
        asked = promised(part.args, made.__module__)
        if part.name == "__init__":
            text = constructor(made)
            if text is not None and (found := compiled(text, made.__module__)) != asked:
                yield f"{node.name}(): {asked} in the stub, {found} in core"
        elif not hasattr(made, part.name):
            if part.name != "__buffer__":  # C's own before Python 3.12
                yield f"{node.name}.{part.name} is not there"
        elif not part.name.startswith("__"):
            found = signature(getattr(made, part.name))
            if found is not None and found != asked:
                yield f"{node.name}.{part.name}(): {asked} in the stub, {found} in core"
    public = {name for name in vars(made) if not name.startswith("_")}
    yield from (f"{node.name}.{name} is not in the stub" for name in sorted(public - known))


def wrong_in_module(module: ModuleType, stub: Path) -> Iterator[str]:
    tree = ast.parse(stub.read_text())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found = signature(getattr(module, node.name))
            if found != (asked := promised(node.args, module.__name__)):
                yield f"{node.name}(): {asked} in the stub, {found} in core"
        elif isinstance(node, ast.ClassDef) and not TYPES_ONLY & {ast.unparse(base) for base in node.bases}:
            made = getattr(module, node.name, None)
            if made is None:
                yield f"{node.name} is not there"
            elif not issubclass(made, BaseException):
                yield from wrong_in_class(made, node)
        elif isinstance(node, ast.AnnAssign) and not hasattr(module, ast.unparse(node.target)):
            yield f"{ast.unparse(node.target)} is not there"


@with_each("stub", STUBS, ids=lambda path: path.stem)
def test_core_is_as_its_stub_says(stub: Path) -> None:
    """Each name of a stub exists with its parameters and defaults, and no class has more public names."""
    wrong = list(wrong_in_module(module_of(stub), stub))
    assert not wrong, "\n".join(wrong)


def test_everything_public_is_told() -> None:
    from pybroker import core

    told = set()
    for node in ast.parse((CORE / "__init__.pyi").read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            told.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            told |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            told.add(node.target.id)
    assert set(core.__all__) <= told
