"""Avro's binary encoding into typed columns; avro_decode.pxd has the operations, tree.pxd the columns.

A count or a length in a value is never believed further than its bytes reach: an item of an array takes at least one
byte, or the schema is refused before (avro_columns.pyx).
"""

from libc.errno cimport ENOMEM
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from pybroker.core.base.cursor cimport BAD, OK, cursor_t, read_span, read_varlong
from pybroker.core.batch.block cimport block_room
from pybroker.core.columns.json_text cimport utf8_is_sound
from pybroker.core.columns.source cimport field_t, source_get, source_t
from pybroker.core.columns.tree cimport node_t, tree_begin, tree_close, tree_cut, tree_mark, tree_null, tree_put8


cdef inline uint64_t _little(const uint8_t* p, int bytes_) noexcept nogil:
    cdef uint64_t value = 0
    cdef int i
    for i in range(bytes_):
        value |= <uint64_t>p[i] << (8 * i)
    return value


cdef inline int _put_bytes(node_t* n, const uint8_t* at, int64_t size) noexcept nogil:
    if block_room(&n.data, size) != 0:
        return -ENOMEM
    memcpy(n.data.data + n.data.size, at, <size_t>size)
    n.data.size += size
    return tree_close(n, n.data.size)


cdef int _scalar(const op_t* op, node_t* n, cursor_t* r) noexcept nogil:
    """A number or a truth, which goes to a node unless that is NULL."""
    cdef const uint8_t* p = NULL
    cdef int64_t whole = 0
    cdef uint32_t bits
    cdef float small
    cdef double real
    cdef int status
    if op.code == AVRO_BOOLEAN:
        status = read_span(r, 1, &p)
        if status != OK or p[0] > 1:
            return status if status != OK else BAD
        return OK if n == NULL else tree_mark(&n.data, n.rows, p[0] == 1)
    if op.code == AVRO_INT or op.code == AVRO_LONG:
        status = read_varlong(r, &whole)
        if status == OK and op.code == AVRO_INT and not INT32_MIN <= whole <= INT32_MAX:
            status = BAD
        return status if status != OK or n == NULL else tree_put8(n, &whole)
    if op.code == AVRO_FLOAT:
        status = read_span(r, 4, &p)
        if status != OK or n == NULL:
            return status
        bits = <uint32_t>_little(p, 4)
        memcpy(&small, &bits, 4)
        real = small
        return tree_put8(n, &real)
    status = read_span(r, 8, &p)
    whole = <int64_t>_little(p, 8) if status == OK else 0
    return status if status != OK or n == NULL else tree_put8(n, &whole)


cdef int _bytes(const op_t* op, node_t* n, cursor_t* r) noexcept nogil:
    """Bytes, a string, a fixed, or an enum's symbol."""
    cdef const uint8_t* p = NULL
    cdef int64_t size = op.size
    cdef int status = OK
    if op.code != AVRO_FIXED:
        status = read_varlong(r, &size)
    if op.code == AVRO_ENUM:
        if status != OK or not 0 <= size < op.size:
            return status if status != OK else BAD
        return OK if n == NULL else _put_bytes(n, op.symbols[size].at, op.symbols[size].size)
    if status == OK:
        status = read_span(r, size, &p)
    if status == OK and op.code == AVRO_STRING and not utf8_is_sound(p, p + size):
        status = BAD
    return status if status != OK or n == NULL else _put_bytes(n, p, size)


cdef int _blocks(avro_t* d, const op_t* op, node_t* n, cursor_t* r) noexcept nogil:
    """The items of an array, or the keys and values of a map, in blocks."""
    cdef node_t* keys = &d.nodes[n.first] if n != NULL and op.code == AVRO_MAP else NULL
    cdef op_t key
    cdef int64_t count = 0, size = 0, _i
    cdef int status
    key.code = AVRO_STRING
    while True:
        status = read_varlong(r, &count)
        if status == OK and count < 0:
            status = BAD if count == INT64_MIN else read_varlong(r, &size)
            count = -count
        if status != OK:
            return status
        if count == 0:
            break
        for _i in range(count):
            if op.code == AVRO_MAP:
                status = _bytes(&key, keys, r)
                if status == OK and keys != NULL:
                    status = tree_mark(&keys.validity, keys.rows, True)
                    keys.rows += 1
            if status == OK:
                status = _value(d, op.first, r)
            if status != OK:
                return status
    return OK if n == NULL else tree_close(n, d.nodes[n.first].rows)


cdef int _value(avro_t* d, int32_t at, cursor_t* r) noexcept nogil:
    """Add the value at the cursor to the node of an operation. OK, SHORT, BAD or -ENOMEM."""
    cdef const op_t* op = &d.ops[at]
    cdef node_t* n = &d.nodes[op.node] if op.node >= 0 else NULL
    cdef int64_t branch = -1
    cdef int32_t child
    cdef int status = OK
    if op.null_branch >= 0:
        status = read_varlong(r, &branch)
        if status != OK or not 0 <= branch <= 1:
            return status if status != OK else BAD
    if op.code <= AVRO_NULL or (op.null_branch >= 0 and branch == op.null_branch):
        return OK if n == NULL else tree_null(d.nodes, op.node)
    if op.code <= AVRO_DOUBLE:
        status = _scalar(op, n, r)
    elif op.code <= AVRO_ENUM:
        status = _bytes(op, n, r)
    elif op.code <= AVRO_MAP:
        status = _blocks(d, op, n, r)
    else:
        for child in range(op.first, op.first + op.count):
            status = _value(d, child, r)
            if status != OK:
                return status
    if status == OK and n != NULL:
        status = tree_mark(&n.validity, n.rows, True)
        n.rows += 1
    return status


cdef int avro_decode(avro_t* d, const source_t* values) noexcept nogil:
    cdef field_t value
    cdef cursor_t r
    cdef int64_t row
    cdef int status = tree_begin(d.nodes, d.count)
    if status != OK:
        return status
    for row in range(values.length):
        status = source_get(values, row, &value)
        if status != OK:
            return status
        if value.size <= 0:
            status = tree_null(d.nodes, 0)
            if status != OK:
                return status
            continue
        r.at, r.end = value.at + min(d.skip, value.size), value.at + value.size
        status = _value(d, 0, &r)
        if status == -ENOMEM:
            return status
        if status != OK or r.at != r.end:
            tree_cut(d.nodes, 0, row)
            if tree_null(d.nodes, 0) != OK or block_room(&d.bad, 8) != 0:
                return -ENOMEM
            memcpy(d.bad.data + d.bad.size, &row, 8)
            d.bad.size += 8
    return OK
