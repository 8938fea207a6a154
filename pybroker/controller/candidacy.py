"""A broker stands for election as controller, again and again, until its session ends.

/controller is there ──it changes──> looked at again
/controller is free ──elected──> the reign ──over──> looked at again
                                            └──Deposed──> left to others for a while, longer each time
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from pybroker.controller import nodes
from pybroker.controller.election import Deposed, Fence, elect
from pybroker.coordination.commit import until_answered
from pybroker.coordination.store import ENDED, BadVersion, NoNode, Session, SessionExpired, Stat, StoreError
from pybroker.logs import event
from pybroker.upkeep import Pauses

log = logging.getLogger(__name__)


class Candidacy:
    """Stand for the broker `broker_id` in one session; `reign` runs after each election that it wins, to its end."""

    def __init__(
        self, session: Session, broker_id: int, wall_ms: Callable[[], int], reign: Callable[[Fence], Awaitable[None]]
    ) -> None:
        self._session = session
        self._broker_id = broker_id
        self._wall_ms = wall_ms
        self._reign = reign
        self._waits_until_s = 0.0  # until then, by the loop's clock, it leaves elections to others

    def wait(self, wait_s: float) -> None:
        """Leave elections to others for so long at least."""
        self._waits_until_s = max(self._waits_until_s, asyncio.get_running_loop().time() + wait_s)

    async def stand(self) -> None:
        """Stand for election until the session ends."""
        look, pauses, persistent = asyncio.Event(), Pauses(), -1
        self._session.listen(lambda state: look.set())
        while self._session.state not in ENDED:
            try:
                look.clear()
                there = await until_answered(lambda: self._session.exists(nodes.CONTROLLER, watch=lambda _: look.set()))
                if there is not None and there.ephemeral_owner == self._session.id:
                    await self._give_up(there)  # of a reign that failed: no broker is elected while it is there
                    continue
                if there is not None:
                    if not there.ephemeral_owner and there.czxid != persistent:
                        persistent = there.czxid
                        cause = "it belongs to no session, so it stays until somebody deletes it"
                        event(log, logging.WARNING, "no controller is elected", node=nodes.CONTROLLER, cause=cause)
                    await look.wait()
                    continue
                if (left_s := self._waits_until_s - asyncio.get_running_loop().time()) > 0:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(look.wait(), left_s)
                    continue
                fence = await elect(self._session, self._broker_id, self._wall_ms())
                if fence is not None:
                    await self._reign(fence)
            except SessionExpired:
                return
            except Deposed as problem:
                pauses.is_news(problem)  # which its resignation has said
                self.wait(pauses.take())
            except StoreError as problem:
                if pauses.is_news(problem):
                    event(log, logging.WARNING, "election failed", reason=problem)
                await pauses.wait(await self._epoch_changes())
            except Exception as problem:  # a mistake of ours: another may do better, and this one is tried again
                if pauses.is_news(repr(problem)):
                    event(log, logging.ERROR, "controller failed", reason=problem, exc_info=problem)
                await pauses.wait(asyncio.Event())

    async def _epoch_changes(self) -> asyncio.Event:
        """An event that is set when the node of the controller epoch changes: it may be what prevents an election."""
        changed = asyncio.Event()
        with contextlib.suppress(StoreError):
            await until_answered(lambda: self._session.exists(nodes.CONTROLLER_EPOCH, watch=lambda _: changed.set()))
        return changed

    async def _give_up(self, stat: Stat) -> None:
        with contextlib.suppress(NoNode, BadVersion):
            await until_answered(lambda: self._session.delete(nodes.CONTROLLER, stat.version))
