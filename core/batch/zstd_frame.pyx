"""The check of zstd frame headers (RFC 8878) against the rules of every library.

A consumer whose library refuses a stored batch is stuck at it for good, so the broker must refuse the batch. libzstd
has become stricter: since 1.5.5 it refuses reserved bits, bytes after a count of zero sequences, and four streams with
too few literals. Streaming readers, such as Java's, refuse a window of more than 128 MiB, and a block larger than its
window or than 128 KiB; a reader with the whole frame and room for all of its output checks neither. If the last block
is empty, the content size in the header is only checked with that much room, which depends on the library. The
compressed data is not checked here.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint32_t, uint64_t, uint8_t

cdef enum:
    HEAD_BYTES = 5               # magic and descriptor
    CHECKSUM_BYTES = 4
    BLOCK_HEAD_BYTES = 3
    RESERVED = 1 << 3            # in the descriptor
    HAS_CHECKSUM = 1 << 2
    SINGLE_SEGMENT = 1 << 5
    FOUR_STREAMS_MIN = 6         # literals
    BLOCK_BYTES_MAX = 128 << 10
    SKIPPED_HEAD_BYTES = 8       # magic and size

cdef enum block_kind:
    RAW
    RLE
    COMPRESSED
    TREELESS                     # only for literals: with the tree of an earlier block

cdef uint32_t MAGIC = 0xFD2FB528
cdef uint32_t SKIPPED_MAGIC = 0x184D2A50  # to ...5F: a skippable frame, which decoders ignore
cdef uint64_t WINDOW_MAX = 1 << 27


cdef inline uint64_t load_le(const uint8_t* p, size_t n) noexcept nogil:
    cdef uint64_t value = 0
    cdef size_t i
    for i in range(n):
        value |= <uint64_t>p[i] << (8 * i)
    return value


cdef const uint8_t* behind_literals(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """The start of the sequences in a compressed block; NULL if the literals are not strict."""
    cdef int kind, form
    cdef size_t head
    cdef uint64_t told, made, size
    if p == end:
        return NULL
    kind, form = p[0] & 3, p[0] >> 2 & 3
    if kind == RAW or kind == RLE:
        head = 1 if form & 1 == 0 else 2 if form == 1 else 3
        if <size_t>(end - p) < head:
            return NULL
        size = load_le(p, head) >> (3 if head == 1 else 4) if kind == RAW else 1
    else:
        head = 3 if form < 2 else form + 2
        if <size_t>(end - p) < head:
            return NULL
        told = load_le(p, head)
        made = told >> 4 & ((<uint64_t>1 << (head * 4 - 2)) - 1)
        size = told >> (head * 4 + 2)
        if form != 0 and made < FOUR_STREAMS_MIN:
            return NULL
    return p + head + size if <uint64_t>(end - p) - head > size else NULL


cdef bint is_strict_block(const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef uint32_t sequences, head = 1
    p = behind_literals(p, end)
    if p == NULL:
        return False
    sequences = p[0]
    if sequences >= 128:
        head = 2 if sequences < 255 else 3
        if <size_t>(end - p) < head:
            return False
        sequences = ((sequences - 128) << 8) + p[1] if head == 2 else p[1] + (p[2] << 8) + 0x7F00
    p += head
    if sequences == 0:
        return p == end
    return p != end and p[0] & 3 == 0


cdef const uint8_t* behind_head(
    const uint8_t* p, const uint8_t* end, uint64_t* window, uint64_t* content) noexcept nogil:
    """Skip the header of a frame, and read its window and its content's size, or CONTENT_UNKNOWN; NULL if it is not
    strict."""
    cdef uint8_t descriptor
    cdef size_t id_bytes, size_bytes
    if end - p < HEAD_BYTES:
        return NULL
    descriptor = p[4]
    p += HEAD_BYTES
    id_bytes = (1 << (descriptor & 3)) >> 1               # of a dictionary
    size_bytes = (1 << (descriptor >> 6)) & ~1            # of the content's size
    if descriptor & RESERVED or p == end:
        return NULL
    if descriptor & SINGLE_SEGMENT:
        size_bytes = max(size_bytes, <size_t>1)
    else:
        window[0] = (<uint64_t>1 << (10 + (p[0] >> 3))) // 8 * (8 + (p[0] & 7))
        p += 1
    if <size_t>(end - p) < id_bytes + size_bytes:
        return NULL
    p += id_bytes
    content[0] = load_le(p, size_bytes) + (256 if size_bytes == 2 else 0) if size_bytes else CONTENT_UNKNOWN
    if descriptor & SINGLE_SEGMENT:                       # the window is the content
        window[0] = content[0]
    return p + size_bytes if window[0] <= WINDOW_MAX else NULL


cdef const uint8_t* behind_frame(
    const uint8_t* p, const uint8_t* end, uint64_t* window, uint64_t* content) noexcept nogil:
    """Skip a frame whose magic was checked, and read its window and its content's size; NULL if it is cut or not
    strict."""
    cdef bint has_checksum = end - p >= HEAD_BYTES and p[4] & HAS_CHECKSUM
    cdef uint32_t head
    cdef uint64_t size, made
    p = behind_head(p, end, window, content)
    while p != NULL and end - p >= BLOCK_HEAD_BYTES:
        head = <uint32_t>load_le(p, BLOCK_HEAD_BYTES)
        p += BLOCK_HEAD_BYTES
        made = head >> 3
        size = made if head >> 1 & 3 != RLE else 1
        if <uint64_t>(end - p) < size or head >> 1 & 3 > COMPRESSED or made > min(window[0], <uint64_t>BLOCK_BYTES_MAX):
            return NULL
        if head >> 1 & 3 == COMPRESSED and not is_strict_block(p, p + size):
            return NULL
        p += size
        if head & 1:
            size = CHECKSUM_BYTES if has_checksum else 0
            return p + size if <uint64_t>(end - p) >= size else NULL
    return NULL


cdef bint zstd_is_strict(const uint8_t* p, size_t n, uint64_t* window, uint64_t* content) noexcept nogil:
    return n >= HEAD_BYTES and load_le(p, 4) == MAGIC and behind_frame(p, p + n, window, content) == p + n


cdef bint frames_are_strict(const uint8_t* p, const uint8_t* end, uint64_t made) noexcept nogil:
    cdef uint64_t size, window = 0, content = 0, claimed = 0
    cdef bint all_claim = True
    while p != NULL and end - p >= SKIPPED_HEAD_BYTES:
        if load_le(p, 4) == MAGIC:
            p = behind_frame(p, end, &window, &content)
            all_claim = all_claim and content != CONTENT_UNKNOWN
            if p != NULL and content != CONTENT_UNKNOWN:
                if content > made - claimed:
                    return False
                claimed += content
        elif load_le(p, 4) & ~<uint64_t>0xF == SKIPPED_MAGIC:
            size = load_le(p + 4, 4) + SKIPPED_HEAD_BYTES
            p = p + size if <uint64_t>(end - p) >= size else NULL
        else:
            return False
    return p == end and (claimed == made or not all_claim)


def zstd_frames_are_strict(data, uint64_t made) -> bool:
    """True if data is a row of whole frames that every library reads, as far as their headers show, and whose content
    has `made` bytes in all."""
    cdef Py_buffer view
    cdef bint strict
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    with nogil:
        strict = frames_are_strict(<const uint8_t*>view.buf, <const uint8_t*>view.buf + view.len, made)
    PyBuffer_Release(&view)
    return strict
