"""The house rules of imports: which module may import which. Sizes, words and parts are in test_house_*.py beside
it."""

import re
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.sources import ROOT, cython_imports, files, module_name, python_imports, text_of

# An import only goes down: to a lower floor, or within its own room (the longest name here that begins the module's).
FLOORS = {
    10: ["pybroker.__main__"],
    9: ["pybroker.cli", "pybroker.testing"],
    8: ["pybroker.console", "pybroker.development", "pybroker.server"],
    7: ["pybroker.server.api.handlers"],
    6: ["pybroker.backup", "pybroker.controller", "pybroker.frames", "pybroker.operations", "pybroker.spark"],
    5: ["pybroker.client", "pybroker.groups", "pybroker.metadata", "pybroker.replication", "pybroker.transactions"],
    4: ["pybroker.avro", "pybroker.coordination", "pybroker.interbroker", "pybroker.state_log"],
    3: ["pybroker.decisions", "pybroker.security"],
    2: ["pybroker.protocol"],
    1: [
        "pybroker.clock",
        "pybroker.errors",
        "pybroker.extras",
        "pybroker.fork_safety",
        "pybroker.histogram",
        "pybroker.model",
        "pybroker.config",
        "pybroker.logs",
        "pybroker.patience",
        "pybroker.persistent_map",
        "pybroker.tasks",
        "pybroker.retries",
    ],
    0: ["pybroker.core"],
}
FLOOR_OF = {room: floor for floor, rooms in FLOORS.items() for room in rooms}
IMPORTED_AS = {"pyjwt": "jwt"}
"""The import names of distributions that differ from their names."""
OPTIONAL = {  # rooms that need an optional package
    "pybroker.testing": {"pytest"},
    "pybroker.client": {"confluent_kafka", "fastavro", "numpy", "pyarrow"},
    "pybroker.backup": {"pyarrow"},
    "pybroker.cli": {"matplotlib"},
    "pybroker.console": {"fastavro", "jinja2", "starlette", "uvicorn"},
    "pybroker.avro": {"fastavro"},
    "pybroker.frames": {"fastavro", "numpy", "polars", "pyarrow"},
    "pybroker.server": {"opentelemetry"},
    "pybroker.spark": {"deltalake", "fastavro", "numpy", "py4j", "pyarrow", "pyiceberg", "pyspark"},
}
# The same inside core; what stands beside these rooms is the wall, which alone may import any of them.
CORE_FLOORS = {
    8: ["pybroker.core.plane"],
    7: ["pybroker.core.compact", "pybroker.core.partition"],
    6: ["pybroker.core.storage.removal", "pybroker.core.storage.move"],
    5: ["pybroker.core.storage.background"],
    4: ["pybroker.core.storage.recovery"],
    3: ["pybroker.core.storage.log", "pybroker.core.columns", "pybroker.core.client"],
    2: ["pybroker.core.storage.producers", "pybroker.core.storage.segment"],
    1: ["pybroker.core.batch"],
    0: ["pybroker.core.base"],
}
CORE_FLOOR_OF = {room: floor for floor, rooms in CORE_FLOORS.items() for room in rooms}
WALL_FLOOR = 9
# The rooms of the plane may import each other: a connection, its request and its thread are one thing in three parts.
PLANE_ROOMS = ["connection", "limits", "replica", "requests", "thread"]
MODULES_MAX = 25
STANDARD_LIBRARY_FLOOR = 1  # errors, model and the like may import each other, and nothing but the standard library
CYTHON_ROOTS = {"libc", "posix", "cpython", "cython", "pybroker"}

pytestmark = pytest.mark.xdist_group("house")  # each file is read and parsed once

def room(module: str) -> str | None:
    """The room of the floors table that a module belongs to; None if it has no floor."""
    return max((r for r in FLOOR_OF if module == r or module.startswith(r + ".")), key=len, default=None)


