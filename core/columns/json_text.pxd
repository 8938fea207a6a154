"""JSON text (RFC 8259), read through a cursor: strings, numbers and what is passed over, without a copy.

A function that returns JSON_OK has moved the cursor behind what it read; with another status the cursor is where the
text is wrong, about. Nothing recurses deeper than JSON_DEPTH_MAX.
"""

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from pybroker.core.base.cursor cimport cursor_t

cdef enum:
    JSON_OK = 0
    JSON_SYNTAX = 1     # not JSON
    JSON_KIND = 2       # a value of a kind that its column does not hold
    JSON_RANGE = 3      # a number beyond what its column holds
    JSON_TWICE = 4      # a field that the object had before
    JSON_UTF8 = 5       # text that is not UTF-8, or half of a surrogate pair
    JSON_DEEP = 6       # more than JSON_DEPTH_MAX arrays and objects in each other
    JSON_MORE = 7       # something follows the value
    JSON_NO_OBJECT = 8  # a value that is not an object

cdef enum:
    JSON_DEPTH_MAX = 128
    NUMBER_BYTES_MAX = 512
    DIGITS_MAX = 19     # decimal digits that 64 bits always hold
    EXPONENT_MAX = 99999

cdef extern from *:
    """
    #include <locale.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <string.h>
    /* How many of the next 8 bytes come before a quote, a backslash, a control character or one of 0x80 and more. */
    static inline int pyb_plain_bytes(const uint8_t *p) {
        const uint64_t ones = 0x0101010101010101ull, high = 0x8080808080808080ull;
        uint64_t x, quote, slash, found;
        memcpy(&x, p, 8);
    #if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
        x = __builtin_bswap64(x);
    #endif
        quote = x ^ (ones * '"');
        slash = x ^ (ones * 0x5c);
        found = (((quote - ones) & ~quote) | ((slash - ones) & ~slash) | ((x - ones * 0x20) & ~x) | x) & high;
        return found ? __builtin_ctzll(found) >> 3 : 8;
    }
    /* strtod with a decimal point, in any locale. */
    static locale_t pyb_c_locale;
    static inline double pyb_strtod(const char *text) {
        return pyb_c_locale ? strtod_l(text, NULL, pyb_c_locale) : strtod(text, NULL);
    }
    static inline void pyb_set_c_locale(void) { pyb_c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0); }
    static const double pyb_tens[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14,
                                      1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    """
    int plain_bytes "pyb_plain_bytes" (const uint8_t* p) noexcept nogil
    double strtod_c "pyb_strtod" (const char* text) noexcept nogil
    void set_c_locale "pyb_set_c_locale" () noexcept nogil
    const double* TENS "pyb_tens"

cdef struct text_t:
    # The bytes between the quotes of a string, as they stand there.
    const uint8_t* at
    int64_t size
    bint escaped

cdef struct number_t:
    const uint8_t* at
    int64_t size
    uint64_t digits     # the first DIGITS_MAX of them, without the point
    int64_t exponent    # of ten
    bint negative
    bint whole          # neither a point nor an exponent
    bint cut            # it has more digits than those


cdef inline void json_space(cursor_t* r) noexcept nogil:
    while r.at < r.end and (r.at[0] == c" " or r.at[0] == c"\n" or r.at[0] == c"\r" or r.at[0] == c"\t"):
        r.at += 1


cdef inline int json_literal(cursor_t* r, const char* word, int64_t size) noexcept nogil:
    if r.end - r.at < size or memcmp(r.at, word, <size_t>size) != 0:
        return JSON_SYNTAX
    r.at += size
    return JSON_OK


