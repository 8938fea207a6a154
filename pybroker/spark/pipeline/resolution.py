"""Avro records read by the schema that they were written by, and given as rows of the job's: Avro's schema resolution.

    frame's id -> writer's schema -> checked, without names twice -> fastavro (writer -> reader) -> row

Fields are matched by name, in any order. Fields that the job does not have are skipped; fields that the writer did not
have get the job's default. fastavro resolves types; the logical types of both sides are resolved here. A time keeps its
meaning in another unit, a plain number is a time in the job's unit, and a time is a plain number for a job without a
logical type. A writer's schema comes from outside: `_Inlined` lists what is refused.
"""

import copy
import functools
import io
import json
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

from pybroker.errors import KafkaError
from pybroker.spark.pipeline.writer_schemas import FRAME_BYTES, SCHEMAS_MAX, NoSchema, WriterSchemas, Written, framed_id

NODES_MAX: Final = 10_000
"""Types in a writer's schema, each counted where it is used: what one record without a byte could cost."""
WORDS_MAX: Final = 200
_PREFIX: Final = "pybroker-"
_PLAIN: Final = "plain"
_DECIMAL: Final = "decimal"
_TIMES: Final = ("timestamp-millis", "timestamp-micros", "timestamp-nanos")
_OTHERS: Final = ("date", "time-millis", "time-micros", *(f"local-{each}" for each in _TIMES))
_NUMBERS: Final = ("int", "long")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DATE: Final = date(1970, 1, 1)
_WIDTHS: Final = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}
"""The least bytes that a value takes."""

Decoded = tuple[dict[str, Any] | None, str | None]


class Resolver:
    """Reads framed values as rows of one schema, the job's; made in the worker that reads them."""

    def __init__(self, job: Mapping[str, Any], schemas: WriterSchemas) -> None:
        import fastavro

        self._schemas = schemas
        self._known = fastavro.parse_schema(dict(job))
        self._shape = _shape(_Inlined({}).schema(self._known))
        self._has_times = '"logicalType"' in json.dumps(job)
        self._reader = _with_native_defaults(fastavro.parse_schema(dict(job)))
        # That an id is unknown is kept for this task alone: it may be known to those after it.
        self._of = functools.lru_cache(maxsize=SCHEMAS_MAX)(self._prepared)

    def decode(self, value: bytes) -> Decoded:
        """(row, None) or (None, why not). Raises KafkaError where the registry does not say."""
        import fastavro

        number = framed_id(value)
        if number is None:
            return None, "the value does not begin with the frame of a schema registry"
        found = self._of(number)
        if isinstance(found, str):
            return None, f"schema {number} {found}"
        source = io.BytesIO(value[FRAME_BYTES:])
        try:
            row = fastavro.schemaless_reader(source, found.writer, found.reader)
        except fastavro.read.SchemaResolutionError as error:
            return None, f"a record of schema {number} is none of the job's: {_words(error)}"
        except Exception:  # bytes that are not of the schema fail in as many ways as there are types
            return None, f"the value is no Avro record of schema {number}, which it names"
        if not isinstance(row, dict) or source.tell() != len(value) - FRAME_BYTES:
            return None, f"the value is no Avro record of schema {number}, which it names"
        return row, None

    def _prepared(self, number: int) -> "_Pair | str":
        """The schemas to read records of an id by, or the reason why they cannot be read."""
        import fastavro

        try:
            written = self._schemas.schema(number)
            whole = _whole(written)
            if _shape(whole) == self._shape:
                return _Pair(self._known, None)
            tagged = fastavro.parse_schema(_tagged(whole, self._has_times))
        except NoSchema as error:
            return str(error)
        except KafkaError:
            raise
        except Exception as error:  # fastavro raises several kinds, and KeyError, for what is no schema
            return f"is no schema of Avro: {_words(error)}"
        _learn_logical_types()
        return _Pair(tagged, self._reader)


class _Pair(NamedTuple):
    """The two schemas that fastavro is given; no reader where both are the same in all that counts."""

    writer: Any
    reader: Any


def _words(error: Exception) -> str:
    """The first line of an exception, short: it may have a schema in it."""
    text = (str(error).splitlines() or [""])[0] or type(error).__name__
    return text if len(text) <= WORDS_MAX else f"{text[:WORDS_MAX]}..."


def _whole(written: Written) -> Any:
    """A schema with what it refers to in it. NoSchema for one that is not read."""
    import fastavro

    named: dict[str, Any] = {}
    for reference in written.references:
        fastavro.parse_schema(reference, named)
    parsed = fastavro.parse_schema(written.schema, named)
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise NoSchema("is no record")
    return _Inlined(named).schema(parsed)


