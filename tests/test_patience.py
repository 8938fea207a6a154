"""The house rule of waiting: no test sleeps to give something time to happen.

A test waits for a condition: `until` and `eventually` of tests/harness.py, `looked` for an event loop's next turns,
`step_until` of tests/core for a plane that it steps, a failpoint that holds until `disarm()`. A test about time itself
uses an event loop whose time jumps (tests/virtual.py, tests/simulation). To show that something happens at once, a test
sets the alternative to an hour and does not measure: a machine may be busy.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.sources import ROOT, files, parsed

VIRTUAL = ("virtual_time", "story")
"""Marks and decorators, also in a module's `pytestmark`, with which a test's time jumps."""
SLEEPS = {
    # the helpers
    "harness.py": "until, eventually",
    "virtual.py": "time that jumps",
    "simulation": "time that jumps",
    "controller/balanced.py": "time that jumps",
    "groups/life.py": "time that jumps",
    "groups/test_commitment_property.py": "time that jumps",
    "test_upkeep.py": "time that jumps",
    "transactions": "time that jumps",
    # the pace of load beside a test: clients, faults, peers
    "brokers/chaos.py": "the pace of faults",
    "brokers/churn.py": "the pace of tries",
    "brokers/disturbances.py": "the pace of faults",
    "brokers/full.py": "a broker looks at the file that says so",
    "brokers/kit.py": "the pace of tries",
    "brokers/planted.py": "the pace of a mistake",
    "brokers/witness.py": "for how long it is quiet is the subject",
    "client/unreliable.py": "a broker that answers slowly",
    "groups/worker.py": "the pace of a member",
    "lives": "the pace of faults and clients",
    "server/slow_disk.py": "the pace of clients beside a slow disk",
    "server/transactions.py": "the pace of tries",
    "spark/chaos.py": "the pace of faults",
    "spark/strays.py": "it ends processes, and fails nothing",
    "storms/users.py": "for how long a storm lasts",
    "coordination/test_durability.py": "when a process is killed is chance",
    "coordination/test_kazoo_tls.py": "a server that is slower than a session",
    "core/test_load.py": "a peer that stalls",
    "replication/test_native_fetcher.py": "a leader's time for an answer",
    "server/handlers/test_lapsed.py": "the pace of a follower",
    "server/test_oauthbearer.py": "a server that sends a byte at a time",
    "server/test_stop.py": "a reader that is slow",
    # time that has to pass: longer does no harm
    "core/test_counters.py": "the time that is counted",
    "core/test_sealed.py": "turns of the flusher",
    "core/test_slow.py": "a write that stands still for longer than a moment",
    "core/test_turns.py": "turns that are slow",
    "server/test_delegation_tokens.py": "a token's life, by the wall clock",
    "server/test_false_leaders.py": "requests are counted for so long, and the bound grows with it",
    "server/test_listener.py": "work is measured for so long, in time of the processor",
    "server/test_reauthentication.py": "a login's life, which core counts by its own clock",
}
"""Where a test, or what stands beside it, sleeps all the same: a file or folder of tests, and why. Folders called
system, where whole systems are watched for a time, are not looked at."""
BOUNDS = {
    "cli/test_completion.py": "a person waits for it, and half a minute is twenty times what it takes",
    # deadlines of loops that collect until there is enough
    "cli/test_top.py": "what a terminal shows",
    "cli/members.py": "records",
    "client/kit.py": "records",
    "core/fuzz.py": "connections that end",
    "core/stage.py": "step_until",
    "core/test_sealed.py": "a file that appears",
    "server/slow_disk.py": "samples",
}
"""The places where a test asserts that less than some time has passed."""
CLOCKS = {"time.monotonic", "time.perf_counter", "loop.time", "asyncio.get_running_loop().time"}


def is_virtual(node: ast.AST) -> bool:
    """True if a decorator or a mark of the module makes time virtual."""
    return any(isinstance(each, ast.Attribute) and each.attr in VIRTUAL for each in ast.walk(node))


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """The statements of a module without those in virtual time."""
    marks = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets) == "pytestmark"]
    if any(is_virtual(mark) for mark in marks):
        return
    for node in tree.body:
        decorators = getattr(node, "decorator_list", ())
        if not any(is_virtual(each) for each in decorators):
            yield node


def sleeps(tree: ast.Module) -> list[int]:
    """The lines that sleep; a sleep of 0 only yields to the loop."""
    return [
        node.lineno
        for part in statements(tree)
        for node in ast.walk(part)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "asyncio.sleep", "sleep")
        and not (node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)
    ]  # fmt: skip


def reads_clock(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Call) and ast.unparse(each.func) in CLOCKS for each in ast.walk(node))


def bounds(tree: ast.Module) -> list[int]:
    """The lines that assert an upper bound on elapsed time: `assert time.monotonic() - began < 5`."""
    found = []
    for part in statements(tree):
        for compare in [c for a in ast.walk(part) if isinstance(a, ast.Assert) for c in ast.walk(a.test)]:
            if isinstance(compare, ast.Compare):
                sides = [compare.left, *compare.comparators]
                for (less, more), kind in zip(pairwise(sides), compare.ops, strict=True):
                    if isinstance(kind, ast.Gt | ast.GtE):
                        less, more = more, less
                    if isinstance(kind, ast.Lt | ast.LtE | ast.Gt | ast.GtE) and reads_clock(less):
                        found.append(compare.lineno)
    return found


@pytest.mark.parametrize(("rule", "allowed"), [(sleeps, SLEEPS), (bounds, BOUNDS)], ids=["sleeps", "bounds"])
def test_no_test_waits_for_luck(rule: object, allowed: dict[str, str]) -> None:
    """No test waits for luck, except in the listed places, each with its reason; and each listed place exists."""
    used, wrong = set(), []
    for path in files(".py", under="tests"):
        name = path.relative_to(ROOT / "tests")
        if "system" in name.parts:
            continue
        if lines := rule(parsed(path)):  # type: ignore[operator]
            places = {str(name), *(str(parent) for parent in name.parents)} & allowed.keys()
            used |= places
            wrong += [] if places else [f"tests/{name}:{line}" for line in lines]
    assert not wrong, "\n".join(wrong)
    assert used == allowed.keys()


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("def test() -> None:\n    time.sleep(0.1)", [2]),
        ("async def test() -> None:\n    await asyncio.sleep(PAUSE_S)", [2]),
        ("from time import sleep\nsleep(1)", [2]),
        ("async def test() -> None:\n    await asyncio.sleep(0)", []),
        ("@virtual.story\nasync def test() -> None:\n    await asyncio.sleep(9)", []),
        ("pytestmark = pytest.mark.virtual_time\nasync def test() -> None:\n    await asyncio.sleep(9)", []),
    ],
)
def test_the_rule_of_sleeps(source: str, lines: list[int]) -> None:
    assert sleeps(ast.parse(source)) == lines


@pytest.mark.parametrize(
    ("source", "is_bound"),
    [
        ("assert time.monotonic() - began < 5", True),
        ("assert 0.1 < asyncio.get_running_loop().time() - began < 5", True),
        ("assert told and 5 >= time.perf_counter() - began", True),
        ("assert time.monotonic() < deadline, 'it did not come'", True),
        ("assert time.monotonic() - began >= 0.1", False),
        ("assert 0.1 < time.monotonic() - began", False),
        ("assert time.process_time() - began < 5", False),
    ],
)
def test_the_rule_of_bounds(source: str, is_bound: bool) -> None:
    assert bool(bounds(ast.parse(source))) is is_bound
