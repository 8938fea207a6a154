"""Writes docs/logs.md: every log event of the broker, and every line that the client and Spark's parts log.

Events are the calls `event(log, level, name, field=...)`. What to do at a WARNING or an ERROR is written by hand, in
tools/log_advice.toml, by the name of the event. `python tools/log_events.py` writes the page, and prints which events
lack advice and which advice has no event.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs/logs.md"
ADVICE: Final = ROOT / "tools/log_advice.toml"
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
NEED_ADVICE: Final = {"WARNING", "ERROR", "CRITICAL"}
GROUPS: Final = (
    ("Start and stop", ("pybroker.cli", "pybroker.development", "pybroker.server.process", "pybroker.server.broker")),
    ("Cluster and controller", ("pybroker.controller", "pybroker.server.cluster", "pybroker.coordination")),
    ("Topics, settings, users", ("pybroker.metadata",)),
    ("Logs and replicas", ("pybroker.replication", "pybroker.server.scheduler")),
    ("Groups", ("pybroker.groups",)),
    ("Transactions", ("pybroker.transactions",)),
    ("Connections, logins, TLS", ("pybroker.server.network", "pybroker.security")),
    ("Requests, quotas, metrics", ("pybroker.server", "pybroker.interbroker")),
    ("Spark", ("pybroker.spark",)),
    ("Other", ("pybroker",)),
)
"""Headings of the page, and which modules they have; the first that fits."""
HEAD: Final = """# Log events

This page is generated from the source by `make docs`; what to do is written in `tools/log_advice.toml`.

The broker logs to standard error, one event a line: time in UTC, level, module, event name, fields.

```text
2026-03-01T12:00:00.120Z INFO pybroker.groups.members rebalance group=g members=2 …
```

Search for the name of the event; names are stable from one release to the next as far as possible. A field is
`name=value`, with quotes if the value has blanks. `--log-level` of `pybroker serve` sets the lowest level.
`pybroker configs alter --broker-logger ID --set MODULE=DEBUG` changes it for one module of a running broker.
Values that clients choose are cut to 200 characters, others to 1,000. Modules are those below `pybroker`.

With `--log-format json` each line is one JSON object, for programs that collect logs:

```text
{"time": "2026-03-01T12:00:00.120Z", "level": "INFO", "logger": "pybroker.groups", "event": "rebalance", "group": "g"}
```

| member | value |
|---|---|
| `time`, `level`, `logger`, `event` | always there; the event is the name in the tables below |
| the fields of the event | by their names in the tables below; numbers as numbers, all else as text |
| `exception` | a traceback, with its line ends inside the text |

Warnings of libraries are such lines too, and so are warnings about the configuration (`command warning`) and the
sentence with which a broker ends (`command failed`). A wrong option is still reported as text, before the log begins.
The broker writes no log files and rotates none: that is for systemd's journal, the container's engine or `logrotate`.
"""


Facts = Mapping[str, Mapping[str, Sequence[str]]]
"""What tools/log_advice.toml says: by table, then by module."""


METHODS: Final = {"debug": "DEBUG", "info": "INFO", "warning": "WARNING", "error": "ERROR", "exception": "ERROR"}
LINES: Final = """## The client and Spark

Libraries log sentences, to the loggers of their modules; they say themselves what to do.

| line | level | module |
|---|---|---|
"""


class Event(NamedTuple):
    """A call that logs: the module, its levels, its name and its fields."""

    name: str
    module: str
    levels: tuple[str, ...]
    fields: tuple[str, ...]


def _strings(node: ast.expr) -> list[str]:
    """The strings that an expression may be: a constant, or either side of a condition; empty if it is neither."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.IfExp):
        both = _strings(node.body), _strings(node.orelse)
        return [*both[0], *both[1]] if all(both) else []
    if isinstance(node, ast.JoinedStr):
        texts = [""]
        for part in node.values:
            more = _strings(part.value) if isinstance(part, ast.FormattedValue) else _strings(part)
            texts = [text + each for text in texts for each in more]
        return texts
    return []


def _levels(node: ast.expr, otherwise: Sequence[str]) -> tuple[str, ...]:
    """The levels that an expression may be: all that it names, or the given ones if it is a variable."""
    named = tuple(each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute) and each.attr in LEVELS)
    return named or tuple(otherwise)


def _values(tree: ast.Module, variable: str) -> list[str]:
    """The strings that a variable, parameter or attribute of a module gets, wherever that is."""
    found: list[str] = []
    short = variable.rpartition(".")[2]
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=False))
                values = [value for to, value in pairs if ast.unparse(to).rpartition(".")[2] == short]
                found += [text for value in values for text in _strings(value)]
        if isinstance(node, ast.Call):
            found += [each for key in node.keywords if key.arg == short for each in _strings(key.value)]
    return found


