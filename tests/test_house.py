"""The house rules of the source tree: who may import whom, how big things get, and what is never written down."""

import ast
import functools
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# An import only goes down: to a lower floor, or within its own room (the longest name here that begins the module's).
FLOORS = {
    9: ["pybroker.__main__"],
    8: ["pybroker.cli", "pybroker.console", "pybroker.testing"],
    7: ["pybroker.server"],
    6: ["pybroker.server.handlers"],
    5: ["pybroker.controller", "pybroker.groups", "pybroker.replication", "pybroker.spark"],
    4: ["pybroker.coordination", "pybroker.client"],
    3: ["pybroker.cluster", "pybroker.security"],
    2: ["pybroker.protocol"],
    1: [
        "pybroker.clock",
        "pybroker.errors",
        "pybroker.forks",
        "pybroker.model",
        "pybroker.config",
        "pybroker.metrics",
        "pybroker.logs",
        "pybroker.persistent_map",
        "pybroker.tasks",
        "pybroker.upkeep",
    ],
    0: ["pybroker.core"],
}
FLOOR_OF = {room: floor for floor, rooms in FLOORS.items() for room in rooms}
IMPORTED_AS = {"pyjwt": "jwt"}
"""The modules of distributions whose names are others."""
OPTIONAL = {  # what a room needs that not all install
    "pybroker.testing": {"pytest"},
    "pybroker.client": {"pyarrow"},
    "pybroker.cli": {"matplotlib"},
    "pybroker.spark": {"deltalake", "fastavro", "py4j", "pyarrow", "pyiceberg", "pyspark"},
}
# The same inside core; what stands beside these rooms is the wall, which alone may import any of them.
CORE_FLOORS = {
    4: ["pybroker.core.plane"],
    3: ["pybroker.core.compact", "pybroker.core.partition"],
    2: ["pybroker.core.storage", "pybroker.core.columns", "pybroker.core.client"],
    1: ["pybroker.core.batch"],
    0: ["pybroker.core.base"],
}
CORE_FLOOR_OF = {room: floor for floor, rooms in CORE_FLOORS.items() for room in rooms}
WALL_FLOOR = 5
STANDARD_LIBRARY_FLOOR = 1  # errors, model and the like may import each other, and nothing but the standard library
CYTHON_ROOTS = {"libc", "posix", "cpython", "cython", "pybroker"}

pytestmark = pytest.mark.xdist_group("house")  # each file is read and parsed once

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
LINE_MAX = 120  # ruff holds it in Python
CODE_SUFFIXES = {".py", ".pyi", ".pyx", ".pxd", ".pxi", ".c", ".h"}
TEXT_SUFFIXES = CODE_SUFFIXES | {".md", ".toml", ".in", ".sh", ".properties", ".java", ".xml", ""}

# Written in pieces, so that this file passes its own test.
NEVER_WRITTEN = {
    "a path of somebody's machine": r"(?<![\w.-])/(wo" r"rk|ro" r"ot|ho" r"me|Us" r"ers)/\w",
    "a package registry": r"\b(pypi|files\.python" r"hosted|repo\d?\.maven(\.apache)?|docker)\.(or" r"g|io)\b",
    "a note to do it later": r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b",
    "a number of an issue": r"\b[Ii]ss" r"ue\s+#?\d+|(?<![\w&#])#\d+\b",
}


@functools.cache
def tracked() -> list[Path]:
    """Every file of the tree that is ours: what git tracks or would, or, outside a checkout, what lies here."""
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


def room(module: str) -> str | None:
    """The room of the floors table that a module belongs to; None if it has no floor."""
    return max((r for r in FLOOR_OF if module == r or module.startswith(r + ".")), key=len, default=None)


def python_imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything a Python file imports, inside functions and type checks too."""
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
    """(line, dotted name) of each import and cimport of a Cython file; a relative one reads as pybroker.core's."""
    for number, line in enumerate(text_of(path).splitlines(), 1):
        if found := CYTHON_IMPORT.match(line):
            name = found["source"] or found["plain"]
            if name.startswith("."):
                assert not name.startswith(".."), f"{path}:{number} reaches out of core: {line.strip()}"
                name = f"pybroker.core{name}".rstrip(".")
            elif name == "pybroker":
                name = f"pybroker.{found['names'].split()[0].strip('(,')}"
            yield number, name


