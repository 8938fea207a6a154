"""Counters of core as Python dicts; counters.pxd says which thread writes each."""

from pybroker.core.base.atomic cimport peek_i64


def _bound(int i):
    """The first value above bucket i."""
    i += 1
    return i if i < LINEAR else (LINEAR + i % LINEAR) << (i // LINEAR - 1)


BOUNDS_US = tuple(_bound(i) for i in range(BUCKETS - 1))


cdef object histogram_dict(const histogram_t* h):
    cdef int i
    return {"sum_us": peek_i64(&h.sum_us), "counts": [peek_i64(&h.counts[i]) for i in range(BUCKETS)]}


cdef object api_dict(const api_t* a):
    return {
        "requests": peek_i64(&a.requests), "declined": peek_i64(&a.declined), "errors": peek_i64(&a.errors),
        "bytes_in": peek_i64(&a.bytes_in), "bytes_out": peek_i64(&a.bytes_out), "times": histogram_dict(&a.times),
    }


cdef object stages_dict(const stages_t* s):
    return {
        "queue": histogram_dict(&s.queue), "local": histogram_dict(&s.local), "remote": histogram_dict(&s.remote),
        "send": histogram_dict(&s.send),
    }


cdef object traffic_dict(const traffic_t* t):
    return {
        "batches_in": peek_i64(&t.batches_in), "records_in": peek_i64(&t.records_in),
        "bytes_in": peek_i64(&t.bytes_in), "bytes_out": peek_i64(&t.bytes_out),
        "replication_bytes_in": peek_i64(&t.replication_bytes_in),
        "replication_bytes_out": peek_i64(&t.replication_bytes_out),
    }
