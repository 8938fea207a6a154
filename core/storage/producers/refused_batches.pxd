# Batches of idempotent producers that a log refused for a temporary reason.
from libc.stdint cimport int16_t, int32_t, int64_t

from pybroker.core.storage.producers.producer_state cimport sequence_t

cdef enum:
    REFUSED_MAX = 1024           # producers of one log; a further one replaces the one refused longest ago
    REFUSED_MS = 120000          # Kafka's default delivery.timeout.ms: the client has given the batch up by then

cdef struct refused_t:           # the first refused batch of a producer
    int64_t id
    int64_t at_ms                # when it was last refused (monotonic)
    int32_t sequence             # the batch's first sequence
    int32_t status               # the error: a Kafka code or -errno
    int16_t epoch
    int32_t held_in              # leader epoch in which it was refused for a gap before it; -1: it has no such gap

cdef struct refusals_t:          # empty when zeroed; under the append mutex
    refused_t* items
    int32_t count
    int32_t capacity

cdef void refusals_free(refusals_t* r) noexcept nogil
cdef int refusals_find(
    const refusals_t* r, const sequence_t* s, int64_t id, int16_t epoch, int32_t first, int64_t now_ms) noexcept nogil
cdef void refusals_note(
    refusals_t* r, const sequence_t* s, int64_t id, int16_t epoch, int32_t first, int status,
    int64_t now_ms) noexcept nogil
cdef bint refusals_hold(
    refusals_t* r, int64_t id, int16_t epoch, int32_t first, int32_t leader_epoch, int64_t now_ms) noexcept nogil
cdef void refusals_forget(refusals_t* r, int64_t id) noexcept nogil
