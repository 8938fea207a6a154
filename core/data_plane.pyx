"""The data plane as Python sees it: reactors on threads of their own, and the mailbox between them and the event loop.

    plane.adopt(socket) ---> a reactor executes its Produce and Fetch; every other request comes out of plane.take(),
    and Python answers it with plane.reply(). Partitions must be published before the plane serves them itself.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from posix.unistd cimport close as close_fd

from pybroker.core.answers cimport add_answer
from pybroker.core.base.atomic cimport load_i32, load_i64, peek_i64, store_i32, store_i64, swap_ptr
from pybroker.core.base.counters cimport api_dict, histogram_dict
from pybroker.core.base.reclamation cimport retire
from pybroker.core.base.scheduling cimport ask_for_short_turns, wait_for_others
from pybroker.core.base.status cimport raise_status
from pybroker.core.batch.validate cimport ENVELOPE, FULL
from pybroker.core.broker cimport Broker
from pybroker.core.partition_handle cimport Partition
from pybroker.core.partition.partition cimport (
    BOUND_HIGH_WATERMARK, BOUND_ISR, BOUND_LOG_END, bound_of, partition_tell_all, partition_watch,
)
from pybroker.core.partition.registry cimport registry_add, registry_free, registry_new, registry_remove
from pybroker.core.plane.bells cimport bell_free, bell_new, bell_t
from pybroker.core.plane.conn cimport OPEN, conn_t, note_t
from pybroker.core.plane.fetch_session cimport sessions_destroy, sessions_init, sessions_leave
from pybroker.core.plane.inbox cimport ask_to_close, inbox_leave, inbox_ring
from pybroker.core.plane.mailbox cimport (
    CLOSED, REQUEST, letter_t, mailbox_destroy, mailbox_init, mailbox_return, mailbox_take,
)
from pybroker.core.plane.memory_pool cimport address_t, pool_destroy, pool_init, pool_join, pool_leave, pool_t
from pybroker.core.plane.network_thread cimport reactor_free, reactor_hang_up, reactor_run, reactor_step
from pybroker.core.plane.nodes cimport nodes_new, nodes_t, put_text
from pybroker.core.plane.quotas cimport quotas_free, quotas_t
from pybroker.core.plane.reactor cimport LISTENERS_MAX, reactor_t
from pybroker.core.plane.replica_fetcher cimport replica_fetcher_t
from pybroker.core.plane.rights cimport given_t, rights_free, rights_given, rights_new
from pybroker.core.plane.threads cimport THREADS_MAX, threads_add, threads_drop_last, threads_next, threads_t
from pybroker.core.quota_bucket cimport QuotaBucket, quotas_told
from pybroker.core.storage.log cimport view_t
from pybroker.core.base.tls_socket cimport TlsSocket

import contextlib
import os
import threading
import weakref

KINDS = ("request", "gone", "closed", "grown", "fetcher", "joining")
PLANES = weakref.WeakSet()


def forked() -> None:
    """In the child of a fork: no thread of the planes is there, and what they have open is the parent's."""
    cdef Plane plane
    for plane in list(PLANES):
        plane._inherit()


os.register_at_fork(after_in_child=forked)


cdef frame_of(const letter_t* l):
    """What a letter brings; None if there is no memory for it, which is its connection's loss and nobody else's."""
    try:
        return PyBytes_FromStringAndSize(<char*>l.frame, l.length)
    except MemoryError:
        return None


