"""Compare the columns of a job's rows with those of an existing table.

Columns may be added, and types widened, by the rules of Iceberg: int to bigint, float to double, more digits of a
decimal. A wider column of the table takes the job's values as they are. All else is refused before a record is read.
"""

from typing import TYPE_CHECKING, Final, NamedTuple

from pybroker.errors import INVALID_CONFIG, UNKNOWN_SERVER_ERROR, KafkaError
from pybroker.spark.pipeline.job import Job
from pybroker.spark.pipeline.parsing import formats

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructField

_WIDER: Final = (("int8", "int16", "int32", "int64"), ("float32", "float64"))
_DIRECTORIES: Final = ("string", "int8", "int16", "int32", "int64", "bool", "date32")


class ColumnChange(NamedTuple):
    """The change that a table needs for a job's rows: columns added, and columns widened."""

    added: "tuple[pa.Field, ...]"
    widened: "tuple[pa.Field, ...]"


def arrow_schema(job: Job) -> "pa.Schema":
    """Return the columns of a job's rows, all nullable. KafkaError for a type that no table format has."""
    import pyarrow as pa
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    fields = []
    for field in formats.table_schema(job).fields:
        try:
            kind = to_arrow_type(field.dataType, timezone="UTC")
        except PySparkException as error:
            raise _unknown(field) from error
        if pa.types.is_duration(kind) or pa.types.is_time(kind) or pa.types.is_null(kind):
            raise _unknown(field)
        fields.append(pa.field(field.name, _nullable(kind)))
    schema = pa.schema(fields)
    for name in job.partition_by:
        if name in schema.names and _text(schema.field(name).type) not in _DIRECTORIES:
            raise _refused(f"the table cannot be partitioned by {name}, which is {_text(schema.field(name).type)}")
    return schema


def change(table: "pa.Schema", job: "pa.Schema", *, widens: bool, where: str) -> ColumnChange:
    """Return the change that a table needs for a job's rows. KafkaError names a column that the table cannot take.

    widens: whether the format can widen a column. where: the table, for error sentences."""
    known = {field.name.lower(): field for field in table}
    added, widened = [], []
    for field in job:
        there = known.pop(field.name.lower(), None)
        if there is None:
            added.append(field)
            continue
        if there.name != field.name:
            raise _refused(f"column {field.name} is {there.name} in the table {where}: use the table's spelling")
        if not there.nullable:
            raise _refused(f"column {there.name} of the table {where} is NOT NULL, but a record may lack it")
        if _same_or_wider(there.type, field.type):
            continue
        types = f"column {field.name} is {_text(field.type)}, but {_text(there.type)} in the table {where}"
        if not _same_or_wider(field.type, there.type):
            raise _refused(f"{types}: only new columns and wider types are possible")
        if not widens:
            raise _refused(f"{types}: the library of this format cannot widen a column")
        widened.append(field)
    needed = next((field for field in known.values() if not field.nullable), None)
    if needed is not None:
        raise _refused(f"column {needed.name} of the table {where} is NOT NULL, but the job lacks it")
    return ColumnChange(tuple(added), tuple(widened))


def check_still(table: "pa.Schema", job: "pa.Schema", *, where: str) -> None:
    """KafkaError if another writer has changed the table so that it cannot take all values of the running job."""
    needs = change(table, job, widens=True, where=where)
    for field in (*needs.added, *needs.widened):
        raise KafkaError(
            UNKNOWN_SERVER_ERROR,
            f"another writer has changed column {field.name} of the table {where}, or removed it; the next start "
            "adapts the table again, if the format can",
        )


def _same_or_wider(wide: "pa.DataType", narrow: "pa.DataType") -> bool:
    import pyarrow as pa

    one, other = _text(wide), _text(narrow)
    if one == other:
        return True
    for order in _WIDER:
        if one in order and other in order:
            return order.index(one) > order.index(other)
    if pa.types.is_decimal(wide) and pa.types.is_decimal(narrow):
        return bool(wide.scale == narrow.scale and wide.precision > narrow.precision)
    return False


def _nullable(kind: "pa.DataType") -> "pa.DataType":
    """Return the type with everything in it nullable, except the keys of maps."""
    import pyarrow as pa

    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _nullable(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(
            pa.field("key", _nullable(kind.key_type), nullable=False), pa.field("value", _nullable(kind.item_type))
        )
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _nullable(f.type)) for f in kind])
    return kind


def _text(kind: "pa.DataType") -> str:
    """Return a name of the type, the same for all types that hold the same values."""
    import pyarrow as pa

    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{_text(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{_text(kind.key_type)}, {_text(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{f.name}: {_text(f.type)}' for f in kind)}>"
    plain = {
        "large_string": "string",
        "string_view": "string",
        "large_binary": "binary",
        "binary_view": "binary",
        "float": "float32",
        "double": "float64",
        "date32[day]": "date32",
        "timestamp[us, tz=+00:00]": "timestamp[us, tz=UTC]",
    }
    return plain.get(str(kind), str(kind))


def _unknown(field: "StructField") -> KafkaError:
    return _refused(f"column {field.name} is {field.dataType.simpleString()}, which the table format does not have")


def _refused(why: str) -> KafkaError:
    return KafkaError(INVALID_CONFIG, why)


def first_line(error: Exception) -> str:
    """Return the first line of a table library's error."""
    return (str(error).splitlines() or [type(error).__name__])[0]
