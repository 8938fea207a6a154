"""A topic as a polars LazyFrame, of which only the columns, offsets and times that a query needs are read."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Unpack

from pybroker.frames.bad_records import OnError, collected_of_scan
from pybroker.frames.layouts import PREFIX, names_of
from pybroker.frames.ranges import EARLIEST, LATEST, NO_BOUNDS, Bound, Within
from pybroker.frames.reading import scanned
from pybroker.frames.scanning import INFER_ROWS, Format, Scan, TopicRequest
from pybroker.frames.schemas import SchemaLike
from pybroker.frames.sources import LogDirs, ReadSettings, Servers, all_settings

if TYPE_CHECKING:
    import polars as pl

_TURNED: Final = {"Gt": "Lt", "GtEq": "LtEq", "Lt": "Gt", "LtEq": "GtEq", "Eq": "Eq"}
_PER_MS: Final = {"Milliseconds": 1, "Microseconds": 1_000, "Nanoseconds": 1_000_000}


def scan_polars(
    topic: str,
    *,
    bootstrap_servers: Servers | None = None,
    start: Bound = EARLIEST,
    end: Bound = LATEST,
    partitions: Iterable[int] | None = None,
    columns: Iterable[str] | None = None,
    format: Format | None = None,
    schema: SchemaLike | None = None,
    schema_registry: str | None = None,
    registry_config: Mapping[str, str] | None = None,
    on_error: OnError = "raise",
    infer_rows: int = INFER_ROWS,
    log_dir: LogDirs | None = None,
    **settings: Unpack[ReadSettings],
) -> pl.LazyFrame:
    """The same as scan_topic for polars, which decides what is read: the columns that a query uses, its first rows, and
    what it asks of kafka_partition, kafka_offset (from, to) and kafka_timestamp (from).

    Each `collect` reads the topic anew, from and to where it is then. Other conditions are checked batch by batch."""
    try:
        import polars
        from polars.io.plugins import register_io_source
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("scan_polars needs polars: pip install polars", name=error.name) from error

    collected_of_scan(on_error)
    request = TopicRequest(
        topic, log_dir, all_settings(bootstrap_servers, settings), start, end,
        None if partitions is None else list(partitions), None if columns is None else names_of(columns),
        format, schema, schema_registry, registry_config, None, infer_rows,
    )  # fmt: skip

    @functools.cache
    def found() -> TopicRequest:
        """The request with the types that were inferred for all columns, so that each read has them."""
        if not request.infers:
            return request
        with Scan(request) as scan:
            return replace(request, schema=scan.fields)

    @functools.cache
    def frame_schema() -> pl.Schema:
        with Scan(found()) as scan:
            return polars.DataFrame(scan.layout.schema.empty_table()).schema

    def frames(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        wanted = found()
        if with_columns is not None:
            wanted = replace(wanted, columns=with_columns or [f"{PREFIX if format else ''}offset"])
        within = NO_BOUNDS if predicate is None else _within(predicate, PREFIX if format else "")
        scan = Scan(replace(wanted, n_rows=n_rows, within=within))
        for batch in scanned(scan, collected_of_scan(on_error)):
            frame = polars.DataFrame(batch)
            yield frame if predicate is None else frame.filter(predicate)

    return register_io_source(frames, schema=frame_schema)


# -- what a query asks of offsets and times ----------------------------------------------------------------------------


def _within(predicate: pl.Expr, prefix: str) -> Within:
    """The partitions, offsets and times that a predicate leaves; all where polars serializes it in another form."""
    try:
        document = json.loads(predicate.meta.serialize(format="json"))
    except Exception:  # polars promises nothing of this text
        return NO_BOUNDS
    within = NO_BOUNDS
    for column, operator, number in _conditions(document):
        name = column.removeprefix(prefix)
        if name in ("partition", "offset", "timestamp") and column == prefix + name:
            within = within.also(name, operator, number)
    return within


def _conditions(node: object) -> Iterator[tuple[str, str, int]]:
    """(column, operator, number) of comparisons that all hold."""
    if not isinstance(node, dict):
        return
    binary, function = node.get("BinaryExpr"), node.get("Function")
    if isinstance(function, dict) and "IsBetween" in str(function.get("function")) and len(function["input"]) == 3:
        column, low, high = function["input"]  # closed or not: the range may be one too wide
        yield from _conditions({"BinaryExpr": {"left": column, "op": "GtEq", "right": low}})
        yield from _conditions({"BinaryExpr": {"left": column, "op": "LtEq", "right": high}})
    if not isinstance(binary, dict):
        return
    left, operator, right = binary.get("left"), binary.get("op"), binary.get("right")
    if operator in ("And", "LogicalAnd"):
        yield from _conditions(left)
        yield from _conditions(right)
        return
    if isinstance(right, dict) and "Column" in right:
        left, right, operator = right, left, _TURNED.get(str(operator))
    number = _number(right)
    if operator in _TURNED and number is not None and isinstance(left, dict) and isinstance(left.get("Column"), str):
        yield left["Column"], str(operator), number


def _number(node: object) -> int | None:
    """The whole number, or the time in milliseconds (rounded down), that a literal is."""
    if not isinstance(node, dict) or len(node) != 1:
        return None
    [(kind, inner)] = node.items()
    if kind in ("Literal", "Scalar", "Dyn"):
        return _number(inner)
    if kind.startswith(("Int", "UInt")) and isinstance(inner, int):
        return inner
    if kind == "Datetime" and isinstance(inner, list) and isinstance(inner[0], int) and inner[1] in _PER_MS:
        return inner[0] // _PER_MS[inner[1]]
    return None
