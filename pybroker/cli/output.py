"""How results are written: tables for people, aligned text where nobody watches, JSON for programs."""

import base64
import json
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click

from pybroker.logs import printable

SIZE_UNITS: Final = ("kB", "MB", "GB", "TB", "PB")
_NUMBER: Final = re.compile(r"-?[0-9][0-9,]*(\.[0-9]+)?( ([kMGTP]?B))?")
Cell = str | int | float | None


def as_json(document: Any) -> None:
    """One JSON document on standard output; bytes that are not text come as {"base64": ...}."""
    click.echo(json.dumps(document, indent=2, default=_jsonable))


def as_json_line(document: Any) -> None:
    """One line of JSON Lines."""
    click.echo(json.dumps(document, separators=(",", ":"), default=_jsonable))


def as_json_line_of(document: dict[str, Any], name: str, items: Iterable[Any]) -> None:
    """One line of JSON Lines whose last member, `name`, is an array that is written as it comes."""
    head = json.dumps(document, separators=(",", ":"), default=_jsonable)
    click.echo(f"{head[:-1]},{json.dumps(name)}:[", nl=False)
    for index, item in enumerate(items):
        text = json.dumps(item, separators=(",", ":"), default=_jsonable)
        sys.stdout.write(f",{text}" if index else text)  # which does not flush each of a million
    click.echo("]}")


def _jsonable(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return readable(bytes(value))
    raise TypeError(f"{type(value).__name__} has no JSON form")


def readable(data: bytes) -> str | dict[str, str]:
    """Bytes in JSON: text if they are UTF-8, else {"base64": ...}."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def text(value: Cell) -> str:
    """A cell as text: a dash for what is not there."""
    return "-" if value is None else str(value)


def count(number: int | None) -> str | None:
    """How many, as people read it: 1,234,567. Offsets stay as they are: they are typed and pasted into commands."""
    return None if number is None else f"{number:,}"


def size(number: int | None) -> str | None:
    """How many bytes, in the unit that leaves one to three digits before the point: 999 B, 1.5 kB, 12.3 MB."""
    if number is None or number < 1000:
        return None if number is None else f"{number} B"
    power = next((p for p in range(1, len(SIZE_UNITS)) if number < 999.95 * 1000**p), len(SIZE_UNITS))
    return f"{number / 1000**power:,.1f} {SIZE_UNITS[power - 1]}"


def moment(timestamp_ms: int) -> str:
    """Milliseconds since the epoch as UTC; the number itself where it is none that a calendar has."""
    if timestamp_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"


def table(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """A table on standard output. A column of numbers is set to the right; nothing is cut off in a pipe.

    Names that others chose (groups, client ids) are shown, never obeyed by the terminal.
    """
    body = [[printable(text(cell)) for cell in row] for row in rows]
    numeric = [_is_numeric([row[at] for row in body]) for at in range(len(columns))]
    if sys.stdout.isatty():
        _rich_table(columns, body, numeric)
    else:
        _plain_table(columns, body, numeric)


def _is_numeric(cells: Sequence[str]) -> bool:
    """Whether a column holds numbers, some of which may be missing."""
    there = [cell for cell in cells if cell not in ("-", "")]
    return bool(there) and all(_NUMBER.fullmatch(cell) for cell in there)


def _plain_table(columns: Sequence[str], body: Sequence[Sequence[str]], numeric: Sequence[bool]) -> None:
    lines = [[name.upper() for name in columns], *body]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        )
        click.echo("  ".join(cells).rstrip())


def _rich_table(columns: Sequence[str], body: Sequence[Sequence[str]], numeric: Sequence[bool]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, right in zip(columns, numeric, strict=True):
        shown.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in body:
        shown.add_row(*(Text(cell) for cell in row))
    Console().print(shown)
