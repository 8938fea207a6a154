"""Avro records as typed columns, on Python's side."""

from libc.errno cimport ENOMEM
from libc.stdint cimport INT32_MAX, int32_t, int64_t
from libc.stdlib cimport calloc, free

from pybroker.core.base.cursor cimport OK
from pybroker.core.batch.block cimport block_free, block_init
from pybroker.core.columns.avro_decode cimport (
    AVRO_ARRAY, AVRO_ENUM, AVRO_FIXED, AVRO_MAP, AVRO_RECORD, avro_decode, avro_t, op_t, symbol_t,
)
from pybroker.core.columns.source cimport ByteColumn, source_bytes
from pybroker.core.columns.tree cimport (
    KIND_BOOL, KIND_DOUBLE, KIND_INT, KIND_LIST, KIND_MAP, KIND_STRUCT, KIND_TEXT, node_t,
)
from pybroker.core.columns.value_columns cimport ValueColumn, tree_copy, tree_free, tree_of, tree_taken

CODES = (
    "absent", "null", "boolean", "int", "long", "float", "double", "bytes", "string", "fixed", "enum", "array", "map",
    "record",
)
HELD = (
    -1, -1, KIND_BOOL, KIND_INT, KIND_INT, KIND_DOUBLE, KIND_DOUBLE, KIND_TEXT, KIND_TEXT, KIND_TEXT, KIND_TEXT,
    KIND_LIST, KIND_MAP, KIND_STRUCT,
)  # the kind of node that each code goes to; -1 for any
LEAST = (0, 0, 1, 1, 1, 4, 8, 1, 1, 0, 1, 1, 1, 0)  # bytes of a value; of a fixed and a record their own


cdef class AvroBatch:
    """The result of AvroDecoder.decode()."""

    cdef readonly ValueColumn root
    cdef readonly list bad  # rows


cdef class AvroDecoder:
    """Decodes values that are Avro records into the columns of a tree of nodes; any threads may do so at once.

    nodes: as of JsonDecoder. operations: (code, null branch, node, number of children, size, symbols), level by level,
    the root first: a record that goes to node 0."""

    cdef node_t* nodes
    cdef op_t* ops
    cdef symbol_t* symbols
    cdef int32_t count
    cdef int32_t op_count
    cdef list given      # whose names the nodes point to
    cdef list of_enums   # whose symbols the operations point to

    def __cinit__(self, nodes, operations):
        cdef list given = list(operations)
        self.given = list(nodes)
        self.count = <int32_t>len(self.given)
        self.nodes = tree_of(self.given)
        self.op_count = <int32_t>len(given)
        self.of_enums = [symbol for *_, symbols in given for symbol in symbols]
        self.ops = <op_t*>calloc(max(self.op_count, 1), sizeof(op_t))
        self.symbols = <symbol_t*>calloc(max(len(self.of_enums), 1), sizeof(symbol_t))
        if self.ops == NULL or self.symbols == NULL:
            raise MemoryError
        self._read(given)
        self._check()

    cdef int _read(self, list given) except -1:
        cdef int32_t i, taken = 1, symbol = 0
        cdef bytes text
        for i, text in enumerate(self.of_enums):
            self.symbols[i].at = text
            self.symbols[i].size = len(text)
        for i, (code, branch, node, children, size, symbols) in enumerate(given):
            if not 0 <= children <= self.op_count - taken:
                raise ValueError(f"operation {i} has {children} children")
            self.ops[i].code, self.ops[i].null_branch = CODES.index(code), branch
            self.ops[i].node, self.ops[i].first, self.ops[i].count = node, taken, children
            self.ops[i].size = len(symbols) if self.ops[i].code == AVRO_ENUM else size
            self.ops[i].symbols = &self.symbols[symbol]
            taken += <int32_t>children
            symbol += <int32_t>len(symbols)
        if taken != self.op_count or self.ops[0].code != AVRO_RECORD or self.ops[0].node != 0:
            raise ValueError("the operations are a tree, whose root is a record that goes to node 0")
        return 0

    cdef int _check(self) except -1:
        """See that each node gets a row from exactly one operation, below the one of its parent."""
        cdef int32_t i, child
        cdef op_t* op
        cdef list least = [0] * self.op_count
        for i in range(self.op_count - 1, -1, -1):
            op = &self.ops[i]
            least[i] = LEAST[op.code]
            if op.code == AVRO_FIXED:
                least[i] = op.size
            elif op.code == AVRO_RECORD:
                least[i] = sum(least[op.first:op.first + op.count])
            if op.null_branch >= 0:
                least[i] = 1
            if not -1 <= op.null_branch <= 1 or op.size < 0 or not -1 <= op.node < self.count:
                raise ValueError(f"operation {i} has no sound numbers")
            if op.count != 1 and (op.code == AVRO_ARRAY or op.code == AVRO_MAP):
                raise ValueError(f"operation {i} has {op.count} children")
            if op.count and op.code < AVRO_ARRAY:
                raise ValueError(f"operation {i} has children, which its code does not have")
            if op.code == AVRO_ARRAY and not least[op.first]:
                raise ValueError("an array whose items take no bytes")
            if op.node >= 0 and HELD[op.code] not in (-1, self.nodes[op.node].kind):
                raise ValueError(f"operation {i} goes to a node of another kind")
            wanted = self._below(op)
            found = [self.ops[child].node for child in range(op.first, op.first + op.count)]
            if sorted(each for each in found if each >= 0) != wanted:
                raise ValueError(f"the operations below {i} go to the nodes {found}, not {wanted}")
        return 0

    cdef list _below(self, const op_t* op):
        """The nodes that the children of an operation fill."""
        cdef node_t* n
        if op.node < 0 or op.code < AVRO_ARRAY:
            return []
        n = &self.nodes[op.node]
        return list(range(n.first + (op.code == AVRO_MAP), n.first + n.count))

    def __dealloc__(self):
        free(self.nodes)
        free(self.ops)
        free(self.symbols)

    def decode(self, ByteColumn values not None, *, int64_t skip=0) -> AvroBatch:
        """A row for each value: its fields, or nulls where it is null, empty or in `bad`. skip: bytes before each."""
        cdef avro_t d
        cdef int64_t i
        cdef int status
        cdef AvroBatch made = AvroBatch.__new__(AvroBatch)
        if skip < 0 or source_bytes(&values.s, 0, values.s.length) > INT32_MAX:
            raise ValueError("the values have more than 2 GiB, or a frame of no bytes")
        d.nodes = tree_copy(self.nodes, self.count)
        d.ops, d.count, d.skip = self.ops, self.count, skip
        block_init(&d.bad, 0)
        try:
            with nogil:
                status = avro_decode(&d, &values.s)
            if status == -ENOMEM:
                raise MemoryError
            if status != OK:
                raise ValueError("the offsets of the values leave their data")
            made.root = tree_taken(d.nodes, 0)
            made.bad = [(<const int64_t*>d.bad.data)[i] for i in range(d.bad.size // 8)]
            return made
        finally:
            tree_free(d.nodes, self.count)
            block_free(&d.bad)
