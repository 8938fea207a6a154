/* Explicit atomics for the fields that threads share: Cython orders nothing by itself.
 *
 * load_*  acquire, store_* release, add_* and cas_* sequentially consistent. The seqlock below publishes several fields
 * together: one writer at a time (it holds the partition's append mutex), any number of readers, who never wait for it.
 * Its fields are read and written as relaxed atomics, so that a torn read is impossible and a sanitizer sees no race. */
#ifndef PYBROKER_ATOMIC_H
#define PYBROKER_ATOMIC_H
#include <stdint.h>

static inline int32_t load_i32(const int32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void store_i32(int32_t *p, int32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline int32_t add_i32(int32_t *p, int32_t v) { return __atomic_add_fetch(p, v, __ATOMIC_SEQ_CST); }
static inline int cas_i32(int32_t *p, int32_t from, int32_t to) {
  return __atomic_compare_exchange_n(p, &from, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE);
}
static inline int64_t load_i64(const int64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void store_i64(int64_t *p, int64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline int64_t add_i64(int64_t *p, int64_t v) { return __atomic_add_fetch(p, v, __ATOMIC_SEQ_CST); }
static inline int cas_i64(int64_t *p, int64_t from, int64_t to) {
  return __atomic_compare_exchange_n(p, &from, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE);
}
static inline void *load_ptr(void *const *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void store_ptr(void **p, void *v) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }
static inline void *swap_ptr(void **p, void *v) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); }
static inline int cas_ptr(void **p, void *from, void *to) {
  return __atomic_compare_exchange_n(p, &from, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE);
}

static inline int64_t peek_i64(const int64_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
static inline void poke_i64(int64_t *p, int64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }

/* Writer: begin makes the sequence odd before any field changes, end makes it even after all have. Each field is stored
 * with release (free on x86), so a reader that sees a new value also sees the odd sequence before it. */
static inline void seq_begin(uint32_t *seq) { __atomic_store_n(seq, *seq + 1, __ATOMIC_RELAXED); }
static inline void seq_set(int64_t *p, int64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline void seq_end(uint32_t *seq) { __atomic_store_n(seq, *seq + 1, __ATOMIC_RELEASE); }
/* Reader: begin waits for an even sequence; the fields are loaded with acquire, so retry's load cannot pass them. */
static inline uint32_t seq_read(const uint32_t *seq) {
  uint32_t s;
  while ((s = __atomic_load_n(seq, __ATOMIC_ACQUIRE)) & 1) { }
  return s;
}
static inline int64_t seq_get(const int64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline int seq_retry(const uint32_t *seq, uint32_t s) { return __atomic_load_n(seq, __ATOMIC_RELAXED) != s; }
#endif