def offence(importer: str, imported: str) -> str | None:
    """Why this import is not allowed; None if it is."""
    here, there = room(importer), room(imported)
    if here is None or there is None or here == there:
        if here == there == "pybroker.server.handlers" and importer != here:
            handler = imported.removeprefix(here).split(".")[1]
            if handler != importer.rpartition(".")[2]:
                return "a handler never imports another handler"
        return None
    if FLOOR_OF[there] < FLOOR_OF[here] or FLOOR_OF[here] == FLOOR_OF[there] == STANDARD_LIBRARY_FLOOR:
        return None
    return f"{here} (floor {FLOOR_OF[here]}) may not import {there} (floor {FLOOR_OF[there]})"


def test_every_module_has_a_floor() -> None:
    """A module that no floor knows could import anything."""
    homeless = [m for p in files(".py", under="pybroker") if (m := module_name(p)) != "pybroker" and room(m) is None]
    assert not homeless


def test_an_import_only_goes_down() -> None:
    """The floors table holds for every import of every module."""
    wrong = []
    for path in files(".py", under="pybroker"):
        for line, name in python_imports(path):
            if name.startswith("pybroker.") and (why := offence(module_name(path), name)):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: imports {name}: {why}")
    assert not wrong, "\n".join(wrong)


RULES = ("access", "acl_nodes", "acls", "authorizer", "matrix", "principals")
DETERMINISTIC = ("pybroker.cluster", "pybroker.controller", *(f"pybroker.security.{name}" for name in RULES))
UNDETERMINED = {"datetime", "os", "random", "secrets", "threading", "time", "uuid", "pybroker.clock"}
HANDED_IN = {"random.Random", "uuid.UUID"}  # types of what is drawn elsewhere


def test_what_decides_is_handed_its_clock_and_randomness() -> None:
    """So that a test can have the same life of a controller twice: none of these modules finds them by itself."""
    wrong = []
    for path in [p for p in files(".py", under="pybroker") if room(module_name(p)) in DETERMINISTIC]:
        for line, name in python_imports(path):
            if name not in HANDED_IN and any(name == u or name.startswith(u + ".") for u in UNDETERMINED):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: imports {name}")
    assert not wrong, "\n".join(wrong)


def test_only_the_controller_reads_what_the_controller_decided() -> None:
    """Handlers and whatever else serves go by what brokers were told: the metadata cache."""
    context = "pybroker.controller.context"
    readers = {
        module_name(path)
        for path in files(".py", under="pybroker")
        if any(name.startswith(context) for _, name in python_imports(path))
    }
    assert {m for m in readers if room(m) != "pybroker.controller"} == {"pybroker.server.broker"}, readers


def test_core_knows_nothing_of_pybroker() -> None:
    """core imports itself, C libraries and the standard library, in Cython and in Python."""
    wrong = []
    for path in files(".pyx", ".pxd", ".pxi", ".py", under="core"):
        for line, name in python_imports(path) if path.suffix == ".py" else cython_imports(path):
            if name.startswith("pybroker.") and room(name) != "pybroker.core":
                wrong.append(f"{path.relative_to(ROOT)}:{line}: imports {name}")
    assert not wrong, "\n".join(wrong)


def core_floor(module: str) -> int:
    """The floor of a module of core: that of its room, or the wall's."""
    return CORE_FLOOR_OF.get(module.rpartition(".")[0], WALL_FLOOR)


def core_imports() -> Iterator[tuple[Path, int, str, str]]:
    """(file, line, importer, imported) of each import of one module of core by another."""
    for path in files(".pyx", ".pxd", under="core"):
        importer = module_name(path)
        for line, name in cython_imports(path):
            if name.startswith("pybroker.core.") and name != importer:
                yield path, line, importer, name


def test_an_import_inside_core_only_goes_down() -> None:
    """The floors of core's rooms; and every module but those at the wall lies in one of them."""
    assert {m.rpartition(".")[0] for p in files(".pyx", ".pxd", under="core") if (m := module_name(p))} == {
        "pybroker.core",
        *CORE_FLOOR_OF,
    }
    wrong = []
    for path, line, importer, imported in core_imports():
        here, there = importer.rpartition(".")[0], imported.rpartition(".")[0]
        if here != there and core_floor(imported) >= core_floor(importer):
            wrong.append(f"{path.relative_to(ROOT)}:{line}: imports {imported}")
    assert not wrong, "\n".join(wrong)


