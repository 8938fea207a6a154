"""Records into rows: the columns of the format, those that say which record it was, and why it did not parse.

    <columns of the schema> | kafka_topic kafka_partition kafka_offset kafka_timestamp kafka_key kafka_value | error

The error is null for a record that parsed; for one that did not, the columns of the schema are null.

A schema registry's frame (0 and an id, five bytes) before JSON is skipped: its fields are named. Before Avro it says by
which schema the record was written, without which the values would land in the wrong columns: see `resolution`.
"""

import importlib.util
import io
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

from pybroker.errors import INVALID_CONFIG, KafkaError
from pybroker.spark.pipeline.job import Job
from pybroker.spark.pipeline.writer_schemas import FRAME_BYTES, MAGIC, WriterSchemas, framed_id, writer_schemas

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from pybroker.spark.pipeline.resolution import Resolver

KAFKA: Final = ("topic", "partition", "offset", "timestamp", "key", "value")
KAFKA_TYPES: Final = "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary"
TIME_COLUMNS: Final = ("date", "hour")
"""Columns that a table may be partitioned by although no schema has them: a date and an int."""
ERROR: Final = "pybroker_error"
_CORRUPT: Final = "pybroker_corrupt"
_ROW: Final = "pybroker_row"
NO_AVRO: Final = "the value is no Avro record of the schema"
_GIVE: Final = "the job needs --registry or --schemas"
_UNFIT: Final = (ValueError, TypeError, OverflowError)
"""What pyarrow raises for a value that a type does not have: ArrowInvalid, ArrowTypeError."""
_REST: Final = (1 << 31) - 1


def parsed(job: Job, records: "DataFrame", schemas: WriterSchemas | None = None) -> "DataFrame":
    """The rows of a batch of records; KafkaError where the schema is none. schemas: those of Avro's frames."""
    from pyspark.sql import functions as F

    renamed = records.select(*(F.col(name).alias(f"kafka_{name}") for name in KAFKA))
    if job.format == "raw":
        return renamed.withColumn(ERROR, F.lit(None).cast("string"))
    if job.format == "avro":
        return _avro(job, renamed, schemas)
    return _json(job, renamed)


def fields(job: Job) -> list[str]:
    """The columns of the job's schema."""
    return [] if job.format == "raw" else [field.name for field in schema_of(job).fields]


def columns(job: Job) -> list[str]:
    """The columns that a table of this job has, without those it is partitioned by."""
    raw = ["kafka_key", "kafka_value"] if job.format == "raw" else []
    taken = {f"kafka_{name}" for name in KAFKA} | {ERROR, _CORRUPT, _ROW}
    for name in fields(job):  # Spark's names of columns ignore case
        if name.lower() in taken:
            raise KafkaError(INVALID_CONFIG, f"the schema has a column {name}, which is there twice or the table's own")
        taken.add(name.lower())
    return [*fields(job), "kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp", *raw]


def table_schema(job: Job) -> "StructType":
    """The columns of the table with their types, `date` and `hour` at the end where it is partitioned by them. Each may
    be null."""
    from pyspark.sql.types import StructField, StructType

    ours = ", ".join([*(f"kafka_{each}" for each in KAFKA_TYPES.split(", ")), "date date", "hour int"])
    known = {field.name: field.dataType for field in cast("StructType", StructType.fromDDL(ours)).fields}
    if job.format != "raw":
        known |= {field.name: field.dataType for field in schema_of(job).fields}
    names = columns(job)
    times = [name for name in job.partition_by if name in TIME_COLUMNS and name not in names]
    return StructType([StructField(name, known[name]) for name in (*names, *times)])


def schema_of(job: Job) -> "StructType":
    """What Spark calls the schema of the job. KafkaError if it is none."""
    from pyspark.sql.types import StructType

    if job.format == "avro":
        return cast(
            "StructType",
            StructType.fromDDL(", ".join(f"`{f['name']}` {_ddl(f['type'])}" for f in _avro_record(job)["fields"])),
        )
    try:
        return cast("StructType", StructType.fromDDL(job.schema or ""))
    except Exception as error:  # Spark's parser raises several kinds, and some of the JVM
        why = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        raise KafkaError(INVALID_CONFIG, f"the schema is no list of columns: {why}") from error


