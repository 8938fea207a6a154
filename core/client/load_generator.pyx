"""A load generator, which measures a broker without the limits of a client library.

The caller makes one frame for each connection, which is sent again and again, for one partition after the other. Closed
loop: each connection keeps `depth` requests in flight. Open loop: requests are due at a fixed rate, and each is timed
from when it was due, not from when it could be sent, so that a stalled broker does not slow down the clock that
measures it. Responses come in order, and only their sizes are needed to separate them. Of a Produce response the error
code is read; of a Fetch response also the batch headers, for the next fetch offset. At the end of a log, fetching
starts over at offset 0.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove, memset
from posix.unistd cimport close

import os
from collections.abc import Sequence

from pybroker.core.base.atomic cimport load_i64, store_i64
from pybroker.core.base.clock cimport monotonic_ns
from pybroker.core.base.cursor cimport load_be16, load_be32, load_be64, store_be32, store_be64
from pybroker.core.base.epoll cimport (
    EPOLLET, EPOLLIN, EPOLLOUT, EPOLL_CLOEXEC, EPOLL_CTL_ADD, epoll_create1, epoll_ctl, epoll_event, epoll_wait,
)
from pybroker.core.base.frame cimport SIZE_BYTES
from pybroker.core.base.socket cimport MSG_DONTWAIT, MSG_NOSIGNAL, recv, send
from pybroker.core.base.tls cimport PIECE_BYTES, tls_flush, tls_free, tls_recv, tls_scratch_t, tls_send
from pybroker.core.base.tls_socket cimport TlsSocket
from pybroker.core.batch.batch cimport (
    AT_BASE_OFFSET, AT_BATCH_LENGTH, AT_COUNT, AT_LAST_OFFSET_DELTA, HEADER_BYTES, LENGTH_BYTES,
)

cdef enum:
    INPUT_BYTES_MIN = 1 << 16
    ANSWER_BYTES_MAX = 256 << 20
    EVENTS_MAX = 64
    DEPTH_MAX = 1000
    LANES_MAX = 10000
    WAIT_MS = 100
    BURST_BYTES_MAX = 1 << 14               # small frames are sent together, as client libraries do

cdef enum:
    SECOND_NS = 1000000000
    DRAIN_NS = 5000000000                   # how long to wait for responses after the last request


cdef void count(int64_t* of, int64_t n) noexcept nogil:
    """Add to a tally that other threads may read; there is only one writer."""
    store_i64(of, of[0] + n)


# -- latencies ---------------------------------------------------------------------------------------------------------

cdef int32_t bucket_of(int64_t value) noexcept nogil:
    """Return the bucket of a value. Values below 64 have their own bucket; above, each power of two has 64."""
    cdef int32_t shift = 0
    if value < 0:
        return 0
    while value >> shift >= 2 * STEPS:
        shift += 1
    return shift * STEPS + <int32_t>(value >> shift)


cdef int64_t bucket_top(int32_t bucket) noexcept nogil:
    """The largest value of a bucket."""
    cdef int32_t shift = bucket // STEPS - 1 if bucket >= STEPS else 0
    return ((<int64_t>(bucket - shift * STEPS) + 1) << shift) - 1


# -- one connection ----------------------------------------------------------------------------------------------------

cdef ssize_t send_some(lane_t* e) noexcept nogil:
    """Send a part of the frames; the bytes sent, or -errno."""
    cdef int64_t n = min(e.left, <int64_t>PIECE_BYTES)
    cdef int status
    if e.tls == NULL:
        n = send(e.fd, e.rest, e.left, MSG_NOSIGNAL | MSG_DONTWAIT)
        return n if n >= 0 else -errno
    status = tls_send(e.tls, e.rest, n)
    return n if status == 0 else status


cdef int push_rest(lane_t* e) noexcept nogil:
    """Send the rest of the frames. 1: all sent; 0: the socket is full; -errno."""
    cdef ssize_t sent = 0 if e.tls == NULL else tls_flush(e.tls)
    if sent < 0:
        return 0 if sent == -EAGAIN else <int>sent
    while e.left > 0:
        sent = send_some(e)
        if sent < 0:
            if sent == -EINTR:
                continue
            return 0 if sent == -EAGAIN else <int>sent
        e.rest += sent
        e.left -= sent
    return 1


cdef int issue(generator_t* g, lane_t* e, int64_t due_ns, int32_t n) noexcept nogil:
    """Send n frames, at most `burst`, each to the next partition, as far as the socket takes them."""
    cdef int32_t i
    for i in range(n):
        store_be32(e.frame + i * e.frame_bytes + g.index_at, e.partitions[e.next_partition])
        e.next_partition = e.next_partition + 1 if e.next_partition + 1 < e.partition_count else 0
        e.sent_ns[(e.oldest + e.waiting) % g.depth] = due_ns
        e.waiting += 1
    e.rest = e.frame
    e.left = n * e.frame_bytes
    g.issued_bytes += n * g.batch_bytes
    return push_rest(e)


cdef bint has_room(const generator_t* g, const lane_t* e) noexcept nogil:
    return not e.dead and e.left == 0 and e.waiting < g.depth


cdef void read_batches(generator_t* g, lane_t* e, uint8_t* at, int64_t n) noexcept nogil:
    """Count the complete batches of a response, and set the next fetch offset."""
    cdef int64_t size, next_offset = 0
    cdef uint8_t* p = at
    while n - (p - at) >= HEADER_BYTES:
        size = LENGTH_BYTES + <int64_t>load_be32(p + AT_BATCH_LENGTH)
        if size < HEADER_BYTES or size > n - (p - at):
            break  # a response may end in the middle of a batch
        count(&g.tally.records, load_be32(p + AT_COUNT))
        count(&g.tally.bytes, size)
        next_offset = load_be64(p + AT_BASE_OFFSET) + load_be32(p + AT_LAST_OFFSET_DELTA) + 1
        p += size
    store_be64(e.frame + g.offset_at, next_offset)


cdef int take_answer(generator_t* g, lane_t* e, uint8_t* answer, int64_t n, int64_t at_ns) noexcept nogil:
    """Count a response; -1 if it does not match a request."""
    cdef int32_t error, length
    if e.waiting == 0 or n < g.error_at + 2:
        return -1
    g.buckets[bucket_of(at_ns - e.sent_ns[e.oldest])] += 1
    e.oldest = (e.oldest + 1) % g.depth
    e.waiting -= 1
    count(&g.tally.requests, 1)
    error = load_be16(answer + g.error_at)
    if error != 0:
        count(&g.tally.errors, 1)
        store_i64(&g.tally.last_error, error)
    elif g.records_at == 0:
        count(&g.tally.records, g.batch_records)
        count(&g.tally.bytes, g.batch_bytes)
    else:
        length = load_be32(answer + g.records_at) if n >= g.records_at + SIZE_BYTES else -1
        if length > n - g.records_at - SIZE_BYTES:
            return -1
        read_batches(g, e, answer + g.records_at + SIZE_BYTES, max(<int32_t>0, length))
    return 0


cdef int grow_input(lane_t* e, int64_t wanted) noexcept nogil:
    cdef uint8_t* p
    if wanted <= e.input_capacity:
        return 0
    p = <uint8_t*>realloc(e.input, wanted)
    if p == NULL:
        return -1
    e.input = p
    e.input_capacity = wanted
    return 0


cdef int hear(generator_t* g, lane_t* e) noexcept nogil:
    """Read until the socket is empty, and count the responses; -1: close the connection."""
    cdef int64_t at, n, at_ns
    cdef ssize_t got
    while True:
        if e.tls != NULL:
            got = tls_recv(e.tls, e.input + e.input_used, e.input_capacity - e.input_used)
        else:
            got = recv(e.fd, e.input + e.input_used, e.input_capacity - e.input_used, MSG_DONTWAIT)
            if got < 0:
                got = -errno
        if got == -EINTR:
            continue
        if got <= 0:
            return 0 if got == -EAGAIN else -1
        e.input_used += got
        at = 0
        at_ns = monotonic_ns()
        while e.input_used - at >= SIZE_BYTES:
            n = load_be32(e.input + at)
            if n < SIZE_BYTES or n > ANSWER_BYTES_MAX or grow_input(e, n + SIZE_BYTES) < 0:
                return -1
            if e.input_used - at - SIZE_BYTES < n:
                break
            if take_answer(g, e, e.input + at + SIZE_BYTES, n, at_ns) < 0:
                return -1
            at += SIZE_BYTES + n
        e.input_used -= at
        memmove(e.input, e.input + at, e.input_used)


# -- all of them -------------------------------------------------------------------------------------------------------

cdef void lose(generator_t* g, lane_t* e) noexcept nogil:
    """Give up a connection that its peer closed, or that sent an invalid response: outstanding responses count as
    errors."""
    e.dead = 1
    count(&g.tally.errors, max(1, e.waiting))
    store_i64(&g.tally.last_error, -1)
    e.waiting = 0
    e.left = 0


cdef int send_due(generator_t* g, int64_t* due_ns, int64_t step_ns, int64_t at_ns, int32_t* lane) noexcept nogil:
    """Open loop: send the requests that are due, over the connections in turn; the number sent."""
    cdef int32_t tried = 0, sent = 0
    cdef lane_t* e
    while due_ns[0] <= at_ns and tried < g.lane_count:
        e = &g.lanes[lane[0]]
        lane[0] = lane[0] + 1 if lane[0] + 1 < g.lane_count else 0
        if not has_room(g, e):
            tried += 1
            continue
        if issue(g, e, due_ns[0], 1) < 0:
            lose(g, e)
        due_ns[0] += step_ns
        tried = 0
        sent += 1
    return sent


cdef bint all_heard(const generator_t* g) noexcept nogil:
    cdef int32_t i
    for i in range(g.lane_count):
        if g.lanes[i].waiting > 0:
            return False
    return True


cdef bint all_dead(const generator_t* g) noexcept nogil:
    cdef int32_t i
    for i in range(g.lane_count):
        if not g.lanes[i].dead:
            return False
    return True


cdef void fill(generator_t* g, lane_t* e) noexcept nogil:
    """Closed loop: send requests up to `depth`."""
    cdef int64_t at_ns = monotonic_ns()
    while has_room(g, e):
        if issue(g, e, at_ns, min(e.burst, g.depth - e.waiting)) < 0:
            lose(g, e)


cdef int drive(generator_t* g, int64_t seconds_ns, int64_t step_ns, int64_t bytes_max) noexcept nogil:
    """Send and receive for so long, or until so many bytes were sent, then only receive; -errno if epoll fails."""
    cdef epoll_event events[EVENTS_MAX]
    cdef epoll_event ev
    cdef lane_t* e
    cdef int32_t i, n, lane = 0, ep = epoll_create1(EPOLL_CLOEXEC)
    cdef int64_t start_ns = monotonic_ns(), due_ns = start_ns, at_ns
    cdef bint sending = True, spent
    if ep < 0:
        return -errno
    for i in range(g.lane_count):
        ev.events = EPOLLIN | EPOLLOUT | EPOLLET
        ev.data.ptr = &g.lanes[i]
        if epoll_ctl(ep, EPOLL_CTL_ADD, g.lanes[i].fd, &ev) < 0:
            i = -errno
            close(ep)
            return i
    while True:
        at_ns = monotonic_ns()
        spent = at_ns - start_ns >= seconds_ns or 0 < bytes_max <= g.issued_bytes
        if sending and (spent or load_i64(&g.stop) or all_dead(g)):
            sending = False
            store_i64(&g.tally.elapsed_ns, at_ns - start_ns)
        if not sending and (all_heard(g) or at_ns - start_ns - g.tally.elapsed_ns > <int64_t>DRAIN_NS):
            break
        if sending and step_ns > 0:
            send_due(g, &due_ns, step_ns, at_ns, &lane)
        # Open loop: the next request is due sooner than epoll can wait.
        n = epoll_wait(ep, events, EVENTS_MAX, 0 if sending and step_ns > 0 else WAIT_MS)
        for i in range(n):
            e = <lane_t*>events[i].data.ptr
            if e.dead:
                continue
            if hear(g, e) < 0 or push_rest(e) < 0:
                lose(g, e)
            elif sending and step_ns == 0:
                fill(g, e)
    close(ep)
    if not all_heard(g):
        store_i64(&g.tally.last_error, -2)
        for i in range(g.lane_count):
            count(&g.tally.errors, g.lanes[i].waiting)
    return 0


cdef class LoadGenerator:
    """Connections that send prepared frames and count the responses. The caller keeps the sockets, and closes them
    later."""

    cdef generator_t g

    def __cinit__(
        self, fds: Sequence[int], frames: Sequence[bytes], partitions: Sequence[Sequence[int]], *, int depth,
        int index_at, int error_at, int64_t batch_records=0, int64_t batch_bytes=0, int records_at=0, int offset_at=0,
        tls: Sequence[TlsSocket] = (),
    ):
        if not 1 <= depth <= DEPTH_MAX or not 1 <= len(fds) <= LANES_MAX:
            raise ValueError(f"depth is 1 to {DEPTH_MAX}, connections are 1 to {LANES_MAX}")
        if records_at and (depth != 1 or any(len(each) != 1 for each in partitions)):
            raise ValueError(
                "each Fetch depends on the answer to the one before it: depth 1, one partition a connection")
        if min(error_at, index_at, records_at, offset_at) < 0:
            raise ValueError("positions are not negative")
        memset(&self.g, 0, sizeof(generator_t))
        self.g.lanes = <lane_t*>calloc(len(fds), sizeof(lane_t))
        if self.g.lanes == NULL:
            raise MemoryError
        self.g.depth, self.g.error_at, self.g.index_at = depth, error_at, index_at
        self.g.records_at, self.g.offset_at = records_at, offset_at
        self.g.batch_records, self.g.batch_bytes = batch_records, batch_bytes
        for i, (fd, frame, asked) in enumerate(zip(fds, frames, partitions, strict=True)):
            self.add(fd, frame, asked)
            if tls:
                self.encrypt(i, tls[i])

    cdef int encrypt(self, int i, TlsSocket tls) except -1:
        """Take over the TLS of a socket, after the handshake."""
        if self.g.scratch == NULL:
            self.g.scratch = <tls_scratch_t*>malloc(sizeof(tls_scratch_t))
        if self.g.scratch == NULL:
            raise MemoryError
        self.g.lanes[i].tls = tls.give()
        self.g.lanes[i].tls.scratch = self.g.scratch
        return 0

    cdef int add(self, int fd, bytes frame, asked) except -1:
        cdef lane_t* e = &self.g.lanes[self.g.lane_count]
        cdef int32_t k
        if not asked or max(self.g.index_at + 4, self.g.offset_at + 8) > len(frame):
            raise ValueError("a connection needs a partition, and what is written into a frame lies inside it")
        self.g.lane_count += 1  # from here on __dealloc__ frees it
        e.fd = fd
        e.partition_count = len(asked)
        e.frame_bytes = len(frame)
        e.burst = 1 if self.g.records_at else max(1, min(self.g.depth, BURST_BYTES_MAX // len(frame)))
        e.frame = <uint8_t*>malloc(e.burst * len(frame))
        e.partitions = <int32_t*>calloc(len(asked), sizeof(int32_t))
        e.sent_ns = <int64_t*>calloc(self.g.depth, sizeof(int64_t))
        e.input = <uint8_t*>malloc(INPUT_BYTES_MIN)
        if e.frame == NULL or e.partitions == NULL or e.sent_ns == NULL or e.input == NULL:
            raise MemoryError
        e.input_capacity = INPUT_BYTES_MIN
        for k in range(e.burst):
            memcpy(e.frame + k * e.frame_bytes, <const uint8_t*>frame, e.frame_bytes)
        for i, partition in enumerate(asked):
            e.partitions[i] = partition
        return 0

    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.g.lane_count):
            tls_free(self.g.lanes[i].tls)
            free(self.g.lanes[i].frame)
            free(self.g.lanes[i].partitions)
            free(self.g.lanes[i].sent_ns)
            free(self.g.lanes[i].input)
        free(self.g.lanes)
        free(self.g.scratch)

    def run(self, double seconds, *, double rate=0, int64_t bytes_max=0):
        cdef int64_t step_ns = <int64_t>(SECOND_NS / rate) if rate > 0 else 0
        cdef int64_t seconds_ns = <int64_t>(seconds * SECOND_NS)
        cdef int status
        memset(&self.g.tally, 0, sizeof(tally_t))
        memset(self.g.buckets, 0, sizeof(self.g.buckets))
        self.g.issued_bytes = 0
        store_i64(&self.g.stop, 0)
        with nogil:
            status = drive(&self.g, seconds_ns, step_ns, bytes_max)
        if status < 0:
            raise OSError(-status, os.strerror(-status))

    def stop(self):
        store_i64(&self.g.stop, 1)

    @property
    def tally(self) -> dict[str, int]:
        return {
            "requests": load_i64(&self.g.tally.requests), "records": load_i64(&self.g.tally.records),
            "bytes": load_i64(&self.g.tally.bytes), "errors": load_i64(&self.g.tally.errors),
            "last_error": load_i64(&self.g.tally.last_error), "elapsed_ns": load_i64(&self.g.tally.elapsed_ns),
        }

    def percentile_ns(self, double percent):
        cdef int64_t total = 0, wanted, seen = 0
        cdef int32_t i
        for i in range(BUCKETS):
            total += self.g.buckets[i]
        wanted = max(<int64_t>1, <int64_t>(total * percent / 100 + 0.5))
        for i in range(BUCKETS):
            seen += self.g.buckets[i]
            if total and seen >= wanted:
                return bucket_top(i)
        return 0