class _Inlined:
    """Makes a copy of a parsed schema of what counts for reading, each named type written out where it is used.

    NoSchema for a schema that a few bytes of a record could do harm by: one that is recursive, for fastavro reads it on
    the C stack; one whose arrays have items of no bytes, of which a record may claim any number; one that is very
    large when it is written out."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = dict(named)
        self._open: list[str] = []
        self._used: set[str] = set()
        self._nodes = 0

    def schema(self, parsed: Any) -> Any:
        return self._made(parsed)[0]

    def _made(self, parsed: Any) -> tuple[Any, int]:
        """(copy, the least bytes that a value of it takes)."""
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise NoSchema(f"has more than {NODES_MAX} types")
        if isinstance(parsed, list):
            return [self._made(each)[0] for each in parsed], 1
        if isinstance(parsed, str):
            if parsed in _WIDTHS:
                return parsed, _WIDTHS[parsed]
            if parsed in self._open:
                raise NoSchema("is recursive")
            return self._made(self._named[parsed])
        kind, logical = parsed["type"], parsed.get("logicalType")
        more = {"logicalType": logical} if isinstance(logical, str) else {}
        if logical == _DECIMAL:
            more |= {"precision": parsed["precision"], "scale": parsed.get("scale", 0)}
        if kind in ("record", "error", "enum", "fixed"):
            made, least = self._of_name(parsed, kind)
        elif kind in ("array", "map"):
            inside = "items" if kind == "array" else "values"
            items, width = self._made(parsed[inside])
            if width <= 0 and kind == "array":
                raise NoSchema("has an array whose items take no bytes")
            made, least = {"type": kind, inside: items}, 1
        else:
            made, least = self._made(kind)
            if not isinstance(made, str):
                return made, least
            if not more:
                return made, least
            made = {"type": made}
        return {**made, **more}, least

    def _of_name(self, parsed: Mapping[str, Any], kind: str) -> tuple[dict[str, Any], int]:
        name = parsed["name"]
        made: dict[str, Any] = {"type": kind, "name": name}
        if name in self._used:  # a name is given once: a copy has one in a namespace of its own
            made["name"] = f"_{self._nodes}.{name.rpartition('.')[2]}"
        self._used.add(name)
        self._named[name] = parsed
        if kind == "enum":
            return made | {"symbols": parsed["symbols"]}, 1
        if kind == "fixed":
            if parsed["size"] < 0:
                raise NoSchema(f"has a fixed of {parsed['size']} bytes")
            return made | {"size": parsed["size"]}, int(parsed["size"])
        self._open.append(name)
        fields, least = [], 0
        for field in parsed["fields"]:
            inner, width = self._made(field["type"])
            fields.append({"name": field["name"], "type": inner})
            least += width
        self._open.pop()
        return made | {"fields": fields}, least


def _shape(schema: Any) -> Any:
    """A copied schema without the namespaces, by which no two records differ."""
    if isinstance(schema, list):
        return [_shape(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: value for key, value in schema.items() if key not in ("name", "fields", "items", "values")}
    made |= {key: _shape(schema[key]) for key in ("items", "values") if key in schema}
    if "name" in schema:
        made["name"] = schema["name"].rpartition(".")[2]
    if "fields" in schema:
        made["fields"] = [(field["name"], _shape(field["type"])) for field in schema["fields"]]
    return made


# -- logical types -----------------------------------------------------------------------------------------------------


def _tagged(schema: Any, plain: bool) -> Any:
    """The copied schema with logical types of ours on times and uuids, whose readers see the job's type too; others
    are read as what they are made of. plain: numbers too, for a job that may have times in their place. It costs a
    call for each."""
    if isinstance(schema, list):
        return [_tagged(each, plain) for each in schema]
    if isinstance(schema, str):
        return {"type": schema, "logicalType": f"{_PREFIX}{_PLAIN}"} if plain and schema in _NUMBERS else schema
    kind, logical = schema["type"], schema.get("logicalType")
    made = {key: value for key, value in schema.items() if key != "logicalType"}
    if kind in _NUMBERS:
        return made | {"logicalType": f"{_PREFIX}{logical if logical in (*_TIMES, *_OTHERS) else _PLAIN}"}
    if kind == "string":
        return made | {"logicalType": f"{_PREFIX}uuid"} if logical == "uuid" else kind
    if logical == _DECIMAL:
        return made | {"logicalType": f"{_PREFIX}{_DECIMAL}"}
    for inside in ("items", "values"):
        if inside in made:
            made[inside] = _tagged(made[inside], plain)
    if "fields" in made:
        made["fields"] = [{**field, "type": _tagged(field["type"], plain)} for field in made["fields"]]
    return made


@functools.cache
def _learn_logical_types() -> None:
    """Give fastavro the readers of our logical types: under names of our own, so that those of other programs stay."""
    import fastavro

    known = fastavro.read.LOGICAL_READERS
    known[f"string-{_PREFIX}uuid"] = _uuid
    known[f"bytes-{_PREFIX}{_DECIMAL}"] = known[f"fixed-{_PREFIX}{_DECIMAL}"] = _decimal
    for kind in _NUMBERS:
        for logical in (_PLAIN, *_TIMES, *_OTHERS):
            known[f"{kind}-{_PREFIX}{logical}"] = functools.partial(_number, logical)


def _number(logical: str, data: int, _: Any, reader: Any) -> Any:
    """A number of the writer, as the job has it: a float, a time or a date, or as it is."""
    import fastavro

    wanted = reader.get("logicalType") if isinstance(reader, dict) else None
    kind = reader.get("type") if isinstance(reader, dict) else reader
    if wanted in (*_TIMES, "date"):
        if logical not in (_PLAIN, wanted) and not (logical in _TIMES and wanted in _TIMES):
            raise fastavro.read.SchemaResolutionError(f"{logical} is not {wanted}")
        return _native(data, wanted if logical == _PLAIN else logical)
    return float(data) if kind in ("float", "double") else data


def _native(data: int, logical: str) -> Any:
    """A number as the time or the date that it is. OverflowError for one that Python does not have."""
    if logical == "date":
        return _EPOCH_DATE + timedelta(days=data)
    if logical == "timestamp-nanos":
        return _EPOCH + timedelta(microseconds=data // 1_000)
    return _EPOCH + timedelta(microseconds=data if logical == "timestamp-micros" else data * 1_000)


def _decimal(data: bytes, writer: Any, reader: Any) -> Any:
    """The writer's number with the writer's scale; Arrow gives it the job's, or refuses it."""
    if not isinstance(reader, dict) or reader.get("logicalType") != _DECIMAL:
        return data
    return Decimal(f"{int.from_bytes(data, signed=True)}E-{writer['scale']}")


