"""The columns of a topic in Spark, the same as in Spark's own connector, and the selection of a read.

    key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int,
    headers array<struct<key: string, value: binary>> with includeHeaders

A user's schema selects columns: only these, in its order, are decoded and sent to Spark.
Each must have the type listed here, and be nullable.
"""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pybroker.errors import INVALID_CONFIG, KafkaError

_HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": _HEADERS,
}


def full(include_headers: bool) -> StructType:
    """Return every column of a topic; headers only if requested."""
    return StructType(
        [StructField(name, type_) for name, type_ in TYPES.items() if include_headers or name != "headers"]
    )


def selected(schema: StructType) -> tuple[str, ...]:
    """Return the columns that a schema selects, in its order. KafkaError names a column that a topic does not have."""
    for field in schema.fields:
        if field.name not in TYPES:
            raise _refused(f"a topic has no column {field.name}; it has {', '.join(TYPES)}")
        expected = TYPES[field.name]
        if field.dataType != expected:
            raise _refused(
                f"column {field.name} is {expected.simpleString()} in pybroker, not {field.dataType.simpleString()}: "
                "cast it after reading"
            )
        if not field.nullable:
            raise _refused(f"column {field.name} may be null: remove NOT NULL from the schema")
    names = tuple(field.name for field in schema.fields)
    if not names or len(set(names)) < len(names):
        raise _refused("it needs at least one column, and each at most once")
    return names


def _refused(why: str) -> KafkaError:
    return KafkaError(INVALID_CONFIG, f"the schema does not fit: {why}")
