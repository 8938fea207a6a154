"""Turn records into rows: the columns of the format, those that identify the record, and the parse error.

    <columns of the schema> | kafka_topic kafka_partition kafka_offset kafka_timestamp kafka_key kafka_value | error

The error is null for a record that parsed; for one that did not, the columns of the schema are null.

A schema registry's frame (0 and an id, five bytes) before JSON is skipped, as JSON names its fields. Before Avro the
frame names the writer's schema, without which values would land in the wrong columns: see `pybroker.avro.resolution`.
"""

import importlib.util
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, cast
from uuid import UUID

from pybroker import extras
from pybroker.avro import decoding
from pybroker.avro.decoding import NO_AVRO
from pybroker.avro.framing import FRAME_BYTES, MAGIC
from pybroker.avro.writer_schemas import WriterSchemas, writer_schemas
from pybroker.errors import INVALID_CONFIG, KafkaError
from pybroker.spark.pipeline.job import Job
from pybroker.spark.pipeline.parsing import ddl
from pybroker.spark.untyped import Avro, Document, JavaObject

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from pybroker.avro.resolution import Resolver

KAFKA: Final = ("topic", "partition", "offset", "timestamp", "key", "value")
KAFKA_TYPES: Final = "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary"
TIME_COLUMNS: Final = ("date", "hour")
"""Columns by which any table may be partitioned, although no schema has them: a date and an int."""
ERROR: Final = "pybroker_error"
_CORRUPT: Final = "pybroker_corrupt"
_ROW: Final = "pybroker_row"
_GIVE: Final = "the job needs --registry or --schemas"
_UNFIT: Final = (ValueError, TypeError, OverflowError)
"""Errors of pyarrow for a value outside a type, as ArrowInvalid and ArrowTypeError."""
_REST: Final = (1 << 31) - 1


def parsed(job: Job, records: "DataFrame", schemas: WriterSchemas | None = None) -> "DataFrame":
    """Return the rows of a batch of records; KafkaError for a malformed schema. schemas: those of Avro's frames."""
    from pyspark.sql import functions as F

    renamed = records.select(*(F.col(name).alias(f"kafka_{name}") for name in KAFKA))
    if job.format == "raw":
        return renamed.withColumn(ERROR, F.lit(None).cast("string"))
    if job.format == "avro":
        return _avro(job, renamed, schemas)
    return _json(job, renamed)


def declared(job: Job) -> list[str] | None:
    """Return the columns of the job's schema without Spark; None if only Spark can read it. KafkaError if it is
    malformed."""
    if job.format == "raw":
        return []
    if job.format == "avro":
        return [name for name, _ in _avro_columns(job)]
    try:
        return ddl.column_names(job.schema or "")
    except ValueError as error:
        raise _not_columns(str(error)) from error


def fields(job: Job) -> list[str]:
    """The columns of the job's schema."""
    return [] if job.format == "raw" else [field.name for field in schema_of(job).fields]


def columns(job: Job, known: list[str] | None = None) -> list[str]:
    """Return the columns of this job's table, without the partition columns. known: the schema's; None asks Spark."""
    known = fields(job) if known is None else known
    raw = ["kafka_key", "kafka_value"] if job.format == "raw" else []
    taken = {f"kafka_{name}" for name in KAFKA} | {ERROR, _CORRUPT, _ROW}
    for name in known:  # Spark's column names ignore case
        if name.lower() in taken:
            raise KafkaError(INVALID_CONFIG, f"the schema's column {name} is a duplicate, or reserved")
        taken.add(name.lower())
    return [*known, "kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp", *raw]


def table_schema(job: Job) -> "StructType":
    """Return the table's columns with their types; `date` and `hour` come last if the table is partitioned by them. All
    are nullable."""
    from pyspark.sql.types import StructField, StructType

    ours = ", ".join([*(f"kafka_{each}" for each in KAFKA_TYPES.split(", ")), "date date", "hour int"])
    known = {field.name: field.dataType for field in cast("StructType", StructType.fromDDL(ours)).fields}
    if job.format != "raw":
        known |= {field.name: field.dataType for field in schema_of(job).fields}
    names = columns(job)
    times = [name for name in job.partition_by if name in TIME_COLUMNS and name not in names]
    return StructType([StructField(name, known[name]) for name in (*names, *times)])


def schema_of(job: Job) -> "StructType":
    """Return the job's schema as Spark's type. KafkaError if it is malformed."""
    from pyspark.sql.types import StructType

    if job.format == "avro":
        return cast(
            "StructType",
            StructType.fromDDL(", ".join(f"`{name}` {kind}" for name, kind in _avro_columns(job))),
        )
    try:
        return cast("StructType", StructType.fromDDL(job.schema or ""))
    except Exception as error:  # Spark's parser raises several types, some of the JVM
        why = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        raise _not_columns(why) from error


