"""A session of ZooKeeper: kazoo behind the interface of store.py.

kazoo has a thread for each session and calls back on it, in the order of the wire. The event loop's queue passes
watches, answers and states on in that order, so that a watch fires before the answer of a later operation that sees the
change. A session that expired is stopped: kazoo would begin another one by itself.

A lease needs two facts that kazoo does not expose: the timeout that the server granted, and when the last answered
request was sent. The first is taken from kazoo's handshake. For the second, the session sends requests often enough by
itself, and notes answers on kazoo's thread (renewals.py): while the loop is stalled, those to kazoo's pings.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Sequence
from typing import Final

from kazoo import exceptions
from kazoo.client import KazooState, TransactionRequest
from kazoo.interfaces import IAsyncResult
from kazoo.protocol.states import WatchedEvent, ZnodeStat
from kazoo.security import ACL

from pybroker.clock import boot_ms

from . import store as s
from .commit import until_answered
from .kazoo_client import ASKS, ZooKeeperClient
from .multi_read import MultiRead
from .zookeeper_access import ZooKeeperAccess, acls

ERRORS: Final[dict[type[Exception], type[s.StoreError]]] = {
    exceptions.NodeExistsError: s.NodeExists,
    exceptions.NoNodeError: s.NoNode,
    exceptions.BadVersionError: s.BadVersion,
    exceptions.NotEmptyError: s.NotEmpty,
    exceptions.NoChildrenForEphemeralsError: s.NoChildrenForEphemerals,
    exceptions.BadArgumentsError: s.BadArguments,
    exceptions.ConnectionLoss: s.ConnectionLoss,
    exceptions.SessionExpiredError: s.SessionExpired,
    exceptions.ConnectionClosedError: s.SessionExpired,
}
UNDONE: Final = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
"""ZooKeeper's answers to the valid operations of a multi in which another operation failed."""
EVENTS: Final = {
    "CREATED": s.EventType.CREATED,
    "DELETED": s.EventType.DELETED,
    "CHANGED": s.EventType.DATA_CHANGED,
    "CHILD": s.EventType.CHILDREN_CHANGED,
}
NO_ANSWERS: Final = (
    exceptions.ConnectionLoss,
    exceptions.SessionExpiredError,
    exceptions.ConnectionClosedError,
    exceptions.AuthFailedError,
)
"""Errors that kazoo raises without an answer of the server."""
STATES: Final = {
    KazooState.CONNECTED: s.SessionState.CONNECTED,
    KazooState.SUSPENDED: s.SessionState.DISCONNECTED,
    KazooState.LOST: s.SessionState.EXPIRED,
}
SILENT_SHARE: Final = 1 / 2
"""A server that has not answered for this share of the session timeout counts as stalled."""
ANYBODY: Final = ZooKeeperAccess()
NO_AUTH: Final = "ZooKeeper allows that only to another login or certificate, the node's creator (zookeeper.set.acl)"
WANTS_LOGIN: Final = "requires a login"
NOBODY: Final = (
    "this connection has neither a login nor a certificate that ZooKeeper asked for: zookeeper.set.acl needs one "
    "(set zookeeper.sasl.client.username here, or ssl.clientAuth in ZooKeeper)"
)
MULTI_READ_SINCE: Final = (3, 6)
ASK_VERSION_S: Final = 1.0
READS_AT_ONCE: Final = 200
"""The most nodes that one request reads."""
Read = tuple[str, "asyncio.Future[tuple[bytes, s.Stat]]"]
STOP_AGAIN_S: Final = 1.0
STOP_S_MAX: Final = 1.0
"""The time for a server to answer the end of a session."""


