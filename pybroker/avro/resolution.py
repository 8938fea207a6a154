"""Avro's schema resolution: read records by their writer's schema, and return rows of the job's.

    frame's id -> writer's schema -> checked, each name once -> fastavro (writer -> reader) -> row

Fields are matched by name, in any order. Fields that the job lacks are skipped; fields that the writer lacks get the
job's default. fastavro resolves types; this module resolves the logical types of both sides. A time keeps its meaning
in another unit; a plain number becomes a time in the job's unit; a time becomes a plain number for a job without a
logical type. A writer's schema is untrusted input: `_Inlined` lists what is refused.
"""

import copy
import functools
import io
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Final, NamedTuple
from uuid import UUID

from pybroker.avro.framing import FRAME_BYTES, framed_id
from pybroker.avro.registry_client import NoSchema
from pybroker.avro.values import Avro, Document, Told
from pybroker.avro.writer_schemas import SCHEMAS_MAX, WriterSchema, WriterSchemas
from pybroker.errors import KafkaError

NODES_MAX: Final = 10_000
"""Types in a writer's schema, each counted where it is used: this bounds the cost of a record without bytes."""
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
"""The fewest bytes of a value."""

Decoded = tuple[Document | None, str | None]


class Resolver:
    """Reads framed values as rows of the job's schema; made in the worker that reads them."""

    def __init__(self, job: Told, schemas: WriterSchemas) -> None:
        import fastavro

        self._schemas = schemas
        self._known = fastavro.parse_schema(dict(job))
        self._shape = _shape(_Inlined({}).schema(self._known))
        self._has_times = '"logicalType"' in json.dumps(job)
        self._reader = _with_native_defaults(fastavro.parse_schema(dict(job)))
        # An unknown id is cached for this task only: later tasks may know it.
        self._of = functools.lru_cache(maxsize=SCHEMAS_MAX)(self._prepared)

    def decode(self, value: bytes) -> Decoded:
        """Return (row, None) or (None, why not). Raises KafkaError if the registry does not answer."""
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
            return None, f"a record of schema {number} does not fit the job's schema: {_words(error)}"
        except Exception:  # malformed bytes fail in as many ways as there are types
            return None, f"the value is not an Avro record of its schema {number}"
        if not isinstance(row, dict) or source.tell() != len(value) - FRAME_BYTES:
            return None, f"the value is not an Avro record of its schema {number}"
        return row, None

    def _prepared(self, number: int) -> "_Pair | str":
        """Return the schemas to read an id's records with, or why they cannot be read."""
        import fastavro

        try:
            written = self._schemas.schema(number)
            whole = whole_schema(written)
            if _shape(whole) == self._shape:
                return _Pair(self._known, None)
            tagged = fastavro.parse_schema(_tagged(whole, self._has_times))
        except NoSchema as error:
            return str(error)
        except KafkaError:
            raise
        except Exception as error:  # fastavro raises several types, and KeyError, for a malformed schema
            return f"is not an Avro schema: {_words(error)}"
        _learn_logical_types()
        return _Pair(tagged, self._reader)


class _Pair(NamedTuple):
    """The two schemas for fastavro; no reader if they are equivalent."""

    writer: Avro
    reader: Avro


def _words(error: Exception) -> str:
    """The first line of an exception, shortened: it may contain a schema."""
    text = (str(error).splitlines() or [""])[0] or type(error).__name__
    return text if len(text) <= WORDS_MAX else f"{text[:WORDS_MAX]}..."


def whole_schema(written: WriterSchema) -> Avro:
    """Return a schema with its references resolved. NoSchema if it cannot be used."""
    import fastavro

    named: Document = {}
    for reference in written.references:
        fastavro.parse_schema(reference, named)
    parsed = fastavro.parse_schema(written.schema, named)
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise NoSchema("is not a record")
    return _Inlined(named).schema(parsed)