def _not_columns(why: str) -> KafkaError:
    return KafkaError(INVALID_CONFIG, f"the schema is not a list of columns: {why}")


def _json(job: Job, renamed: "DataFrame") -> "DataFrame":
    """Parse JSON with Spark. Values that are not objects of this schema go into the corrupt column."""
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
        F.lit("the value is not a JSON object of the schema"),
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


def _avro_record(job: Job) -> Document:
    try:
        schema = json.loads(job.schema or "")
    except ValueError as error:
        raise KafkaError(INVALID_CONFIG, f"the Avro schema is not JSON: {error}") from error
    if not isinstance(schema, dict) or schema.get("type") != "record" or not schema.get("fields"):
        raise KafkaError(INVALID_CONFIG, "the Avro schema is not a record with fields")
    return schema


def _avro_columns(job: Job) -> list[tuple[str, str]]:
    """Return (name, Spark type) of the fields of the job's Avro schema. KafkaError if it is malformed."""
    try:
        return [(field["name"], _ddl(field["type"])) for field in _avro_record(job)["fields"]]
    except (KeyError, TypeError) as error:
        raise KafkaError(INVALID_CONFIG, "the Avro schema is not a record with fields") from error


def _ddl(kind: JavaObject) -> str:
    """Return the Spark type for an Avro type. KafkaError for unions of several, fixed decimals and recursive types."""
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
    raise KafkaError(INVALID_CONFIG, f"the Avro type {json.dumps(kind)} has no Spark type")


def check_format_package(job: Job) -> None:
    """KafkaError if the package of the records' format is not installed."""
    if job.format == "avro" and importlib.util.find_spec("fastavro") is None:
        raise KafkaError(INVALID_CONFIG, f"format avro needs the package fastavro: {extras.install('avro')}")


def job_schemas(job: Job) -> WriterSchemas | None:
    """Return the source of a job's schemas; None if it has none. KafkaError if it cannot be used."""
    return writer_schemas(job.registry, job.registry_options, job.schemas)


def check_schemas(job: Job) -> None:
    """KafkaError if the registry or the files for the frames' schemas cannot be used now."""
    found = job_schemas(job)
    if found is not None:
        from pybroker.avro.resolution import Resolver

        try:
            Resolver(_avro_record(job), found)
        except Exception as error:  # fastavro raises several types, also for defaults that do not fit their fields
            raise KafkaError(INVALID_CONFIG, f"the Avro schema cannot be used: {error}") from error
        found.check()


def _avro(job: Job, renamed: "DataFrame", schemas: WriterSchemas | None) -> "DataFrame":
    from pyspark.sql.types import StringType, StructType

    check_format_package(job)
    schema = StructType([*schema_of(job).fields, *renamed.schema.fields]).add(ERROR, StringType())
    return renamed.mapInArrow(_avro_reader(_avro_record(job), schema, schemas), schema)


def _avro_reader(
    record: Document, schema: "StructType", schemas: WriterSchemas | None
) -> "Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]":
    """Return the function for the workers: it decodes each value, or adds the reason why not."""
    fields = [field["name"] for field in record["fields"]]

    def read(batches: "Iterator[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
        import fastavro
        import pyarrow
        from pyspark.sql.pandas.types import to_arrow_schema

        from pybroker.avro.resolution import Resolver

        resolver = None if schemas is None else Resolver(record, schemas)
        known = fastavro.parse_schema(record)
        fastavro.read.LOGICAL_READERS["string-uuid"] = lambda text, *_: str(UUID(text))  # no column takes a UUID object
        target = to_arrow_schema(schema, timezone="UTC")

        def arrays(rows: "list[Document | None]") -> "list[pyarrow.Array]":
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
                    except _UNFIT:  # Avro's numbers may have 64 bits, more than the column
                        rows[at], errors[at] = None, NO_AVRO
                made = arrays(rows)
            given = [batch.column(name).cast(target.field(name).type) for name in batch.schema.names]
            yield pyarrow.RecordBatch.from_arrays([*made, *given, pyarrow.array(errors, "string")], schema=target)

    return read


def decode_avro(
    schema: Avro, value: bytes | None, resolver: "Resolver | None" = None
) -> tuple[Document | None, str | None]:
    """Return (row, None) or (None, why not), as pybroker.avro does, with advice for a job."""
    return decoding.decode_avro(schema, value, resolver, advice=_GIVE)
