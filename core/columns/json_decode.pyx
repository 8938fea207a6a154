"""JSON values into typed columns, without an object a record and without the GIL; tree.pxd has the tree.

A value that is wrong leaves a row of nulls: what it had added by then is cut off again. That works because the number
of rows of node 0 says how long each node was before.
"""

from libc.errno cimport ENOMEM
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcmp, memcpy

from pybroker.core.base.cursor cimport OK, cursor_t
from pybroker.core.batch.block cimport block_room
from pybroker.core.columns.json_text cimport (
    JSON_DEEP, JSON_DEPTH_MAX, JSON_KIND, JSON_MORE, JSON_NO_OBJECT, JSON_OK, JSON_SYNTAX, JSON_TWICE, json_literal,
    json_number, json_scalar, json_space, json_string, json_unescape, number_double, number_int64, number_t,
    set_c_locale, text_t,
)
from pybroker.core.columns.source cimport field_t, source_get, source_t
from pybroker.core.columns.tree cimport (
    KIND_BOOL, KIND_DOUBLE, KIND_INT, KIND_LIST, KIND_MAP, KIND_STRUCT, KIND_TEXT, node_t, tree_begin, tree_close,
    tree_cut, tree_mark, tree_null, tree_put8,
)

cdef enum:
    FRAME_BYTES = 5  # a schema registry's: a 0 and four bytes of an id

set_c_locale()


# -- values -----------------------------------------------------------------------------------------------------------

cdef int _skip(cursor_t* r, int depth) noexcept nogil:
    """Pass over a value that no column wants, and see that it is JSON."""
    cdef text_t name
    cdef int64_t size
    cdef int status
    cdef uint8_t end
    json_space(r)
    if r.at >= r.end or (r.at[0] != c"{" and r.at[0] != c"["):
        return json_scalar(r)
    if depth >= JSON_DEPTH_MAX:
        return JSON_DEEP
    end = c"}" if r.at[0] == c"{" else c"]"
    r.at += 1
    json_space(r)
    if r.at < r.end and r.at[0] == end:
        r.at += 1
        return JSON_OK
    while True:
        if end == c"}":
            status = _name(r, &name)
            if status == JSON_OK and name.escaped:
                status = json_unescape(&name, NULL, &size)
            if status != JSON_OK:
                return status
        status = _skip(r, depth + 1)
        if status != JSON_OK:
            return status
        status = _next(r, end)
        if status != JSON_OK:
            return JSON_OK if status == end else status


cdef inline int _name(cursor_t* r, text_t* name) noexcept nogil:
    """A field's name, and the colon behind it."""
    cdef int status
    json_space(r)
    if r.at >= r.end or r.at[0] != c'"':
        return JSON_SYNTAX
    r.at += 1
    status = json_string(r, name)
    if status != JSON_OK:
        return status
    json_space(r)
    if r.at >= r.end or r.at[0] != c":":
        return JSON_SYNTAX
    r.at += 1
    return JSON_OK


cdef inline int _next(cursor_t* r, uint8_t end) noexcept nogil:
    """JSON_OK where a comma says that more follows, `end` where the array or object ends."""
    json_space(r)
    if r.at >= r.end or (r.at[0] != c"," and r.at[0] != end):
        return JSON_SYNTAX
    r.at += 1
    return JSON_OK if (r.at - 1)[0] == c"," else end


cdef inline int _text(node_t* n, const text_t* text) noexcept nogil:
    """Add what a string means as the text of the next row."""
    cdef int64_t size = text.size
    cdef int status = JSON_OK
    if block_room(&n.data, text.size) != 0:
        return -ENOMEM
    if text.escaped:
        status = json_unescape(text, n.data.data + n.data.size, &size)
    else:
        memcpy(n.data.data + n.data.size, text.at, <size_t>size)
    if status == JSON_OK:
        n.data.size += size
        status = tree_close(n, n.data.size)
    return status


cdef int _as_text(node_t* n, cursor_t* r) noexcept nogil:
    cdef text_t text
    cdef int status
    if r.at[0] == c'"':
        r.at += 1
        status = json_string(r, &text)
    else:
        text.at, text.escaped = r.at, False
        status = _skip(r, n.level)
        text.size = r.at - text.at
    return _text(n, &text) if status == JSON_OK else status


