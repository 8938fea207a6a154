"""The columns of a topic in Spark, which are those of Spark's own connector, and which of them a read is asked for.

    key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int,
    headers array<struct<key: string, value: binary>> with includeHeaders

A schema given by the user selects: its columns, in its order, are the only ones that are decoded and sent to Spark.
Each has to have the type that it has here, and may be null.
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
    """Every column of a topic; headers only where they are asked for."""
    return StructType(
        [StructField(name, type_) for name, type_ in TYPES.items() if include_headers or name != "headers"]
    )


def selected(schema: StructType) -> tuple[str, ...]:
    """The columns that a schema asks for, in its order. KafkaError names one that a topic does not have so."""
    for field in schema.fields:
        if field.name not in TYPES:
            raise _refused(f"a topic has no column {field.name}; it has {', '.join(TYPES)}")
        expected = TYPES[field.name]
        if field.dataType != expected:
            raise _refused(
                f"column {field.name} is {expected.simpleString()} here, not {field.dataType.simpleString()}: "
                "cast it after reading"
            )
        if not field.nullable:
            raise _refused(f"column {field.name} may be null: leave NOT NULL out of the schema")
    names = tuple(field.name for field in schema.fields)
    if not names or len(set(names)) < len(names):
        raise _refused("each column may be there once, and one at least")
    return names


def _refused(why: str) -> KafkaError:
    return KafkaError(INVALID_CONFIG, f"the schema does not fit: {why}")
