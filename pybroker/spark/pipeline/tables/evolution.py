"""Changes of a table's columns, by the rules of Iceberg for every table format.

    new column                                     added after the others; earlier rows have NULL there
    tinyint -> smallint -> int -> bigint           widened
    float -> double                                widened
    decimal(P,S) -> decimal(P',S), P' >= P         widened
    a column that the job no longer has            stays; new rows have NULL there
    anything else                                  refused, with the column in the sentence

The same applies to fields of structs, elements of arrays and values of maps.
"""

from typing import TYPE_CHECKING, Final

from pybroker.errors import INVALID_CONFIG, KafkaError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_LADDERS: Final = (("tinyint", "smallint", "int", "bigint"), ("float", "double"))


def evolved(known: "StructType", wanted: "StructType", either_way: bool = False) -> "StructType":
    """Return the columns of a table with `known` columns once a job with `wanted` columns writes to it.

    KafkaError if that is impossible. `either_way` also allows `wanted` to be the narrower, for files of one table in an
    unknown order. Every column of the result is nullable."""
    return _fields("", known, wanted, either_way)


def fits(known: "StructType", file: "StructType") -> bool:
    """True if all columns of a file are among these, with the same types or narrower ones."""
    try:
        return evolved(known, file, either_way=True).simpleString() == evolved(known, known).simpleString()
    except KafkaError:
        return False


def without(schema: "StructType", names: tuple[str, ...]) -> "StructType":
    """Return the columns without these, the partition columns, which are not in the files."""
    from pyspark.sql.types import StructType

    return StructType([field for field in schema.fields if field.name not in names])


def check_partitioning(known: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    """KafkaError unless both are the same columns in the same order."""
    if known != wanted:
        was, now = (", ".join(each) or "no column" for each in (known, wanted))
        raise KafkaError(
            INVALID_CONFIG, f"the table is partitioned by {was}, but the job by {now}: a table's partitioning is fixed"
        )


def _fields(above: str, known: "StructType", wanted: "StructType", either_way: bool) -> "StructType":
    from pyspark.sql.types import StructField, StructType

    old = {field.name.lower(): field for field in known.fields}
    new = {field.name.lower(): field for field in wanted.fields}
    made = []
    for key, field in (old | new).items():
        path = f"{above}{old.get(key, field).name}"
        if key not in old or key not in new:
            kind = (new.get(key) or old[key]).dataType
            made.append(StructField(field.name, _type(path, kind, kind, either_way)))
        elif old[key].name != new[key].name:
            raise KafkaError(
                INVALID_CONFIG, f"column {path} of the table is {new[key].name} in the job: names keep their case"
            )
        else:
            made.append(StructField(field.name, _type(path, old[key].dataType, new[key].dataType, either_way)))
    return StructType(made)


def _type(path: str, old: "DataType", new: "DataType", either_way: bool) -> "DataType":
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(old, StructType) and isinstance(new, StructType):
        return _fields(f"{path}.", old, new, either_way)
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return ArrayType(_type(f"{path}.element", old.elementType, new.elementType, either_way))
    if isinstance(old, MapType) and isinstance(new, MapType) and old.keyType == new.keyType:
        return MapType(old.keyType, _type(f"{path}.value", old.valueType, new.valueType, either_way))
    if old == new or _widens(old, new):
        return new
    if either_way and _widens(new, old):
        return old
    raise KafkaError(
        INVALID_CONFIG,
        f"column {path} is {old.simpleString()} in the table and {new.simpleString()} in the job: "
        "a type may only be widened (int to bigint, float to double, decimal to more digits)",
    )


def _widens(old: "DataType", new: "DataType") -> bool:
    from pyspark.sql.types import DecimalType

    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        return old.scale == new.scale and old.precision <= new.precision
    was, now = old.simpleString(), new.simpleString()
    return any(was in ladder and now in ladder and ladder.index(was) <= ladder.index(now) for ladder in _LADDERS)
