"""Typed columns in Arrow's layout: a tree of nodes, which grow by a row a value. JSON and Avro are decoded into it.

The nodes are numbered level by level, so that the children of a node lie together. Node 0 is the object that each
value is. A node has the rows of its parent, except below a list or a map, where the parent's offsets count them.

    root STRUCT -> id INT, at TEXT, lines LIST -> item STRUCT -> sku TEXT, count INT

A value that is wrong leaves a row of nulls: what it had added by then is cut off again. That works because the number
of rows of node 0 says how long each node was before.
"""

from libc.errno cimport ENOMEM
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from pybroker.core.base.cursor cimport OK
from pybroker.core.batch.block cimport block_room, block_t

cdef enum:
    KIND_BOOL = 0
    KIND_INT = 1     # int64
    KIND_DOUBLE = 2
    KIND_TEXT = 3    # UTF-8, or any bytes of Avro
    KIND_STRUCT = 4
    KIND_LIST = 5    # one child: the items
    KIND_MAP = 6     # two: keys, which are TEXT, and values

cdef struct node_t:
    int32_t kind
    int32_t first       # child; as many as `count` follow each other
    int32_t count
    int32_t level
    const uint8_t* name
    int64_t name_size
    int64_t rows
    int64_t seen        # the number of the object that had this field last
    block_t validity    # a bit a row
    block_t offsets     # int32, rows + 1: of TEXT, LIST and MAP
    block_t data        # BOOL a bit a row, INT and DOUBLE 8 bytes, TEXT its bytes

cdef inline int tree_mark(block_t* bits, int64_t row, bint on) noexcept nogil:
    """Set the bit of the row after the last; a row that was cut off may have left one there. OK or -ENOMEM."""
    if row & 7 == 0:
        if block_room(bits, 8) != 0:
            return -ENOMEM
        bits.data[row >> 3] = 0
        bits.size = (row >> 3) + 1
    if on:
        bits.data[row >> 3] |= 1 << (row & 7)
    else:
        bits.data[row >> 3] &= ~(1 << (row & 7))
    return OK


cdef inline int tree_put8(node_t* n, const void* eight) noexcept nogil:
    if block_room(&n.data, 8) != 0:
        return -ENOMEM
    memcpy(n.data.data + n.data.size, eight, 8)
    n.data.size += 8
    return OK


cdef inline int tree_close(node_t* n, int64_t end) noexcept nogil:
    """The end of the last row's part of the data, or of the child's rows."""
    cdef int32_t small = <int32_t>end
    if block_room(&n.offsets, 4) != 0:
        return -ENOMEM
    memcpy(n.offsets.data + n.offsets.size, &small, 4)
    n.offsets.size += 4
    return OK


cdef inline int64_t tree_end_of(const node_t* n, int64_t row) noexcept nogil:
    """The end of the part of the rows before `row`."""
    cdef int32_t end
    memcpy(&end, n.offsets.data + row * 4, 4)
    return end


# Give columns of bytes, lists and maps their first offset. OK or -ENOMEM.
cdef int tree_begin(node_t* nodes, int32_t count) noexcept nogil

# Add a null to a node, and to all below a struct. OK or -ENOMEM.
cdef int tree_null(node_t* nodes, int32_t at) noexcept nogil

# Cut a node, and what is below it, to so many rows. A node may be shorter: its row was not reached.
cdef void tree_cut(node_t* nodes, int32_t at, int64_t rows) noexcept nogil