def _uuid(data: str, _: Any, reader: Any) -> Any:
    wanted = reader.get("logicalType") if isinstance(reader, dict) else None
    kind = reader.get("type") if isinstance(reader, dict) else reader
    if wanted == "uuid":
        return str(UUID(data))
    return data.encode() if kind == "bytes" else data


# -- defaults ----------------------------------------------------------------------------------------------------------


def _with_native_defaults(parsed: Any) -> Any:
    """A parsed schema whose defaults are values as records have them: fastavro gives what stands in the JSON."""
    made = copy.deepcopy(parsed)
    _each_record(made, _set_defaults)
    return made


def _each_record(schema: Any, act: Callable[[dict[str, Any]], None]) -> None:
    """Call with each record of a schema, the inner ones first."""
    if isinstance(schema, list):
        for each in schema:
            _each_record(each, act)
    elif isinstance(schema, dict):
        for inside in ("type", "items", "values"):
            _each_record(schema.get(inside), act)
        for field in schema.get("fields", ()):
            _each_record(field["type"], act)
        if "fields" in schema:
            act(schema)


def _set_defaults(record: dict[str, Any]) -> None:
    for field in record["fields"]:
        if "default" in field:
            field["default"] = _of_json(field["default"], field["type"])


def _of_json(value: Any, schema: Any) -> Any:
    """The value that a default stands for. The defaults in inner records are values already."""
    if isinstance(schema, list):
        if value is None:
            return None
        return _of_json(value, next(each for each in schema if each != "null"))
    kind = schema["type"] if isinstance(schema, dict) else schema
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    if logical in (*_TIMES, "date"):
        return _native(value, logical)
    if kind in ("bytes", "fixed"):
        return value.encode("latin-1")
    if kind in ("float", "double"):
        return float(value)
    if kind == "array":
        return [_of_json(each, schema["items"]) for each in value]
    if kind == "map":
        return {key: _of_json(each, schema["values"]) for key, each in value.items()}
    if kind == "record":
        return {
            field["name"]: _of_json(value[field["name"]], field["type"]) if field["name"] in value else field["default"]
            for field in schema["fields"]
        }
    return _of_json(value, kind) if isinstance(kind, dict | list) else value