class ZooKeeperSession(s.Session):
    """A session of ZooKeeper. `hosts` is HOST:PORT,... and the chroot, if there is one."""

    def __init__(self, hosts: str, timeout_ms: int, access: ZooKeeperAccess = ANYBODY) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()
        self._told: tuple[WatchedEvent | None, list[s.Watch]] = None, []  # the last event and its watches
        self._next: asyncio.TimerHandle | None = None
        self._asked: asyncio.Future[s.Stat | None] | None = None  # the session's own last request,
        self._asked_ms = 0  # and when it was sent
        self._stopping: asyncio.Future[None] | None = None
        self._reached = asyncio.Event()
        self._reads: list[Read] = []
        self._reads_many = False
        self._secure = access.set_acl
        self._client = ZooKeeperClient(
            hosts, timeout_ms, access, lambda: self._soon(self._reached.set), self.renewals.moved
        )
        self._client.add_listener(self._state_told)

    async def open(self, timeout_s: float) -> None:
        """Connect to a server; a cancelled call does not wait for the end. Raises StoreRefused if a server refuses the
        login, StoreFailed if none answers in time."""
        try:
            self._client.start_async()
        except RuntimeError as problem:  # there may be no more threads
            raise s.StoreFailed(detail=str(problem)) from problem
        try:
            async with asyncio.timeout(timeout_s):
                await self._reached.wait()
                if self.refused:
                    raise s.StoreRefused(detail=self.refused)
                await until_answered(lambda: self.exists("/"))  # a server that requires a login refuses this request
            self.id = self._client.client_id[0]
            self._reads_many = await self._version() >= MULTI_READ_SINCE
        except TimeoutError:
            self.close()
            raise s.StoreFailed(detail=f"no ZooKeeper answered in {timeout_s:g} s") from None
        except BaseException:
            self.close()
            raise
        self._ask()

    async def _version(self) -> tuple[int, ...]:
        """Return the server's version; () if unknown. A request that the server does not know would end the session."""
        try:
            async with asyncio.timeout(ASK_VERSION_S):
                text = await self.loop.run_in_executor(None, self._client.command, b"srvr")
        except (OSError, TimeoutError, exceptions.KazooException, AttributeError):  # its connection ended meanwhile
            return ()
        found = re.match(r"Zookeeper version: (\d+)\.(\d+)", text)
        return tuple(map(int, found.groups())) if found else ()

    @property
    def timeout_ms(self) -> int:  # type: ignore[override]
        return self._client.granted_ms

    @property
    def refused(self) -> str:
        """The reason why the login is refused, as the end of a sentence about the server; "" if it is not."""
        return self._client.refused

    @property
    def last_zxid(self) -> int:
        return int(self._client.last_zxid)

    @property
    def answered_ms(self) -> int:
        return self.renewals.answered_ms

    def _ask(self) -> None:
        """Send a request at each interval, and leave a stalled server for another one while the session lasts.

        kazoo's pings do not suffice: it sends none while there are other requests."""
        if self.state is s.SessionState.CONNECTED:
            if self._asked is None or self._asked.done():
                self._asked, self._asked_ms = self.exists("/"), boot_ms()
                self._asked.add_done_callback(lambda done: done.cancelled() or done.exception())
            elif self.answered_ms < self._asked_ms < boot_ms() - self.timeout_ms * SILENT_SHARE:
                self._client.hang_up()
        self._next = self.loop.call_later(self.timeout_ms / 1000 / ASKS, self._ask)

    def _soon(self, call: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
            self.loop.call_soon_threadsafe(call, *arguments)

    def _state_told(self, state: str) -> None:
        """Pass a new state to the loop; called on kazoo's thread."""
        self.renewals.news()
        self._soon(self._come_to, state)

    def _come_to(self, state: str) -> None:
        self._become(STATES[state])
        if state == KazooState.CONNECTED:
            self._reached.set()
        if self.state is s.SessionState.EXPIRED:
            self._end()

    # -- operations ---------------------------------------------------------------------------------------------------

    def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> asyncio.Future[tuple[str, s.Stat]]:
        op = s.Create(path, data, ephemeral, sequential)
        send = self._client.create_async
        how = {"acl": self._acls(path), "ephemeral": ephemeral, "sequence": sequential, "include_data": True}
        return self._submit(op, lambda: send(path, data, **how), lambda got: (got[0], _stat(got[1])))

    def set(self, path: str, data: bytes, version: int = s.ANY_VERSION) -> asyncio.Future[s.Stat]:
        return self._submit(s.Set(path, data, version), lambda: self._client.set_async(path, data, version), _stat)

    def delete(self, path: str, version: int = s.ANY_VERSION) -> asyncio.Future[None]:
        return self._submit(s.Delete(path, version), lambda: self._client.delete_async(path, version), lambda got: None)

    def get(self, path: str, *, watch: s.Watch | None = None) -> asyncio.Future[tuple[bytes, s.Stat]]:
        if watch is not None or not self._reads_many:
            return self._get(path, watch)
        try:
            s.check_path(path)
        except s.BadArguments:
            return self._get(path)  # which raises it through the future
        if not self._reads:
            self.loop.call_soon(self._send_reads)
        future: asyncio.Future[tuple[bytes, s.Stat]] = self.loop.create_future()
        self._reads.append((path, future))
        return future

    def _get(self, path: str, watch: s.Watch | None = None) -> asyncio.Future[tuple[bytes, s.Stat]]:
        send = self._client.get_async
        return self._submit(s.Check(path), lambda: send(path, self._watch(watch)), lambda got: (got[0], _stat(got[1])))

    def _send_reads(self) -> None:
        """Send the reads of this turn of the loop, many in a request: single ones cost both sides far more."""
        reads, self._reads = self._reads, []
        for first in range(0, len(reads), READS_AT_ONCE):
            share = reads[first : first + READS_AT_ONCE]
            if len(share) > 1:
                self._read_many(share)
            else:
                ((path, future),) = share
                self._get(path).add_done_callback(lambda done, to=future: _pass_on(done, to))  # type: ignore[misc]

    def _read_many(self, reads: list[Read]) -> None:
        root = self._client.chroot

        def send() -> IAsyncResult:
            result = self._client.handler.async_result()
            self._client._call(MultiRead([root + path if path != "/" else root or path for path, _ in reads]), result)
            return result

        def take(done: s.AnyFuture) -> None:
            if done.cancelled():
                return
            error = done.exception()
            answers = [error] * len(reads) if error is not None else done.result()
            for (path, future), answer in zip(reads, answers, strict=True):
                if future.done():
                    continue
                if isinstance(answer, s.StoreError):
                    future.set_exception(type(answer)(path, answer.detail))  # an instance for each future
                elif isinstance(answer, BaseException):
                    future.set_exception(_translated(answer, path))
                else:
                    future.set_result((answer[0], _stat(answer[1])))

        self._submit([s.Check(path) for path, _ in reads], send, lambda got, zxid: got).add_done_callback(take)

    def exists(self, path: str, *, watch: s.Watch | None = None) -> asyncio.Future[s.Stat | None]:
        send = self._client.exists_async
        return self._submit(s.Check(path), lambda: send(path, self._watch(watch)), lambda got: got and _stat(got))

    def children(self, path: str, *, watch: s.Watch | None = None) -> asyncio.Future[tuple[list[str], s.Stat]]:
        send = self._client.get_children_async
        return self._submit(
            s.Check(path),
            lambda: send(path, self._watch(watch), include_data=True),
            lambda got: (sorted(got[0]), _stat(got[1])),
        )

    def multi(self, ops: Sequence[s.Op]) -> asyncio.Future[list[s.Answer]]:
        ops = list(ops)

        def read(got: list[object], zxid: int) -> list[s.Answer]:
            failed = [index for index, answer in enumerate(got) if isinstance(answer, Exception)]
            if failed:
                index = next((each for each in failed if not isinstance(got[each], UNDONE)), failed[0])
                failure = got[index]
                assert isinstance(failure, Exception)
                raise _translated(failure, ops[index].path, index)
            return [self._of_multi(op, answer, zxid) for op, answer in zip(ops, got, strict=True)]

        return self._submit(ops, lambda: self._transaction(ops).commit_async(), read)

    def _transaction(self, ops: Sequence[s.Op]) -> TransactionRequest:
        transaction = self._client.transaction()
        for op in ops:
            match op:
                case s.Create():
                    transaction.create(op.path, op.data, self._acls(op.path), op.ephemeral, op.sequential)
                case s.Set():
                    transaction.set_data(op.path, op.data, op.version)
                case s.Delete():
                    transaction.delete(op.path, op.version)
                case s.Check():
                    transaction.check(op.path, op.version)
        return transaction

    def _acls(self, path: str) -> list[ACL]:
        return acls(path, secure=self._secure)

    def set_acls(self, path: str, *, secure: bool) -> asyncio.Future[s.Stat]:
        """Give a node the ACLs that it would be created with. Raises NoNode, StoreFailed if that is not allowed."""
        return self._submit(
            s.Check(path), lambda: self._client.set_acls_async(path, acls(path, secure=secure)), _stat
        )

    def _of_multi(self, op: s.Op, answer: object, zxid: int) -> s.Answer:
        """Convert one answer of a multi. ZooKeeper answers a create with the path alone, kazoo a delete with True."""
        if isinstance(op, s.Create):
            owner = self.id if op.ephemeral else 0
            assert isinstance(answer, str)
            return answer, s.Stat(zxid, zxid, 0, 0, 0, 0, owner, len(op.data), 0, zxid)
        return _stat(answer) if isinstance(answer, ZnodeStat) else None

    def _watch(self, watch: s.Watch | None) -> Callable[[WatchedEvent], None] | None:
        return None if watch is None else _Watch(self, watch)

    def first_told(self, event: WatchedEvent, watch: s.Watch) -> bool:
        """True if the watch was not called with this event yet: kazoo calls one set for data and children twice."""
        last, watches = self._told
        if last is not event:
            watches = []
            self._told = event, watches
        if watch in watches:
            return False
        watches.append(watch)
        return True

    def _submit(
        self, op: s.Op | list[s.Op], send: Callable[[], IAsyncResult], read: Callable[..., object]
    ) -> s.AnyFuture:
        """Send an operation, or the operations of a multi; `read` of a multi gets the answer and the zxid."""
        if self._reads:
            self._send_reads()  # earlier operations are sent first
        future: s.AnyFuture = self.loop.create_future()
        self._timed(future)
        path, sent_ms, several = "" if isinstance(op, list) else op.path, boot_ms(), isinstance(op, list)

        def settle(result: IAsyncResult, zxid: int) -> None:
            try:
                answer, error = result.get(), None
                answer = read(answer, zxid) if several else read(answer)
            except Exception as problem:
                answer, error = None, _translated(problem, path)
            if isinstance(error, s.ConnectionLoss):
                self._become(s.SessionState.DISCONNECTED)  # kazoo fails operations before it reports its state
            if not future.done():
                future.set_result(answer) if error is None else future.set_exception(error)

        def hear(result: IAsyncResult) -> None:
            """Pass a result to the loop; called on kazoo's thread."""
            if not isinstance(result.exception, NO_ANSWERS):
                self.renewals.moved(sent_ms)
            self._soon(settle, result, self._client.last_zxid)

        try:
            if self.state in s.ENDED:
                raise s.SessionExpired(path)
            ops = op if isinstance(op, list) else [op]
            s.check_multi(ops) if isinstance(op, list) else s.check_op(op)
            s.check_request(ops, self._client.chroot)
            send().rawlink(hear)
        except s.StoreError as error:
            future.set_exception(error)
        return future

    @property
    def stopped(self) -> bool:
        """True once kazoo's thread has ended."""
        return self._stopping is not None and self._stopping.done()

    def give_up(self) -> bool:
        """Declare the session expired, if it is disconnected; return False if it is not."""
        if self.state is not s.SessionState.DISCONNECTED:
            return False
        self._become(s.SessionState.EXPIRED)
        self._end()
        return True

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> asyncio.Future[None]:
        self._become(s.SessionState.CLOSED)
        return self._end()

    def _end(self) -> asyncio.Future[None]:
        """Stop kazoo's thread; further calls return the same future."""
        if self._next is not None:
            self._next.cancel()
        if self._stopping is None:
            self._stopping = self.loop.create_future()
            self._begin_to_stop()
            self._next = self.loop.call_later(STOP_S_MAX, self._client.hang_up)  # else kazoo waits for an answer
        return self._stopping

    def _begin_to_stop(self) -> None:
        """Stop kazoo on a daemon thread, as a silent server blocks it; the process does not wait for it at exit."""
        try:
            threading.Thread(target=self._stop, name="pybroker-zookeeper-stop", daemon=True).start()
        except RuntimeError:  # no thread can be started now; the session must still be ended
            self.loop.call_later(STOP_AGAIN_S, self._begin_to_stop)

    def _stop(self) -> None:
        with contextlib.suppress(exceptions.KazooException):  # kazoo's own thread did not end in time
            self._client.stop()
            self._client.close()
        self._soon(self._stopped)

    def _stopped(self) -> None:
        assert self._stopping is not None and self._next is not None
        self._next.cancel()
        if not self._stopping.done():
            self._stopping.set_result(None)


class _Watch:
    """A watch that is called on the loop. Equal callables are one watch, as in ZooKeeper's own client."""

    def __init__(self, session: ZooKeeperSession, watch: s.Watch) -> None:
        self._session = session
        self._watch = watch

    def __call__(self, event: WatchedEvent) -> None:
        if event.type in EVENTS:
            self._session.renewals.news(event.path)
        if event.type in EVENTS and self._session.first_told(event, self._watch):
            told = s.WatchEvent(EVENTS[event.type], event.path)
            self._session._soon(s.tell, self._watch, told, f"a watch failed on {event.type} of {event.path}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Watch) and self._watch == other._watch

    def __hash__(self) -> int:
        return hash(self._watch)


def _stat(z: ZnodeStat) -> s.Stat:
    owner = z.ephemeralOwner
    return s.Stat(
        z.czxid, z.mzxid, z.ctime, z.mtime, z.version, z.cversion, owner, z.dataLength, z.numChildren, z.pzxid
    )


def _pass_on(done: asyncio.Future[s.T], to: asyncio.Future[s.T]) -> None:
    """Pass the outcome of one future to another."""
    if to.done() or done.cancelled():
        return
    error = done.exception()
    to.set_result(done.result()) if error is None else to.set_exception(error)


def _translated(error: BaseException, path: str = "", index: int | None = None) -> BaseException:
    known = next((ours for theirs, ours in ERRORS.items() if isinstance(error, theirs)), None)
    if known is not None:
        return known(path, index=index)
    if isinstance(error, exceptions.SessionClosedRequireSaslError):
        return s.StoreRefused(path, index=index, detail=WANTS_LOGIN)
    if isinstance(error, exceptions.NoAuthError | exceptions.InvalidACLError):
        return s.StoreFailed(path, index=index, detail=NO_AUTH if isinstance(error, exceptions.NoAuthError) else NOBODY)
    if isinstance(error, exceptions.KazooException):  # the server refuses (quotas), or is out of order
        return s.StoreFailed(path, index=index, detail=f"ZooKeeper answered {type(error).__name__}")
    return error