def _json(job: Job, renamed: "DataFrame") -> "DataFrame":
    """Spark parses by itself. What is no object of this schema is in the corrupt column."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType

    schema = schema_of(job)
    names = [field.name for field in schema.fields]
    with_corrupt = schema.add(_CORRUPT, StringType())
    value = F.col("kafka_value")
    framed = (F.length(value) >= FRAME_BYTES) & (F.substring(value, 1, 1) == F.lit(bytes([MAGIC])))
    text = F.when(framed, F.substring(value, FRAME_BYTES + 1, _REST)).otherwise(value).cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    rows = renamed.withColumn(_ROW, F.from_json(text, with_corrupt, options))
    row = F.col(_ROW)
    why = F.when(value.isNull(), F.lit("the record has no value")).when(
        row.isNull() | row[_CORRUPT].isNotNull() | ~F.is_valid_utf8(text),
        F.lit("the value is no JSON object of the schema"),
    )
    fields = [row[name].alias(name) for name in names]
    return rows.select(*fields, *(f"kafka_{name}" for name in KAFKA), why.alias(ERROR))


# -- Avro: fastavro in Spark's Python workers --------------------------------------------------------------------------

_PRIMITIVES: Final = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
}
_LOGICAL: Final = {"date": "date", "timestamp-millis": "timestamp", "timestamp-micros": "timestamp", "uuid": "string"}


def _avro_record(job: Job) -> dict[str, Any]:
    try:
        schema = json.loads(job.schema or "")
    except ValueError as error:
        raise KafkaError(INVALID_CONFIG, f"the Avro schema is no JSON: {error}") from error
    if not isinstance(schema, dict) or schema.get("type") != "record" or not schema.get("fields"):
        raise KafkaError(INVALID_CONFIG, "the Avro schema is no record with fields")
    return schema


def _ddl(kind: Any) -> str:
    """The type of Spark for a type of Avro. KafkaError for unions of several, fixed decimals and recursive types."""
    if isinstance(kind, list):
        real = [each for each in kind if each != "null"]
        if len(real) == 1:
            return _ddl(real[0])
    elif isinstance(kind, str) and kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    elif isinstance(kind, dict):
        inner = kind.get("type")
        if kind.get("logicalType") in _LOGICAL:
            return _LOGICAL[kind["logicalType"]]
        if inner == "array":
            return f"array<{_ddl(kind['items'])}>"
        if inner == "map":
            return f"map<string,{_ddl(kind['values'])}>"
        if inner == "record":
            return "struct<" + ",".join(f"`{f['name']}`:{_ddl(f['type'])}" for f in kind["fields"]) + ">"
        if inner == "enum":
            return "string"
        if inner != "fixed" and "logicalType" not in kind:
            return _ddl(inner)
    raise KafkaError(INVALID_CONFIG, f"the Avro type {json.dumps(kind)} has no column of Spark")


def check_package(job: Job) -> None:
    """KafkaError where the package of the records' format is not installed."""
    if job.format == "avro" and importlib.util.find_spec("fastavro") is None:
        raise KafkaError(INVALID_CONFIG, "format avro needs the package fastavro: pip install 'pybroker[avro]'")


def check_schemas(job: Job) -> None:
    """KafkaError where a registry or files are named for the schemas of frames, and these are not to be had now."""
    found = writer_schemas(job)
    if found is not None:
        from pybroker.spark.pipeline.resolution import Resolver

        try:
            Resolver(_avro_record(job), found)
        except Exception as error:  # fastavro raises several kinds, and so do defaults that are not of their fields
            raise KafkaError(INVALID_CONFIG, f"the Avro schema cannot be used: {error}") from error
        found.check()


def _avro(job: Job, renamed: "DataFrame", schemas: WriterSchemas | None) -> "DataFrame":
    from pyspark.sql.types import StringType, StructType

    check_package(job)
    schema = StructType([*schema_of(job).fields, *renamed.schema.fields]).add(ERROR, StringType())
    return renamed.mapInArrow(_avro_reader(_avro_record(job), schema, schemas), schema)


def _avro_reader(
    record: dict[str, Any], schema: "StructType", schemas: WriterSchemas | None
) -> "Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]":
    """What runs in the workers: each value decoded, and those that cannot be, with the reason."""
    fields = [field["name"] for field in record["fields"]]

    def read(batches: "Iterator[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
        import fastavro
        import pyarrow
        from pyspark.sql.pandas.types import to_arrow_schema

        from pybroker.spark.pipeline.resolution import Resolver

        resolver = None if schemas is None else Resolver(record, schemas)
        known = fastavro.parse_schema(record)
        fastavro.read.LOGICAL_READERS["string-uuid"] = lambda text, *_: str(UUID(text))  # which no column takes
        target = to_arrow_schema(schema, timezone="UTC")

        def arrays(rows: "list[dict[str, Any] | None]") -> "list[pyarrow.Array]":
            columns = ([row.get(name) if row else None for row in rows] for name in fields)
            return [pyarrow.array(each, target.field(name).type) for name, each in zip(fields, columns, strict=True)]

        for batch in batches:
            rows, errors = [], []
            for value in batch.column("kafka_value"):
                row, error = decode_avro(known, value.as_py(), resolver)
                rows.append(row)
                errors.append(error)
            try:
                made = arrays(rows)
            except _UNFIT:
                for at, row in enumerate(rows):
                    try:
                        arrays([row])
                    except _UNFIT:  # Avro's numbers are all of 64 bits, whatever their type
                        rows[at], errors[at] = None, NO_AVRO
                made = arrays(rows)
            given = [batch.column(name).cast(target.field(name).type) for name in batch.schema.names]
            yield pyarrow.RecordBatch.from_arrays([*made, *given, pyarrow.array(errors, "string")], schema=target)

    return read


def decode_avro(
    schema: Any, value: bytes | None, resolver: "Resolver | None" = None
) -> tuple[dict[str, Any] | None, str | None]:
    """(row, None) or (None, why not) of a record of the schema, or of the one that its frame names to a resolver.

    Without a resolver the whole value is the record: one of the schema may begin with a 0 and four bytes, as a frame
    does, and to refuse it would lose right records. A framed value that is such a record by chance is a wrong row.
    Raises KafkaError where a registry does not say."""
    import fastavro

    if value is None:
        return None, "the record has no value"
    if resolver is not None:
        return resolver.decode(value)
    source = io.BytesIO(value)
    try:
        row = fastavro.schemaless_reader(source, schema, None)
    except Exception:  # bytes that are not of the schema fail in as many ways as there are types
        row = None
    if isinstance(row, dict) and source.tell() == len(value):
        return row, None
    number = framed_id(value)
    return None, NO_AVRO if number is None else f"{NO_AVRO}; if it is framed with schema id {number}, {_GIVE}"
