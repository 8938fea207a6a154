"""Avro's binary encoding into the columns of a tree, without an object a record and without the GIL.

A schema is a tree of operations, numbered as nodes are: level by level, the children of each together. An operation
says how a value is written, and which node it goes to; -1 passes over it. A record's operations are in the order of its
writer. AVRO_ABSENT takes no byte: a field that the writer does not have is null.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.batch.block cimport block_t
from pybroker.core.columns.source cimport source_t
from pybroker.core.columns.tree cimport node_t

cdef enum:
    AVRO_ABSENT = 0
    AVRO_NULL = 1
    AVRO_BOOLEAN = 2
    AVRO_INT = 3
    AVRO_LONG = 4
    AVRO_FLOAT = 5
    AVRO_DOUBLE = 6
    AVRO_BYTES = 7
    AVRO_STRING = 8
    AVRO_FIXED = 9    # `size` bytes
    AVRO_ENUM = 10    # `size` symbols
    AVRO_ARRAY = 11   # one child: the items
    AVRO_MAP = 12     # one child: the values
    AVRO_RECORD = 13

cdef struct symbol_t:
    const uint8_t* at
    int64_t size

cdef struct op_t:
    int32_t code
    int32_t null_branch  # of a union with null, 0 or 1; -1 is no union
    int32_t node
    int32_t first        # child; as many as `count` follow each other
    int32_t count
    int64_t size
    const symbol_t* symbols

cdef struct avro_t:
    const op_t* ops
    node_t* nodes
    int32_t count        # of nodes
    int64_t skip         # bytes before each record
    block_t bad          # int64: rows

# Add a row for each value of a column: of its record, or of nulls where it is null, empty, or wrong; then d.bad has it.
# The caller frees the blocks. OK, BAD where the column's offsets leave its data, or -ENOMEM.
cdef int avro_decode(avro_t* d, const source_t* values) noexcept nogil