def offence(importer: str, imported: str) -> str | None:
    """The reason why this import is not allowed; None if it is."""
    here, there = room(importer), room(imported)
    if here is None or there is None or here == there:
        if here == there == "pybroker.server.api.handlers" and importer != here:
            handler = imported.removeprefix(here).split(".")[1]
            if handler != importer.rpartition(".")[2]:
                return "a handler never imports another handler"
        return None
    if FLOOR_OF[there] < FLOOR_OF[here] or FLOOR_OF[here] == FLOOR_OF[there] == STANDARD_LIBRARY_FLOOR:
        return None
    return f"{here} (floor {FLOOR_OF[here]}) may not import {there} (floor {FLOOR_OF[there]})"


def test_every_module_has_a_floor() -> None:
    """Every module has a floor; a module without one could import anything."""
    homeless = [m for p in files(".py", under="pybroker") if (m := module_name(p)) != "pybroker" and room(m) is None]
    assert not homeless


def test_an_import_only_goes_down() -> None:
    """An import only goes down: every import of every module keeps to the floors table."""
    wrong = []
    for path in files(".py", under="pybroker"):
        for line, name in python_imports(path):
            if name.startswith("pybroker.") and (why := offence(module_name(path), name)):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: imports {name}: {why}")
    assert not wrong, "\n".join(wrong)


RULES = ("access", "acl_nodes", "acls", "authorizer", "matrix", "principals")
DETERMINISTIC = (
    "pybroker.decisions", "pybroker.metadata", "pybroker.controller", *(f"pybroker.security.{name}" for name in RULES)
)  # fmt: skip
UNDETERMINED = {"datetime", "os", "random", "secrets", "threading", "time", "uuid", "pybroker.clock"}
HANDED_IN = {"random.Random", "uuid.UUID"}  # types of values drawn elsewhere


def test_what_decides_is_handed_its_clock_and_randomness() -> None:
    """Decision modules get their clock and randomness as arguments, so that a test can repeat a controller's run
    exactly."""
    wrong = []
    for path in [p for p in files(".py", under="pybroker") if room(module_name(p)) in DETERMINISTIC]:
        for line, name in python_imports(path):
            if name not in HANDED_IN and any(name == u or name.startswith(u + ".") for u in UNDETERMINED):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: imports {name}")
    assert not wrong, "\n".join(wrong)


def test_only_the_controller_reads_what_the_controller_decided() -> None:
    """Only the controller reads its own decisions; handlers and other serving code read the metadata cache, which
    brokers receive."""
    context = "pybroker.controller.context"
    readers = {
        module_name(path)
        for path in files(".py", under="pybroker")
        if any(name.startswith(context) for _, name in python_imports(path))
    }
    assert {m for m in readers if room(m) != "pybroker.controller"} == set(), readers


def test_core_knows_nothing_of_pybroker() -> None:
    """core knows nothing of pybroker: it imports itself, C libraries and the standard library, in Cython and in
    Python."""
    wrong = []
    for path in files(".pyx", ".pxd", ".pxi", ".py", under="core"):
        for line, name in python_imports(path) if path.suffix == ".py" else cython_imports(path):
            if name.startswith("pybroker.") and room(name) != "pybroker.core":
                wrong.append(f"{path.relative_to(ROOT)}:{line}: imports {name}")
    assert not wrong, "\n".join(wrong)


def core_room(module: str) -> str:
    """The room of a module of core in the floors table; "pybroker.core" for the wall's."""
    package = module.rpartition(".")[0]
    house, _, room = package.rpartition(".")
    return house if house == "pybroker.core.plane" and room in PLANE_ROOMS else package


def core_floor(module: str) -> int:
    """The floor of a module of core: its room's, or the wall's."""
    return CORE_FLOOR_OF.get(core_room(module), WALL_FLOOR)


def core_imports() -> Iterator[tuple[Path, int, str, str]]:
    """The (file, line, importer, imported) of each import of one module of core by another."""
    for path in files(".pyx", ".pxd", under="core"):
        importer = module_name(path)
        for line, name in cython_imports(path):
            if name.startswith("pybroker.core.") and name != importer:
                yield path, line, importer, name


