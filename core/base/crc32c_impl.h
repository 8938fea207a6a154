/* CRC-32C (Castagnoli, RFC 3720 B.4): one function, in the fastest form that this processor has.
 *
 * Registers here are the reflected CRC without its final inversion: bit 31 is x^0, and appending a zero byte multiplies
 * by x^8 modulo P. Four forms:
 *
 *   table   slicing-by-8; every machine
 *   lanes   the crc32 instruction: it takes three cycles, but one can start in each cycle. So three stretches of the
 *           input are processed side by side and joined by a carry-less multiplication; x86-64 with SSE4.2 and PCLMUL,
 *           aarch64 with CRC32 and PMULL
 *   wide    four registers of 64 bytes folded forward over the input, the last 256 bytes by lanes; x86-64 with
 *           AVX-512 and VPCLMULQDQ
 *
 * To join, a register is shifted by n zero bytes: times x^8n. A carry-less product of two reflected 32-bit values
 * comes out one bit short, and feeding it to the crc32 instruction multiplies by x^32: so the constant for n is
 * x^(8n - 33). For n = 8 that is x^31, which reflected is 1, and each further 8 bytes are one more crc32 of zero: the
 * whole table falls out of the instruction itself.
 *
 * crc32c_init() runs once before any other call (at import, under the import lock); all is read-only afterwards.
 */
#ifndef PYBROKER_CRC32C_IMPL_H
#define PYBROKER_CRC32C_IMPL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CRC32C_POLY 0x82F63B78u /* 0x1EDC6F41 reflected */
#define CRC32C_LANE_WORDS 128   /* of 8 bytes in a lane, at most: 1 KiB */
#define CRC32C_LANES_FROM 80    /* bytes; for fewer the join costs more than it saves */
#define CRC32C_WIDE_FROM 1024   /* bytes; for fewer, and for the last 256, folding saves nothing */
#define CRC32C_SOON 1024        /* bytes ahead to prefetch into the first-level cache, */
#define CRC32C_LATER 4096       /* and into the second: a page ahead, beyond the processor's own prefetch */

enum { CRC32C_TABLE = 0, CRC32C_LANES = 1, CRC32C_WIDE = 2 };

static uint32_t crc32c_table[8][256];
static uint32_t crc32c_joins[2 * CRC32C_LANE_WORDS + 1]; /* [w] = x^(64w - 33) */
static uint32_t crc32c_squares[32]; /* [k] = x^(8 * 2^k) */
static int crc32c_best = CRC32C_TABLE;

static inline uint64_t crc32c_le64(const uint8_t *p)
{
    uint64_t x;
    memcpy(&x, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    x = __builtin_bswap64(x);
#endif
    return x;
}

static inline uint32_t crc32c_word_by_table(uint32_t c, uint64_t word)
{
    word ^= c;
    c = 0;
    for (int k = 0; k < 8; k++)
        c ^= crc32c_table[7 - k][word >> (8 * k) & 0xFF];
    return c;
}

static uint32_t crc32c_by_table(uint32_t c, const uint8_t *p, size_t n)
{
    for (; n >= 8; p += 8, n -= 8)
        c = crc32c_word_by_table(c, crc32c_le64(p));
    for (; n; p++, n--)
        c = c >> 8 ^ crc32c_table[0][(c ^ *p) & 0xFF];
    return c;
}

/* The product modulo P. */
static uint32_t crc32c_product(uint32_t a, uint32_t b)
{
    uint32_t c = 0;
    for (; a; a <<= 1) {
        c ^= b & (0 - (a >> 31));
        b = b >> 1 ^ (CRC32C_POLY & (0 - (b & 1)));
    }
    return c;
}

/* The CRC of two stretches from the CRC of each; the second has n bytes. The inversions of both cancel out. */
static uint32_t crc32c_joined(uint32_t first, uint32_t second, uint32_t n)
{
    for (int k = 0; n; n >>= 1, k++)
        if (n & 1)
            first = crc32c_product(first, crc32c_squares[k]);
    return first ^ second;
}

static void crc32c_init_tables(void)
{
    crc32c_squares[0] = 1u << 23;
    for (int k = 1; k < 32; k++)
        crc32c_squares[k] = crc32c_product(crc32c_squares[k - 1], crc32c_squares[k - 1]);
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++)
            c = c >> 1 ^ (CRC32C_POLY & (0 - (c & 1)));
        crc32c_table[0][i] = c;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = crc32c_table[k - 1][i];
            crc32c_table[k][i] = c >> 8 ^ crc32c_table[0][c & 0xFF];
        }
    crc32c_joins[1] = 1;
    for (int w = 2; w <= 2 * CRC32C_LANE_WORDS; w++)
        crc32c_joins[w] = crc32c_word_by_table(crc32c_joins[w - 1], 0);
}