cdef int _scalar(node_t* n, cursor_t* r) noexcept nogil:
    """Add a value to a column of BOOL, INT or DOUBLE."""
    cdef number_t number
    cdef int64_t whole = 0
    cdef double real = 0
    cdef int status
    if r.at[0] == c"t" or r.at[0] == c"f":
        if n.kind != KIND_BOOL:
            return JSON_KIND
        status = json_literal(r, b"true", 4) if r.at[0] == c"t" else json_literal(r, b"false", 5)
        return tree_mark(&n.data, n.rows, (r.at - 2)[0] == c"u") if status == JSON_OK else status
    if r.at[0] == c'"' or r.at[0] == c"{" or r.at[0] == c"[":
        return JSON_KIND
    status = json_number(r, &number)
    if status != JSON_OK:
        return status
    if n.kind == KIND_INT:
        status = number_int64(&number, &whole)
        return tree_put8(n, &whole) if status == JSON_OK else status
    if n.kind == KIND_DOUBLE:
        status = number_double(&number, &real)
        return tree_put8(n, &real) if status == JSON_OK else status
    return JSON_KIND


cdef int _value(decoder_t* d, int32_t at, cursor_t* r) noexcept nogil:
    """Add the value at the cursor to a node."""
    cdef node_t* n = &d.nodes[at]
    cdef int status
    json_space(r)
    if r.at >= r.end:
        return JSON_SYNTAX
    if r.at[0] == c"n":
        status = json_literal(r, b"null", 4)
        return tree_null(d.nodes, at) if status == JSON_OK else status
    if n.kind == KIND_TEXT:
        status = _as_text(n, r)
    elif n.kind == KIND_STRUCT:
        status = _object(d, at, r) if r.at[0] == c"{" else JSON_KIND
    elif n.kind == KIND_LIST:
        status = _array(d, n, r) if r.at[0] == c"[" else JSON_KIND
    elif n.kind == KIND_MAP:
        status = _map(d, n, r) if r.at[0] == c"{" else JSON_KIND
    else:
        status = _scalar(n, r)
    if status == JSON_OK:
        status = tree_mark(&n.validity, n.rows, True)
        n.rows += 1
    elif d.bad_node == 0:
        d.bad_node = at
    return status


cdef int _array(decoder_t* d, node_t* n, cursor_t* r) noexcept nogil:
    cdef int status = JSON_OK
    r.at += 1
    json_space(r)
    if r.at < r.end and r.at[0] == c"]":
        r.at += 1
        return tree_close(n, d.nodes[n.first].rows)
    while status == JSON_OK:
        status = _value(d, n.first, r)
        if status != JSON_OK:
            return status
        status = _next(r, c"]")
    return tree_close(n, d.nodes[n.first].rows) if status == c"]" else status


cdef int _map(decoder_t* d, node_t* n, cursor_t* r) noexcept nogil:
    cdef node_t* keys = &d.nodes[n.first]
    cdef text_t name
    cdef int status = JSON_OK
    r.at += 1
    json_space(r)
    if r.at < r.end and r.at[0] == c"}":
        r.at += 1
        return tree_close(n, keys.rows)
    while status == JSON_OK:
        status = _name(r, &name)
        if status == JSON_OK:
            status = _text(keys, &name)
        if status == JSON_OK:
            status = tree_mark(&keys.validity, keys.rows, True)
            keys.rows += 1
        if status == JSON_OK:
            status = _value(d, n.first + 1, r)
        if status != JSON_OK:
            return status
        status = _next(r, c"}")
    return tree_close(n, keys.rows) if status == c"}" else status


# -- objects ----------------------------------------------------------------------------------------------------------

cdef inline bint _same(const node_t* n, const uint8_t* at, int64_t size) noexcept nogil:
    return n.name_size == size and memcmp(n.name, at, <size_t>size) == 0


cdef void _note_unknown(decoder_t* d, const uint8_t* at, int64_t size) noexcept nogil:
    """Remember a field that no column is for, the first UNKNOWN_MAX of them."""
    cdef int32_t i
    if d.unknowns == UNKNOWN_MAX:
        return
    for i in range(d.unknowns):
        if d.unknown[i].size == size and memcmp(d.unknown[i].at, at, <size_t>size) == 0:
            return
    d.unknown[d.unknowns].at = at
    d.unknown[d.unknowns].size = size
    d.unknowns += 1


