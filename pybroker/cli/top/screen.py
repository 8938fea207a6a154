"""Shows a document of `pybroker top`: as tables that fill a terminal, or as text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from pybroker.cli import output
from pybroker.cli.output import Cell, Document
from pybroker.logs import printable
from pybroker.operations.health import counted, ids, times

if TYPE_CHECKING:
    from rich.console import RenderableType

SORTS: Final = {
    "records": "records_per_s", "in": "bytes_in_per_s", "out": "bytes_out_per_s", "size": "size_bytes",
    "topic": "topic",
}  # fmt: skip
"""What topics can be sorted by, and the member of the document; the largest first, names ascending."""
PROBLEMS_MAX: Final = 5
FRAME_LINES: Final = 3
"""The lines of a table besides its rows: its heading, a rule, and an empty one."""
LEAST_ROWS: Final = 3


class Section(NamedTuple):
    """A table; `share` is its part of the lines that the brokers' table leaves."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]
    share: float = 0.0


def headline(document: Document) -> str:
    """Return the state of the cluster in one line."""
    total = sum(topic["partitions"] for topic in document["topics"])
    states = counted(each["state"] for each in document["troubled"])
    lacks = ", ".join(f"{number:,} {state}" for state, number in states.items() if number) or "each replica in sync"
    return (
        f"Cluster {output.text(document['cluster'])}  controller {output.text(document['controller'])}  "
        f"{times(len(document['brokers']), 'broker')}  {times(total, 'partition')}: {lacks}"
    )


def problems(document: Document) -> list[str]:
    """Return a line for each thing that is wrong, or that no broker answered."""
    found: list[str] = list(document["problems"])
    if document["controller"] is None:
        found.insert(0, "no controller is elected")
    if document["not_registered"]:
        found.insert(0, f"not registered, but named as replicas: {ids(document['not_registered'])}")
    full = [(b["id"], d) for b in document["brokers"] for d in b["log_dirs"] if d["error"]]
    return found + [f"broker {broker}: {d['path']} is offline: {d['error']}" for broker, d in full]


def sections(document: Document, sort: str) -> list[Section]:
    """Return the tables: brokers, topics, groups with the largest lag first, and reassignments."""
    topics = sorted(document["topics"], key=lambda each: str(each["topic"]))
    if sort != "topic":
        topics.sort(key=lambda each: -(each[SORTS[sort]] or 0))
    groups = sorted(document["groups"], key=lambda each: (-(each["lag"] or 0), each["group"]))
    moving = [
        (f"{each['topic']}-{each['partition']}", ids(each["replicas"]), ids(each["adding"]), ids(each["removing"]))
        for each in document["reassignments"]
    ]
    found = [
        Section(
            ("broker", "address", "leaders", "in sync", "in/s", "out/s", "requests/s", "99 % within", "disk free"),
            [_broker(each) for each in document["brokers"]],
        ),
        Section(
            ("topic", "partitions", "troubled", "records/s", "in/s", "out/s", "size"),
            [
                (
                    each["topic"], each["partitions"], each["troubled"], _number(each["records_per_s"]),
                    _size(each["bytes_in_per_s"]), _size(each["bytes_out_per_s"]), output.size(each["size_bytes"]),
                )
                for each in topics
            ],
            0.5,
        ),
        Section(
            ("group", "state", "lag"),
            [(each["group"], each["state"] or None, output.count(each["lag"])) for each in groups], 0.3,
        ),
        Section(("moving", "replicas", "adding", "removing"), moving, 0.2),
    ]  # fmt: skip
    return [each for each in found if each.rows]


def _broker(each: Document) -> tuple[Cell, ...]:
    slow = next(iter((each["p99_ms"] or {}).items()), None)
    disks = [
        f"{output.size(d['usable_bytes'])} of {output.size(d['total_bytes'])}"
        for d in each["log_dirs"]
        if d["usable_bytes"] is not None and d["total_bytes"]
    ]
    return (
        each["id"] if each["answers"] else f"{each['id']} does not answer", f"{each['host']}:{each['port']}",
        each["leaders"], f"{each['in_sync']} of {each['replicas']}", _size(each["bytes_in_per_s"]),
        _size(each["bytes_out_per_s"]), _number(each["requests_per_s"]),
        None if slow is None else f"{slow[1]:g} ms ({slow[0]})", ", ".join(disks) or None,
    )  # fmt: skip


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"


def _size(value: float | None) -> str | None:
    return None if value is None else output.size(int(value))


def show(document: Document, sort: str) -> None:
    """Write a document to standard output as text."""
    click.echo(printable(headline(document)))
    for line in problems(document):
        click.echo(printable(f"- {line}"))
    for section in sections(document, sort):
        click.echo()
        output.table(section.columns, section.rows)


def shares(lengths: Sequence[int], parts: Sequence[float], lines: int) -> list[int]:
    """Return how many rows of each table fit into these lines. The first is whole if there is room; each of the others
    has its part of the rest, at least LEAST_ROWS. What a table does not need goes to the others, in their order."""
    found = []
    left = lines - FRAME_LINES * len(lengths)
    for at, (length, part) in enumerate(zip(lengths, parts, strict=True)):
        rest = sum(parts[at:])
        most = left if not part else max(LEAST_ROWS, round(left * part / rest))
        found.append(max(0, min(length, most, left)))
        left -= found[-1]
    for at, length in enumerate(lengths):
        more = max(0, min(length - found[at], left))
        found[at] += more
        left -= more
    return found


def frame(document: Document, sort: str, note: str, height: int) -> "RenderableType":
    """Return a document as a screen of `height` lines, with a last line for the keys and `note`."""
    from rich.console import Group
    from rich.text import Text

    wrong = problems(document)
    shown = [*wrong[:PROBLEMS_MAX], *([f"and {len(wrong) - PROBLEMS_MAX} more"] if len(wrong) > PROBLEMS_MAX else [])]
    tables = sections(document, sort)
    lines = height - 3 - len(shown)
    rows = shares([len(each.rows) for each in tables], [each.share for each in tables], lines)
    return Group(
        Text(printable(headline(document)), style="bold", no_wrap=True, overflow="ellipsis"),
        *(Text(printable(line), style="red", no_wrap=True, overflow="ellipsis") for line in shown),
        Text(),
        *(part for each, most in zip(tables, rows, strict=True) for part in (_table(each, most), Text()) if most),
        Text(printable(f"q quit   s sort: {sort}   {note}"), style="dim", no_wrap=True, overflow="ellipsis"),
    )


def _table(section: Section, most: int) -> "RenderableType":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for at, name in enumerate(section.columns):
        is_number = at > 0 and name not in ("address", "state", "99 % within", "replicas", "adding", "removing")
        shown.add_column(name, justify="right" if is_number else "left", no_wrap=True, overflow="ellipsis")
    for row in section.rows[:most]:
        shown.add_row(*(Text(printable(output.text(cell))) for cell in row))
    return shown
