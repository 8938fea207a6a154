"""Fetchers for Python: a connection to a leader, over which the plane fetches partitions.

    LeaderConnection(plane, fd) ── add(partition) ──> the plane fetches and appends, until an event of it

plane.take() returns events as "fetcher" letters with the fetcher's key, which read() decodes, and a "closed" letter
when the connection has ended.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.string cimport memcpy

from pybroker.core.base.atomic cimport add_i32, load_i64, peek_i64, store_i64
from pybroker.core.base.cursor cimport cursor_init, cursor_t, read_i32, read_i64, read_i8
from pybroker.core.base.tls_socket cimport TlsSocket
from pybroker.core.data_plane cimport Plane
from pybroker.core.partition_handle cimport Partition
from pybroker.core.plane.replica.replica_fetch cimport EVENT_BYTES
from pybroker.core.plane.replica.replica_fetcher cimport (
    CLIENT_ID_MAX, fetched_drop, fetched_t, replica_fetcher_add, replica_fetcher_close, replica_fetcher_drop,
    replica_fetcher_new, replica_fetcher_t, replica_fetcher_take_away,
)

from typing import Any, NamedTuple

EVENTS = ("diverged", "failed", "log_start", "slow", "throttled")


class FetcherEvent(NamedTuple):
    kind: str
    partition: Any
    code: int
    epoch: int
    offset: int


@cython.no_gc_clear
cdef class LeaderConnection:
    """A connection to a leader; see leader_connection.pyi."""

    cdef Plane plane
    cdef replica_fetcher_t* state
    cdef dict held               # Partition -> (the address of its fetched_t, the id that names it in letters)
    cdef dict known              # id -> Partition
    cdef dict ends  # throttled Partition -> the leader epoch and the leader's high watermark when it was taken out
    cdef int64_t added
    cdef readonly int64_t key

    def __cinit__(self, Plane plane not None, int fd, *, int32_t replica_id, int64_t broker_epoch, str client_id="",
                  int32_t max_wait_ms=500, int32_t min_bytes=1, int32_t response_bytes_max=10 << 20,
                  int32_t partition_bytes_max=1 << 20, int64_t answer_ms_max=30000,
                  TlsSocket tls=None):
        cdef bytes name = client_id.encode()
        if len(name) > CLIENT_ID_MAX:
            raise ValueError(f"the client id {client_id!r} has more than {CLIENT_ID_MAX} bytes")
        self.plane = plane
        self.held = {}
        self.known = {}
        self.ends = {}
        self.state = replica_fetcher_new()
        if self.state == NULL:
            raise MemoryError()
        self.state.replica_id = replica_id
        self.state.broker_epoch = broker_epoch
        self.state.client_id_length = <int32_t>len(name)
        memcpy(self.state.client_id, <const char*>name, len(name))
        self.state.max_wait_ms = max_wait_ms
        self.state.min_bytes = min_bytes
        self.state.response_bytes_max = response_bytes_max
        self.state.partition_bytes_max = partition_bytes_max
        self.state.answer_ms_max = answer_ms_max
        add_i32(&self.state.refs, 1)  # the connection's
        try:
            self.key = plane.take_over(fd, 0, self.state, False, tls)
        except BaseException:
            add_i32(&self.state.refs, -1)
            raise

    def __dealloc__(self):
        cdef uintptr_t address
        if self.state == NULL or self.plane.inherited:
            return               # in a forked child locks may be held by threads that do not exist there
        if self.key > 0:
            replica_fetcher_close(self.state)
        for address, _ in self.held.values():
            fetched_drop(<fetched_t*>address)
        replica_fetcher_drop(self.state)

    def add(self, Partition partition not None, int32_t leader_epoch, *, int64_t begin=0) -> None:
        """Fetch a partition from its log end offset; see leader_connection.pyi."""
        cdef fetched_t* q
        self.plane.check()
        epoch, end = self.ends.get(partition, (leader_epoch, -1))
        self.remove(partition, wait=False)  # no wait: the reactor executes both requests in order
        self.added += 1
        q = replica_fetcher_add(
            self.state, partition.state, leader_epoch, begin, end if epoch == leader_epoch else -1, self.added)
        if q == NULL:
            raise MemoryError()
        self.held[partition] = <uintptr_t>q, self.added
        self.known[self.added] = partition

    def remove(self, Partition partition not None, *, bint wait=True) -> None:
        """Stop fetching a partition; see leader_connection.pyi."""
        cdef fetched_t* q = self.taken(partition)
        self.ends.pop(partition, None)
        if q != NULL:
            with nogil:          # an append of it may be writing to the disk
                replica_fetcher_take_away(self.state, q, wait)
                fetched_drop(q)

    cdef fetched_t* taken(self, Partition partition) except? NULL:
        """Remove and return its entry, which the caller has to drop; NULL if there is none."""
        cdef uintptr_t address
        self.plane.check()
        if partition not in self.held:
            return NULL
        address, number = self.held.pop(partition)
        del self.known[number]
        return <fetched_t*>address

    def read(self, bytes letter not None):
        """Decode a letter; None if its partition was removed meanwhile."""
        cdef cursor_t r
        cdef signed char event = 0
        cdef int32_t code = 0, epoch = 0
        cdef int64_t number = 0, offset = 0
        cdef fetched_t* q
        if len(letter) != EVENT_BYTES:
            raise ValueError(f"a letter of {len(letter)} bytes is not a fetcher's")
        cursor_init(&r, <const unsigned char*><const char*>letter, len(letter))
        read_i8(&r, &event)
        read_i32(&r, &code)
        read_i64(&r, &number)
        read_i32(&r, &epoch)
        read_i64(&r, &offset)
        partition = self.known.get(number)
        if partition is None and number >= 0:
            return None
        kind = EVENTS[event]
        if partition is not None and kind != "log_start":
            q = self.taken(partition)
            if kind == "throttled":  # it will be added again, and is still behind
                self.ends[partition] = q.leader_epoch, peek_i64(&q.leader_end)
            fetched_drop(q)
        return FetcherEvent(kind, partition, code, epoch, offset)

    def lag(self, Partition partition not None):
        """The number of records below the leader's high watermark that this log lacks; None before the leader
        answered."""
        cdef uintptr_t address
        cdef int64_t end
        if partition not in self.held:
            return None
        address = self.held[partition][0]
        end = peek_i64(&(<fetched_t*>address).leader_end)
        return None if end < 0 else max(0, end - partition.log_end_offset)

    def close(self) -> None:
        """End the connection; a "closed" letter follows."""
        self.plane.check()
        replica_fetcher_close(self.state)

    @property
    def broker_epoch(self) -> int:
        return load_i64(&self.state.broker_epoch)

    @broker_epoch.setter
    def broker_epoch(self, int64_t epoch) -> None:
        store_i64(&self.state.broker_epoch, epoch)

    @property
    def partitions(self) -> list:
        return list(self.held)

    @property
    def requests(self) -> int:
        return peek_i64(&self.state.requests)

    @property
    def bytes_in(self) -> int:
        return peek_i64(&self.state.bytes_in)
