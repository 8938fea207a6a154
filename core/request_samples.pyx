"""Samples of requests for Python: what a plane's reactors note of single requests, for tracing."""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t

from pybroker.core.base.atomic cimport load_i64, store_i64
from pybroker.core.data_plane cimport Plane
from pybroker.core.plane.thread.samples cimport RING, sample_t, samples_t

from typing import NamedTuple

from pybroker.core.data_plane import STAGED


class RequestSample(NamedTuple):
    kind: str
    version: int
    correlation_id: int
    client_id: bytes | None
    topics: int
    topic: str
    partitions: int
    errors: int
    error_code: int
    request_bytes: int
    response_bytes: int
    read_ns: int
    queue_ns: int
    local_ns: int
    remote_ns: int
    send_ns: int


cdef object sample_of(const sample_t* a):
    client_id = None
    if a.client_id_length >= 0:
        client_id = PyBytes_FromStringAndSize(<char*>a.client_id, a.client_id_length)
    topic = PyBytes_FromStringAndSize(a.topic, a.topic_length).decode()
    return RequestSample(
        STAGED[a.kind], a.version, a.correlation, client_id, a.topics, topic, a.partitions, a.errors, a.error,
        a.request_bytes, a.end - a.begin, a.read_ns, a.queue_ns, a.local_ns, a.remote_ns, a.send_ns)


@cython.no_gc_clear
cdef class RequestSamples:
    """Has the reactors of a plane sample requests; see request_samples.pyi."""

    cdef Plane plane

    def __cinit__(self, Plane plane not None, int64_t interval_ns):
        if interval_ns < 1:
            raise ValueError(f"an interval of {interval_ns} ns")
        self.plane = plane
        store_i64(&plane.state.sample_ns, interval_ns)

    def take(self) -> list:
        cdef samples_t* s
        cdef int64_t put
        cdef int i
        out = []
        self.plane.check()
        for i in range(self.plane.made.count):
            s = &self.plane.made.every[i].samples
            put = load_i64(&s.put)
            while s.taken < put:
                out.append(sample_of(&s.ring[s.taken % RING]))
                store_i64(&s.taken, s.taken + 1)
        return out

    def stop(self) -> None:
        store_i64(&self.plane.state.sample_ns, 0)