cdef int _field(decoder_t* d, const node_t* n, const text_t* name, int32_t* turn, int32_t* found) noexcept nogil:
    """The node of a field, looked for from `turn` on, where the last one stopped; -1 where there is none."""
    cdef const uint8_t* at = name.at
    cdef int64_t size = name.size
    cdef int32_t _i
    cdef int status
    found[0] = -1
    if name.escaped:
        d.scratch.size = 0
        if block_room(&d.scratch, size) != 0:
            return -ENOMEM
        status = json_unescape(name, d.scratch.data, &size)
        if status != JSON_OK:
            return status
        at = d.scratch.data
    for _i in range(n.count):
        if _same(&d.nodes[n.first + turn[0]], at, size):
            found[0] = n.first + turn[0]
        turn[0] = turn[0] + 1 if turn[0] + 1 < n.count else 0
        if found[0] >= 0:
            return JSON_OK
    _note_unknown(d, name.at, name.size)
    return JSON_OK


cdef int _object(decoder_t* d, int32_t at, cursor_t* r) noexcept nogil:
    """Add an object's fields to the children of a node, and nulls to those that it does not have."""
    cdef node_t* n = &d.nodes[at]
    cdef text_t name
    cdef int32_t child = 0, turn = 0
    cdef int64_t number = d.objects + 1
    cdef int status = JSON_OK
    d.objects = number
    r.at += 1
    json_space(r)
    if r.at < r.end and r.at[0] == c"}":
        r.at += 1
        status = c"}"
    while status == JSON_OK:
        status = _name(r, &name)
        if status == JSON_OK:
            status = _field(d, n, &name, &turn, &child)
        if status != JSON_OK:
            return status
        if child < 0:
            status = _skip(r, n.level)
        elif d.nodes[child].seen == number:
            d.bad_node = child
            return JSON_TWICE
        else:
            d.nodes[child].seen = number
            status = _value(d, child, r)
        if status != JSON_OK:
            return status
        status = _next(r, c"}")
    if status != c"}":
        return status
    for child in range(n.first, n.first + n.count):
        if d.nodes[child].seen != number:
            status = tree_null(d.nodes, child)
            if status != OK:
                return status
    return JSON_OK


cdef int _row(decoder_t* d, const field_t* value) noexcept nogil:
    """Add a row: of the value's object; of nulls where it is null, empty, or wrong. OK or -ENOMEM."""
    cdef node_t* root = &d.nodes[0]
    cdef int64_t row = root.rows
    cdef const uint8_t* start = value.at
    cdef cursor_t r
    cdef bad_t bad
    cdef int status
    if value.size <= 0:
        return tree_null(d.nodes, 0)
    if value.size >= FRAME_BYTES and start[0] == 0:
        start += FRAME_BYTES
    r.at, r.end = start, value.at + value.size
    d.bad_node = 0
    json_space(&r)
    status = _value(d, 0, &r) if r.at < r.end and r.at[0] == c"{" else JSON_NO_OBJECT
    if status == JSON_OK:
        json_space(&r)
        if r.at != r.end:
            status = JSON_MORE
    if status <= JSON_OK:
        return status
    bad.row, bad.problem, bad.node, bad.position = row, status, d.bad_node, r.at - value.at
    if block_room(&d.bad, sizeof(bad_t)) != 0:
        return -ENOMEM
    memcpy(d.bad.data + d.bad.size, &bad, sizeof(bad_t))
    d.bad.size += sizeof(bad_t)
    tree_cut(d.nodes, 0, row)
    return tree_null(d.nodes, 0)


cdef int json_decode(decoder_t* d, const source_t* values) noexcept nogil:
    cdef field_t value
    cdef int64_t row
    cdef int status = tree_begin(d.nodes, d.count)
    if status != OK:
        return status
    for row in range(values.length):
        status = source_get(values, row, &value)
        if status == OK:
            status = _row(d, &value)
        if status != OK:
            return status
    return OK