cdef inline bint utf8_is_sound(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """True for UTF-8 as Arrow's strings have it: no surrogates, no longer forms, up to U+10FFFF."""
    cdef uint8_t low, high
    cdef int more, i
    while p < end:
        if p[0] < 0x80:
            p += 1
            continue
        low, high, more = 0x80, 0xBF, 2
        if 0xC2 <= p[0] <= 0xDF:
            more = 1
        elif p[0] == 0xE0:
            low = 0xA0
        elif p[0] == 0xED:
            high = 0x9F
        elif 0xE1 <= p[0] <= 0xEF:
            more = 2
        elif 0xF0 <= p[0] <= 0xF4:
            more = 3
            low = 0x90 if p[0] == 0xF0 else 0x80
            high = 0x8F if p[0] == 0xF4 else 0xBF
        else:
            return False
        if end - p <= more or p[1] < low or p[1] > high:
            return False
        for i in range(2, more + 1):
            if p[i] & 0xC0 != 0x80:
                return False
        p += more + 1
    return True


cdef inline int json_string(cursor_t* r, text_t* out) noexcept nogil:
    """The string whose opening quote was passed. Its escapes are not looked at: json_unescape does that."""
    cdef const uint8_t* p = r.at
    cdef bint wide = False
    cdef int plain
    out.at = p
    out.escaped = False
    while True:
        while r.end - p >= 8:
            plain = plain_bytes(p)
            p += plain
            if plain < 8:
                break
        if p >= r.end or p[0] < 0x20:
            r.at = p
            return JSON_SYNTAX
        if p[0] == c'"':
            break
        if p[0] == c"\\":
            out.escaped = True
            p += 1 if r.end - p < 2 else 2
            continue
        while p < r.end and p[0] >= 0x80:
            wide = True
            p += 1
        while p < r.end and r.end - p < 8 and p[0] >= 0x20 and p[0] != c'"' and p[0] != c"\\" and p[0] < 0x80:
            p += 1
    out.size = p - out.at
    r.at = p + 1
    return JSON_OK if not wide or utf8_is_sound(out.at, p) else JSON_UTF8


cdef inline int32_t _hex4(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """The number that four digits are; -1 if they are none."""
    cdef int32_t value = 0
    cdef int i
    if end - p < 4:
        return -1
    for i in range(4):
        value <<= 4
        if c"0" <= p[i] <= c"9":
            value |= p[i] - c"0"
        elif c"a" <= p[i] | 0x20 <= c"f":
            value |= (p[i] | 0x20) - c"a" + 10
        else:
            return -1
    return value


cdef inline int _put_utf8(uint8_t* to, uint32_t point) noexcept nogil:
    """Write a code point; how many bytes it took."""
    if point < 0x80:
        to[0] = <uint8_t>point
        return 1
    if point < 0x800:
        to[0] = <uint8_t>(0xC0 | point >> 6)
        to[1] = <uint8_t>(0x80 | point & 0x3F)
        return 2
    if point < 0x10000:
        to[0] = <uint8_t>(0xE0 | point >> 12)
        to[1] = <uint8_t>(0x80 | point >> 6 & 0x3F)
        to[2] = <uint8_t>(0x80 | point & 0x3F)
        return 3
    to[0] = <uint8_t>(0xF0 | point >> 18)
    to[1] = <uint8_t>(0x80 | point >> 12 & 0x3F)
    to[2] = <uint8_t>(0x80 | point >> 6 & 0x3F)
    to[3] = <uint8_t>(0x80 | point & 0x3F)
    return 4


cdef inline int _escape(const uint8_t** at, const uint8_t* end, uint8_t* to, int* size) noexcept nogil:
    """One escape, whose backslash was passed, as UTF-8 of at most 4 bytes; it is never longer than the escape."""
    cdef const uint8_t* p = at[0]
    cdef const char* known = b'"\\/bfnrt'
    cdef const char* meant = b'"\\/\b\f\n\r\t'
    cdef int32_t point, low
    cdef int i
    if p >= end:
        return JSON_SYNTAX
    if p[0] != c"u":
        for i in range(8):
            if p[0] == <uint8_t>known[i]:
                to[0] = <uint8_t>meant[i]
                size[0] = 1
                at[0] = p + 1
                return JSON_OK
        return JSON_SYNTAX
    point = _hex4(p + 1, end)
    p += 5
    if point < 0:
        return JSON_SYNTAX
    if 0xD800 <= point < 0xE000:
        low = _hex4(p + 2, end) if end - p >= 6 and p[0] == c"\\" and p[1] == c"u" else -1
        if point >= 0xDC00 or not 0xDC00 <= low < 0xE000:
            return JSON_UTF8
        point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00)
        p += 6
    at[0] = p
    size[0] = _put_utf8(to, <uint32_t>point)
    return JSON_OK


cdef inline int json_unescape(const text_t* s, uint8_t* to, int64_t* size) noexcept nogil:
    """Write what a string means, at most s.size bytes of it; where `to` is NULL its escapes are only checked."""
    cdef const uint8_t* p = s.at
    cdef const uint8_t* end = s.at + s.size
    cdef uint8_t[4] made
    cdef int64_t n = 0
    cdef int status, count = 0
    while p < end:
        if p[0] != c"\\":
            if to != NULL:
                to[n] = p[0]
            n += 1
            p += 1
            continue
        p += 1
        status = _escape(&p, end, made, &count)
        if status != JSON_OK:
            return status
        if to != NULL:
            memcpy(to + n, made, <size_t>count)
        n += count
    size[0] = n
    return JSON_OK


# -- numbers ----------------------------------------------------------------------------------------------------------

cdef inline const uint8_t* _digits(const uint8_t* p, const uint8_t* end, number_t* out, int64_t* taken) noexcept nogil:
    """Add the digits from p on to the number; what follows them. taken: the digits that are in out.digits."""
    while p < end and c"0" <= p[0] <= c"9":
        if taken[0] < DIGITS_MAX:
            out.digits = out.digits * 10 + (p[0] - c"0")
            taken[0] += out.digits != 0
        else:
            out.cut = True
            out.exponent += 1
        p += 1
    return p


cdef inline int json_number(cursor_t* r, number_t* out) noexcept nogil:
    cdef const uint8_t* p = r.at
    cdef const uint8_t* start
    cdef int64_t taken = 0, exponent = 0
    cdef bint below = False
    out.at = p
    out.digits = out.exponent = 0
    out.negative = p < r.end and p[0] == c"-"
    out.whole, out.cut = True, False
    p += out.negative
    start = p
    p = _digits(p, r.end, out, &taken)
    if p == start or (start[0] == c"0" and p - start > 1):
        return JSON_SYNTAX
    if p < r.end and p[0] == c".":
        out.whole = False
        start = p + 1
        p = _digits(start, r.end, out, &taken)
        if p == start:
            return JSON_SYNTAX
        out.exponent -= p - start
    if p < r.end and p[0] | 0x20 == c"e":
        out.whole = False
        p += 1
        if p < r.end and (p[0] == c"-" or p[0] == c"+"):
            below = p[0] == c"-"
            p += 1
        start = p
        while p < r.end and c"0" <= p[0] <= c"9":
            exponent = min(exponent * 10 + (p[0] - c"0"), <int64_t>EXPONENT_MAX)
            p += 1
        if p == start:
            return JSON_SYNTAX
        out.exponent += -exponent if below else exponent
    out.size = p - r.at
    r.at = p
    return JSON_OK


cdef inline int number_int64(const number_t* n, int64_t* out) noexcept nogil:
    if not n.whole:
        return JSON_KIND
    if n.cut or n.digits > <uint64_t>INT64_MAX + n.negative:
        return JSON_RANGE
    out[0] = <int64_t>(0 - n.digits if n.negative else n.digits)
    return JSON_OK


cdef inline int number_double(const number_t* n, double* out) noexcept nogil:
    """The nearest double; JSON_RANGE for one that is infinite, or has more than NUMBER_BYTES_MAX bytes."""
    cdef char[NUMBER_BYTES_MAX + 1] text
    cdef double value
    if not n.cut and n.digits < <uint64_t>1 << 53 and -22 <= n.exponent <= 22:  # both are exact, so is one rounding
        value = <double>n.digits
        value = value / TENS[-n.exponent] if n.exponent < 0 else value * TENS[n.exponent]
        out[0] = -value if n.negative else value
        return JSON_OK
    if n.size > NUMBER_BYTES_MAX:
        return JSON_RANGE
    memcpy(text, n.at, <size_t>n.size)
    text[n.size] = 0
    out[0] = strtod_c(text)
    return JSON_RANGE if out[0] - out[0] != 0 else JSON_OK


# -- what no column wants ---------------------------------------------------------------------------------------------

cdef inline int json_scalar(cursor_t* r) noexcept nogil:
    """Pass over a value that is neither an array nor an object."""
    cdef text_t text
    cdef number_t number
    cdef int64_t size
    cdef int status
    if r.at >= r.end:
        return JSON_SYNTAX
    if r.at[0] == c'"':
        r.at += 1
        status = json_string(r, &text)
        return json_unescape(&text, NULL, &size) if status == JSON_OK and text.escaped else status
    if r.at[0] == c"t":
        return json_literal(r, b"true", 4)
    if r.at[0] == c"f":
        return json_literal(r, b"false", 5)
    if r.at[0] == c"n":
        return json_literal(r, b"null", 4)
    return json_number(r, &number)
