"""ZooKeeper behind the store's interface, just enough to show that the conformance tests say what ZooKeeper does."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from kazoo import exceptions
from kazoo.client import KazooClient, KazooState
from kazoo.protocol.states import WatchedEvent, ZnodeStat

from pybroker.coordination import store as s

ERRORS: dict[type[Exception], type[s.StoreError]] = {
    exceptions.NodeExistsError: s.NodeExists,
    exceptions.NoNodeError: s.NoNode,
    exceptions.BadVersionError: s.BadVersion,
    exceptions.NotEmptyError: s.NotEmpty,
    exceptions.NoChildrenForEphemeralsError: s.NoChildrenForEphemerals,
    exceptions.BadArgumentsError: s.BadArguments,
    exceptions.SessionExpiredError: s.SessionExpired,
    exceptions.ConnectionClosedError: s.SessionExpired,
}
EVENTS = {"CREATED": s.EventType.CREATED, "DELETED": s.EventType.DELETED, "CHANGED": s.EventType.DATA_CHANGED}
EVENTS["CHILD"] = s.EventType.CHILDREN_CHANGED


def stat(z: ZnodeStat) -> s.Stat:
    owner = z.ephemeralOwner
    return s.Stat(
        z.czxid, z.mzxid, z.ctime, z.mtime, z.version, z.cversion, owner, z.dataLength, z.numChildren, z.pzxid
    )


def translated(error: BaseException, path: str = "", index: int | None = None) -> BaseException:
    known = next((ours for theirs, ours in ERRORS.items() if isinstance(error, theirs)), None)
    return error if known is None else known(path, index=index)


class KazooSession(s.Session):
    def __init__(self, hosts: str, timeout_ms: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.expired = asyncio.Event()
        self.fired: dict[s.Watch, WatchedEvent] = {}
        self._ended = False
        self._client = KazooClient(hosts, timeout=timeout_ms / 1000)
        self._client.add_listener(self._state)
        self._client.start()
        self.id = self._client.client_id[0]
        self.timeout_ms = timeout_ms

    def _state(self, state: str) -> None:
        if state == KazooState.LOST and not self._ended:
            self._ended = True
            self.loop.call_soon_threadsafe(self.expired.set)

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

        def read(got: list[Any]) -> list[Any]:
            for index, (op, answer) in enumerate(zip(ops, got, strict=True)):
                if isinstance(answer, Exception) and type(answer) in ERRORS:
                    raise translated(answer, op.path, index)
            return [
                stat(answer) if isinstance(answer, ZnodeStat) else full(op, answer)
                for op, answer in zip(ops, got, strict=True)
            ]

        def full(op: s.Op, answer: Any) -> Any:
            """kazoo answers True for delete and check, and a path alone for create."""
            return (answer, None) if isinstance(op, s.Create) else None

        return self._submit(None, send, read)

    def close(self) -> asyncio.Future[None]:
        self._ended = True
        return self.loop.run_in_executor(None, self._stop)

    def _stop(self) -> None:
        self._client.stop()
        self._client.close()

    def expire(self) -> None:
        """End the session from elsewhere: whoever knows its id and password may take it over, and close it."""
        other = KazooClient(self._client.hosts[0][0] + f":{self._client.hosts[0][1]}", client_id=self._client.client_id)
        other.start()
        other.stop()
        other.close()

    def _watch(self, watch: s.Watch | None) -> Callable[[WatchedEvent], None] | None:
        if watch is None:
            return None
        return _Watch(self, watch)

    def _submit(self, op: s.Op | None, send: Callable[[], Any], read: Callable[[Any], Any]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.loop.create_future()
        path = "" if op is None else op.path

        def settle(result: Any) -> None:
            try:
                future.set_result(read(result.get()))
            except Exception as error:
                future.set_exception(translated(error, path))

        try:
            if self._ended:
                raise s.SessionExpired(path)
            if op is not None:
                s.check_op(op)
            send().rawlink(lambda result: self.loop.call_soon_threadsafe(settle, result))
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
            self._session.loop.call_soon_threadsafe(self._watch, told)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Watch) and self._watch == other._watch

    def __hash__(self) -> int:
        return hash(self._watch)


class KazooStore(s.Store):
    """A fresh corner of a running ZooKeeper."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._root = f"/test-{uuid.uuid4().hex}"
        self._sessions: list[KazooSession] = []

    async def open(self) -> None:
        client = KazooClient(self._address)
        client.start()
        client.create(self._root)
        client.stop()
        client.close()

    async def session(self, timeout_ms: int) -> KazooSession:
        session = KazooSession(self._address + self._root, timeout_ms)
        self._sessions.append(session)
        return session

    async def close(self) -> None:
        for session in self._sessions:
            await session.close()