#if defined(__x86_64__)
#include <immintrin.h>
#define CRC32C_HAS_LANES 1
#define CRC32C_TARGET __attribute__((target("sse4.2,pclmul")))

CRC32C_TARGET static inline uint64_t crc32c_word(uint64_t c, uint64_t word) { return _mm_crc32_u64(c, word); }
CRC32C_TARGET static inline uint32_t crc32c_half(uint32_t c, uint32_t half) { return _mm_crc32_u32(c, half); }
CRC32C_TARGET static inline uint32_t crc32c_byte(uint32_t c, uint8_t byte) { return _mm_crc32_u8(c, byte); }
CRC32C_TARGET static inline uint64_t crc32c_times(uint32_t a, uint32_t b)
{
    __m128i x = _mm_cvtsi32_si128((int)a), y = _mm_cvtsi32_si128((int)b);
    return (uint64_t)_mm_cvtsi128_si64(_mm_clmulepi64_si128(x, y, 0));
}

#elif defined(__aarch64__) && defined(__linux__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#include <arm_neon.h>
#include <sys/auxv.h>
#define CRC32C_HAS_LANES 1
#if defined(__clang__) /* whose arm_acle.h has the crc32 instruction only where the whole file is compiled for it */
#define CRC32C_TARGET __attribute__((target("crc,aes")))
#define __crc32cd __builtin_arm_crc32cd
#define __crc32cw __builtin_arm_crc32cw
#define __crc32cb __builtin_arm_crc32cb
#else
#include <arm_acle.h>
#define CRC32C_TARGET __attribute__((target("+crc+crypto")))
#endif
#define CRC32C_HWCAP_PMULL (1ul << 4) /* of AT_HWCAP; asm/hwcap.h is not installed everywhere */
#define CRC32C_HWCAP_CRC32 (1ul << 7)

CRC32C_TARGET static inline uint64_t crc32c_word(uint64_t c, uint64_t word) { return __crc32cd((uint32_t)c, word); }
CRC32C_TARGET static inline uint32_t crc32c_half(uint32_t c, uint32_t half) { return __crc32cw(c, half); }
CRC32C_TARGET static inline uint32_t crc32c_byte(uint32_t c, uint8_t byte) { return __crc32cb(c, byte); }
CRC32C_TARGET static inline uint64_t crc32c_times(uint32_t a, uint32_t b)
{
    return vgetq_lane_u64(vreinterpretq_u64_p128(vmull_p64((poly64_t)a, (poly64_t)b)), 0);
}
#endif

#if CRC32C_HAS_LANES
CRC32C_TARGET static uint32_t crc32c_by_lanes(uint32_t crc, const uint8_t *p, size_t n)
{
    uint64_t c = crc;
    while (n >= CRC32C_LANES_FROM) {
        size_t words = n / 24 < CRC32C_LANE_WORDS ? n / 24 : CRC32C_LANE_WORDS;
        const uint8_t *q = p + 8 * words, *r = q + 8 * words, *end = q;
        uint64_t d = 0, e = 0;
        for (; p < end; p += 8, q += 8, r += 8) {
            c = crc32c_word(c, crc32c_le64(p));
            d = crc32c_word(d, crc32c_le64(q));
            e = crc32c_word(e, crc32c_le64(r));
        }
        uint64_t joined = crc32c_times((uint32_t)c, crc32c_joins[2 * words]);
        joined ^= crc32c_times((uint32_t)d, crc32c_joins[words]);
        c = crc32c_word(0, joined) ^ e;
        p = r;
        n -= 24 * words;
    }
    for (; n >= 8; p += 8, n -= 8)
        c = crc32c_word(c, crc32c_le64(p));
    if (n >= 4) {
        uint32_t half;
        memcpy(&half, p, 4);
        c = crc32c_half((uint32_t)c, half);
        p += 4;
        n -= 4;
    }
    for (; n; p++, n--)
        c = crc32c_byte((uint32_t)c, *p);
    return (uint32_t)c;
}
#endif

#if defined(__x86_64__)
#define CRC32C_TARGET_WIDE __attribute__((target("avx512f,vpclmulqdq,sse4.2,pclmul")))

