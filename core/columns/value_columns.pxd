# A tree of nodes on Python's side: made of a list of them, and handed out as Arrow's buffers.
from libc.stdint cimport int32_t

from pybroker.core.columns.tree cimport node_t

cdef class ValueColumn:
    cdef readonly str kind
    cdef readonly Py_ssize_t rows
    cdef readonly object validity
    cdef readonly object offsets
    cdef readonly object data
    cdef readonly list children

# The nodes of a list of (kind, name, number of children), level by level; the caller holds the names and frees it.
# ValueError for what is no tree whose root is a struct.
cdef node_t* tree_of(list given) except NULL

# The same nodes for one call, whose rows they get; the names stay those of the others. tree_free() frees them.
cdef node_t* tree_copy(const node_t* nodes, int32_t count) except NULL

# The blocks of the rows, which the nodes no longer have.
cdef ValueColumn tree_taken(node_t* nodes, int32_t at)

# The blocks that were not taken, and the nodes themselves.
cdef void tree_free(node_t* nodes, int32_t count) noexcept
