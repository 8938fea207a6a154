"""Check a schema in Spark's DDL, `id bigint, kind string`, without Spark, whose parser needs a JVM.

Only what is surely wrong is refused: text outside this grammar is left to Spark's parser.

    columns   name [:] type [NOT NULL] [COMMENT 'text'], ...
    type      array<type>, map<type, type>, struct<columns>, or a name in TYPES with numbers in parentheses
"""

import difflib
import re
from typing import Final

TYPES: Final = frozenset((
    "bigint", "binary", "boolean", "byte", "char", "character", "date", "dec", "decimal", "double", "float",
    "geography", "geometry", "int", "integer", "interval", "long", "numeric", "real", "short", "smallint", "string",
    "time", "timestamp", "timestamp_ltz", "timestamp_ntz", "tinyint", "varchar", "variant", "void",
))  # fmt: skip
NESTED: Final = frozenset(("array", "map", "struct"))
_UNITS: Final = frozenset(("year", "month", "day", "hour", "minute", "second", "to"))
_TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)+`|\w+|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|[<>(),:])\s*")


class _Unclear(Exception):
    """Only Spark's parser can judge the text."""


def column_names(text: str) -> list[str] | None:
    """Return the names of the columns; None if only Spark can judge the text. ValueError says what is wrong."""
    try:
        return _Parser(text).columns()
    except _Unclear:
        return None


class _Parser:
    """Reads one schema from left to right."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        at, end = 0, len(text)
        while at < end:
            found = _TOKEN.match(text, at)
            if found is None:
                raise _Unclear
            self._tokens.append(found[1])
            at = found.end()
        self._at = 0

    def columns(self) -> list[str]:
        if self._peek().lower() == "struct" and self._peek(1) == "<":
            raise _Unclear
        names = self._fields(end="")
        if self._peek():
            raise ValueError(f"unexpected {self._peek()} after column {names[-1]}")
        return names

    def _peek(self, ahead: int = 0) -> str:
        """The next token, or one after it; empty at the end."""
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _fields(self, end: str) -> list[str]:
        names: list[str] = []
        while True:
            name = self._next()
            if not name:
                raise ValueError("it ends with a comma" if names else "it has no column")
            if not _is_name(name):
                raise ValueError(f"a column is missing before {name}")
            names.append(name[1:-1].replace("``", "`") if name.startswith("`") else name)
            if self._peek() == ":":
                self._next()
            self._type(names[-1])
            self._attributes()
            if self._peek() != ",":
                return names
            self._next()
            if end and self._peek() == end:
                raise ValueError(f"a column is missing before {end}")

    def _type(self, column: str) -> None:
        token = self._next()
        if not token or token in ",>)":
            raise ValueError(f"column {column} has no type")
        kind = token.lower()
        if kind in NESTED:
            self._nested(column, kind)
        elif kind in TYPES:
            self._scalar(kind)
        elif not _is_name(token) or token.startswith("`"):
            raise _Unclear
        else:
            near = difflib.get_close_matches(kind, TYPES | NESTED, 1)
            hint = f": did you mean {near[0]}?" if near else ""
            raise ValueError(f"column {column} has the unknown type {token}{hint}")

    def _nested(self, column: str, kind: str) -> None:
        self._expect("<", column)
        if kind == "struct":
            if self._peek() != ">":
                self._fields(end=">")
        else:
            self._type(column)
            if kind == "map":
                self._expect(",", column)
                self._type(column)
        self._expect(">", column)

    def _scalar(self, kind: str) -> None:
        """The rest of a type: numbers in parentheses, the units of an interval, the collation of a string."""
        if self._peek() == "(":
            while (token := self._next()) != ")":
                if not token or not (token in "(," or token.isdigit()):
                    raise _Unclear
        if kind == "interval":
            while self._peek().lower() in _UNITS:
                self._next()
        elif kind == "string" and self._peek().lower() == "collate":
            self._at += 2

    def _attributes(self) -> None:
        while (token := self._peek()) and token not in ",<>():":
            word = token.lower()
            if word == "not" and self._peek(1).lower() == "null":
                self._at += 2
            elif word == "comment" and self._peek(1)[:1] in ("'", '"'):
                self._at += 2
                while self._peek()[:1] in ("'", '"'):
                    self._next()
            elif _is_name(token) and (self._peek(1).lower() in TYPES | NESTED or self._peek(1) == ":"):
                raise ValueError(f"a comma is missing before {token}")
            else:
                raise _Unclear

    def _expect(self, token: str, column: str) -> None:
        if not self._peek():
            raise ValueError(f"column {column}: a {token} is missing")
        if self._next() != token:
            raise _Unclear


def _is_name(token: str) -> bool:
    return token.startswith("`") or re.fullmatch(r"\w+", token) is not None
