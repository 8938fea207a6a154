/* CRC-32 (IEEE), which follows each gzip member. */
#ifndef PYBROKER_GZIP_CRC_IMPL_H
#define PYBROKER_GZIP_CRC_IMPL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
static int gzip_folds; /* the processor has carry-less multiplication */
#endif

static uint32_t gzip_table[8][256];

/* Call this once, before any other call. */
static void gzip_crc_init(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++)
            c = c >> 1 ^ (c & 1 ? 0xEDB88320u : 0);
        gzip_table[0][i] = c;
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++)
            gzip_table[k][i] = gzip_table[k - 1][i] >> 8 ^ gzip_table[0][gzip_table[k - 1][i] & 255];
#if defined(__x86_64__)
    __builtin_cpu_init();
    gzip_folds = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
}

static uint32_t gzip_crc_table(uint32_t c, const uint8_t *p, size_t n)
{
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t x;
        memcpy(&x, p, 8);
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
        x = __builtin_bswap64(x);
#endif
        x ^= c;
        c = gzip_table[7][x & 255] ^ gzip_table[6][x >> 8 & 255] ^ gzip_table[5][x >> 16 & 255] ^
            gzip_table[4][x >> 24 & 255] ^ gzip_table[3][x >> 32 & 255] ^ gzip_table[2][x >> 40 & 255] ^
            gzip_table[1][x >> 48 & 255] ^ gzip_table[0][x >> 56];
    }
    while (n--)
        c = c >> 8 ^ gzip_table[0][(c ^ *p++) & 255];
    return c;
}

#if defined(__x86_64__)
/* Four registers of 16 bytes, each folded forward over 64 bytes at a time; the constants are x^n modulo P, reflected,
 * for the distances of 512 and 128 bits (Gopal and others, Fast CRC Computation Using PCLMULQDQ, 2009). The folded
 * bytes are again a message with the same remainder. n is at least 64. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t gzip_crc_fold(uint32_t c, const uint8_t *p, size_t n)
{
    const __m128i by512 = _mm_set_epi64x(0x00000001c6e41596, 0x0000000154442bd4);
    const __m128i by128 = _mm_set_epi64x(0x00000000ccaa009e, 0x00000001751997d0);
    __m128i a[4];
    uint8_t rest[16];
    for (int i = 0; i < 4; i++)
        a[i] = _mm_loadu_si128((const __m128i *)(p + 16 * i));
    a[0] = _mm_xor_si128(a[0], _mm_cvtsi32_si128((int)c));
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64)
        for (int i = 0; i < 4; i++)
            a[i] = _mm_xor_si128(
                _mm_xor_si128(_mm_clmulepi64_si128(a[i], by512, 0x00), _mm_clmulepi64_si128(a[i], by512, 0x11)),
                _mm_loadu_si128((const __m128i *)(p + 16 * i)));
    for (int i = 1; i < 4; i++)
        a[0] = _mm_xor_si128(
            _mm_xor_si128(_mm_clmulepi64_si128(a[0], by128, 0x00), _mm_clmulepi64_si128(a[0], by128, 0x11)), a[i]);
    _mm_storeu_si128((__m128i *)rest, a[0]);
    return gzip_crc_table(gzip_crc_table(0, rest, 16), p, n);
}
#endif

static uint32_t gzip_crc(const uint8_t *p, size_t n)
{
#if defined(__x86_64__)
    if (gzip_folds && n >= 64)
        return ~gzip_crc_fold(~0u, p, n);
#endif
    return ~gzip_crc_table(~0u, p, n);
}

#endif
