"""JSON values into the columns of a tree, without an object a record and without the GIL.

TEXT takes any value: a string as what it means, anything else as the JSON that it is. A caller that wants decimals,
times or a mixture reads TEXT and converts it.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.batch.block cimport block_t
from pybroker.core.columns.source cimport source_t
from pybroker.core.columns.tree cimport node_t

cdef enum:
    UNKNOWN_MAX = 16

cdef struct bad_t:
    int64_t row
    int64_t problem
    int64_t node        # whose value it was; 0 where it is of the text as a whole
    int64_t position    # in the value, in bytes

cdef struct name_t:
    const uint8_t* at
    int64_t size

cdef struct decoder_t:
    node_t* nodes
    int32_t count
    int64_t objects     # that were begun
    int32_t bad_node
    block_t scratch     # a name without its escapes
    block_t bad         # bad_t
    name_t[UNKNOWN_MAX] unknown
    int32_t unknowns

# Add a row for each value of a column: of its object, or of nulls where it is null, empty, or wrong; then d.bad has it.
# The caller frees the blocks. OK, BAD where the column's offsets leave its data, or -ENOMEM.
cdef int json_decode(decoder_t* d, const source_t* values) noexcept nogil
