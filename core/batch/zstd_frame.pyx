"""The headers of a zstd frame (RFC 8878), held to what every library asks for.

A broker that takes what a consumer's library refuses has stopped that consumer for good. libzstd has become stricter:
since 1.5.5 it refuses bits that are reserved, sequences of none with bytes behind them, and four streams of too few
literals. And those that decompress as a stream, as Java's does, refuse a window of more than 128 MiB, which nobody asks
for who has the whole frame before him. What is compressed is still left to the library.
"""

from libc.stdint cimport uint32_t, uint64_t, uint8_t

cdef enum:
    HEAD_BYTES = 5               # magic and descriptor
    CHECKSUM_BYTES = 4
    BLOCK_HEAD_BYTES = 3
    RESERVED = 1 << 3            # of the descriptor
    HAS_CHECKSUM = 1 << 2
    SINGLE_SEGMENT = 1 << 5
    FOUR_STREAMS_MIN = 6         # literals

cdef enum block_kind:
    RAW
    RLE
    COMPRESSED
    TREELESS                     # of literals alone: with the tree of an earlier block

cdef uint64_t WINDOW_MAX = 1 << 27


cdef inline uint64_t load_le(const uint8_t* p, size_t n) noexcept nogil:
    cdef uint64_t value = 0
    cdef size_t i
    for i in range(n):
        value |= <uint64_t>p[i] << (8 * i)
    return value


cdef const uint8_t* behind_literals(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Where the sequences of a compressed block begin; NULL where there are none."""
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


cdef bint zstd_is_strict(const uint8_t* p, size_t n) noexcept nogil:
    cdef const uint8_t* end = p + n
    cdef uint8_t descriptor
    cdef uint32_t head
    cdef uint64_t size
    cdef size_t more
    if n < HEAD_BYTES:
        return False
    descriptor = p[4]
    p += HEAD_BYTES
    if descriptor & RESERVED:
        return False
    more = (1 << (descriptor & 3)) >> 1          # the dictionary's id
    more += (1 << (descriptor >> 6)) & ~1        # the size of the content
    if descriptor & SINGLE_SEGMENT:
        more += descriptor >> 6 == 0
    elif p == end or (<uint64_t>1 << (10 + (p[0] >> 3))) // 8 * (8 + (p[0] & 7)) > WINDOW_MAX:
        return False
    else:
        more += 1
    if <size_t>(end - p) < more:
        return False
    p += more
    while <size_t>(end - p) >= BLOCK_HEAD_BYTES:
        head = <uint32_t>load_le(p, BLOCK_HEAD_BYTES)
        p += BLOCK_HEAD_BYTES
        size = head >> 3 if head >> 1 & 3 != RLE else 1
        if <uint64_t>(end - p) < size or head >> 1 & 3 > COMPRESSED:
            return False
        if head >> 1 & 3 == COMPRESSED and not is_strict_block(p, p + size):
            return False
        p += size
        if head & 1:
            return <size_t>(end - p) == (CHECKSUM_BYTES if descriptor & HAS_CHECKSUM else 0)
    return False
