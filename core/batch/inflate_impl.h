/* Decoder of gzip (RFC 1952) and its deflate (RFC 1951), in one piece: with all of the input, and room for the output.
 *
 * A symbol is looked up by the next bits of the input in a table of 2^primary entries; the entry of a longer code
 * refers to a second table after the first. An entry, u32:
 *
 *     bits 0-7    the code's length in bits; for a second table the bits that the first look-up takes
 *     bits 8-11   the number of extra input bits, added to the value (for a second table: log2 of its size)
 *     bits 12-15  the kind: a literal, a second table, the end of the block, an invalid code; 0: a length or a distance
 *     bits 16-31  the literal, the smallest length or distance, or the start of the second table
 *
 * The input is read eight bytes at a time into a register of 64 bits, of which at least 56 are valid after each refill:
 * enough for a length and a distance with all of their bits (48). After the end of the input zeros are added and
 * counted; a stream that consumes one of them is truncated. The room for the output is checked before each symbol;
 * copies are of whole words and may write INFLATE_SLACK bytes past the end, which has room for them.
 *
 * Building the tables of a block takes as long as some thousand symbols, and a block may be a few bits long and produce
 * no output. So the fixed tables are built once, and a stream with many tables and little output is left to Python.
 */
#ifndef PYBROKER_INFLATE_IMPL_H
#define PYBROKER_INFLATE_IMPL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "gzip_crc_impl.h"

#define INFLATE_SLACK 32
#define INFLATE_LITERAL_BITS 11
#define INFLATE_DISTANCE_BITS 8
#define INFLATE_LITERALS 2400  /* at most 2,342 entries: 288 symbols of up to 15 bits, a first table of 11 bits */
#define INFLATE_DISTANCES 512  /* at most 402 entries: 32 symbols of up to 15 bits, a first table of 8 bits */
#define INFLATE_TABLE_WORTH 96 /* output bytes required per table: zlib's smallest blocks have 127 symbols */
#define INFLATE_TABLES_FREE 32

enum { INFLATE_DAMAGED = -1, INFLATE_FULL = -2 };
enum { IS_LITERAL = 0x8000, IS_TABLE = 0x4000, IS_END = 0x2000, IS_NONE = 0x1000, IS_SPECIAL = 0x7000 };

typedef struct {
    const uint8_t *in, *stop;
    uint64_t bits;
    unsigned count; /* of valid bits */
    unsigned zeros; /* bytes added after the end of the input */
    size_t built;   /* tables, of all members */
    const uint8_t *first; /* start of the output */
    uint32_t literals[INFLATE_LITERALS];
    uint32_t distances[INFLATE_DISTANCES];
    uint32_t lengths[128];
    uint8_t sizes[320];
} inflate_t;

static inline uint64_t inflate_le64(const uint8_t *p)
{
    uint64_t x;
    memcpy(&x, p, 8);
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    x = __builtin_bswap64(x);
#endif
    return x;
}

static inline void inflate_refill(inflate_t *s)
{
    if (s->stop - s->in >= 8) {
        s->bits |= inflate_le64(s->in) << s->count;
        s->in += (63 - s->count) >> 3;
        s->count |= 56;
        return;
    }
    while (s->count <= 55) {
        if (s->in < s->stop)
            s->bits |= (uint64_t)*s->in++ << s->count;
        else
            s->zeros++;
        s->count += 8;
    }
}

static inline unsigned inflate_take(inflate_t *s, unsigned n)
{
    unsigned value = (unsigned)(s->bits & ((1ull << n) - 1));
    s->bits >>= n;
    s->count -= n;
    return value;
}

/* Give back the whole bytes that were not consumed; -1 if bytes after the input's end were consumed. */
static inline int inflate_align(inflate_t *s)
{
    unsigned whole = s->count >> 3;
    if (whole < s->zeros)
        return -1;
    s->in -= whole - s->zeros;
    s->bits = 0;
    s->count = s->zeros = 0;
    return 0;
}