def calls_of(source: str, module: str, facts: Facts) -> Iterator[Event]:
    """The events of a module. `facts` has names and levels that no expression shows, by module. Raises ValueError."""
    tree = ast.parse(source)
    spelled, variable = facts.get("spelled", {}), facts.get("levels", {}).get(module, ())
    for node in ast.walk(tree):
        function = getattr(node, "func", None)
        if not isinstance(node, ast.Call) or getattr(function, "id", getattr(function, "attr", "")) != "event":
            continue
        if len(node.args) < 3:
            continue
        names = _strings(node.args[2]) or spelled.get(module, []) or _values(tree, ast.unparse(node.args[2]))
        if not names:
            raise ValueError(f"{module}:{node.lineno}: no name of the event {ast.unparse(node.args[2])!r}: spell it")
        fields = tuple(str(key.arg) for key in node.keywords if key.arg not in (None, "exc_info"))
        name, level = node.args[2], node.args[1]
        if isinstance(name, ast.IfExp) and isinstance(level, ast.IfExp) and ast.dump(name.test) == ast.dump(level.test):
            for one, its in ((name.body, level.body), (name.orelse, level.orelse)):
                yield from (Event(each, module, _levels(its, variable), fields) for each in _strings(one))
            continue
        for each in dict.fromkeys(names):
            yield Event(each, module, _levels(level, variable), fields)


def advice() -> dict[str, str]:
    """Return what to do, by the name of the event."""
    return {name: str(text) for name, text in tomllib.loads(ADVICE.read_text())["advice"].items()}


def _modules() -> Iterator[tuple[str, str]]:
    """The source of each module of the package that may log, after its name."""
    for path in sorted((ROOT / "pybroker").rglob("*.py")):
        if (ROOT / "pybroker/core") not in path.parents:
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), path.read_text()


def events() -> list[Event]:
    """Every event of the package, once for each module that logs it."""
    facts = tomllib.loads(ADVICE.read_text())
    found: dict[tuple[str, str], Event] = {}
    for module, source in _modules():
        for each in calls_of(source, module, facts):
            before = found.get((each.name, module))
            levels = dict.fromkeys((*(before.levels if before else ()), *each.levels))
            fields = dict.fromkeys((*(before.fields if before else ()), *each.fields))
            found[each.name, module] = Event(each.name, module, tuple(levels), tuple(fields))
    return sorted(found.values())


def lines() -> list[tuple[str, str, str]]:
    """The lines that are sentences, not events: text, level and module of each call like `log.warning(text, ...)`."""
    found = []
    for module, source in _modules():
        tree = ast.parse(source)
        for node in ast.walk(tree):
            level = METHODS.get(getattr(getattr(node, "func", None), "attr", ""))
            if isinstance(node, ast.Call) and level and node.args and "log" in ast.unparse(node.func):
                texts = _strings(node.args[0]) or _values(tree, ast.unparse(node.args[0])) or ["(the reason)"]
                found += [(re.sub(r"%r|%s|%d|%[.\w]*", "…", text), level, module) for text in texts]
    return sorted(set(found))


def _group(module: str) -> str:
    return next(title for title, rooms in GROUPS for room in rooms if module == room or module.startswith(f"{room}."))


def page() -> str:
    """The text of docs/logs.md."""
    known, found = advice(), events()
    parts = [HEAD]
    for title, _ in GROUPS:
        rows = [each for each in found if _group(each.module) == title]
        if not rows:
            continue
        parts.append(f"## {title}\n\n| event, level, module | fields | what to do |\n|---|---|---|\n")
        for each in rows:
            level = ", ".join(sorted(each.levels, key=LEVELS.index))
            fields = f"`{' '.join(each.fields)}`" if each.fields else ""
            module = each.module.removeprefix("pybroker.")
            parts.append(f"| **{each.name}**<br>{level}, {module} | {fields} | {known.get(each.name, '')} |\n")
        parts.append("\n")
    parts.append(LINES)
    parts += [f"| {text} | {level} | {module.removeprefix('pybroker.')} |\n" for text, level, module in lines()]
    return "".join(parts).rstrip("\n").replace("\n## ", "\n\n## ").replace("\n\n\n", "\n\n") + "\n"


def problems() -> list[str]:
    """A line for each event that lacks advice, and for each advice whose event is gone."""
    known, found = advice(), events()
    need = {each.name for each in found if NEED_ADVICE & set(each.levels)}
    lines = [f"no advice: {name}" for name in sorted(need - set(known))]
    return lines + [f"advice without an event: {name}" for name in sorted(set(known) - {each.name for each in found})]


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.stderr.writelines(f"{line}\n" for line in problems())