def test_an_import_inside_core_only_goes_down() -> None:
    """An import inside core only goes down, and every module but those at the wall lies in a room."""
    modules = [module_name(p) for p in files(".pyx", ".pxd", under="core")]
    assert {core_room(m) for m in modules} == {"pybroker.core", *CORE_FLOOR_OF}
    wrong = []
    for path, line, importer, imported in core_imports():
        here, there = core_room(importer), core_room(imported)
        if here != there and core_floor(imported) >= core_floor(importer):
            wrong.append(f"{path.relative_to(ROOT)}:{line}: imports {imported}")
    assert not wrong, "\n".join(wrong)


def test_no_module_of_core_imports_one_that_imports_it() -> None:
    """No module of core imports one that imports it, directly or indirectly: each can be read, and tested, with the
    modules below it."""
    below: dict[str, set[str]] = {}
    for _, _, importer, imported in core_imports():
        below.setdefault(importer, set()).add(imported)
    try:
        tuple(TopologicalSorter(below).static_order())
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_a_folder_has_25_modules_at_most() -> None:
    """A folder has at most 25 modules; a larger one is two rooms."""
    modules = {path.with_suffix("") for path in files(".pyx", ".pxd", under="core")}
    modules |= {path for path in files(".py", under="pybroker") if path.name != "__init__.py"}
    counted = Counter(str(module.parent.relative_to(ROOT)) for module in modules)
    assert not {folder: n for folder, n in counted.items() if n > MODULES_MAX}


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("pybroker.protocol.codec", "pybroker.errors", True),
        ("pybroker.protocol.codec", "pybroker.protocol.apis", True),
        ("pybroker.config", "pybroker.errors", True),
        ("pybroker.errors", "pybroker.protocol", False),
        ("pybroker.coordination.store", "pybroker.client.admin", False),
        ("pybroker.server.api.handlers.produce", "pybroker.server.api.handlers.fetch.answer", False),
        ("pybroker.server.api.handlers.produce", "pybroker.server.broker", False),
        ("pybroker.server.api.dispatch", "pybroker.server.api.handlers.fetch", True),
        ("pybroker.cli.serve", "pybroker.server.broker", True),
    ],
)
def test_the_rule_itself(importer: str, imported: str, allowed: bool) -> None:
    """The rule itself refuses a bad import, so that the tests above mean something."""
    assert (offence(importer, imported) is None) is allowed


def test_the_lowest_python_floor_needs_only_the_standard_library() -> None:
    """The lowest Python floor needs only the standard library: errors, model, config and metrics load anywhere. Only
    config reads Java's properties."""
    import sys

    wrong = []
    for path in [p for p in files(".py", under="pybroker") if room(module_name(p)) in FLOORS[STANDARD_LIBRARY_FLOOR]]:
        for line, name in python_imports(path):
            top = name.split(".")[0]
            known = top == "pybroker" or top in sys.stdlib_module_names
            if not known and (room(module_name(path)), top) != ("pybroker.config", "javaproperties"):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: imports {name}")
    assert not wrong, "\n".join(wrong)


def test_settings_of_a_log_are_peeked_at() -> None:
    """Settings of a log are accessed atomically, in one of two ways that say so: they change while other threads read
    them."""
    atomic = re.compile(r"(?:peek|poke)_i64\(&[\w.]+\.settings\.\w+")
    found = [
        f"{path.name}:{number}: {line.strip()}"
        for path in sorted((ROOT / "core").rglob("*.pyx"))
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if re.search(r"\.settings\.\w+", atomic.sub("", line))
    ]
    assert not found, "\n".join(found)


def test_what_is_imported_is_declared() -> None:
    """Imported packages are declared: pybroker imports none that its installation lacks, except in a room that an extra
    is for."""
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


def test_the_map_has_every_room_of_core() -> None:
    """The map in docs/architecture.md has every room of core's floors table."""
    text = (ROOT / "docs/architecture.md").read_text()
    rooms = [room.replace("pybroker.core", "core").replace(".", "/") for room in CORE_FLOOR_OF]
    rooms += [f"core/plane/{room}" for room in PLANE_ROOMS]
    assert not [room for room in rooms if f"`{room}/`" not in text]
