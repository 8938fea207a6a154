"""Columns to encode: from Arrow, NumPy or a list of bytes, read in place."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free


cdef int _hold(object data, Py_buffer* view, object least, str what) except -1:
    """Get the buffer of an object, which must have at least `least` bytes, a Python int."""
    PyObject_GetBuffer(data, view, PyBUF_SIMPLE)
    if view.len < least:
        raise ValueError(f"{what} of {view.len} bytes, where {least} are needed")
    return 0


cdef int _hold_rows(
    source_t* s, object offsets, Py_buffer* offset_view, object validity, Py_buffer* validity_view, int width,
    int64_t start, object length,
) except -1:
    """Set the rows of a list-like column in Arrow's layout: offsets of `width` bytes each, and validity."""
    cdef int64_t rows = -1 if length is None else length
    cdef object end = start      # a Python int: the requested end may exceed 64 bits
    if start < 0 or (rows < 0 and length is not None):
        raise ValueError(f"start {start}, length {length}")
    end += rows
    _hold(offsets, offset_view, (end + 1) * width if rows > 0 else 0, "offsets")
    if length is None:
        rows = max(offset_view.len // width - 1 - start, 0)
        end = start
        end += rows
    if validity is not None:
        _hold(validity, validity_view, (end + 7) // 8, "validity")
        s.validity = <const uint8_t*>validity_view.buf
    s.kind = SOURCE_SMALL if width == sizeof(int32_t) else SOURCE_LARGE
    s.offsets = <const uint8_t*>offset_view.buf
    s.first = start
    s.length = rows
    return 0


cdef class ByteColumn:
    """A column of nullable bytes to encode; it holds its buffers.

    Created by `of_offsets` (Arrow), `of_fixed` (NumPy) or `of_list`."""

    def __init__(self) -> None:
        raise TypeError("a ByteColumn comes from ByteColumn.of_offsets, of_fixed or of_list")

    def __dealloc__(self):
        PyBuffer_Release(&self.data)
        PyBuffer_Release(&self.offsets)
        PyBuffer_Release(&self.validity)
        free(self.spans)

    def __len__(self) -> int:
        return self.s.length

    @staticmethod
    def of_offsets(data, offsets, *, validity=None, int64_t start=0, length=None, bint large=False):
        """Arrow's layout: row i is data[offsets[i]:offsets[i + 1]], offsets int32, or int64 if `large`.

        validity: one bit a row, None for no nulls. The column is `length` rows from row `start` on, None for all.
        Raises ValueError for buffers that are too short; offsets outside the data are found when they are used."""
        cdef ByteColumn column = ByteColumn.__new__(ByteColumn)
        _hold(data, &column.data, 0, "data")
        _hold_rows(
            &column.s, offsets, &column.offsets, validity, &column.validity,
            sizeof(int64_t) if large else sizeof(int32_t), start, length,
        )
        column.s.data = <const uint8_t*>column.data.buf
        column.s.data_size = column.data.len
        return column

    @staticmethod
    def of_fixed(data, int64_t width, *, bint strip=False):
        """Fields of `width` bytes one after another; strip: without the zeros at their ends, as NumPy reads type S."""
        cdef ByteColumn column = ByteColumn.__new__(ByteColumn)
        _hold(data, &column.data, 0, "data")
        if width < 1 or column.data.len % width:
            raise ValueError(f"{column.data.len} bytes are no whole fields of {width}")
        column.s.kind = SOURCE_FIXED
        column.s.data = <const uint8_t*>column.data.buf
        column.s.data_size = column.data.len
        column.s.width = width
        column.s.strip = strip
        column.s.length = column.data.len // width
        return column

    @staticmethod
    def of_list(fields):
        """A column of Python bytes and None. Raises TypeError for any other element."""
        cdef ByteColumn column = ByteColumn.__new__(ByteColumn)
        cdef bytes field
        cdef int64_t i
        column.held = tuple(fields)
        column.s.length = len(column.held)
        column.spans = <field_t*>calloc(column.s.length + 1, sizeof(field_t))
        if column.spans == NULL:
            raise MemoryError
        for i in range(column.s.length):
            field = column.held[i]
            if field is None:
                column.spans[i].size = -1
            else:
                column.spans[i].at = <const uint8_t*>PyBytes_AS_STRING(field)
                column.spans[i].size = PyBytes_GET_SIZE(field)
        column.s.kind = SOURCE_SPANS
        column.s.spans = column.spans
        return column


cdef class HeaderColumn:
    """A list of (key, value) for each row, in Arrow's layout: int32 `offsets` into two columns; a null list is
    empty."""

    def __cinit__(
        self, offsets, ByteColumn keys not None, ByteColumn values not None, *, validity=None, int64_t start=0,
        length=None
    ):
        if keys.s.length != values.s.length:
            raise ValueError(f"{keys.s.length} header keys and {values.s.length} values")
        _hold_rows(&self.lists, offsets, &self.offsets, validity, &self.validity, sizeof(int32_t), start, length)
        self.lists.data = self.lists.offsets  # never read: a list's position in it is the number of its first header
        self.lists.data_size = keys.s.length
        self.keys = keys
        self.values = values

    def __dealloc__(self):
        PyBuffer_Release(&self.offsets)
        PyBuffer_Release(&self.validity)

    def __len__(self) -> int:
        return self.lists.length