@cython.no_gc_clear
cdef class Plane:
    """Reactors, the sockets they own, and the way to and from Python. Closed by stop()."""

    def __cinit__(self, Broker broker not None, *, int reactors=1, int fetchers=0, int64_t frame_bytes_max=100 << 20,
                  int64_t fetch_bytes_max=55 << 20, int64_t idle_ms=600000, int64_t fetch_sessions=1000,
                  int64_t pool_bytes=512 << 20, int32_t requests_max=500, int64_t holder_ms=10000,
                  int32_t replica_listener=-1, str rack=None, QuotaBucket leader_throttle=None,
                  QuotaBucket follower_throttle=None):
        memset(&self.state, 0, sizeof(self.state))
        self.owner = broker
        self.threads = []
        self.names = []
        self.bells = {}
        self.away = set()
        self.sockets = {}
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
            return               # in a forked child locks may be held by threads that it has not
        for partition in list(self.bells):
            self._unbell(partition)
        with nogil:  # it waits for what its threads still ask of the disk
            for i in range(self.made.count):
                reactor_free(self.made.every[i])
        sessions_destroy(&self.state.sessions)
        mailbox_destroy(&self.state.mailbox)
        pool_destroy(&self.state.pool)
        pool_destroy(&self.state.replica_pool)
        registry_free(self.state.registry)
        free(self.state.nodes)

    def _inherit(self) -> None:
        """This process is the child of a fork: close what the parent goes on with, and touch nothing of it ever
        after."""
        cdef int i
        self.inherited = True
        for fd, inode in self.sockets.values():
            with contextlib.suppress(OSError):  # the reactor closed it, and has not told yet
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
        """Run each reactor on a thread of its own, without the GIL."""
        self.check()
        for i in range(self.made.count):
            self._begin(i)

    def resize(self, int reactors, int fetchers) -> None:
        """Have so many threads take the connections of clients that come from now on, and so many those to leaders.

        Connections stay with their threads. OSError or RuntimeError where a thread cannot be had; then as many take new
        ones as there are."""
        self.check()
        if not 1 <= reactors <= THREADS_MAX or not 0 <= fetchers <= THREADS_MAX:
            raise ValueError(f"{reactors} reactors and {fetchers} fetchers: at least one and none are needed")
        try:
            while self.made.clients_made < reactors:
                self.add(False)
            while self.made.leaders_made < fetchers:
                self.add(True)
        finally:
            self.made.serving = min(reactors, self.made.clients_made)
            self.made.fetching = min(fetchers, self.made.leaders_made)

    cdef int add(self, bint leader) except -1:
        """One more reactor, on a thread of its own once they run."""
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
                wait_for_others()  # what comes meanwhile is copied at once
            else:
                ask_for_short_turns()
            reactor_run(self.made.every[i])

    def step(self, int reactor=0, int64_t timeout_ms=0) -> None:
        """One turn of one reactor by hand, for tests that decide who runs when. Not while start()ed."""
        self.check()
        with nogil:
            reactor_step(self.made.every[reactor], timeout_ms)

    def finish(self, int64_t stall_ms=2000) -> None:
        """Answer what runs, park nothing, close each connection once it is owed nothing, or has taken nothing of it for
        so long."""
        store_i64(&self.state.stall_ms, stall_ms)
        store_i32(&self.state.finishing, 1)
        self._wake()

    def stop(self) -> None:
        """End the threads, and for their peers the connections that are left."""
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
        """The rules of this number hold now: rights that follow from others are forgotten."""
        store_i64(&self.state.rules, rules)

    def set_quotas(self, int64_t number) -> None:
        """The quotas of this number hold now, 0: there are none. Who waits for others goes on."""
        store_i64(&self.state.quotas, number)
        self._wake()

    def divert(self, bint on) -> None:
        """Hand Produce and Fetch to Python as everything else, parked fetches too, or execute them here again."""
        store_i32(&self.state.diverted, on)
        self._wake()

    def cut(self) -> None:
        """Close the connections that there are; their clients may come back."""
        store_i64(&self.state.cut, self.adopted)
        self._wake()

    def close_listener(self, int listener, *, bint owed) -> None:
        """Close the connections of a listener, whose number no other gets; `owed`: once they got what they are owed.

        ValueError for a number that is none from 0 to 62."""
        cdef int64_t* listeners = &self.state.closing if owed else &self.state.closed
        if not 0 <= listener < LISTENERS_MAX:
            raise ValueError(f"{listener} is no listener from 0 to {LISTENERS_MAX - 1}")
        store_i64(listeners, listeners[0] | (<int64_t>1 << listener))
        self._wake()

    def close_longest_silent(self, int32_t count, *, int32_t spared=-1) -> int:
        """Close so many clients' connections, each the one that is silent for longest on a thread, none of `spared`."""
        cdef threads_t* t = &self.made
        return 0 if self.inherited else ask_to_close(&self.state, t.clients, t.clients_made, count, spared)

    def _wake(self) -> None:
        if self.inherited:
            return
        for i in range(self.made.count):
            inbox_ring(&self.made.every[i].inbox)

    # -- partitions --------------------------------------------------------------------------------------------------

    def publish(self, Partition partition not None, *, bint native_append, bint envelope=False) -> int:
        """Let the reactors find a partition; the id that "grown" letters name it by.

        native_append: its topic asks for no record to be seen, so that reactors may append; envelope: not even whether
        those of compressed batches can be read."""
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
        """The topic's rules changed."""
        store_i32(&partition.state.native_append, 0 if not native_append else ENVELOPE if envelope else FULL)

    def watch(self, Partition partition not None, *, bint to_log_end=False) -> None:
        """Ask for one "grown" letter when the high watermark, or the log's end, moves on. What came before this call is
        not told: look once more after it."""
        cdef uintptr_t address = self.bells[partition]
        cdef bell_t* bell = <bell_t*>address
        cdef int bound = BOUND_LOG_END if to_log_end else BOUND_HIGH_WATERMARK
        cdef view_t v = partition.view()
        partition_watch(
            partition.state, &bell.written if to_log_end else &bell.committed, bound, bound_of(&v, bound))

    def watch_joining(self, Partition partition not None) -> None:
        """Ask for one "joining" letter when a follower outside the ISR has all that is committed. What came before this
        call is not told: look once more after it."""
        cdef uintptr_t address = self.bells[partition]
        cdef bell_t* bell = <bell_t*>address
        partition_watch(partition.state, &bell.joining, BOUND_ISR, INT64_MAX)

    def withdraw(self, Partition partition not None) -> None:
        """Hide a partition from the reactors, and wake who waits for it."""
        with nogil:  # a fetch of a session that has it may be at the disk
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
        """Where the clients of each listener find each broker: (listener, id, host, port, rack or None). Refusals name
        those that lead."""
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
            free(table)          # a name that is too long
            raise
        old = <nodes_t*>swap_ptr(<void**>&self.state.nodes, table)
        if old != NULL:
            retire(&self.state.context.reclaim, old, free)

    # -- connections -------------------------------------------------------------------------------------------------

    def adopt(self, int fd, *, int listener=0, bint judged=False, TlsSocket tls=None, int64_t login_ends_ms=0) -> int:
        """Take over a connected non-blocking socket; its id. `judged`: what no reply brought rights for is Python's.
        `tls`: what it has, after its handshake; it is of no use to anybody else from then on. `login_ends_ms`: when all
        that it asks is Python's, by the monotonic clock; 0: never."""
        return self.take_over(fd, listener, NULL, judged, tls, login_ends_ms)

    cdef int64_t take_over(
            self, int fd, int listener, replica_fetcher_t* fetcher, bint judged=False, TlsSocket tls=None,
            int64_t ends_ms=0) except -1:
        """The same for a socket whose peer is a client, or with `fetcher`, a reference that it takes over, a leader."""
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
            c.rights = rights_new(&self.state.rules)
        if c == NULL or n == NULL or address == NULL or (judged and c.rights == NULL):
            if c != NULL:
                rights_free(c.rights)
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
        c.pool = pool
        c.address = address
        if tls is not None:
            c.tls = tls.give()
        if fetcher != NULL:
            c.fetcher = fetcher
            fetcher.conn = c
            fetcher.inbox = c.inbox
        n.conn = c
        n.login_ends_ms = ends_ms
        n.is_new = 1
        inbox_leave(c.inbox, n)    # from here on it is the reactor's, which may have freed it already
        return id

    def fileno(self) -> int:
        """Readable while letters wait; take() makes it unreadable."""
        return self.state.mailbox.fd

    def take(self) -> list:
        """The letters: (kind, connection id, token, frame). Kinds: "request" is answered by reply(token, ...), whatever
        comes of it; "gone": the client of a request that runs has gone; "closed": a connection ended, the frame says
        why unless its peer ended it; "grown": see watch(); "joining": see watch_joining(); "fetcher": see Fetcher. A
        frame that there is no memory for is None."""
        cdef letter_t* l
        cdef letter_t* after
        out = []
        self.check()
        with nogil:
            l = mailbox_take(&self.state.mailbox)
        while l != NULL:
            after = l.next
            try:
                letter = (KINDS[l.kind], l.id, <uintptr_t>l.conn, frame_of(l))
                if l.kind == REQUEST:
                    self.away.add(<uintptr_t>l.conn)
                elif l.kind == CLOSED:
                    self.sockets.pop(l.id, None)
                out.append(letter)
            except MemoryError:
                mailbox_return(&self.state.mailbox, l)  # with those behind it, for the next call
                if not out:
                    raise
                break
            free(l)
            l = after
        return out

    def reply(self, uintptr_t token, parts, *, bint close=False, rights=None, int64_t rules=0,
              int64_t login_ends_ms=-1, quotas=None, int64_t mute_ms=0) -> None:
        """Answer a request, once: parts in order without the size (bytes, Slices), None for no answer. The connection
        executes its next request after that, or ends where `close` is set. ValueError: no request with that token waits
        for an answer; only while one does is its connection known to be there."""
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
        self.away.discard(token)
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
        """What requests hold in memory that are received and not yet answered."""
        return load_i64(&self.state.pool.held)

    def stats(self) -> list:
        """A mapping for each reactor, of what it counted since its start."""
        cdef reactor_t* r
        cdef int i
        out = []
        for i in range(self.made.count):
            r = self.made.every[i]
            out.append({
                "connections": load_i32(&r.connections), "parked": peek_i64(&r.parked), "busy_ns": peek_i64(&r.busy_ns),
                "bytes_in": peek_i64(&r.bytes_in), "bytes_out": peek_i64(&r.bytes_out),
                "turns": histogram_dict(&r.turns),
                "Produce": api_dict(&r.produces), "Fetch": api_dict(&r.fetches), "others": peek_i64(&r.others),
            })
        return out
