"""The data plane for Python: reactors on their own threads, and the mailbox between them and the event loop.

    plane.adopt(socket) ---> a reactor executes Produce and Fetch of the connection; every other request comes out of
    plane.take(), and Python answers it with plane.reply(). The plane serves only partitions that were published.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from posix.unistd cimport close as close_fd

from pybroker.core.answers cimport add_answer
from pybroker.core.base.atomic cimport load_i32, load_i64, peek_i64, store_i32, store_i64, swap_ptr
from pybroker.core.base.clock cimport monotonic_ns
from pybroker.core.base.counters cimport api_dict, histogram_add, histogram_dict, stages_dict
from pybroker.core.base.reclamation cimport retire
from pybroker.core.base.scheduling cimport ask_for_short_turns, wait_for_others
from pybroker.core.base.status cimport raise_status
from pybroker.core.base.tls_socket cimport TlsSocket
from pybroker.core.batch.validate cimport ENVELOPE, FULL
from pybroker.core.log_manager cimport LogManager
from pybroker.core.partition.partition cimport (
    BOUND_HIGH_WATERMARK, BOUND_ISR, BOUND_LOG_END, bound_of, partition_tell_all, partition_watch,
)
from pybroker.core.partition.registry cimport registry_add, registry_free, registry_new, registry_remove
from pybroker.core.partition_handle cimport Partition
from pybroker.core.plane.connection.conn cimport OPEN, conn_t, note_t
from pybroker.core.plane.connection.mailbox cimport (
    CLOSED, REQUEST, letter_t, mailbox_destroy, mailbox_init, mailbox_return, mailbox_take,
)
from pybroker.core.plane.limits.memory_pool cimport address_t, pool_destroy, pool_init, pool_join, pool_leave, pool_t
from pybroker.core.plane.limits.quotas cimport quotas_free, quotas_t
from pybroker.core.plane.limits.rights cimport given_t, rights_free, rights_given, rights_new
from pybroker.core.plane.replica.replica_fetcher cimport replica_fetcher_t
from pybroker.core.plane.requests.fetch_session cimport sessions_destroy, sessions_init, sessions_leave
from pybroker.core.plane.requests.nodes cimport nodes_new, nodes_t, put_text
from pybroker.core.plane.thread.bells cimport bell_free, bell_new, bell_t
from pybroker.core.plane.thread.inbox cimport ask_to_close, inbox_leave, inbox_ring
from pybroker.core.plane.thread.network_thread cimport reactor_free, reactor_hang_up, reactor_run, reactor_step
from pybroker.core.plane.thread.reactor cimport LISTENERS_MAX, books_t, reactor_t
from pybroker.core.plane.thread.threads cimport THREADS_MAX, threads_add, threads_drop_last, threads_next, threads_t
from pybroker.core.quota_bucket cimport QuotaBucket, quotas_told
from pybroker.core.storage.log.log cimport view_t

import contextlib
import os
import threading
import weakref

LETTERS = ("request", "gone", "closed", "grown", "fetcher", "joining")
STAGED = ("Produce", "FetchConsumer", "FetchFollower", "python")  # in the order of kind_t
PLANES = weakref.WeakSet()


def forked() -> None:
    """Disable the planes in a forked child: their threads do not exist there, and their files are the parent's."""
    cdef Plane plane
    for plane in list(PLANES):
        plane._inherit()


os.register_at_fork(after_in_child=forked)


cdef frame_of(const letter_t* l):
    """The frame of a letter; None without memory, which affects only this connection."""
    try:
        return PyBytes_FromStringAndSize(<char*>l.frame, l.length)
    except MemoryError:
        return None


