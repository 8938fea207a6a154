"""The house rules of words: forbidden texts, module docstrings, and pages that agree with the code."""

import ast
import re
from pathlib import Path

import pytest

from tests.sources import ROOT, TEXT_SUFFIXES, files, parsed, text_of, tracked

pytestmark = pytest.mark.xdist_group("house")  # each file is read and parsed once

# Written in pieces, so that this file passes its own test.
NEVER_WRITTEN = {
    "a path of somebody's machine": r"(?<![\w.-])/(wo" r"rk|ro" r"ot|ho" r"me|Us" r"ers)/\w",
    "a package registry": r"\b(pypi|files\.python" r"hosted|repo\d?\.maven(\.apache)?|docker)\.(or" r"g|io)\b",
    "a note to do it later": r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b",
    "a number of an issue": r"\b[Ii]ss" r"ue\s+#?\d+|(?<![\w&#])#\d+\b",
}


def test_some_things_are_never_written() -> None:
    """Some texts are never written: a machine's paths, a registry's host, to-do notes, issue numbers. The tree stands
    alone."""
    wrong = []
    for path in [p for p in tracked() if p.suffix in TEXT_SUFFIXES]:
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            wrong += [
                f"{path.relative_to(ROOT)}:{number}: {what}: {found[0]}"
                for what, pattern in NEVER_WRITTEN.items()
                if (found := re.search(pattern, line))
            ]
    assert not wrong, "\n".join(wrong)


def test_every_module_says_what_it_is() -> None:
    """Every module begins with its docstring; in core also the .pyx, which is read first."""
    silent = []
    for path in files(".py", under="pybroker") + files(".py", under="tests") + files(".py", under="bench"):
        tree = parsed(path)
        if tree.body and ast.get_docstring(tree) is None:
            silent.append(path)
    silent += [p for p in files(".pyx", ".pyi", under="core") if not re.match(r'(#.*\n)*\s*r?"""', text_of(p))]
    assert not silent


HABITS = {
    "opening": re.compile(r"^(Of|Its?|That|Those|What|Who(m|se|ever)?|Whatever|Where|How|As|Which)\b|^[^\n]*\?$"),
    "told": re.compile(r"\b(tell|tells|told|telling)\b", re.IGNORECASE),
    "codes": re.compile(r"KafkaError:? ?\(?\d+|\b(?:error|code)s? \d{1,3}(?:, \d{1,3})+"),
}
"""Habits of docstrings: an opening that is neither a verb nor a noun, tell for log or answer, codes without names."""
NAMED = re.compile(r"`[^`\n]*`")


def habits(text: str) -> list[str]:
    """Return the habits that a docstring has."""
    plain = NAMED.sub("X", text.strip())
    return [habit for habit, pattern in HABITS.items() if pattern.search(plain)]


def docstrings(path: Path) -> list[str]:
    """Return the docstrings of a file of Python or Cython."""
    if path.suffix in (".pyx", ".pxd"):
        return re.findall(r'(?:^|:)\s*\n?\s*r?"""(.*?)"""', text_of(path), re.DOTALL)
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(parsed(path)) if isinstance(node, kinds)]
    return [text for node in nodes if (text := ast.get_docstring(node))]


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    """A docstring begins with a verb or the noun returned, names error codes, and says who logs or answers what."""
    wrong = []
    for path in files(".py", ".pyi", ".pyx", ".pxd"):
        for text in docstrings(path):
            wrong += [f"{path.relative_to(ROOT)}: {habit}: {text.strip()[:80]}" for habit in habits(text)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Return the id of a topic.", []),
        ("The id of a topic; None if `told` is empty.", []),
        ("Of a topic.", ["opening"]),
        ("Is it there?", ["opening"]),
        ("Answer the client, which is told the code.", ["told"]),
        ("Raise for the codes 3, 5.", ["codes"]),
    ],
)
def test_the_rule_of_docstrings(text: str, found: list[str]) -> None:
    """The rule finds each habit, and no other words."""
    assert habits(text) == found


# -- documents -------------------------------------------------------------------------------


def test_the_page_has_the_apis_that_are_served() -> None:
    """The page docs/protocol.md has the APIs that the broker serves; `make docs` writes it."""
    from tools import protocol_page as tool

    assert tool.PAGE.read_text() == tool.written(tool.PAGE.read_text())


