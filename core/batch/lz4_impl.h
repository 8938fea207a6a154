/* Decoder of the LZ4 block format, and xxHash-32 for the checksums of LZ4 frames.
 *
 * A block is a row of sequences: a token of two lengths (high four bits: literals, low: match length - 4; 15 means that
 * bytes follow, which are added up to the first below 255), the literals, and a match: its distance (u16,
 * little-endian) and, by the token, its length. The last sequence ends with its literals.
 *
 * Every length is checked against the rest of input and output before a byte is touched. Short copies are of whole
 * words: they may write LZ4_SLACK bytes past the end of the output, which has room for them, and read past literals
 * only within the input.
 */
#ifndef PYBROKER_LZ4_IMPL_H
#define PYBROKER_LZ4_IMPL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LZ4_SLACK 32

static inline uint32_t lz4_le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline const uint8_t *lz4_length(const uint8_t *p, const uint8_t *end, size_t *length)
{
    unsigned byte = 255;
    while (byte == 255) {
        if (p >= end)
            return NULL;
        byte = *p++;
        *length += byte;
    }
    return p;
}

/* Copy a match that may overlap itself: copied bytes can be copied again, so each step doubles. */
static inline void lz4_repeat(uint8_t *to, size_t offset, size_t n)
{
    const uint8_t *from = to - offset;
    while (n) {
        size_t step = n < offset ? n : offset;
        memcpy(to, from, step);
        to += step;
        n -= step;
        offset *= 2;
    }
}

/* Decode one block into [to, end); matches reach back to `low`. Returns the bytes written, or -1 if it is malformed. */
static int64_t lz4_block(const uint8_t *p, size_t n, const uint8_t *low, uint8_t *to, uint8_t *end)
{
    const uint8_t *stop = p + n;
    uint8_t *start = to;
    for (;;) {
        if (p >= stop)
            return -1;
        unsigned token = *p++;
        size_t length = token >> 4;
        if (length == 15 && !(p = lz4_length(p, stop, &length)))
            return -1;
        if (length > (size_t)(stop - p) || length > (size_t)(end - to))
            return -1;
        if (length <= 32 && stop - p >= 32)
            memcpy(to, p, 32);
        else if (length)
            memcpy(to, p, length);
        p += length;
        to += length;
        if (p == stop)
            return to - start;
        if (stop - p < 2)
            return -1;
        size_t offset = (size_t)p[0] | (size_t)p[1] << 8;
        p += 2;
        length = token & 15;
        if (length == 15 && !(p = lz4_length(p, stop, &length)))
            return -1;
        length += 4;
        if (offset == 0 || offset > (size_t)(to - low) || length > (size_t)(end - to))
            return -1;
        if (offset >= 16) {
            const uint8_t *from = to - offset;
            for (size_t i = 0; i < length; i += 16)
                memcpy(to + i, from + i, 16);
        } else {
            lz4_repeat(to, offset, length);
        }
        to += length;
    }
}

static inline uint32_t lz4_rotate(uint32_t x, int by) { return x << by | x >> (32 - by); }

static inline uint32_t lz4_lane(uint32_t lane, const uint8_t *p)
{
    return lz4_rotate(lane + lz4_le32(p) * 2246822519u, 13) * 2654435761u;
}

/* xxHash, 32 bits, seed 0. */
static uint32_t lz4_hash(const uint8_t *p, size_t n)
{
    const uint8_t *end = p + n;
    uint32_t h = 374761393u;
    if (n >= 16) {
        uint32_t a = 2654435761u + 2246822519u, b = 2246822519u, c = 0, d = 0u - 2654435761u;
        for (; end - p >= 16; p += 16) {
            a = lz4_lane(a, p);
            b = lz4_lane(b, p + 4);
            c = lz4_lane(c, p + 8);
            d = lz4_lane(d, p + 12);
        }
        h = lz4_rotate(a, 1) + lz4_rotate(b, 7) + lz4_rotate(c, 12) + lz4_rotate(d, 18);
    }
    h += (uint32_t)n;
    for (; end - p >= 4; p += 4)
        h = lz4_rotate(h + lz4_le32(p) * 3266489917u, 17) * 668265263u;
    for (; p < end; p++)
        h = lz4_rotate(h + *p * 374761393u, 11) * 2654435761u;
    h = (h ^ h >> 15) * 2246822519u;
    h = (h ^ h >> 13) * 3266489917u;
    return h ^ h >> 16;
}

#endif