@cython.no_gc_clear
cdef class Plane:
    """Reactors, the sockets they own, and the mailbox to Python. Closed by stop()."""

    def __cinit__(self, LogManager broker not None, *, int reactors=1, int fetchers=0,
                  int64_t frame_bytes_max=100 << 20,
                  int64_t fetch_bytes_max=55 << 20, int64_t idle_ms=600000, int64_t fetch_sessions=1000,
                  int64_t pool_bytes=512 << 20, int32_t requests_max=500, int64_t holder_ms=10000,
                  int32_t replica_listener=-1, str rack=None, QuotaBucket leader_throttle=None,
                  QuotaBucket follower_throttle=None):
        memset(&self.state, 0, sizeof(self.state))
        self.owner = broker
        self.threads, self.names = [], []
        self.bells, self.away, self.sockets = {}, {}, {}
        self.state.context = broker.context
        self.state.frame_bytes_max = frame_bytes_max
        self.state.fetch_bytes_max = fetch_bytes_max
        self.state.idle_ms = idle_ms
        pool_init(&self.state.pool, pool_bytes)
        pool_init(&self.state.replica_pool, INT64_MAX)
        self.state.requests_max = requests_max
        self.state.holder_ms = holder_ms
        self.state.replica_listener = replica_listener
        self.state.rack_length = -1 if rack is None else put_text(self.state.rack, rack)
        self.throttles = leader_throttle, follower_throttle
        self.state.leader_throttle = NULL if leader_throttle is None else leader_throttle.state
        self.state.follower_throttle = NULL if follower_throttle is None else follower_throttle.state
        sessions_init(&self.state.sessions, fetch_sessions)
        self.state.registry = registry_new()
        if self.state.registry == NULL:
            raise MemoryError()
        raise_status(mailbox_init(&self.state.mailbox), "the mailbox's eventfd")
        self.resize(reactors, fetchers)
        PLANES.add(self)

    def __dealloc__(self):
        cdef int i
        if self.state.registry == NULL or self.inherited:
            return               # in a forked child locks may be held by threads that do not exist there
        for partition in list(self.bells):
            self._unbell(partition)
        with nogil:  # it waits for reads and writes of its threads
            for i in range(self.made.count):
                reactor_free(self.made.every[i])
        sessions_destroy(&self.state.sessions)
        mailbox_destroy(&self.state.mailbox)
        pool_destroy(&self.state.pool)
        pool_destroy(&self.state.replica_pool)
        registry_free(self.state.registry)
        free(self.state.nodes)

    def _inherit(self) -> None:
        """Disable the plane in a forked child: close its copies of the descriptors, and never touch it again."""
        cdef int i
        self.inherited = True
        for fd, inode in self.sockets.values():
            with contextlib.suppress(OSError):  # the reactor closed it, but the letter is still on its way
                if os.fstat(fd).st_ino == inode:
                    os.close(fd)
        for i in range(self.made.count):
            close_fd(self.made.every[i].poll)
            close_fd(self.made.every[i].inbox.bell)
        close_fd(self.state.mailbox.fd)

    cdef int check(self) except -1:
        if self.inherited:
            raise RuntimeError("this plane was made before a fork and works in the parent process only")
        return 0

    # -- threads -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run each reactor on its own thread, without the GIL."""
        self.check()
        for i in range(self.made.count):
            self._begin(i)

    def resize(self, int reactors, int fetchers) -> None:
        """Set how many threads take new connections of clients, and how many take those to leaders.

        Existing connections stay with their threads. OSError or RuntimeError if a thread cannot be started; new
        connections then go to the threads there are."""
        self.check()
        if not 1 <= reactors <= THREADS_MAX or not 0 <= fetchers <= THREADS_MAX:
            raise ValueError(f"{reactors} reactors (1 to {THREADS_MAX}), {fetchers} fetchers (0 to {THREADS_MAX})")
        try:
            while self.made.clients_made < reactors:
                self.add(False)
            while self.made.leaders_made < fetchers:
                self.add(True)
        finally:
            self.made.serving = min(reactors, self.made.clients_made)
            self.made.fetching = min(fetchers, self.made.leaders_made)

    cdef int add(self, bint leader) except -1:
        """Add a reactor; it gets a thread at once if the others run already."""
        kind, number = ("fetcher", self.made.leaders_made) if leader else ("network", self.made.clients_made)
        raise_status(threads_add(&self.made, &self.state, leader), "a reactor's epoll and eventfd")
        self.names.append((f"pybroker-{kind}-{number}", leader))
        if self.threads:
            try:
                self._begin(self.made.count - 1)
            except BaseException:
                self.names.pop()
                threads_drop_last(&self.made, leader)
                raise
        return 0

    def _begin(self, int i) -> None:
        thread = threading.Thread(target=self._run, args=(i,), name=self.names[i][0], daemon=True)
        thread.start()
        self.threads.append(thread)

    def _run(self, int i) -> None:
        cdef bint copies = self.names[i][1]
        with nogil:
            if copies:
                wait_for_others()  # later bytes are then copied in the same turn
            else:
                ask_for_short_turns()
            reactor_run(self.made.every[i])

    def step(self, int reactor=0, int64_t timeout_ms=0) -> None:
        """Run one turn of one reactor by hand, for tests that control the order of threads. Not after start()."""
        self.check()
        with nogil:
            reactor_step(self.made.every[reactor], timeout_ms)

    def finish(self, int64_t stall_ms=2000) -> None:
        """Answer running requests, park no fetch, and close each connection once its responses are sent, or its peer
        has read none of them for `stall_ms`."""
        store_i64(&self.state.stall_ms, stall_ms)
        store_i32(&self.state.finishing, 1)
        self._wake()

    def stop(self) -> None:
        """End the threads, and shut down the connections that are left."""
        cdef int i
        store_i32(&self.state.stopping, 1)
        self._wake()
        for thread in self.threads:
            thread.join()
        self.threads.clear()
        if not self.inherited:
            for i in range(self.made.count):
                reactor_hang_up(self.made.every[i])
        for partition in list(self.bells):
            self._unbell(partition)

    def set_rules(self, int64_t rules) -> None:
        """Put the rules of this number in force: rights granted under other rules are dropped."""
        store_i64(&self.state.rules, rules)

    def set_quotas(self, int64_t number) -> None:
        """Put the quotas of this number in force; 0: there are none. Muted connections are served again."""
        store_i64(&self.state.quotas, number)
        self._wake()

    def divert(self, bint on) -> None:
        """Hand Produce and Fetch to Python like all other requests, parked fetches too; or execute them here again."""
        store_i32(&self.state.diverted, on)
        self._wake()

    def cut(self) -> None:
        """Close all connections of now; clients may connect again."""
        store_i64(&self.state.cut, self.adopted)
        self._wake()

    def close_listener(self, int listener, *, bint owed) -> None:
        """Close the connections of a listener, whose number must not be used again; `owed`: only after their responses
        are sent.

        ValueError for a number that is not from 0 to 62."""
        cdef int64_t* listeners = &self.state.closing if owed else &self.state.closed
        if not 0 <= listener < LISTENERS_MAX:
            raise ValueError(f"{listener} is not a listener number from 0 to {LISTENERS_MAX - 1}")
        store_i64(listeners, listeners[0] | (<int64_t>1 << listener))
        self._wake()

    def close_longest_silent(self, int32_t count, *, int32_t spared=-1) -> int:
        """Close `count` client connections, the longest idle ones of their threads, none of `spared`; see
        core/__init__.pyi."""
        cdef threads_t* t = &self.made
        return 0 if self.inherited else ask_to_close(&self.state, t.clients, t.clients_made, count, spared)

    def _wake(self) -> None:
        if self.inherited:
            return
        for i in range(self.made.count):
            inbox_ring(&self.made.every[i].inbox)

    # -- partitions --------------------------------------------------------------------------------------------------

    def publish(self, Partition partition not None, *, bint native_append, bint envelope=False) -> int:
        """Make a partition visible to the reactors; the id that names it in "grown" letters.

        native_append: the topic has no setting that needs each record checked, so reactors may append; envelope:
        reactors need not check either whether the records of compressed batches can be read."""
        cdef bell_t* bell = bell_new(&self.state, partition.state, self.published + 1)
        cdef int status
        if bell == NULL:
            raise MemoryError()
        self.published += 1
        self.bells[partition] = <uintptr_t>bell
        self.configure(partition, native_append=native_append, envelope=envelope)
        with nogil:
            status = registry_add(self.state.registry, partition.state)
        raise_status(status, f"publishing {partition.topic}")
        return self.published

    def configure(self, Partition partition not None, *, bint native_append, bint envelope=False) -> None:
        """Change `native_append` and `envelope` after the topic's settings changed."""
        store_i32(&partition.state.native_append, 0 if not native_append else ENVELOPE if envelope else FULL)

    def watch(self, Partition partition not None, *, bint to_log_end=False) -> None:
        """Ask for one "grown" letter when the high watermark, or the log end offset, advances. Advances before this
        call are not reported: check the partition again after it."""
        cdef uintptr_t address = self.bells[partition]
        cdef bell_t* bell = <bell_t*>address
        cdef int bound = BOUND_LOG_END if to_log_end else BOUND_HIGH_WATERMARK
        cdef view_t v = partition.view()
        partition_watch(
            partition.state, &bell.written if to_log_end else &bell.committed, bound, bound_of(&v, bound))

    def watch_joining(self, Partition partition not None) -> None:
        """Ask for one "joining" letter when a follower outside the ISR has reached the high watermark. This is not
        reported if it happened before the call: check the partition again after it."""
        cdef uintptr_t address = self.bells[partition]
        cdef bell_t* bell = <bell_t*>address
        partition_watch(partition.state, &bell.joining, BOUND_ISR, INT64_MAX)

    def withdraw(self, Partition partition not None) -> None:
        """Hide a partition from the reactors, and wake the requests that wait for it."""
        with nogil:  # a fetch whose session has the partition may be waiting for the disk
            registry_remove(self.state.registry, &self.state.context.reclaim, partition.state)
            sessions_leave(&self.state.sessions, partition.state)
            partition_tell_all(partition.state)
        self._unbell(partition)

    def _unbell(self, Partition partition not None) -> None:
        cdef uintptr_t address = self.bells.pop(partition, 0)
        cdef bell_t* bell = <bell_t*>address
        if bell != NULL:
            bell_free(bell)

    def set_nodes(self, nodes) -> None:
        """Set the address of each broker for the clients of each listener: (listener, id, host, port, rack or None).
        NOT_LEADER_OR_FOLLOWER responses name the leader if it is in the list."""
        cdef nodes_t* table = nodes_new(<int32_t>len(nodes))
        cdef nodes_t* old
        if table == NULL:
            raise MemoryError()
        try:
            for i, (listener, id_, host, port, rack) in enumerate(nodes):
                table.items[i].listener = listener
                table.items[i].id = id_
                table.items[i].port = port
                table.items[i].host_length = put_text(table.items[i].host, host)
                table.items[i].rack_length = -1 if rack is None else put_text(table.items[i].rack, rack)
        except BaseException:
            free(table)          # after an error: a name is too long
            raise
        old = <nodes_t*>swap_ptr(<void**>&self.state.nodes, table)
        if old != NULL:
            retire(&self.state.context.reclaim, old, free)

    # -- connections -------------------------------------------------------------------------------------------------

    def adopt(self, int fd, *, int listener=0, bint judged=False, TlsSocket tls=None, int64_t login_ends_ms=0) -> int:
        """Take over a connected non-blocking socket; its id. `judged`: requests that no reply granted rights for go to
        Python. `tls`: the socket's TLS after its handshake; the caller must not use it again. `login_ends_ms`: the
        monotonic time from which all its requests go to Python; 0: never."""
        return self.take_over(fd, listener, NULL, judged, tls, login_ends_ms)

    cdef int64_t take_over(
            self, int fd, int listener, replica_fetcher_t* fetcher, bint judged=False, TlsSocket tls=None,
            int64_t ends_ms=0) except -1:
        """Take over a socket whose peer is a client, or with `fetcher`, whose reference it takes over, a leader."""
        cdef pool_t* pool = &self.state.pool if fetcher == NULL else &self.state.replica_pool
        cdef conn_t* c
        cdef note_t* n
        cdef reactor_t* r
        cdef address_t* address
        cdef int64_t id = self.adopted + 1
        self.check()
        if tls is not None:
            tls.check()
        self.sockets[id] = fd, os.fstat(fd).st_ino
        c = <conn_t*>calloc(1, sizeof(conn_t))
        n = <note_t*>calloc(1, sizeof(note_t))
        address = pool_join(pool, fd)
        if c != NULL and judged:
            c.login.rights = rights_new(&self.state.rules)
        if c == NULL or n == NULL or address == NULL or (judged and c.login.rights == NULL):
            if c != NULL:
                rights_free(c.login.rights)
            if address != NULL:
                pool_leave(pool, address)
            free(c)
            free(n)
            del self.sockets[id]
            raise MemoryError()
        r = threads_next(&self.made, self.adopted - self.leaders, self.leaders, fetcher != NULL)
        self.adopted = id
        self.leaders += fetcher != NULL
        c.id = id
        c.fd = fd
        c.listener = listener
        c.state = OPEN
        c.inbox = &r.inbox
        c.memory.pool = pool
        c.memory.address = address
        if tls is not None:
            c.tls = tls.give()
        if fetcher != NULL:
            c.fetcher = fetcher
            fetcher.conn = c
            fetcher.inbox = c.inbox
        n.conn = c
        n.login_ends_ms = ends_ms
        n.is_new = 1
        inbox_leave(c.inbox, n)    # from here on the reactor owns it, and may have freed it already
        return id

    def fileno(self) -> int:
        """The descriptor that is readable while letters wait; take() makes it unreadable."""
        return self.state.mailbox.fd

    def take(self) -> list:
        """The letters: (kind, connection id, token, frame). Kinds: "request": Python must answer it by reply(token,
        ...); "gone": the client of a running request has disconnected; "closed": a connection ended, the frame has the
        reason unless the peer ended it; "grown": see watch(); "joining": see watch_joining(); "fetcher": see
        LeaderConnection.
        The frame is None if there was no memory for it."""
        cdef letter_t* l
        cdef letter_t* after
        out = []
        self.check()
        with nogil:
            l = mailbox_take(&self.state.mailbox)
        while l != NULL:
            after = l.next
            try:
                letter = (LETTERS[l.kind], l.id, <uintptr_t>l.conn, frame_of(l))
                if l.kind == REQUEST:
                    self.away[<uintptr_t>l.conn] = l.put_ns
                elif l.kind == CLOSED:
                    self.sockets.pop(l.id, None)
                out.append(letter)
            except MemoryError:
                mailbox_return(&self.state.mailbox, l)  # with all that follow, for the next call
                if not out:
                    raise
                break
            free(l)
            l = after
        return out

    def begin(self, uintptr_t token) -> None:
        """Record that Python begins to execute a request, on the event loop's thread."""
        cdef int64_t now_ns = monotonic_ns()
        self.queued_ns = now_ns - <int64_t>self.away.get(token, now_ns)
        histogram_add(&self.state.queued, self.queued_ns // 1000, token in self.away)

    def reply(self, uintptr_t token, parts, *, bint close=False, rights=None, int64_t rules=0,
              int64_t login_ends_ms=-1, quotas=None, int64_t mute_ms=0) -> None:
        """Answer a request, once: parts in order without the size (bytes, Slices), None for no response. The connection
        then executes its next request, or ends if `close` is set. ValueError: no request with that token waits for an
        answer; the connection of a token is only known to exist while one does."""
        cdef conn_t* c = <conn_t*>token
        cdef note_t* n
        cdef given_t* given
        cdef quotas_t* counted
        self.check()
        if token not in self.away:
            raise ValueError(f"no request with the token {token} waits for an answer")
        counted = quotas_told(quotas)
        try:
            given = rights_given(rights, rules)
            n = <note_t*>calloc(1, sizeof(note_t))
            if n == NULL:
                free(given)
                raise MemoryError()
        except BaseException:
            quotas_free(counted)
            raise
        del self.away[token]
        n.conn = c
        n.close = close
        n.given = given
        n.login_ends_ms = login_ends_ms
        n.quotas = counted
        n.mute_ms = mute_ms
        if parts is not None:
            add_answer(n, parts)
        inbox_leave(c.inbox, n)

    # -- figures -----------------------------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """The bytes of memory held by requests that are received, but not answered yet."""
        return load_i64(&self.state.pool.held)

    def stats(self) -> list:
        """The counters of each reactor since its start."""
        cdef books_t* b
        cdef reactor_t* r
        cdef int i
        out = []
        for i in range(self.made.count):
            r = self.made.every[i]
            b = &r.books
            out.append({
                "connections": load_i32(&r.connections), "parked": peek_i64(&b.parked), "busy_ns": peek_i64(&b.busy_ns),
                "bytes_in": peek_i64(&b.bytes_in), "bytes_out": peek_i64(&b.bytes_out),
                "turns": histogram_dict(&b.turns),
                "Produce": api_dict(&b.produces), "Fetch": api_dict(&b.fetches), "others": peek_i64(&b.others),
                "stages": {name: stages_dict(&b.stages[kind]) for kind, name in enumerate(STAGED)},
            })
        return out

    def queue_times(self) -> dict:
        """The times that requests waited for their execution in Python."""
        return histogram_dict(&self.state.queued)