class _Inlined:
    """Copies the parts of a parsed schema that matter for reading, with each named type inlined where it is used.

    NoSchema for a schema with which a few bytes could do harm: a recursive one, which fastavro reads on the C stack;
    one with arrays of items without bytes, as a record may claim any number of them; one that is very large when
    inlined."""

    def __init__(self, named: Told) -> None:
        self._named = dict(named)
        self._open: list[str] = []
        self._used: set[str] = set()
        self._nodes = 0

    def schema(self, parsed: Avro) -> Avro:
        return self._made(parsed)[0]

    def _made(self, parsed: Avro) -> tuple[Avro, int]:
        """Return (copy, the fewest bytes of a value of it)."""
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

    def _of_name(self, parsed: Told, kind: str) -> tuple[Document, int]:
        name = parsed["name"]
        made: Document = {"type": kind, "name": name}
        if name in self._used:  # each name is used once: further copies get a namespace of their own
            made["name"] = f"_{self._nodes}.{name.rpartition('.')[2]}"
        self._used.add(name)
        self._named[name] = parsed
        if kind == "enum":
            return made | {"symbols": parsed["symbols"]}, 1
        if kind == "fixed":
            if parsed["size"] < 0:
                raise NoSchema(f"has a fixed type of {parsed['size']} bytes")
            return made | {"size": parsed["size"]}, int(parsed["size"])
        self._open.append(name)
        fields, least = [], 0
        for field in parsed["fields"]:
            inner, width = self._made(field["type"])
            fields.append({"name": field["name"], "type": inner})
            least += width
        self._open.pop()
        return made | {"fields": fields}, least


def _shape(schema: Avro) -> Avro:
    """Return a copied schema without namespaces, which do not matter for reading."""
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


def _tagged(schema: Avro, plain: bool) -> Avro:
    """Return the copied schema with our own logical types on times and uuids, whose readers also get the job's type;
    others are read as their underlying type. plain: tag numbers too, for a job with times in their place. Each tag
    costs a call."""
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
    """Register our readers of logical types with fastavro, under our own names, so that other programs keep theirs."""
    import fastavro

    known = fastavro.read.LOGICAL_READERS
    known[f"string-{_PREFIX}uuid"] = _uuid
    known[f"bytes-{_PREFIX}{_DECIMAL}"] = known[f"fixed-{_PREFIX}{_DECIMAL}"] = _decimal
    for kind in _NUMBERS:
        for logical in (_PLAIN, *_TIMES, *_OTHERS):
            known[f"{kind}-{_PREFIX}{logical}"] = functools.partial(_number, logical)


def _number(logical: str, data: int, _: Avro, reader: Avro) -> Avro:
    """Return the writer's number as the job's type: a float, a time or a date, or unchanged."""
    import fastavro

    wanted = reader.get("logicalType") if isinstance(reader, dict) else None
    kind = reader.get("type") if isinstance(reader, dict) else reader
    if wanted in (*_TIMES, "date"):
        if logical not in (_PLAIN, wanted) and not (logical in _TIMES and wanted in _TIMES):
            raise fastavro.read.SchemaResolutionError(f"{logical} is not {wanted}")
        return _native(data, wanted if logical == _PLAIN else logical)
    return float(data) if kind in ("float", "double") else data


def _native(data: int, logical: str) -> Avro:
    """Return a number as a time or a date. OverflowError outside Python's range."""
    if logical == "date":
        return _EPOCH_DATE + timedelta(days=data)
    if logical == "timestamp-nanos":
        return _EPOCH + timedelta(microseconds=data // 1_000)
    return _EPOCH + timedelta(microseconds=data if logical == "timestamp-micros" else data * 1_000)


def _decimal(data: bytes, writer: Avro, reader: Avro) -> Avro:
    """Return the writer's number with the writer's scale; Arrow converts it to the job's, or refuses it."""
    if not isinstance(reader, dict) or reader.get("logicalType") != _DECIMAL:
        return data
    return Decimal(f"{int.from_bytes(data, signed=True)}E-{writer['scale']}")


def _uuid(data: str, _: Avro, reader: Avro) -> Avro:
    wanted = reader.get("logicalType") if isinstance(reader, dict) else None
    kind = reader.get("type") if isinstance(reader, dict) else reader
    if wanted == "uuid":
        return str(UUID(data))
    return data.encode() if kind == "bytes" else data


# -- defaults ----------------------------------------------------------------------------------------------------------


def _with_native_defaults(parsed: Avro) -> Avro:
    """Return a parsed schema whose defaults are values as in records: fastavro returns them as in the JSON."""
    made = copy.deepcopy(parsed)
    _each_record(made, _set_defaults)
    return made


def _each_record(schema: Avro, act: Callable[[Document], None]) -> None:
    """Call `act` with each record of a schema, inner ones first."""
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


def _set_defaults(record: Document) -> None:
    for field in record["fields"]:
        if "default" in field:
            field["default"] = _of_json(field["default"], field["type"])


def _of_json(value: Avro, schema: Avro) -> Avro:
    """Return the value of a default. Defaults in inner records are converted already."""
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
