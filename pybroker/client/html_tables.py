"""Values as HTML tables, for notebooks, which ask for `_repr_html_`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

ROWS_SHOWN: Final = 20
"""Rows of a table; a line below it counts those that it leaves out."""
BYTES_SHOWN: Final = 80


def table(title: str, headings: Sequence[str], rows: Iterable[Sequence[object]], total: int) -> str:
    """A table of the first rows; `total` is how many there are."""
    from html import escape  # only needed in notebooks: it loads the table of all entities

    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    shown = list(rows)[:ROWS_SHOWN]
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell(value))}</td>' for value in row)}</tr>" for row in shown)
    more = f"<p>and {total - len(shown)} more</p>" if total > len(shown) else ""
    return f"<p><b>{escape(title)}</b></p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def cell(value: object) -> str:
    """A value as text: bytes that are UTF-8 as they read, others in hexadecimal."""
    if value is None:
        return "null"
    if isinstance(value, bytes):
        more = "..." if len(value) > BYTES_SHOWN else ""
        short = value[:BYTES_SHOWN]
        try:
            return short.decode() + more if short.decode().isprintable() else short.hex() + more
        except UnicodeDecodeError:
            return short.hex() + more
    if isinstance(value, tuple | list):
        return ", ".join(map(cell, value))
    return str(value)
