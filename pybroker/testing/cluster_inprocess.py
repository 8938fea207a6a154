"""Brokers of one cluster in the process of the test, on one event loop, with a store in memory or a ZooKeeper.

kill() is Broker.abort, and its session is not closed in the store: it expires, as that of a killed process does.
"""

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import CancelledError, Future
from functools import partial

from pybroker.coordination.memory import MemorySession, MemoryStore
from pybroker.coordination.store import Session, Store
from pybroker.server.broker import Broker
from pybroker.testing.injector import Injector
from pybroker.testing.lifecycle import ASK_S_MAX, START_S_MAX, STOP_S_MAX, BrokerFailed, BrokerPlan, Command
from pybroker.testing.loop_thread import LoopThread

SESSIONS_MS = (100, 40_000)
"""The limits of a session's timeout, wide enough for tests."""


class BrokerStoreView(Store):
    """One broker's connection to the store in memory; closing it does not close the store. It can be cut off."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._session: MemorySession | None = None
        self._heard = asyncio.Event()
        self._heard.set()

    async def open(self) -> None: ...

    async def session(self, timeout_ms: int) -> Session:
        await self._heard.wait()
        self._session = await self._store.session(timeout_ms)
        if not self._heard.is_set():
            self._session.suspend()
        return self._session

    async def close(self) -> None: ...

    def cut(self) -> None:
        """Let nothing pass; the session ends after its timeout."""
        self._heard.clear()
        self.lose()

    def heal(self) -> None:
        """Let pass what waited, also the news that the session has ended."""
        if not self._heard.is_set():
            self._heard.set()
            if self._session is not None:
                self._session.resume()

    def lose(self) -> None:
        """Stop the session's heartbeats: its broker is dead."""
        if self._session is not None:
            self._session.suspend()


class Together:
    """The thread and event loop of all brokers."""

    def __init__(self, *, in_memory: bool) -> None:
        self._thread = LoopThread("pybroker-cluster")
        self._store = self._thread.do(_memory()) if in_memory else None
        self._views: dict[int, BrokerStoreView] = {}

    def life(self, number: int, plan: BrokerPlan) -> "OnLoop":
        """Return the Life of the broker with this id."""
        if self._store is None:
            return OnLoop(plan, self._thread, Broker, lambda: None)
        view = self._views[number] = BrokerStoreView(self._store)
        return OnLoop(plan, self._thread, partial(Broker, store=view), view.lose)

    def cut_store(self, numbers: Collection[int]) -> None:
        """Cut only these brokers from the store in memory."""

        def change() -> None:
            for number, view in self._views.items():
                view.cut() if number in numbers else view.heal()

        self._thread.call(change)

    def close(self) -> None:
        """Close the thread, once the brokers are dead; calling it again does nothing."""
        self._thread.close()


async def _memory() -> MemoryStore:
    store = MemoryStore(timeouts_ms=SESSIONS_MS)
    await store.open()
    return store


class OnLoop:
    """See lifecycle.Life."""

    def __init__(
        self, plan: BrokerPlan, thread: LoopThread, make: Callable[..., Broker], silence: Callable[[], object]
    ) -> None:
        """`silence` cuts the dead broker from the store."""
        self._plan = plan
        self._thread = thread
        self._make = make
        self._silence = silence
        self._injector: Injector | None = None
        self._starting: Future[Injector] | None = None

    @property
    def running(self) -> bool:
        return self._injector is not None

    def start(self) -> None:
        async def begin() -> Injector:
            injector = Injector(self._plan, self._make)
            await injector.broker.start()
            return injector

        self._starting = asyncio.run_coroutine_threadsafe(begin(), self._thread.loop)
        try:
            self._injector = self._starting.result(START_S_MAX)
        except (Exception, CancelledError) as problem:
            raise BrokerFailed(f"the broker did not start: {problem or type(problem).__name__}") from problem
        finally:
            self._starting = None

    def stop(self) -> None:
        if injector := self._end():
            self._thread.do(injector.broker.stop(), STOP_S_MAX)

    def kill(self) -> None:
        if starting := self._starting:
            starting.cancel()
        if injector := self._end():
            self._thread.call(self._silence)
            self._thread.do(injector.broker.abort(), STOP_S_MAX)

    def _end(self) -> Injector | None:
        injector, self._injector = self._injector, None
        if injector is not None:
            self._thread.call(injector.clear)
        return injector

    def discard(self) -> None:
        """Do nothing: the thread is a daemon."""

    def ask(self, command: Command) -> object:
        injector = self._injector
        if injector is None:
            raise BrokerFailed("the broker does not run")

        async def execute() -> object:
            return injector.execute(command)

        return self._thread.do(execute(), ASK_S_MAX)

    def output(self) -> str:
        return ""
