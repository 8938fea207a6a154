"""Columns given to `send_columns`, for core: Arrow and NumPy arrays without a copy, lists by their elements."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pybroker.client.columns import np  # which says so if there is none
from pybroker.client.columns.arrays import ByteArray
from pybroker.core import ByteColumn, HeaderColumn

Array = np.ndarray[Any, Any]
Untyped = Any
"""An array of pyarrow, which has no types, or of what looks like one."""


def byte_column(values: object) -> ByteColumn:
    """A column of bytes, from one of these; TypeError for anything else.

    Arrow arrays of binary, string, their large types and fixed-size binary. NumPy arrays of dtype S or V. A ByteArray.
    (data, offsets) buffers with int32 or int64 offsets. Lists of bytes, str and None."""
    if isinstance(values, ByteColumn):
        return values
    if _is_arrow(values):
        return _of_arrow(values)
    if isinstance(values, np.ndarray):
        return _of_numpy(values)
    if isinstance(values, ByteArray):
        valid = None if values.valid is None else np.packbits(values.valid, bitorder="little").data
        return ByteColumn.of_offsets(values.data.data, values.offsets.data, validity=valid)
    if isinstance(values, tuple) and len(values) == 2 and isinstance(values[1], np.ndarray):
        data, offsets = values
        if offsets.dtype not in (np.dtype(np.int32), np.dtype(np.int64)):
            raise TypeError(f"offsets are int32 or int64, not {offsets.dtype}")
        return ByteColumn.of_offsets(data, np.ascontiguousarray(offsets).data, large=offsets.dtype == np.int64)
    if isinstance(values, Sequence) and not isinstance(values, str | bytes | bytearray):
        return ByteColumn.of_list([value.encode() if isinstance(value, str) else value for value in values])
    raise TypeError(f"a column is an Arrow or NumPy array, (data, offsets) or a list, not {type(values).__name__}")


def each(values: Untyped) -> Iterator[bytes | None]:
    """The rows of such a column, one by one. TypeError for anything else."""
    if _is_arrow(values):
        rows: Iterable[bytes | str | None] = values.to_pylist()
    elif isinstance(values, np.ndarray):
        rows = values.tolist()
    elif isinstance(values, tuple) and len(values) == 2 and isinstance(values[1], np.ndarray):
        data, ends = memoryview(values[0]).cast("B"), values[1].tolist()
        rows = (bytes(data[start:end]) for start, end in itertools.pairwise(ends))
    elif isinstance(values, Sequence | ByteArray):
        rows = values
    else:
        raise TypeError(f"a column is an Arrow or NumPy array, (data, offsets) or a list, not {type(values).__name__}")
    return (row.encode() if isinstance(row, str) else row for row in rows)


def _is_arrow(values: object) -> bool:
    return type(values).__module__.split(".")[0] == "pyarrow"


def _of_numpy(values: Array) -> ByteColumn:
    if values.dtype.kind not in "SV" or values.ndim != 1:
        raise TypeError(f"a NumPy column is one-dimensional and of dtype S or V, not {values.ndim}-d {values.dtype}")
    return ByteColumn.of_fixed(
        np.ascontiguousarray(values).view(np.uint8).data, values.dtype.itemsize, strip=values.dtype.kind == "S"
    )


def _of_arrow(values: Untyped) -> ByteColumn:
    import pyarrow as pa

    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    kind = values.type
    if pa.types.is_dictionary(kind):
        values = values.dictionary_decode()
        kind = values.type
    if pa.types.is_fixed_size_binary(kind):
        values = values.cast(pa.binary())
        kind = values.type
    large = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    if not (large or pa.types.is_binary(kind) or pa.types.is_string(kind)):
        raise TypeError(f"an Arrow column is binary or string, not {kind}")
    validity, offsets, data = values.buffers()
    return ByteColumn.of_offsets(
        b"" if data is None else data,
        bytes(8) if offsets is None else offsets,
        validity=validity,
        start=values.offset,
        length=len(values),
        large=large,
    )


def header_column(headers: Untyped) -> HeaderColumn:
    """Headers for each row: an Arrow list of struct<key: string, value: binary>, or a list of (key, value) lists or of
    mappings."""
    if isinstance(headers, HeaderColumn):
        return headers
    if _is_arrow(headers):
        headers = _header_lists(headers)
        validity, offsets = headers.buffers()[:2]
        pairs = headers.values
        keys, values = byte_column(pairs.field(0)), byte_column(pairs.field(1))
        return HeaderColumn(offsets, keys, values, validity=validity, start=headers.offset, length=len(headers))
    rows = [list(row.items() if isinstance(row, Mapping) else row or ()) for row in headers]
    ends = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    flat = [pair for row in rows for pair in row]
    for pair in flat:
        if not isinstance(pair, tuple | list) or len(pair) != 2:  # iterating a dict yields its keys
            raise TypeError(f"a record's header is a pair of a key and a value, not {pair!r}")
    return HeaderColumn(ends.data, byte_column([key for key, _ in flat]), byte_column([value for _, value in flat]))


def _header_lists(headers: Untyped) -> Untyped:
    """Headers as one Arrow array of lists with int32 offsets, of a key and a value each."""
    import pyarrow as pa

    if isinstance(headers, pa.ChunkedArray):
        headers = headers.combine_chunks()
    kind = headers.type
    if pa.types.is_large_list(kind):
        headers = headers.cast(pa.list_(kind.value_type))
    elif not pa.types.is_list(kind):
        raise TypeError(f"headers are an Arrow list of struct<key, value>, not {kind}")
    if not pa.types.is_struct(kind.value_type) or kind.value_type.num_fields != 2:
        raise TypeError(f"headers are an Arrow list of struct<key, value>, not {kind}")
    if headers.flatten().null_count:
        raise ValueError("a header that is null")
    return headers


def integers(what: str, values: object, dtype: type[np.generic] | str, rows: int) -> Array:
    """A number for each row as one array. ValueError for another length, or a number that does not fit the dtype."""
    given = np.asarray(values)
    with np.errstate(invalid="ignore"):  # a null of Arrow is NaN here, and refused below
        array = np.ascontiguousarray(given.astype(dtype, copy=False))
    if given.dtype != array.dtype and not np.array_equal(given, array):
        raise ValueError(f"{what} that are no whole numbers of {array.itemsize * 8} bits")
    if len(array) != rows:
        raise ValueError(f"{len(array)} {what} beside {rows} values")
    return array


def not_negative(what: str, array: Array) -> None:
    """ValueError for a number below 0."""
    if len(array) and array.min() < 0:
        raise ValueError(f"{what} is 0 or more, not {array.min()}")


def timestamps(values: object, rows: int) -> Array:
    """Milliseconds a row, given as numbers or as datetime64 or Arrow timestamps."""
    array = np.asarray(values)
    if array.dtype.kind == "M":
        if np.isnat(array).any():
            raise ValueError("timestamps that are null")
        array = array.astype("datetime64[ms]").view(np.int64)
    return integers("timestamps", array, np.int64, rows)
