"""A broker in the process of the test: on a thread of its own, with an event loop of its own.

The test's loop, if it has one, is not touched, and a test that blocks does not block the broker. kill() is
Broker.abort: connections are cut, nothing is flushed; what was acknowledged is in the page cache, as after SIGKILL.
"""

import asyncio
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from pybroker.testing.lifecycle import ASK_S_MAX, START_S_MAX, STOP_S_MAX, BrokerFailed, BrokerPlan, Command

if TYPE_CHECKING:
    from pybroker.testing.injector import Injector


class _BrokerRun:
    """One life of the broker: its thread, and the futures for its start, stop and end."""

    def __init__(self, plan: BrokerPlan) -> None:
        self.plan = plan
        self.started: Future[tuple[asyncio.AbstractEventLoop, Injector]] = Future()
        self.end: Future[bool] = Future()
        """Set to stop the broker: True cleanly, False abruptly."""
        self.ended: Future[None] = Future()
        self.thread = threading.Thread(target=self._work, name=f"pybroker:{plan.port}", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        try:
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._live())
        except BaseException as problem:  # raised in the thread that starts or stops the broker
            if not self.started.done():
                self.started.set_exception(problem)
            self.ended.set_exception(problem)
        else:
            self.ended.set_result(None)

    async def _live(self) -> None:
        from pybroker.testing.injector import Injector

        injector = Injector(self.plan)
        await injector.broker.start()
        self.started.set_result((asyncio.get_running_loop(), injector))
        clean = await asyncio.wrap_future(self.end)
        injector.clear()
        await (injector.broker.stop() if clean else injector.broker.abort())

    def finish(self, *, clean: bool) -> None:
        """End the broker and wait for its thread. Raises what went wrong."""
        if not self.end.done():
            self.end.set_result(clean)
        self.thread.join(STOP_S_MAX)
        if self.thread.is_alive():
            raise BrokerFailed(f"the broker on port {self.plan.port} still runs {STOP_S_MAX:g} s after it was ended")


class InProcess:
    """See lifecycle.Life."""

    def __init__(self, plan: BrokerPlan) -> None:
        self._plan = plan
        self._run: _BrokerRun | None = None

    @property
    def running(self) -> bool:
        return self._run is not None and self._run.thread.is_alive()

    def start(self) -> None:
        run = self._run = _BrokerRun(self._plan)
        try:
            run.started.result(START_S_MAX)
        except Exception as problem:
            self.kill()
            raise BrokerFailed(f"the broker did not start: {problem or type(problem).__name__}") from problem
        except BaseException:  # the test run is interrupted
            self.kill()
            raise

    def stop(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish(clean=True)
            if problem := run.ended.exception():
                raise BrokerFailed(f"the broker did not stop cleanly: {problem}") from problem

    def kill(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish(clean=False)

    def discard(self) -> None:
        """Do nothing: the thread is a daemon."""

    def ask(self, command: Command) -> object:
        if self._run is None or not self.running:
            raise BrokerFailed("the broker does not run")
        loop, injector = self._run.started.result(ASK_S_MAX)

        async def execute() -> object:
            return injector.execute(command)

        return asyncio.run_coroutine_threadsafe(execute(), loop).result(ASK_S_MAX)

    def output(self) -> str:
        return ""