PATH = re.compile(r"`((?:core|pybroker|pyspark_pybroker|tests|tools|docs|bench|examples)/[\w/.*-]*[\w*/])`")
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)(?:#[^)]*)?\)")


def stale(page: Path, text: str) -> list[str]:
    """The paths that a page names in backticks, or links to, and that do not exist."""
    paths = [name for name in PATH.findall(text) if not list(ROOT.glob(name.rstrip("/")))]
    return paths + [name for name in LINK.findall(text) if not (page.parent / name).exists()]


def test_pages_name_paths_that_are_there() -> None:
    """Pages name paths that exist, so that a move updates its pages."""
    pages = [page for page in files(".md") if page.name != "CHANGELOG.md"]
    assert any(PATH.search(text_of(page)) for page in pages)
    assert not {page.name: found for page in pages if (found := stale(page, text_of(page)))}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("in `core/base/vfs.pyx`, `tests/simulation/` and [there](docs/cli.md#top)", []),
        ("in `core/base/vfz.pyx`", ["core/base/vfz.pyx"]),
        ("in `pybroker/nowhere/`", ["pybroker/nowhere/"]),
        ("see [there](docs/clay.md) and [the house](house://clay)", ["docs/clay.md"]),
    ],
)
def test_the_rule_of_paths(text: str, found: list[str]) -> None:
    assert stale(ROOT / "README.md", text) == found


# -- CONTRIBUTING.md --------------------------------------------------------------------------------------------------

ACCESSORS = {"get", "pop", "setdefault", "getenv"}
OURS = re.compile(r"_?PYBROKER_[A-Z_]+")


def constants(tree: ast.Module) -> dict[str, str]:
    """The text constants of a module, by name."""
    found = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            found[target.id] = value.value
    return found


def is_environment(node: ast.expr) -> bool:
    """True for os.environ, and for a value that a function of this tree got from calling `environment`."""
    return ast.unparse(node) in ("os.environ", "environ", "environment", "os")


def variables(tree: ast.Module) -> set[str]:
    """The environment variables that a module reads, and pybroker's own that it names."""
    known, found = constants(tree), set()
    for node in ast.walk(tree):
        keys: list[ast.expr] = []
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and is_environment(node.value):
            keys = [node.slice]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ACCESSORS:
            keys = node.args[:1] if is_environment(node.func.value) else []
        elif isinstance(node, ast.Compare) and any(is_environment(each) for each in node.comparators):
            keys = [node.left]
        for key in keys:
            found |= {key.value} if isinstance(key, ast.Constant) else {known.get(ast.unparse(key), "")} - {""}
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and OURS.fullmatch(node.value):
            found.add(node.value)
    return found


def test_each_environment_variable_is_on_the_page() -> None:
    """Each environment variable that pybroker, its tests, tools, benchmarks, Makefile or setup.py reads is in
    CONTRIBUTING.md."""
    read = {name for path in files(".py") for name in variables(parsed(path))}
    read |= {name for path in files(".c", ".h") for name in re.findall(r'getenv\("(\w+)"\)', text_of(path))}
    read |= set(OURS.findall(text_of(ROOT / "Makefile")))
    page = text_of(ROOT / "CONTRIBUTING.md")
    assert not sorted(name for name in read if f"`{name}`" not in page)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import os\nos.environ.get('A', '')", {"A"}),
        ("import os\nNAME: str = 'B'\nos.environ[NAME]", {"B"}),
        ("import os\nos.environ['C'] = 'set, not read'", set()),
        ("def f(environment):\n    return environment.get('D')", {"D"}),
        ("import os\n'E' in os.environ or os.getenv('F')", {"E", "F"}),
        ("click.option(envvar='PYBROKER_EXT')", {"PYBROKER_EXT"}),
        ("settings.get('H')", set()),
    ],
)
def test_the_rule_of_variables(source: str, found: set[str]) -> None:
    assert variables(ast.parse(source)) == found


def test_each_house_rule_is_on_the_page() -> None:
    """Each house rule is in CONTRIBUTING.md: each check of tests/test_house*.py with its content and reason, and no
    removed one."""
    checks = {
        node.name
        for path in sorted(ROOT.glob("tests/test_house*.py"))
        for node in parsed(path).body
        if isinstance(node, ast.FunctionDef) and re.match(r"test_(?!the_rule)", node.name)
    }
    rows = re.findall(r"^\| `(test_\w+)` \| (?:[^|]+) \| (?:[^|]+) \|$", text_of(ROOT / "CONTRIBUTING.md"), re.M)
    assert sorted(rows) == sorted(checks)
