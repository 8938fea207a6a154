"""The upper bound for a broker on one core: an epoll loop that does only the unavoidable work.

The loop speaks just enough for pybroker.cli.bench.load: a batch of Produce v7 is checked by its CRC, stamped
with its offset and written into space reserved ahead, all batches of one turn for one partition in one call; Fetch v11
is answered from the file. One topic, no groups, no recovery, no errors: no broker can be much faster.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove
from posix.unistd cimport close

from pybroker.core.base.crc32c cimport crc32c
from pybroker.core.base.cursor cimport load_be16, load_be32, load_be64, store_be16, store_be32, store_be64
from pybroker.core.base.epoll cimport (
    EPOLLET, EPOLLIN, EPOLLOUT, EPOLL_CTL_ADD, epoll_create1, epoll_ctl, epoll_event, epoll_wait,
)
from pybroker.core.base.files cimport (
    FALLOC_FL_KEEP_SIZE, MAP_FAILED, MAP_SHARED, PROT_READ, fallocate, iovec, mmap, pwritev,
)
from pybroker.core.base.socket cimport MSG_MORE, MSG_NOSIGNAL, SOCK_NONBLOCK, accept4, recv, send, setsockopt
from pybroker.core.batch.batch cimport (
    AT_ATTRIBUTES, AT_BASE_OFFSET, AT_CRC, AT_LAST_OFFSET_DELTA, AT_LEADER_EPOCH, HEADER_BYTES,
)

import os

cdef extern from "<netinet/in.h>" nogil:
    int IPPROTO_TCP

cdef extern from "<netinet/tcp.h>" nogil:
    int TCP_NODELAY

cdef enum:
    PARTITIONS_MAX = 16
    VECTORS_MAX = 64
    EVENTS_MAX = 256
    INPUT_BYTES = 1 << 18
    OUTPUT_BYTES = 1 << 16
    ANSWER_BYTES_MAX = 512
    STEP_BYTES = 64 << 20
    FILE_BYTES = 3221225472        # of address space; writes beyond it are refused
    STARTS_MAX = 1 << 20

cdef enum:
    PRODUCE = 0
    FETCH = 1

cdef struct partition_t:
    int fd
    uint8_t* map
    int64_t written, end, reserved, next_offset
    iovec gathered[VECTORS_MAX]
    int32_t gathered_count
    int64_t* offsets               # of each batch, and where it begins
    int64_t* positions
    int64_t count

cdef struct conn_t:
    int fd
    uint8_t* input
    int64_t capacity, used
    uint8_t output[OUTPUT_BYTES]
    int64_t output_from, output_to
    const uint8_t* file            # after the output
    int64_t file_left

cdef partition_t partitions[PARTITIONS_MAX]


cdef int drain(partition_t* p) noexcept nogil:
    """Write the batches gathered in this turn; -1 if that fails."""
    if p.gathered_count == 0:
        return 0
    if p.end > p.reserved:
        if fallocate(p.fd, FALLOC_FL_KEEP_SIZE, p.reserved, p.end + STEP_BYTES - p.reserved) < 0:
            return -1
        p.reserved = p.end + STEP_BYTES
    if pwritev(p.fd, p.gathered, p.gathered_count, p.written) != p.end - p.written:
        return -1
    p.written = p.end
    p.gathered_count = 0
    return 0


cdef int64_t append(partition_t* p, uint8_t* batch, int64_t n) noexcept nogil:
    """Check, stamp and gather a batch; return its base offset, or -1."""
    cdef int64_t base = p.next_offset
    if n < HEADER_BYTES or p.end + n > FILE_BYTES or p.count == STARTS_MAX:
        return -1
    if crc32c(batch + AT_ATTRIBUTES, n - AT_ATTRIBUTES, 0) != <uint32_t>load_be32(batch + AT_CRC):
        return -1
    if p.gathered_count == VECTORS_MAX and drain(p) < 0:
        return -1
    store_be64(batch + AT_BASE_OFFSET, base)
    store_be32(batch + AT_LEADER_EPOCH, 0)
    p.offsets[p.count] = base
    p.positions[p.count] = p.end
    p.count += 1
    p.gathered[p.gathered_count].iov_base = batch
    p.gathered[p.gathered_count].iov_len = n
    p.gathered_count += 1
    p.next_offset += load_be32(batch + AT_LAST_OFFSET_DELTA) + 1
    p.end += n
    return base


cdef int64_t first_above(const int64_t* sorted, int64_t n, int64_t value) noexcept nogil:
    cdef int64_t low = 0, high = n, middle
    while low < high:
        middle = (low + high) // 2
        if sorted[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low


cdef int drain_all() noexcept nogil:
    cdef int32_t i
    for i in range(PARTITIONS_MAX):
        if drain(&partitions[i]) < 0:
            return -1
    return 0


cdef int flush(conn_t* c) noexcept nogil:
    """Send as much as the socket takes. 1: all; 0: the socket is full; -1: close."""
    cdef ssize_t sent
    if drain_all() < 0:
        return -1
    while c.output_from < c.output_to or c.file_left > 0:
        if c.output_from < c.output_to:
            sent = send(c.fd, c.output + c.output_from, c.output_to - c.output_from,
                        MSG_NOSIGNAL | (MSG_MORE if c.file_left else 0))
        else:
            sent = send(c.fd, c.file, c.file_left, MSG_NOSIGNAL)
        if sent < 0:
            if errno == EINTR:
                continue
            return 0 if errno == EAGAIN else -1
        if c.output_from < c.output_to:
            c.output_from += sent
        else:
            c.file += sent
            c.file_left -= sent
    c.output_from = c.output_to = 0
    return 1


# -- the two requests: positions behind the header are those of pybroker.cli.bench.load's frames ---------------------

cdef void answer_produce(
    conn_t* c, int32_t correlation, const uint8_t* topic, int32_t index, int64_t base) noexcept nogil:
    cdef int64_t name = 2 + load_be16(topic)
    cdef uint8_t* start = c.output + c.output_to
    cdef uint8_t* o = start + 4
    store_be32(o, correlation)
    store_be32(o + 4, 1)
    memcpy(o + 8, topic, name)
    o += 8 + name
    store_be32(o, 1)
    store_be32(o + 4, index)
    store_be16(o + 8, 0 if base >= 0 else 2)
    store_be64(o + 10, base)
    store_be64(o + 18, -1)
    store_be64(o + 26, 0)
    store_be32(o + 34, 0)
    o += 38
    store_be32(start, <int32_t>(o - start - 4))
    c.output_to += o - start


cdef void answer_fetch(
    conn_t* c, int32_t correlation, const uint8_t* topic, int32_t index, int64_t offset,
    int64_t bytes_max) noexcept nogil:
    """Return whole batches of at most bytes_max bytes, but at least one."""
    cdef partition_t* p = &partitions[index]
    cdef int64_t name = 2 + load_be16(topic), at = first_above(p.offsets, p.count, offset) - 1
    cdef int64_t from_ = p.end, to = p.end, last
    cdef uint8_t* start = c.output + c.output_to
    cdef uint8_t* o = start + 4
    if p.count and offset < p.next_offset:
        from_ = p.positions[max(<int64_t>0, at)]
        if from_ + bytes_max < p.end:
            last = first_above(p.positions, p.count, from_ + bytes_max) - 1
            to = max(p.positions[last], p.positions[at + 1] if at + 1 < p.count else p.end)
    store_be32(o, correlation)
    store_be32(o + 4, 0)
    store_be16(o + 8, 0)
    store_be32(o + 10, 0)
    store_be32(o + 14, 1)
    memcpy(o + 18, topic, name)
    o += 18 + name
    store_be32(o, 1)
    store_be32(o + 4, index)
    store_be16(o + 8, 0)
    store_be64(o + 10, p.next_offset)
    store_be64(o + 18, p.next_offset)
    store_be64(o + 26, 0)
    store_be32(o + 34, -1)
    store_be32(o + 38, -1)
    store_be32(o + 42, <int32_t>(to - from_))
    o += 46
    store_be32(start, <int32_t>(o - start - 4 + to - from_))
    c.output_to += o - start
    c.file = p.map + from_
    c.file_left = to - from_


cdef int execute(conn_t* c, uint8_t* f) noexcept nogil:
    """Execute one frame, after its size; 1: go on, 0: its answer must be sent first, -1: close."""
    cdef int16_t api = load_be16(f)
    cdef int32_t correlation = load_be32(f + 4), index, n
    cdef uint8_t* topic
    cdef uint8_t* at
    f += 10 + load_be16(f + 8)
    if api == PRODUCE:
        topic = f + 2 + 2 + 4 + 4
        at = topic + 2 + load_be16(topic) + 4
        index = load_be32(at)
        n = load_be32(at + 4)
        if not 0 <= index < PARTITIONS_MAX:
            return -1
        answer_produce(c, correlation, topic, index, append(&partitions[index], at + 8, n))
        return 1
    if api != FETCH:
        return -1
    topic = f + 4 + 4 + 4 + 4 + 1 + 4 + 4 + 4
    at = topic + 2 + load_be16(topic) + 4
    index = load_be32(at)
    if not 0 <= index < PARTITIONS_MAX:
        return -1
    answer_fetch(c, correlation, topic, index, load_be64(at + 8), load_be32(f + 12))
    return 0


cdef int serve(conn_t* c) noexcept nogil:
    """Read available data, execute and answer; -1: close."""
    cdef int64_t at, n
    cdef ssize_t got
    cdef int status = flush(c)
    while status > 0:
        got = recv(c.fd, c.input + c.used, c.capacity - c.used, 0)
        if got < 0 and errno == EINTR:
            continue
        if got <= 0:
            return 0 if got < 0 and errno == EAGAIN else -1
        c.used += got
        at = 0
        while status > 0 and c.used - at >= 4:
            n = load_be32(c.input + at)
            if n < 14 or n > FILE_BYTES:
                return -1
            if c.used - at - 4 < n:
                break
            if c.output_to > OUTPUT_BYTES - ANSWER_BYTES_MAX:
                status = flush(c)
                if status <= 0:
                    return -1  # the generator reads its answers, so they never pile up
            if execute(c, c.input + at + 4) < 0:
                return -1
            at += 4 + n
            if c.file_left > 0:
                status = flush(c)
        if status > 0:
            status = flush(c)
        elif drain_all() < 0:
            return -1
        c.used -= at
        memmove(c.input, c.input + at, c.used)
        if c.used >= 4 and load_be32(c.input) + 4 > c.capacity:
            c.capacity = load_be32(c.input) + 4 + INPUT_BYTES
            c.input = <uint8_t*>realloc(c.input, c.capacity)
            if c.input == NULL:
                return -1
    return status


cdef int greet(int ep, int listener) noexcept nogil:
    """Take one new connection."""
    cdef epoll_event e
    cdef int one = 1
    cdef conn_t* c
    cdef int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)
    if fd < 0:
        return 0
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one))
    c = <conn_t*>calloc(1, sizeof(conn_t))
    if c == NULL:
        return -1
    c.fd = fd
    c.capacity = INPUT_BYTES
    c.input = <uint8_t*>malloc(INPUT_BYTES)
    e.events = EPOLLIN | EPOLLOUT | EPOLLET
    e.data.ptr = c
    return epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e) if c.input != NULL else -1


cdef int loop(int listener) noexcept nogil:
    cdef epoll_event events[EVENTS_MAX]
    cdef conn_t* c
    cdef int32_t i, n
    cdef int ep = epoll_create1(0)
    events[0].events = EPOLLIN
    events[0].data.ptr = NULL
    epoll_ctl(ep, EPOLL_CTL_ADD, listener, &events[0])
    while True:
        n = epoll_wait(ep, events, EVENTS_MAX, -1)
        if n < 0 and errno != EINTR:
            return -1
        for i in range(n):
            c = <conn_t*>events[i].data.ptr
            if c == NULL:
                if greet(ep, listener) < 0:
                    return -1
            elif serve(c) < 0:
                close(c.fd)
                free(c.input)
                free(c)


def run(int listener, str directory):
    """Serve connections of a listening socket until the process is killed. OSError if the disk refuses."""
    cdef int32_t i
    for i in range(PARTITIONS_MAX):
        path = os.path.join(directory, str(i))
        partitions[i].fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.unlink(path)
        partitions[i].map = <uint8_t*>mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, partitions[i].fd, 0)
        partitions[i].offsets = <int64_t*>malloc(STARTS_MAX * sizeof(int64_t))
        partitions[i].positions = <int64_t*>malloc(STARTS_MAX * sizeof(int64_t))
        if <void*>partitions[i].map == MAP_FAILED or partitions[i].offsets == NULL or partitions[i].positions == NULL:
            raise MemoryError
    with nogil:
        loop(listener)
    raise OSError(errno, os.strerror(errno))
