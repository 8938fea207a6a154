"""Results as tables on a terminal, aligned text in a pipe, or JSON."""

import base64
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import click

from pybroker import model
from pybroker.logs import printable
from pybroker.model import bytes_text

_NUMBER: Final = re.compile(r"-?[0-9][0-9,]*(\.[0-9]+)?( ([kMGTP]?B|%))?")
Cell = str | int | float | None
Document = model.Document
"""A JSON object, as a command prints it or a file has it."""
Options = Mapping[str, Any]
"""The values of a command's options by name, as click passes them; each option's type defines its value's."""


def as_json(document: object) -> None:
    """Write one JSON document to standard output; bytes that are not text become {"base64": ...}."""
    click.echo(json.dumps(document, indent=2, default=_jsonable))


def as_json_line(document: object) -> None:
    """Write one line of JSON Lines."""
    click.echo(json.dumps(document, separators=(",", ":"), default=_jsonable))


def as_json_line_of(document: Document, name: str, items: Iterable[object]) -> None:
    """Write one line of JSON Lines whose last member, `name`, is an array written item by item."""
    head = json.dumps(document, separators=(",", ":"), default=_jsonable)
    click.echo(f"{head[:-1]},{json.dumps(name)}:[", nl=False)
    for index, item in enumerate(items):
        text = json.dumps(item, separators=(",", ":"), default=_jsonable)
        sys.stdout.write(f",{text}" if index else text)  # without a flush after each item
    click.echo("]}")


def _jsonable(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return readable(bytes(value))
    raise TypeError(f"{type(value).__name__} has no JSON form")


def readable(data: bytes) -> str | dict[str, str]:
    """Return bytes for JSON: text if they are UTF-8, else {"base64": ...}."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def text(value: Cell) -> str:
    """Return a cell as text; a dash for None."""
    return "-" if value is None else str(value)


def count(number: int | None) -> str | None:
    """Return a count for people: 1,234,567. Offsets stay without commas, because people paste them into commands."""
    return None if number is None else f"{number:,}"


def size(number: int | None) -> str | None:
    """Return a number of bytes for people: 999 B, 1.5 kB, 12.3 MB."""
    return None if number is None else bytes_text(number)


def table(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """A table on standard output. Columns of numbers are right-aligned; nothing is cut off in a pipe.

    Control characters in names (groups, client ids) are escaped, so the terminal does not obey them.
    """
    body = [[printable(text(cell)) for cell in row] for row in rows]
    numeric = [_is_numeric([row[at] for row in body]) for at in range(len(columns))]
    if sys.stdout.isatty():
        _rich_table(columns, body, numeric)
    else:
        _plain_table(columns, body, numeric)


def _is_numeric(cells: Sequence[str]) -> bool:
    """True if a column holds numbers; some may be missing."""
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