/* Each 16 bytes of a register are a polynomial H x^64 + L, the earlier 8 bytes being H (they lie low in memory and in
 * the register). 256 bytes on, it weighs x^2048 more: H times x^2112 and L times x^2048. A product of reflected 64-bit
 * values is one bit short, hence exponents 2111 and 2047, reduced modulo P and held in the upper half of 64 bits. */
static uint64_t crc32c_fold_h, crc32c_fold_l;

static uint64_t crc32c_power(int exponent)
{
    uint32_t c = 0x80000000u; /* x^0 */
    while (exponent--)
        c = c >> 1 ^ (CRC32C_POLY & (0 - (c & 1)));
    return (uint64_t)c << 32;
}

CRC32C_TARGET_WIDE static inline __m512i crc32c_fold(__m512i x, __m512i k, const uint8_t *p)
{
    __m512i h = _mm512_clmulepi64_epi128(x, k, 0x00), l = _mm512_clmulepi64_epi128(x, k, 0x11);
    return _mm512_ternarylogic_epi64(h, l, _mm512_loadu_si512(p), 0x96); /* h ^ l ^ the next 64 bytes */
}

/* Prefetch 256 bytes. They may lie after the input: a prefetch of an invalid address does nothing. */
static inline void crc32c_ask(const uint8_t *p)
{
    for (int i = 0; i < 256; i += 64) {
        __builtin_prefetch(p + CRC32C_SOON + i, 0, 3);
        __builtin_prefetch(p + CRC32C_LATER + i, 0, 2);
    }
}

CRC32C_TARGET_WIDE static uint32_t crc32c_by_wide(uint32_t crc, const uint8_t *p, size_t n)
{
    uint8_t last[256];
    if (n < CRC32C_WIDE_FROM)
        return crc32c_by_lanes(crc, p, n);
    __m512i k = _mm512_set_epi64((long long)crc32c_fold_l, (long long)crc32c_fold_h, (long long)crc32c_fold_l,
                                 (long long)crc32c_fold_h, (long long)crc32c_fold_l, (long long)crc32c_fold_h,
                                 (long long)crc32c_fold_l, (long long)crc32c_fold_h);
    __m512i a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(p + 64);
    __m512i c = _mm512_loadu_si512(p + 128), d = _mm512_loadu_si512(p + 192);
    a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    for (p += 256, n -= 256; n >= 256; p += 256, n -= 256) {
        crc32c_ask(p);
        a = crc32c_fold(a, k, p);
        b = crc32c_fold(b, k, p + 64);
        c = crc32c_fold(c, k, p + 128);
        d = crc32c_fold(d, k, p + 192);
    }
    _mm512_storeu_si512(last, a);
    _mm512_storeu_si512(last + 64, b);
    _mm512_storeu_si512(last + 128, c);
    _mm512_storeu_si512(last + 192, d);
    return crc32c_by_lanes(crc32c_by_lanes(0, last, sizeof last), p, n);
}
#endif

static void crc32c_init(void)
{
    crc32c_init_tables();
#if defined(__x86_64__)
    crc32c_fold_h = crc32c_power(2111);
    crc32c_fold_l = crc32c_power(2047);
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul"))
        crc32c_best = CRC32C_LANES;
    if (crc32c_best == CRC32C_LANES && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq"))
        crc32c_best = CRC32C_WIDE;
#elif CRC32C_HAS_LANES
    if ((getauxval(AT_HWCAP) & CRC32C_HWCAP_CRC32) && (getauxval(AT_HWCAP) & CRC32C_HWCAP_PMULL))
        crc32c_best = CRC32C_LANES;
#endif
}

/* The CRC of n bytes by one of the forms up to crc32c_best, continuing from the CRC of the bytes before (0: none). */
static inline uint32_t crc32c_by(int form, const uint8_t *p, size_t n, uint32_t initial)
{
    uint32_t c = ~initial;
#if defined(__x86_64__)
    if (form == CRC32C_WIDE)
        return ~crc32c_by_wide(c, p, n);
#endif
#if CRC32C_HAS_LANES
    if (form == CRC32C_LANES)
        return ~crc32c_by_lanes(c, p, n);
#endif
    (void)form;
    return ~crc32c_by_table(c, p, n);
}

static inline uint32_t crc32c_now(const uint8_t *p, size_t n, uint32_t initial)
{
    return crc32c_by(crc32c_best, p, n, initial);
}

#endif