static inline uint32_t inflate_literal_entry(unsigned symbol)
{
    static const uint8_t extra[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
    static const uint16_t base[29] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                      31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
    if (symbol < 256)
        return symbol << 16 | IS_LITERAL;
    if (symbol == 256)
        return IS_END;
    return symbol < 286 ? (uint32_t)base[symbol - 257] << 16 | extra[symbol - 257] << 8 : IS_NONE;
}

static inline uint32_t inflate_distance_entry(unsigned symbol)
{
    if (symbol >= 30)
        return IS_NONE;
    if (symbol < 4)
        return (symbol + 1) << 16;
    unsigned extra = symbol / 2 - 1;
    return (((2u + (symbol & 1)) << extra) + 1) << 16 | extra << 8;
}

/* Build the table of n symbols whose codes have these sizes; `kind`: 0 sizes of codes, 1 literals, 2 distances. 0 or
 * -1. Only distances may be incomplete, and only with at most one code: compressors produce no others. */
static int inflate_build(uint32_t *table, unsigned primary, const uint8_t *sizes, unsigned n, int kind)
{
    unsigned counts[16] = {0}, starts[16], used = 0, most = 0, at = 0;
    uint16_t sorted[288];
    for (unsigned i = 0; i < n; i++)
        counts[sizes[i]]++;
    counts[0] = 0;
    int left = 1;
    for (unsigned size = 1; size < 16; size++) {
        left = 2 * left - (int)counts[size];
        if (left < 0)
            return -1;
        starts[size] = used;
        used += counts[size];
        if (counts[size])
            most = size;
    }
    if (left > 0) {
        if (kind != 2 || used > 1)
            return -1;
        for (unsigned i = 0; i < 1u << primary; i++)
            table[i] = IS_NONE;
    }
    for (unsigned i = 0; i < n; i++)
        if (sizes[i])
            sorted[starts[sizes[i]]++] = (uint16_t)i;
    unsigned code = 0, next = 1u << primary, prefix = ~0u, start = 0, second = 0;
    for (unsigned size = 1; size <= most; size++) {
        for (unsigned k = counts[size]; k; k--) {
            unsigned symbol = sorted[at++];
            uint32_t entry = kind == 0   ? symbol << 16
                             : kind == 1 ? inflate_literal_entry(symbol)
                                         : inflate_distance_entry(symbol);
            if (size <= primary) {
                for (unsigned i = code; i < 1u << primary; i += 1u << size)
                    table[i] = entry | size;
            } else {
                if ((code & ((1u << primary) - 1)) != prefix) { /* a new second table, of the size that it needs */
                    prefix = code & ((1u << primary) - 1);
                    start = next;
                    second = size - primary;
                    int room = (1 << second) - (int)k;
                    while (room > 0 && second + primary < most) {
                        second++;
                        room = 2 * room - (int)counts[second + primary];
                    }
                    next += 1u << second;
                    table[prefix] = start << 16 | IS_TABLE | second << 8 | primary;
                }
                for (unsigned i = code >> primary; i < 1u << second; i += 1u << (size - primary))
                    table[start + i] = entry | (size - primary);
            }
            unsigned bit = 1u << (size - 1); /* the next code, its bits reversed */
            while (code & bit)
                bit >>= 1;
            code = bit ? (code & (bit - 1)) | bit : 0;
        }
    }
    return 0;
}

/* Build the tables of a block with dynamic codes. */
static int inflate_dynamic(inflate_t *s)
{
    static const uint8_t order[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    uint8_t sizes[19] = {0};
    inflate_refill(s);
    unsigned literals = 257 + inflate_take(s, 5), distances = 1 + inflate_take(s, 5), n = 4 + inflate_take(s, 4);
    if (literals > 286 || distances > 30)
        return -1;
    for (unsigned i = 0; i < n; i++) {
        if (s->count < 3)
            inflate_refill(s);
        sizes[order[i]] = (uint8_t)inflate_take(s, 3);
    }
    if (inflate_build(s->lengths, 7, sizes, 19, 0))
        return -1;
    for (unsigned i = 0; i < literals + distances;) {
        if (s->count < 14)
            inflate_refill(s);
        uint32_t entry = s->lengths[s->bits & 127];
        unsigned symbol = entry >> 16, value = 0, times;
        inflate_take(s, entry & 255);
        if (symbol < 16) {
            s->sizes[i++] = (uint8_t)symbol;
            continue;
        }
        if (symbol == 16) {
            if (i == 0)
                return -1;
            value = s->sizes[i - 1];
            times = 3 + inflate_take(s, 2);
        } else {
            times = symbol == 17 ? 3 + inflate_take(s, 3) : 11 + inflate_take(s, 7);
        }
        if (i + times > literals + distances)
            return -1;
        memset(s->sizes + i, (int)value, times);
        i += times;
    }
    if (s->sizes[256] == 0)
        return -1;
    if (inflate_build(s->literals, INFLATE_LITERAL_BITS, s->sizes, literals, 1))
        return -1;
    return inflate_build(s->distances, INFLATE_DISTANCE_BITS, s->sizes + literals, distances, 2);
}

static inflate_t inflate_fixed; /* the tables of blocks with fixed codes */

static void inflate_init(void)
{
    inflate_t *s = &inflate_fixed;
    memset(s->sizes, 8, 144);
    memset(s->sizes + 144, 9, 112);
    memset(s->sizes + 256, 7, 24);
    memset(s->sizes + 280, 8, 8);
    inflate_build(s->literals, INFLATE_LITERAL_BITS, s->sizes, 288, 1);
    memset(s->sizes, 5, 32);
    inflate_build(s->distances, INFLATE_DISTANCE_BITS, s->sizes, 32, 2);
}

static inline uint8_t *inflate_copy(uint8_t *to, size_t distance, size_t n)
{
    const uint8_t *from = to - distance;
    if (distance >= 16) {
        for (size_t i = 0; i < n; i += 16)
            memcpy(to + i, from + i, 16);
    } else {
        for (size_t left = n; left;) { /* copied bytes can be copied again, so each step doubles */
            size_t step = left < distance ? left : distance;
            memcpy(to + n - left, from, step);
            left -= step;
            distance *= 2;
        }
    }
    return to + n;
}

/* Decode the symbols of a block with the tables of `codes`. NULL if damaged, or with *full set if there is no room. */
static uint8_t *inflate_symbols(
    inflate_t *state, const inflate_t *restrict codes, const uint8_t *low, uint8_t *to, uint8_t *end, int *full)
{
    inflate_t r; /* local copies of the state, which the compiler can keep in registers */
    r.in = state->in, r.stop = state->stop, r.bits = state->bits, r.count = state->count, r.zeros = state->zeros;
    const uint32_t *literals = codes->literals, *distances = codes->distances;
    for (;;) {
        inflate_refill(&r);
        if (r.zeros > 8)
            return NULL;
        uint32_t entry = literals[r.bits & ((1 << INFLATE_LITERAL_BITS) - 1)];
        if (entry & IS_LITERAL) { /* a refill suffices for three in a row */
            if (end - to < 3) {
                if (to == end) {
                    *full = 1;
                    return NULL;
                }
                inflate_take(&r, entry & 255);
                *to++ = (uint8_t)(entry >> 16);
                continue;
            }
            inflate_take(&r, entry & 255);
            *to++ = (uint8_t)(entry >> 16);
            entry = literals[r.bits & ((1 << INFLATE_LITERAL_BITS) - 1)];
            if (entry & IS_LITERAL) {
                inflate_take(&r, entry & 255);
                *to++ = (uint8_t)(entry >> 16);
                entry = literals[r.bits & ((1 << INFLATE_LITERAL_BITS) - 1)];
                if (entry & IS_LITERAL) {
                    inflate_take(&r, entry & 255);
                    *to++ = (uint8_t)(entry >> 16);
                    continue;
                }
            }
            if (r.count < 48) {
                inflate_refill(&r);
            }
        }
        if (entry & IS_SPECIAL) {
            if (entry & IS_TABLE) {
                inflate_take(&r, entry & 255);
                entry = literals[(entry >> 16) + (r.bits & ((1u << (entry >> 8 & 15)) - 1))];
            }
            if (entry & IS_NONE)
                return NULL;
            if (entry & IS_END) {
                inflate_take(&r, entry & 255);
                break;
            }
            if (entry & IS_LITERAL) {
                if (to == end) {
                    *full = 1;
                    return NULL;
                }
                inflate_take(&r, entry & 255);
                *to++ = (uint8_t)(entry >> 16);
                continue;
            }
        }
        inflate_take(&r, entry & 255);
        size_t length = (entry >> 16) + inflate_take(&r, entry >> 8 & 15);
        entry = distances[r.bits & ((1 << INFLATE_DISTANCE_BITS) - 1)];
        if (entry & IS_TABLE) {
            inflate_take(&r, entry & 255);
            entry = distances[(entry >> 16) + (r.bits & ((1u << (entry >> 8 & 15)) - 1))];
        }
        if (entry & IS_NONE)
            return NULL;
        inflate_take(&r, entry & 255);
        size_t distance = (entry >> 16) + inflate_take(&r, entry >> 8 & 15);
        if (distance > (size_t)(to - low))
            return NULL;
        if (length > (size_t)(end - to)) {
            *full = 1;
            return NULL;
        }
        to = inflate_copy(to, distance, length);
    }
    state->in = r.in, state->bits = r.bits, state->count = r.count, state->zeros = r.zeros;
    return to;
}

/* Decode one deflate stream into [to, end); matches reach back to `low`. Returns the output's end, or NULL as
 * inflate_symbols. */
static uint8_t *inflate_stream(inflate_t *s, const uint8_t *low, uint8_t *to, uint8_t *end, int *full)
{
    for (int last = 0; !last;) {
        inflate_refill(s);
        last = (int)inflate_take(s, 1);
        unsigned kind = inflate_take(s, 2);
        if (kind == 0) {
            if (inflate_align(s) || s->stop - s->in < 4)
                return NULL;
            size_t n = (size_t)s->in[0] | (size_t)s->in[1] << 8;
            if (n != (~((size_t)s->in[2] | (size_t)s->in[3] << 8) & 0xFFFF))
                return NULL;
            s->in += 4;
            if (n > (size_t)(s->stop - s->in))
                return NULL;
            if (n > (size_t)(end - to)) {
                *full = 1;
                return NULL;
            }
            if (n)
                memcpy(to, s->in, n);
            s->in += n;
            to += n;
            continue;
        }
        if (kind == 2 && s->built++ > (size_t)(to - s->first) / INFLATE_TABLE_WORTH + INFLATE_TABLES_FREE) {
            *full = 1;
            return NULL;
        }
        if (kind == 3 || (kind == 2 && inflate_dynamic(s)))
            return NULL;
        to = inflate_symbols(s, kind == 1 ? &inflate_fixed : s, low, to, end, full);
        if (to == NULL)
            return NULL;
    }
    return inflate_align(s) ? NULL : to;
}

/* -- gzip ----------------------------------------------------------------------------------------------------------- */

/* Call this once, before any other call. */
static void gzip_init(void)
{
    gzip_crc_init();
    inflate_init();
}

static inline uint32_t gzip_le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Skip the header of a member: magic 1F 8B, method 8, flags, time (4), two ignored bytes; if flagged, an extra field
 * after its length (u16), a name and a comment, each ended by a 0. NULL if it is invalid or not supported here. */
static const uint8_t *gzip_header(const uint8_t *p, const uint8_t *stop)
{
    if (stop - p < 18 || p[0] != 0x1F || p[1] != 0x8B || p[2] != 8 || p[3] & ~0x1D)
        return NULL; /* flag 2, a checksum of the header, is not supported */
    unsigned flags = p[3];
    p += 10;
    if (flags & 4) {
        size_t n = (size_t)p[0] | (size_t)p[1] << 8;
        if ((size_t)(stop - p) < n + 2)
            return NULL;
        p += n + 2;
    }
    for (unsigned flag = 8; flag <= 16; flag *= 2) {
        if (!(flags & flag))
            continue;
        p = memchr(p, 0, (size_t)(stop - p));
        if (p++ == NULL)
            return NULL;
    }
    return p;
}

/* Decode all members into [to, to + room). Returns the bytes written, INFLATE_DAMAGED, or INFLATE_FULL, also if there
 * are too many tables for the output. */
static int64_t gzip_undo(inflate_t *s, const uint8_t *p, size_t n, uint8_t *to, size_t room)
{
    const uint8_t *stop = p + n;
    uint8_t *start = to, *end = to + room;
    s->built = 0;
    s->first = to;
    do {
        uint8_t *low = to;
        int full = 0;
        p = gzip_header(p, stop);
        if (p == NULL)
            return INFLATE_DAMAGED;
        s->in = p, s->stop = stop, s->bits = 0, s->count = s->zeros = 0;
        to = inflate_stream(s, low, to, end, &full);
        if (to == NULL)
            return full ? INFLATE_FULL : INFLATE_DAMAGED;
        p = s->in;
        if (stop - p < 8 || gzip_le32(p) != gzip_crc(low, (size_t)(to - low)) || gzip_le32(p + 4) != (uint32_t)(to - low))
            return INFLATE_DAMAGED;
        p += 8;
    } while (p < stop);
    return to - start;
}

#endif
