/* Decoder of Snappy's raw format: a varint with the size of the output, then elements.
 *
 * An element begins with a tag, whose low two bits are its kind. 0: a literal of (tag >> 2) + 1 bytes; if that is 61 or
 * more, (that - 60) bytes follow with the literal's length - 1. 1: a copy of ((tag >> 2) & 7) + 4 bytes from a distance
 * of (tag >> 5) * 256 + the next byte. 2, 3: a copy of (tag >> 2) + 1 bytes from the distance in the next two or four
 * bytes. All numbers are little-endian.
 *
 * Every length is checked against the rest of input and output before a byte is touched. Short copies are of whole
 * words: they may write SNAPPY_SLACK bytes past the end of the output, which has room for them, and read past a literal
 * only within the input.
 */
#ifndef PYBROKER_SNAPPY_IMPL_H
#define PYBROKER_SNAPPY_IMPL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SNAPPY_SLACK 32

enum { SNAPPY_DAMAGED = -1, SNAPPY_FULL = -2 };

static inline uint8_t *snappy_copy(uint8_t *to, size_t offset, size_t n)
{
    const uint8_t *from = to - offset;
    if (offset >= 16) {
        for (size_t i = 0; i < n; i += 16)
            memcpy(to + i, from + i, 16);
    } else {
        for (size_t left = n; left;) { /* copied bytes can be copied again, so each step doubles */
            size_t step = left < offset ? left : offset;
            memcpy(to + n - left, from, step);
            left -= step;
            offset *= 2;
        }
    }
    return to + n;
}

/* Decode one block into [to, to + room). Returns the bytes written, SNAPPY_DAMAGED or SNAPPY_FULL. */
static int64_t snappy_block(const uint8_t *p, size_t n, uint8_t *to, size_t room)
{
    const uint8_t *stop = p + n;
    uint64_t size = 0;
    for (int shift = 0;; shift += 7) {
        if (p >= stop || shift > 28)
            return SNAPPY_DAMAGED;
        size |= (uint64_t)(*p & 0x7F) << shift;
        if (*p++ < 0x80)
            break;
    }
    if (size > UINT32_MAX)
        return SNAPPY_DAMAGED;
    if (size > room)
        return SNAPPY_FULL;
    uint8_t *start = to, *end = to + size;
    while (p < stop) {
        unsigned tag = *p++;
        size_t length = (tag >> 2) + 1, offset;
        if ((tag & 3) == 0) {
            if (length <= 16 && stop - p >= 16 && end - to >= 16) {
                memcpy(to, p, 16);
            } else {
                if (length > 60) {
                    size_t width = length - 60;
                    if ((size_t)(stop - p) < width)
                        return SNAPPY_DAMAGED;
                    length = 0;
                    for (size_t i = 0; i < width; i++)
                        length |= (size_t)p[i] << 8 * i;
                    length++;
                    p += width;
                }
                if (length > (size_t)(stop - p) || length > (size_t)(end - to))
                    return SNAPPY_DAMAGED;
                memcpy(to, p, length);
            }
            p += length;
            to += length;
            continue;
        }
        if ((tag & 3) == 1) {
            if (p >= stop)
                return SNAPPY_DAMAGED;
            length = (tag >> 2 & 7) + 4;
            offset = (size_t)(tag >> 5) << 8 | *p++;
        } else {
            size_t width = (tag & 3) == 2 ? 2 : 4;
            if ((size_t)(stop - p) < width)
                return SNAPPY_DAMAGED;
            offset = (size_t)p[0] | (size_t)p[1] << 8;
            if (width == 4)
                offset |= (size_t)p[2] << 16 | (size_t)p[3] << 24;
            p += width;
        }
        if (offset == 0 || offset > (size_t)(to - start) || length > (size_t)(end - to))
            return SNAPPY_DAMAGED;
        to = snappy_copy(to, offset, length);
    }
    return to == end ? (int64_t)size : SNAPPY_DAMAGED;
}

/* Decode snappy-java's format: its magic, two versions (16 bytes in all), then blocks, each after its length (i32,
 * big-endian). Input without the magic is a single raw block. */
static int64_t snappy_undo(const uint8_t *p, size_t n, uint8_t *to, size_t room)
{
    static const uint8_t magic[8] = {0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0};
    const uint8_t *stop = p + n;
    uint8_t *start = to;
    if (n < 16 || memcmp(p, magic, 8) != 0)
        return snappy_block(p, n, to, room);
    p += 16;
    while (p < stop) {
        if (stop - p < 4)
            return SNAPPY_DAMAGED;
        uint32_t size = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
        p += 4;
        if (size > (size_t)(stop - p))
            return SNAPPY_DAMAGED;
        int64_t made = snappy_block(p, size, to, room - (size_t)(to - start));
        if (made < 0)
            return made;
        to += made;
        p += size;
    }
    return to - start;
}

#endif
