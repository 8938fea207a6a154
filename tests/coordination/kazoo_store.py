"""ZooKeeper behind the store's interface, just enough to show that the conformance tests say what ZooKeeper does."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from kazoo import exceptions
from kazoo.client import KazooClient, KazooState
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import WatchedEvent, ZnodeStat

from pybroker.clock import boot_ms
from pybroker.coordination import store as s
from pybroker.coordination.memory import Fate
from tests.coordination.zookeeper_proxy import ZooKeeperProxy

ERRORS: dict[type[Exception], type[s.StoreError]] = {
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
EVENTS = {"CREATED": s.EventType.CREATED, "DELETED": s.EventType.DELETED, "CHANGED": s.EventType.DATA_CHANGED}
EVENTS["CHILD"] = s.EventType.CHILDREN_CHANGED
STATES = {
    KazooState.CONNECTED: s.SessionState.CONNECTED,
    KazooState.SUSPENDED: s.SessionState.DISCONNECTED,
    KazooState.LOST: s.SessionState.EXPIRED,
}


def stat(z: ZnodeStat) -> s.Stat:
    owner = z.ephemeralOwner
    return s.Stat(
        z.czxid, z.mzxid, z.ctime, z.mtime, z.version, z.cversion, owner, z.dataLength, z.numChildren, z.pzxid
    )


def translated(error: BaseException, path: str = "", index: int | None = None) -> BaseException:
    known = next((ours for theirs, ours in ERRORS.items() if isinstance(error, theirs)), None)
    return error if known is None else known(path, index=index)


class AtOnce:
    """A queue whose entries are called by who puts them there."""

    def put(self, call: Callable[[], object]) -> None:
        call()


class OneThread(SequentialThreadingHandler):  # type: ignore[misc]
    """Has the connection's thread call back: watches, answers and states come in the order of the wire.

    kazoo's own handler has a thread for watches and another one for answers, which overtake each other."""

    def __init__(self) -> None:
        super().__init__()
        self.callback_queue = self.completion_queue = AtOnce()

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False


