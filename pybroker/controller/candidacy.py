"""Stands for election as controller, repeatedly, until the broker's session ends.

/controller exists ──it changes──> check again
/controller is free ──elected──> the term ──ends──> check again
                                          └──Deposed──> leave elections to others for a while, longer each time
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from pybroker.coordination.commit import until_answered
from pybroker.coordination.store import ENDED, BadVersion, NoNode, Session, SessionExpired, Stat, StoreError
from pybroker.logs import event
from pybroker.metadata import nodes
from pybroker.metadata.controllership import Deposed, Fence, elect
from pybroker.retries import Pauses

log = logging.getLogger(__name__)


class Candidacy:
    """Stands for broker `broker_id` in one session; `reign` runs one term, after each election that it wins."""

    def __init__(
        self, session: Session, broker_id: int, wall_ms: Callable[[], int], reign: Callable[[Fence], Awaitable[None]]
    ) -> None:
        self._session = session
        self._broker_id = broker_id
        self._wall_ms = wall_ms
        self._reign = reign
        self._waits_until_s = 0.0  # the loop's time until which elections are left to others

    def wait(self, wait_s: float) -> None:
        """Leave elections to other brokers for at least `wait_s` seconds."""
        self._waits_until_s = max(self._waits_until_s, asyncio.get_running_loop().time() + wait_s)

    async def stand(self, fence: Fence | None = None) -> None:
        """Stand for election until the session ends; with a `fence` this broker is already elected."""
        look, pauses, persistent = asyncio.Event(), Pauses(), -1
        self._session.listen(lambda state: look.set())
        while self._session.state not in ENDED:
            try:
                look.clear()
                if fence is not None:
                    given, fence = fence, None
                    await self._reign(given)
                    continue
                there = await until_answered(lambda: self._session.exists(nodes.CONTROLLER, watch=lambda _: look.set()))
                if there is not None and there.ephemeral_owner == self._session.id:
                    await self._give_up(there)  # left by a term that failed: it blocks elections
                    continue
                if there is not None:
                    if not there.ephemeral_owner and there.czxid != persistent:
                        persistent = there.czxid
                        cause = "it belongs to no session, so it stays until it is deleted by hand"
                        event(log, logging.WARNING, "no controller is elected", node=nodes.CONTROLLER, cause=cause)
                    await look.wait()
                    continue
                if (left_s := self._waits_until_s - asyncio.get_running_loop().time()) > 0:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(look.wait(), left_s)
                    continue
                elected = await elect(self._session, self._broker_id, self._wall_ms())
                if elected is not None:
                    await self._reign(elected)
            except SessionExpired:
                return
            except Deposed as problem:
                pauses.is_news(problem)  # already logged by its resignation
                self.wait(pauses.take())
            except StoreError as problem:
                if pauses.is_news(problem):
                    event(log, logging.WARNING, "election failed", reason=problem)
                await pauses.wait(await self._epoch_changes())
            except Exception as problem:  # a defect: another broker may be elected, and this one tries again
                if pauses.is_news(repr(problem)):
                    event(log, logging.ERROR, "controller failed", reason=problem, exc_info=problem)
                await pauses.wait(asyncio.Event())

    async def _epoch_changes(self) -> asyncio.Event:
        """An event that is set when /controller_epoch changes: a damaged one prevents elections."""
        changed = asyncio.Event()
        with contextlib.suppress(StoreError):
            await until_answered(lambda: self._session.exists(nodes.CONTROLLER_EPOCH, watch=lambda _: changed.set()))
        return changed

    async def _give_up(self, stat: Stat) -> None:
        with contextlib.suppress(NoNode, BadVersion):
            await until_answered(lambda: self._session.delete(nodes.CONTROLLER, stat.version))
