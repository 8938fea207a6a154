"""Decompression of LZ4 frames, Kafka's codec 3, straight out of the batch into a block.

    magic u32 0x184D2204 | flags u8 | block size u8 | content size u64, if flagged | dictionary u32, if flagged
    header checksum u8: the second byte of xxHash-32 of the bytes between magic and it
    blocks: size u32, its highest bit set if the block is not compressed | data | xxHash-32 of data, if flagged
    a size of 0 | xxHash-32 of the content, if flagged

All little-endian. The checksums of header and blocks are checked. A reader of stored batches accepts what Java's reader
accepts: it ignores the checksum and the size of the content and any bytes after the first frame, and ends at an empty
block, compressed or not. (A compressed one is a token of 0. Java's reader takes its empty output for the end, and fails
if records should follow.) The CRC of the batch covers the same bytes. A broker refuses all of these in a produced
batch, since some clients do; cramjam's frames, which our Producer and aiokafka send, have a checksum of the content.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from pybroker.core.base.cursor cimport OK, SHORT, cursor_init, cursor_left, cursor_t, read_span
from pybroker.core.base.error_codes cimport CORRUPT_MESSAGE, MESSAGE_TOO_LARGE
from pybroker.core.batch.block cimport block_room, block_t

cdef extern from "lz4_impl.h" nogil:
    uint32_t lz4_le32(const uint8_t* p)
    uint32_t lz4_hash(const uint8_t* p, size_t n)
    int64_t lz4_block(const uint8_t* p, size_t n, const uint8_t* low, uint8_t* to, uint8_t* end)

cdef enum:
    FRAME_MAGIC = 0x184D2204
    VERSION_MASK = 0xC0
    VERSION = 0x40
    INDEPENDENT = 0x20
    BLOCK_CHECKSUM = 0x10
    CONTENT_SIZE = 0x08
    CONTENT_CHECKSUM = 0x04
    DICTIONARY = 0x01
    RESERVED = 0x02
    BLOCK_RESERVED = 0x8F  # in the byte of the block size
    HEAD_BYTES = 6        # magic, flags, block size
    BLOCK_SIZE_SHIFT = 4
    BLOCK_SIZE_MIN = 4    # 64 KiB; each further one is four times as much

cdef uint32_t PLAIN = 0x80000000


cdef int _open(cursor_t* r, uint8_t* flags, int64_t* block_max, int64_t* content) noexcept nogil:
    """Read the frame's header; `content` is the content's size, -1 if it is not in the header, at most INT64_MAX."""
    cdef const uint8_t* p = NULL
    cdef const uint8_t* rest = NULL
    cdef uint64_t size
    cdef int code
    if read_span(r, HEAD_BYTES, &p) != OK or lz4_le32(p) != FRAME_MAGIC:
        return CORRUPT_MESSAGE
    flags[0] = p[4]
    code = p[5] >> BLOCK_SIZE_SHIFT & 7
    if flags[0] & VERSION_MASK != VERSION or flags[0] & DICTIONARY or code < BLOCK_SIZE_MIN:
        return CORRUPT_MESSAGE
    if flags[0] & RESERVED or p[5] & BLOCK_RESERVED:
        return CORRUPT_MESSAGE
    block_max[0] = <int64_t>1 << (16 + 2 * (code - BLOCK_SIZE_MIN))
    content[0] = -1
    if flags[0] & CONTENT_SIZE:
        if read_span(r, 8, &rest) != OK:
            return CORRUPT_MESSAGE
        size = <uint64_t>lz4_le32(rest + 4) << 32 | lz4_le32(rest)
        content[0] = <int64_t>min(size, <uint64_t>INT64_MAX)
    if read_span(r, 1, &rest) != OK or rest[0] != (lz4_hash(p + 4, <size_t>(rest - p - 4)) >> 8 & 0xFF):
        return CORRUPT_MESSAGE
    return OK


cdef int _block(
        cursor_t* r, uint8_t flags, uint32_t size, int64_t block_max, int64_t start, bint checked,
        block_t* out) noexcept nogil:
    """Decompress one block; `start` is where the frame's content begins in out, which has room. `checked`: refuse an
    empty one."""
    cdef const uint8_t* p = NULL
    cdef const uint8_t* check = NULL
    cdef uint8_t* to = out.data + out.size
    cdef int64_t n = size & ~PLAIN, made
    if n == 0 or n > block_max or read_span(r, n, &p) != OK:  # Java takes an empty block for the end
        return CORRUPT_MESSAGE
    if flags & BLOCK_CHECKSUM and (read_span(r, 4, &check) != OK or lz4_le32(check) != lz4_hash(p, <size_t>n)):
        return CORRUPT_MESSAGE
    if size & PLAIN:
        memcpy(to, p, <size_t>n)
        out.size += n
        return OK
    made = lz4_block(p, <size_t>n, to if flags & INDEPENDENT else out.data + start, to, to + block_max)
    if made < 0 or (checked and made == 0):
        return CORRUPT_MESSAGE
    out.size += made
    return OK


cdef int lz4_frame(const uint8_t* p, size_t n, int64_t most, bint checked, block_t* out) noexcept nogil:
    cdef cursor_t r
    cdef const uint8_t* at = NULL
    cdef uint8_t flags = 0
    cdef int64_t block_max = 0, content = -1, start = out.size, before
    cdef uint32_t size
    cdef int status
    cursor_init(&r, p, n)
    status = _open(&r, &flags, &block_max, &content)
    while status == OK:
        if read_span(&r, 4, &at) != OK:
            return CORRUPT_MESSAGE
        size = lz4_le32(at)
        if size == 0 or (size == PLAIN and not checked):
            break
        before = out.size
        status = block_room(out, block_max)
        if status == OK:
            status = _block(&r, flags, size, block_max, start, checked, out)
        if status == OK and out.size == before:
            return OK  # Java's reader ignores the bytes after it
        if status == OK and out.size - start > most:
            status = MESSAGE_TOO_LARGE
    if status != OK:
        return status
    if flags & CONTENT_CHECKSUM and read_span(&r, 4, &at) == SHORT:
        return CORRUPT_MESSAGE
    if flags & CONTENT_CHECKSUM and checked and lz4_le32(at) != lz4_hash(out.data + start, <size_t>(out.size - start)):
        return CORRUPT_MESSAGE
    if checked and (cursor_left(&r) or (content >= 0 and content != out.size - start)):
        return CORRUPT_MESSAGE
    return OK


cdef int64_t lz4_undo(const uint8_t* p, size_t n, uint8_t* to, int64_t room) noexcept nogil:
    cdef cursor_t r
    cdef const uint8_t* at = NULL
    cdef uint8_t flags = 0
    cdef int64_t block_max = 0, content = -1
    cdef uint32_t size
    cdef block_t out
    out.data, out.size, out.capacity = to, 0, room
    cursor_init(&r, p, n)
    if _open(&r, &flags, &block_max, &content) != OK or not flags & INDEPENDENT:
        return -1
    while True:
        if read_span(&r, 4, &at) != OK:
            return -1
        size = lz4_le32(at)
        if size == 0:
            break
        if _block(&r, flags, size, min(block_max, room - out.size), 0, True, &out) != OK:
            return -1
    if flags & CONTENT_CHECKSUM and (read_span(&r, 4, &at) != OK or lz4_le32(at) != lz4_hash(to, <size_t>out.size)):
        return -1
    if cursor_left(&r) or (content >= 0 and content != out.size):
        return -1
    return out.size
