"""JSON values as typed columns, on Python's side."""

from libc.errno cimport ENOMEM
from libc.stdint cimport INT32_MAX, int32_t, int64_t
from libc.stdlib cimport free

from pybroker.core.base.cursor cimport OK
from pybroker.core.batch.block cimport block_free, block_init
from pybroker.core.columns.json_decode cimport bad_t, decoder_t, json_decode
from pybroker.core.columns.source cimport ByteColumn, source_bytes
from pybroker.core.columns.tree cimport node_t
from pybroker.core.columns.value_columns cimport ValueColumn, tree_copy, tree_free, tree_of, tree_taken

JSON_PROBLEMS = ("", "syntax", "kind", "range", "twice", "utf8", "deep", "more", "no object")


cdef class JsonBatch:
    """The result of JsonDecoder.decode()."""

    cdef readonly ValueColumn root
    cdef readonly list bad      # (row, problem, node, position)
    cdef readonly list unknown  # names, as they stand in the JSON


cdef class JsonDecoder:
    """Decodes values that are JSON objects into the columns of a tree of nodes; any threads may do so at once.

    nodes: (kind, name, number of children) of each, level by level, the root first."""

    cdef node_t* nodes
    cdef int32_t count
    cdef list given  # whose names the nodes point to

    def __cinit__(self, nodes):
        self.given = list(nodes)
        self.count = <int32_t>len(self.given)
        self.nodes = tree_of(self.given)

    def __dealloc__(self):
        free(self.nodes)

    def decode(self, ByteColumn values not None) -> JsonBatch:
        """A row for each value: its fields, or nulls where it is null, empty or in `bad`."""
        cdef decoder_t d
        cdef int32_t i
        cdef int status
        cdef JsonBatch made = JsonBatch.__new__(JsonBatch)
        if source_bytes(&values.s, 0, values.s.length) > INT32_MAX:
            raise ValueError("the values have more than 2 GiB")
        d.nodes = tree_copy(self.nodes, self.count)
        d.count, d.objects, d.unknowns, d.bad_node = self.count, 0, 0, 0
        block_init(&d.scratch, 0)
        block_init(&d.bad, 0)
        try:
            with nogil:
                status = json_decode(&d, &values.s)
            if status == -ENOMEM:
                raise MemoryError
            if status != OK:
                raise ValueError("the offsets of the values leave their data")
            made.root = tree_taken(d.nodes, 0)
            made.bad = _bad_rows(&d)
            made.unknown = [<bytes>d.unknown[i].at[:d.unknown[i].size] for i in range(d.unknowns)]
            return made
        finally:
            tree_free(d.nodes, self.count)
            block_free(&d.scratch)
            block_free(&d.bad)


cdef list _bad_rows(const decoder_t* d):
    cdef const bad_t* bad = <const bad_t*>d.bad.data
    cdef int64_t i
    return [
        (bad[i].row, JSON_PROBLEMS[bad[i].problem], bad[i].node, bad[i].position)
        for i in range(d.bad.size // <int64_t>sizeof(bad_t))
    ]
