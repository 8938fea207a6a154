"""Rows of a tree of columns: nulls are added, and rows are cut off."""

from libc.stdint cimport int32_t, int64_t

from pybroker.core.base.cursor cimport OK


cdef int tree_begin(node_t* nodes, int32_t count) noexcept nogil:
    cdef int32_t i
    cdef int status = OK
    for i in range(count):
        if status == OK and (nodes[i].kind == KIND_TEXT or nodes[i].kind == KIND_LIST or nodes[i].kind == KIND_MAP):
            status = tree_close(&nodes[i], 0)
    return status


cdef int tree_null(node_t* nodes, int32_t at) noexcept nogil:
    cdef node_t* n = &nodes[at]
    cdef int64_t nothing = 0
    cdef int32_t child
    cdef int status = tree_mark(&n.validity, n.rows, False)
    if status == OK and n.kind == KIND_BOOL:
        status = tree_mark(&n.data, n.rows, False)
    elif status == OK and (n.kind == KIND_INT or n.kind == KIND_DOUBLE):
        status = tree_put8(n, &nothing)
    elif status == OK and n.kind != KIND_STRUCT:
        status = tree_close(n, tree_end_of(n, n.rows))
    elif status == OK:
        for child in range(n.first, n.first + n.count):
            status = tree_null(nodes, child)
            if status != OK:
                return status
    n.rows += 1
    return status


cdef void tree_cut(node_t* nodes, int32_t at, int64_t rows) noexcept nogil:
    cdef node_t* n = &nodes[at]
    cdef int32_t child
    n.rows = rows
    n.validity.size = (rows + 7) >> 3
    if n.kind == KIND_BOOL:
        n.data.size = (rows + 7) >> 3
    elif n.kind == KIND_INT or n.kind == KIND_DOUBLE:
        n.data.size = rows * 8
    elif n.kind == KIND_STRUCT:
        for child in range(n.first, n.first + n.count):
            tree_cut(nodes, child, rows)
    else:
        n.offsets.size = (rows + 1) * 4
        if n.kind == KIND_TEXT:
            n.data.size = tree_end_of(n, rows)
        for child in range(n.first, n.first + n.count):
            tree_cut(nodes, child, tree_end_of(n, rows))