class KazooSession(s.Session):
    """A session of ZooKeeper; `fate`, `disconnect`, `reconnect`, `suspend` and `resume` are as a MemorySession's."""

    def __init__(self, proxy: ZooKeeperProxy, root: str, address: str, timeout_ms: int) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()
        self.fired: dict[s.Watch, WatchedEvent] = {}
        self.timeout_ms = timeout_ms
        self._address = address
        self._proxy = proxy
        self._answered_ms = boot_ms()
        hosts = f"127.0.0.1:{proxy.port}{root}"
        quick = {"max_tries": -1, "delay": 0.02, "backoff": 1}
        self._client = KazooClient(hosts, timeout=timeout_ms / 1000, handler=OneThread(), connection_retry=quick)
        self._client.add_listener(lambda state: self._soon(self._come_to, state))

    async def open(self) -> None:
        await self.loop.run_in_executor(None, self._client.start)
        self._credentials = self._client.client_id
        self.id = self._credentials[0]
        self._ask()

    @property
    def answered_ms(self) -> int:
        return self._answered_ms

    def _ask(self) -> None:
        """kazoo's pings are answered to itself alone."""
        if self.state is s.SessionState.CONNECTED:
            self.exists("/").add_done_callback(lambda done: done.exception())
        self._next = self.loop.call_later(self.timeout_ms / 3000, self._ask)

    def _soon(self, call: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self.loop.call_soon_threadsafe(call, *arguments)

    def _come_to(self, state: str) -> None:
        self._become(STATES[state])

    # -- as a test says -----------------------------------------------------------------------------------------------

    @property
    def fate(self) -> Callable[[], Fate]:
        return self._proxy.fate

    @fate.setter
    def fate(self, fate: Callable[[], Fate]) -> None:
        self._proxy.fate = fate

    def disconnect(self) -> None:
        self._proxy.break_off()

    def reconnect(self) -> None:
        self._proxy.take_on()

    def suspend(self) -> None:
        self._proxy.silence()

    def resume(self) -> None:
        self._proxy.speak()

    def expire(self) -> None:
        """End the session from elsewhere: whoever knows its id and password may take it over, and close it."""
        other = KazooClient(self._address, client_id=self._credentials)
        other.start()
        other.stop()
        other.close()

    # -- operations ---------------------------------------------------------------------------------------------------

    def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> asyncio.Future[tuple[str, s.Stat]]:
        op = s.Create(path, data, ephemeral, sequential)
        send = self._client.create_async
        how = {"ephemeral": ephemeral, "sequence": sequential, "include_data": True}
        return self._submit(op, lambda: send(path, data, **how), lambda got: (got[0], stat(got[1])))

    def set(self, path: str, data: bytes, version: int = -1) -> asyncio.Future[s.Stat]:
        return self._submit(s.Set(path, data, version), lambda: self._client.set_async(path, data, version), stat)

    def delete(self, path: str, version: int = -1) -> asyncio.Future[None]:
        return self._submit(s.Delete(path, version), lambda: self._client.delete_async(path, version), lambda got: None)

    def get(self, path: str, *, watch: s.Watch | None = None) -> asyncio.Future[tuple[bytes, s.Stat]]:
        send = self._client.get_async
        return self._submit(s.Check(path), lambda: send(path, self._watch(watch)), lambda got: (got[0], stat(got[1])))

    def exists(self, path: str, *, watch: s.Watch | None = None) -> asyncio.Future[s.Stat | None]:
        send = self._client.exists_async
        return self._submit(s.Check(path), lambda: send(path, self._watch(watch)), lambda got: got and stat(got))

    def children(self, path: str, *, watch: s.Watch | None = None) -> asyncio.Future[tuple[list[str], s.Stat]]:
        send = self._client.get_children_async
        return self._submit(
            s.Check(path),
            lambda: send(path, self._watch(watch), include_data=True),
            lambda got: (sorted(got[0]), stat(got[1])),
        )

    def multi(self, ops: Sequence[s.Op]) -> asyncio.Future[list[s.Answer]]:
        def send() -> Any:
            transaction = self._client.transaction()
            for op in ops:
                match op:
                    case s.Create():
                        transaction.create(op.path, op.data, ephemeral=op.ephemeral, sequence=op.sequential)
                    case s.Set():
                        transaction.set_data(op.path, op.data, op.version)
                    case s.Delete():
                        transaction.delete(op.path, op.version)
                    case s.Check():
                        transaction.check(op.path, op.version)
            return transaction.commit_async()

        def read(got: list[Any], zxid: int) -> list[Any]:
            for index, (op, answer) in enumerate(zip(ops, got, strict=True)):
                if isinstance(answer, Exception) and type(answer) in ERRORS:
                    raise translated(answer, op.path, index)
            return [self._of_multi(op, answer, zxid) for op, answer in zip(ops, got, strict=True)]

        return asyncio.ensure_future(self._with_times(self._submit(None, send, read)))

    def _of_multi(self, op: s.Op, answer: Any, zxid: int) -> s.Answer:
        """In a multi, ZooKeeper answers a creation with its path alone, and kazoo True for what has no answer."""
        if isinstance(op, s.Create):
            owner = self.id if op.ephemeral else 0
            return answer, s.Stat(zxid, zxid, 0, 0, 0, 0, owner, len(op.data), 0, zxid)
        return stat(answer) if isinstance(answer, ZnodeStat) else None

    async def _with_times(self, multi: asyncio.Future[list[Any]]) -> list[Any]:
        """When the nodes of a multi were created, the nodes say; 0 if they are gone."""
        answers = await multi
        created = [answer for answer in answers if isinstance(answer, tuple) and not isinstance(answer, s.Stat)]
        found = await asyncio.gather(*(self.exists(path) for path, _ in created))
        times = {path: now.ctime_ms for (path, _), now in zip(created, found, strict=True) if now is not None}
        return [
            (answer[0], answer[1]._replace(ctime_ms=times.get(answer[0], 0), mtime_ms=times.get(answer[0], 0)))
            if answer in created
            else answer
            for answer in answers
        ]

    def close(self) -> asyncio.Future[None]:
        self._become(s.SessionState.CLOSED)
        self._next.cancel()
        return asyncio.ensure_future(self._stop())

    async def _stop(self) -> None:
        await self.loop.run_in_executor(None, self._client.stop)
        self._client.close()

    def _watch(self, watch: s.Watch | None) -> Callable[[WatchedEvent], None] | None:
        if watch is None:
            return None
        return _Watch(self, watch)

    def _submit(self, op: s.Op | None, send: Callable[[], Any], read: Callable[[Any], Any]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.loop.create_future()
        path, sent_ms = "" if op is None else op.path, boot_ms()

        def settle(result: Any, zxid: int) -> None:
            try:
                answer, error = result.get(), None
                answer = read(answer, zxid) if op is None else read(answer)
            except Exception as problem:
                answer, error = None, translated(problem, path)
            if isinstance(error, s.ConnectionLoss):
                self._become(s.SessionState.DISCONNECTED)  # kazoo fails what waits before it tells its state
            elif not isinstance(error, s.SessionExpired):
                self._answered_ms = max(self._answered_ms, sent_ms)
            if not future.done():
                future.set_result(answer) if error is None else future.set_exception(error)

        try:
            if self.state in s.ENDED:
                raise s.SessionExpired(path)
            if op is not None:
                s.check_op(op)
            send().rawlink(lambda result: self._soon(settle, result, self._client.last_zxid))
        except s.StoreError as error:
            future.set_exception(error)
        return future


class _Watch:
    """A watch that is called on the loop; the same callable is one watch, as in ZooKeeper's own client."""

    def __init__(self, session: KazooSession, watch: s.Watch) -> None:
        self._session = session
        self._watch = watch

    def __call__(self, event: WatchedEvent) -> None:
        fired = self._session.fired
        if event.type in EVENTS and fired.get(self._watch) is not event:  # kazoo calls for data, and again for children
            fired[self._watch] = event
            told = s.WatchEvent(EVENTS[event.type], event.path)
            self._session._soon(s.tell, self._watch, told, f"a watch failed on {event.type} of {event.path}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Watch) and self._watch == other._watch

    def __hash__(self) -> int:
        return hash(self._watch)


class KazooStore(s.Store):
    """A fresh corner of a running ZooKeeper."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._address = f"127.0.0.1:{port}"
        self._root = f"/test-{uuid.uuid4().hex}"
        self._sessions: list[KazooSession] = []
        self._proxies: list[ZooKeeperProxy] = []

    async def open(self) -> None:
        client = KazooClient(self._address)
        client.start()
        client.create(self._root)
        client.stop()
        client.close()

    async def session(self, timeout_ms: int) -> KazooSession:
        proxy = ZooKeeperProxy(self._port)
        await proxy.open()
        session = KazooSession(proxy, self._root, self._address, timeout_ms)
        await session.open()
        self._proxies.append(proxy)
        self._sessions.append(session)
        return session

    async def close(self) -> None:
        await asyncio.gather(*(session.close() for session in self._sessions))
        for proxy in self._proxies:
            await proxy.close()