def test_no_module_of_core_imports_one_that_imports_it() -> None:
    """Neither directly nor by way of others: each can be read, and tested, with what is below it."""
    below: dict[str, set[str]] = {}
    for _, _, importer, imported in core_imports():
        below.setdefault(importer, set()).add(imported)
    try:
        tuple(TopologicalSorter(below).static_order())
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("pybroker.protocol.codec", "pybroker.errors", True),
        ("pybroker.protocol.codec", "pybroker.protocol.apis", True),
        ("pybroker.config", "pybroker.errors", True),
        ("pybroker.errors", "pybroker.protocol", False),
        ("pybroker.client.admin", "pybroker.coordination.store", False),
        ("pybroker.server.handlers.produce", "pybroker.server.handlers.fetch.answer", False),
        ("pybroker.server.handlers.produce", "pybroker.server.broker", False),
        ("pybroker.server.dispatch", "pybroker.server.handlers.fetch", True),
        ("pybroker.cli.serve", "pybroker.server.broker", True),
    ],
)
def test_the_rule_itself(importer: str, imported: str, allowed: bool) -> None:
    """The rule says no where the house says no, so that the tests above mean something."""
    assert (offence(importer, imported) is None) is allowed


def test_the_lowest_python_floor_needs_only_the_standard_library() -> None:
    """errors, model, config and metrics load anywhere; config alone reads Java's properties."""
    import sys

    wrong = []
    for path in [p for p in files(".py", under="pybroker") if room(module_name(p)) in FLOORS[STANDARD_LIBRARY_FLOOR]]:
        for line, name in python_imports(path):
            top = name.split(".")[0]
            known = top == "pybroker" or top in sys.stdlib_module_names
            if not known and (room(module_name(path)), top) != ("pybroker.config", "javaproperties"):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: imports {name}")
    assert not wrong, "\n".join(wrong)


# -- sizes ------------------------------------------------------------------------------------------------------------


def python_functions(path: Path) -> Iterator[tuple[str, int, int]]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            yield node.name, first, (node.end_lineno or first) - first + 1


CYTHON_FUNCTION = re.compile(
    r"^(?P<indent> *)(?:async )?(?:cdef|cpdef|def)\b(?! (?:class|struct|enum|union|extern))[^=:#]*?(?P<name>\w+)\("
)


def cython_functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """(name, first line, lines) of each function with a body: it ends before the next line no deeper than its head."""
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
    """A file is at home at 100 to 250 lines; 500 is the wall, for tests too, without exemption."""
    counted = {p.relative_to(ROOT): len(text_of(p).splitlines()) for p in files(*CODE_SUFFIXES)}
    assert not {str(p): n for p, n in counted.items() if n > FILE_LINES_MAX}


def test_lines_of_core_fit_too() -> None:
    """Where the linter of Python does not look."""
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files(".pyx", ".pxd")
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if len(line) > LINE_MAX
    ]
    assert not wrong, "\n".join(wrong)


def test_functions_fit_a_screen() -> None:
    """No function is longer than 70 lines, compiled ones included, without exemption."""
    wrong = []
    for path in files(".py", ".pyx", ".pxd"):
        found = python_functions(path) if path.suffix == ".py" else cython_functions(path)
        wrong += [
            f"{path.relative_to(ROOT)}:{line}: {name}: {n} lines" for name, line, n in found if n > FUNCTION_LINES_MAX
        ]
    assert not wrong, "\n".join(wrong)


def test_cython_functions_are_measured(tmp_path: Path) -> None:
    """The measure of Cython functions sees methods, long signatures, and where a function ends."""
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
    """Each is named somewhere but where it is declared, defined and imported."""
    text = "\n".join(re.sub(r"#.*", "", text_of(p)) for p in files(".pyx", ".pxd", ".h"))
    declared = Counter(CYTHON_HEAD.findall(text))
    imported = Counter(re.findall(r"\w+", " ".join(re.findall(r"cimport\s*(\([^)]*\)|[^\n]*)", text))))
    named = Counter(re.findall(r"\w+", text))
    assert not sorted(name for name, n in declared.items() if named[name] <= n + imported[name])


def test_settings_of_a_log_are_peeked_at() -> None:
    """They change while others read them: each access is atomic, in one of the two ways that say so."""
    atomic = re.compile(r"(?:peek|poke)_i64\(&[\w.]+\.settings\.\w+")
    found = [
        f"{path.name}:{number}: {line.strip()}"
        for path in sorted((ROOT / "core").rglob("*.pyx"))
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if re.search(r"\.settings\.\w+", atomic.sub("", line))
    ]
    assert not found, "\n".join(found)


