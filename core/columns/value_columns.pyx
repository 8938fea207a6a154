"""Columns of decoded values, on Python's side: a tree of nodes goes in, Arrow's buffers come out."""

from libc.stdint cimport int32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from pybroker.core.batch.block cimport block_free, block_take
from pybroker.core.columns.tree cimport KIND_LIST, KIND_MAP, KIND_STRUCT, KIND_TEXT

cdef enum:
    LEVELS_MAX = 32

KINDS = ("bool", "int", "double", "text", "struct", "list", "map")


cdef class ValueColumn:
    """A node's rows in Arrow's layout; `children` are those of a struct, a list or a map."""


cdef node_t* tree_of(list given) except NULL:
    cdef int32_t count = <int32_t>len(given), i, child, taken = 1
    cdef bytes name
    cdef node_t* nodes = <node_t*>calloc(max(count, 1), sizeof(node_t))
    if nodes == NULL:
        raise MemoryError
    try:
        for i, (kind, name, children) in enumerate(given):
            nodes[i].kind = KINDS.index(kind)
            nodes[i].name = name
            nodes[i].name_size = len(name)
            if not 0 <= children <= count - taken or (children and nodes[i].level >= LEVELS_MAX):
                raise ValueError(f"node {i} has {children} children; {LEVELS_MAX} levels at most")
            if {KIND_STRUCT: children, KIND_LIST: 1, KIND_MAP: 2}.get(nodes[i].kind, 0) != children:
                raise ValueError(f"node {i} is a {kind}, with {children} children")
            nodes[i].first, nodes[i].count = taken, children
            for child in range(taken, taken + <int32_t>children):
                nodes[child].level = nodes[i].level + 1
            taken += <int32_t>children
        if taken != count or nodes[0].kind != KIND_STRUCT:
            raise ValueError("the nodes are a tree, whose root is a struct")
        for i in range(count):
            if nodes[i].kind == KIND_MAP and nodes[nodes[i].first].kind != KIND_TEXT:
                raise ValueError(f"node {i} is a map whose keys are not text")
    except BaseException:
        free(nodes)
        raise
    return nodes


cdef node_t* tree_copy(const node_t* nodes, int32_t count) except NULL:
    cdef node_t* made = <node_t*>calloc(count, sizeof(node_t))
    if made == NULL:
        raise MemoryError
    memcpy(made, nodes, count * sizeof(node_t))
    return made


cdef ValueColumn tree_taken(node_t* nodes, int32_t at):
    cdef node_t* n = &nodes[at]
    cdef ValueColumn made = ValueColumn.__new__(ValueColumn)
    cdef int32_t i
    made.kind = KINDS[n.kind]
    made.rows = n.rows
    made.validity = block_take(&n.validity)
    made.offsets = block_take(&n.offsets)
    made.data = block_take(&n.data)
    made.children = [tree_taken(nodes, i) for i in range(n.first, n.first + n.count)]
    return made


cdef void tree_free(node_t* nodes, int32_t count) noexcept:
    cdef int32_t i
    for i in range(count):
        block_free(&nodes[i].validity)
        block_free(&nodes[i].offsets)
        block_free(&nodes[i].data)
    free(nodes)
