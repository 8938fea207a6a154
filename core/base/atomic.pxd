# Explicit atomics and the seqlock; for the rules see atomic.h.
from libc.stdint cimport int32_t, int64_t, uint32_t

cdef extern from "base/atomic.h" nogil:
    int32_t load_i32(const int32_t* p)
    void store_i32(int32_t* p, int32_t v)
    int32_t add_i32(int32_t* p, int32_t v)
    int cas_i32(int32_t* p, int32_t from_, int32_t to)
    int64_t load_i64(const int64_t* p)
    void store_i64(int64_t* p, int64_t v)
    int64_t add_i64(int64_t* p, int64_t v)
    int cas_i64(int64_t* p, int64_t from_, int64_t to)
    void* load_ptr(void** p)
    void store_ptr(void** p, void* v)
    void* swap_ptr(void** p, void* v)
    int cas_ptr(void** p, void* from_, void* to)
    int64_t peek_i64(const int64_t* p)
    void poke_i64(int64_t* p, int64_t v)
    void seq_begin(uint32_t* seq)
    void seq_set(int64_t* p, int64_t v)
    void seq_end(uint32_t* seq)
    uint32_t seq_read(const uint32_t* seq)
    int64_t seq_get(const int64_t* p)
    int seq_retry(const uint32_t* seq, uint32_t s)