# -- words ------------------------------------------------------------------------------------------------------------


def test_some_things_are_never_written() -> None:
    """No machine's paths, no registry's host, no note to do it later, no number of an issue: the tree stands alone."""
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
    """Each module begins with its docstring; in core also the .pyx, where the reader starts."""
    silent = []
    for path in files(".py", under="pybroker") + files(".py", under="tests") + files(".py", under="bench"):
        tree = parsed(path)
        if tree.body and ast.get_docstring(tree) is None:
            silent.append(path)
    silent += [p for p in files(".pyx", ".pyi", under="core") if not re.match(r'(#.*\n)*\s*r?"""', text_of(p))]
    assert not silent


# -- documents that are written by code -------------------------------------------------------------------------------


def test_the_readme_has_the_apis_that_are_served() -> None:
    """The table in README.md is the one that the broker answers by; `make docs` writes it."""
    from tools import readme

    assert readme.README.read_text() == readme.written(readme.README.read_text())


def test_what_is_imported_is_declared() -> None:
    """pybroker imports nothing that its installation does not bring, but in a room that an extra is for."""
    import sys
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[^\w-]", text)[0].replace("-", "_") for text in project["dependencies"]}
    known = {"pybroker", *sys.stdlib_module_names, *(IMPORTED_AS.get(name, name) for name in declared)}
    wrong = []
    for path in files(".py", under="pybroker"):
        allowed = known | OPTIONAL.get(room(module_name(path)) or "", set())
        imported = {name.split(".")[0] for _, name in python_imports(path)}
        wrong += [f"{path.relative_to(ROOT)}: imports {name}" for name in sorted(imported - allowed)]
    assert not wrong, "\n".join(wrong)


def test_the_map_names_files_that_are_there() -> None:
    """docs/architecture.md: each file and folder it names exists, and every room of both tables of floors is on it."""
    text = (ROOT / "docs/architecture.md").read_text()
    named = set(re.findall(r"`((?:core|pybroker|tests|tools)/[\w/.*]+)`", text))
    assert named and not sorted(name for name in named if not list(ROOT.glob(name.rstrip("/"))))
    rooms = [room.replace("pybroker.core", "core").replace(".", "/") for room in CORE_FLOOR_OF]
    assert not [room for room in rooms if f"`{room}/`" not in text]


def is_endless(function: ast.AsyncFunctionDef) -> bool:
    """Does it go round for as long as a broker lives, and end with an exception that it does not know?"""
    nodes = list(ast.walk(function))
    goes_round = any(isinstance(n, ast.While) and isinstance(n.test, ast.Constant) for n in nodes)
    caught = [n.type.id for n in nodes if isinstance(n, ast.ExceptHandler) and isinstance(n.type, ast.Name)]
    returns = any(isinstance(n, ast.Return) for n in nodes)
    return goes_round and not returns and "Exception" not in caught


def lonely_tasks(source: str) -> list[int]:
    """The lines where such a function becomes a task: nobody would see its end, and nobody begins it again."""
    nodes = list(ast.walk(ast.parse(source)))
    endless = {n.name for n in nodes if isinstance(n, ast.AsyncFunctionDef) and is_endless(n)}
    found = []
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "create_task":
            work = node.args[0].func if isinstance(node.args[0], ast.Call) else None
            name = work.attr if isinstance(work, ast.Attribute) else work.id if isinstance(work, ast.Name) else ""
            found += [node.lineno] * (name in endless)
    return found


ENDLESS = """
async def work(self):
    while True:
        await self.look()
"""


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (ENDLESS + "loop.create_task(self.work())", [5]),
        (ENDLESS + "loop.create_task(keep_up(self.work, 'the work'))", []),
        (ENDLESS + "loop.create_task(self.once())", []),
        (ENDLESS.replace("await self.look()", "try: await self.look()\n        except OSError: pass")
         + "asyncio.create_task(work())", [6]),
        (ENDLESS.replace("await self.look()", "try: await self.look()\n        except Exception: pass")
         + "asyncio.create_task(work())", []),
    ],
)  # fmt: skip
def test_the_rule_of_tasks(source: str, lines: list[int]) -> None:
    assert lonely_tasks(source) == lines


def test_no_task_that_lives_on_ends_unseen() -> None:
    """What a broker lives by is kept up (upkeep.keep_up), or knows what to do with any exception."""
    wrong = [f"{path}:{line}" for path in files(".py", under="pybroker") for line in lonely_tasks(text_of(path))]
    assert not wrong
