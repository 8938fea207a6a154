"""The house rules of parts: class names, unused modules, construction of parts, endless tasks."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import pytest

from tests.sources import ROOT, files, module_name, parsed, python_imports, text_of

pytestmark = pytest.mark.xdist_group("house")  # each file is read and parsed once

# -- one class name, one meaning --------------------------------------------------------------------------------------

OF_USERS = "users import it from pybroker; the other is the broker's own part of that name"
REPEATED: Mapping[str, str] = {
    "Committed": OF_USERS,
    "LogDir": OF_USERS,
    "Member": OF_USERS,
    "Node": OF_USERS,
    "Record": "users import one from pybroker.testing; the other is the oracle of the tests of the codec",
    "Replica": OF_USERS,
    "ResourceType": OF_USERS,
}
"""Class names that two modules of pybroker may have, and why."""
SHARED: Mapping[str, str] = {
    "Plane": "the protocol of a data plane in pybroker, and core's implementation",
    "Record": "users import both of core and of pybroker.testing; see above",
}
"""Class names that pybroker and core may both have, and why."""


def classes(modules: Iterable[tuple[str, ast.Module]]) -> dict[str, list[str]]:
    """The modules that have a class of each name, without private and nested classes."""
    found: dict[str, list[str]] = {}
    for module, tree in modules:
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(module)
    return found


def repeats(found: Mapping[str, list[str]], allowed: Iterable[str]) -> dict[str, list[str]]:
    """Names in more modules than allowed: one, or two if the name may repeat."""
    return {name: where for name, where in found.items() if len(where) > (2 if name in allowed else 1)}


CYTHON_CLASS = re.compile(r"^(?:cdef )?class (\w+)", re.M)


def classes_of_core(sources: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The modules of core that have a class of each name."""
    found: dict[str, list[str]] = {}
    for module, text in sources:
        for name in CYTHON_CLASS.findall(text):
            found.setdefault(name, []).append(module)
    return found


def test_a_class_name_has_one_meaning() -> None:
    """A class name has one meaning: it is there once in pybroker or in core, so a search finds the right one."""
    modules = [(module_name(path), parsed(path)) for path in files(".py", under="pybroker")]
    ours = classes(modules)
    of_core = classes_of_core((module_name(path), text_of(path)) for path in files(".pyx", under="core"))
    assert not repeats(ours, REPEATED) | repeats(of_core, ())
    assert ours.keys() & of_core.keys() == SHARED.keys()


def test_what_may_be_repeated_is() -> None:
    """Each name that may repeat does; no reason is kept for another."""
    found = classes((module_name(path), parsed(path)) for path in files(".py", under="pybroker"))
    assert not [name for name in REPEATED if len(found.get(name, ())) < 2]


def test_the_rule_of_class_names() -> None:
    one, two = ast.parse("class Store: pass\nclass _Own: pass"), ast.parse("class Store:\n    class Inner: pass")
    assert classes([("a", one), ("b", two)]) == {"Store": ["a", "b"]}
    assert repeats({"Store": ["a", "b"], "Log": ["a"]}, ()) == {"Store": ["a", "b"]}
    assert repeats({"Store": ["a", "b"], "Log": ["a", "b", "c"]}, ["Store", "Log"]) == {"Log": ["a", "b", "c"]}
    core = [("a", "cdef class Log:\n    pass\n"), ("b", "class Log(Exception): pass\n    cdef class Inner: pass")]
    assert classes_of_core(core) == {"Log": ["a", "b"]}


# -- no module that nothing imports -----------------------------------------------------------------------------------


def named_by(tree: ast.Module) -> Iterator[str]:
    """The dotted names of pybroker in strings: modules that are imported late, or run by `python -m`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"^pybroker(?:\.\w+)+$", node.value)


def unused(modules: Mapping[str, tuple[Iterable[str], Iterable[str]]], entries: Iterable[str]) -> list[str]:
    """The modules that no other imports or names; `modules` has (imported names, names in strings) of each."""
    used = set(entries)
    for module, names in modules.items():
        for name in (name for each in names for name in each):
            parts = name.split(".")
            used |= {".".join(parts[:n]) for n in range(1, len(parts) + 1)} - {module}
    return sorted(module for module in modules if module not in used and not module.endswith(".__main__"))


def test_each_module_is_used() -> None:
    """Each module is used: imported, named in a string (commands, lazy imports of pybroker), or an entry point in
    pyproject.toml. pyspark_pybroker, which Spark finds by itself, counts."""
    entries = re.findall(r'"(pybroker(?:\.\w+)+)(?::\w+)?"', (ROOT / "pyproject.toml").read_text())
    modules = {
        module_name(path): ([name for _, name in python_imports(path)], list(named_by(parsed(path))))
        for folder in ("pybroker", "pyspark_pybroker")
        for path in files(".py", under=folder)
    }
    assert not unused(modules, [*entries, "pybroker", "pyspark_pybroker"])


@pytest.mark.parametrize(
    ("modules", "found"),
    [
        ({"p.a": (["p.b.name"], []), "p.b": ([], [])}, ["p.a"]),
        ({"p.a": ([], ["p.b"]), "p.b": (["p.a"], [])}, []),
        ({"p.a": (["p.a.name"], []), "p.__main__": ([], [])}, ["p.a"]),
        ({"p.entry": ([], [])}, []),
    ],
)
def test_the_rule_of_unused_modules(modules: Mapping[str, tuple[list[str], list[str]]], found: list[str]) -> None:
    assert unused(modules, ["p.entry"]) == found


# -- no constant that nothing reads -----------------------------------------------------------------------------------


def constants(tree: ast.Module) -> Iterator[str]:
    """The constants of a module: NAME = ..., NAME: type = ..."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from (target.id for target in targets if isinstance(target, ast.Name) and target.id.isupper())


def unread(named: Mapping[str, Iterable[str]], texts: Iterable[str]) -> list[str]:
    """The constants, `named` by module, whose names stand nowhere else in the texts."""
    words = Counter(word for text in texts for word in re.findall(r"\w+", text))
    return [f"{module}.{name}" for module, names in named.items() for name in names if words[name] == 1]


def test_each_constant_is_read() -> None:
    """Each constant is read, by a test at least; error codes, of which errors.py has the whole list, are exempt."""
    modules = {module_name(path): constants(parsed(path)) for path in files(".py", under="pybroker")}
    modules.pop("pybroker.errors")
    texts = [text_of(path) for path in files(".py", ".pyx")]
    assert not unread(modules, texts)


def test_the_rule_of_unread_constants() -> None:
    assert list(constants(ast.parse("A = 1\nB: int = 2\nc = 3\n"))) == ["A", "B"]
    assert unread({"m": ["A", "B"]}, ["A = 1\nB = A"]) == ["m.B"]


# -- parts come together complete -------------------------------------------------------------------------------------

COMPOSITION_ROOTS = ("broker.py", "cluster/control_plane.py", "cluster/sole_member.py", "cluster/cluster_member.py")
"""Files of pybroker/server that make parts and connect them."""


def assigned_later(source: str) -> list[str]:
    """The `line: what` of each assignment to an attribute of another object than self."""
    found = []
    for node in ast.walk(ast.parse(source)):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            for each in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                if isinstance(each, ast.Attribute) and ast.unparse(each.value) != "self":
                    found.append(f"{each.lineno}: {ast.unparse(each)}")
    return sorted(found)


def test_no_collaborator_is_assigned_later() -> None:
    """No collaborator is assigned later: parts are complete once constructed, and a constructor shows all that its
    class works with."""
    for name in COMPOSITION_ROOTS:
        found = assigned_later((ROOT / "pybroker/server" / name).read_text())
        assert not found, "\n".join(f"{name}:{place}" for place in found)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("self.log = log", []),
        ("def f(self, log):\n    log.on_failed = self.heed", ["2: log.on_failed"]),
        ("self.log.on_failed = heed", ["1: self.log.on_failed"]),
        ("self.a = b.c = d", ["1: b.c"]),
        ("a.b, self.c = 1, 2", ["1: a.b"]),
        ("a.b += 1", ["1: a.b"]),
        ("a.b: int = 1", ["1: a.b"]),
        ("a[b] = c", []),
    ],
)
def test_the_rule_of_late_assignments(source: str, found: list[str]) -> None:
    assert assigned_later(source) == found


# -- tasks ------------------------------------------------------------------------------------------------------------


def is_endless(function: ast.AsyncFunctionDef) -> bool:
    """True if a function loops for ever, and an exception that it does not handle ends it."""
    nodes = list(ast.walk(function))
    goes_round = any(isinstance(n, ast.While) and isinstance(n.test, ast.Constant) for n in nodes)
    caught = [n.type.id for n in nodes if isinstance(n, ast.ExceptHandler) and isinstance(n.type, ast.Name)]
    returns = any(isinstance(n, ast.Return) for n in nodes)
    return goes_round and not returns and "Exception" not in caught


def lonely_tasks(source: str) -> list[int]:
    """The lines where such a function becomes a task: its end would go unnoticed, and it would not be restarted."""
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
    """No endless task ends unseen: it runs in upkeep.keep_up, or handles every exception."""
    wrong = [f"{path}:{line}" for path in files(".py", under="pybroker") for line in lonely_tasks(text_of(path))]
    assert not wrong
