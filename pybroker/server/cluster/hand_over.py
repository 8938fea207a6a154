"""Controlled shutdown: before a broker stops, the controller moves its leadership to other brokers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from pybroker import errors
from pybroker.config import BrokerConfig
from pybroker.coordination.store import ConnectionLoss, Session, StoreError
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.protocol import messages as m
from pybroker.replication.controller_link import ControllerLink
from pybroker.tasks import cancel_and_wait

log = logging.getLogger(__name__)

T = TypeVar("T")

CONTROLLED_SHUTDOWN = 3
HAND_OVER_SECONDS = 10.0
"""Seconds for a controlled shutdown with all its attempts, as a service manager kills a broker that stops slowly."""
AWAY_SECONDS = 2.0
"""Seconds that a stop waits for a ZooKeeper that does not respond, and for a controller that needs it."""
LOOK_SECONDS = 0.1


class HandOver:
    """The controlled shutdown of one broker; `away` returns once ZooKeeper no longer responds."""

    def __init__(
        self, config: BrokerConfig, broker_id: int, link: ControllerLink, metadata: MetadataCache,
        away: Callable[[], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._config = config
        self._broker_id = broker_id
        self._link = link
        self._metadata = metadata
        self._away = away

    async def run(self, epoch: Callable[[], int]) -> bool:
        """Ask the controller to move leadership, with retries by the settings; True once this broker leads nothing.

        This takes at most HAND_OVER_SECONDS; the backoff is shortened to fit all retries. `epoch` returns this broker's
        current epoch, which changes if its session expires."""
        retries: int = self._config["controlled.shutdown.max.retries"]
        backoff_ms: int = self._config["controlled.shutdown.retry.backoff.ms"]
        pause_s = min(backoff_ms / 1000, HAND_OVER_SECONDS / (retries + 1))
        clock = asyncio.get_running_loop().time
        ends_s = clock() + HAND_OVER_SECONDS
        for last in range(retries, -1, -1):
            request = m.ControlledShutdownRequest(broker_id=self._broker_id, broker_epoch=epoch())
            try:
                left_s = round(ends_s - clock(), 1)
                answer = await self._unless_away(self._link.ask(request, CONTROLLED_SHUTDOWN, left_s))
                left = len(answer.remaining_partitions)
                if not answer.error_code and not left:
                    return True
                reason = f"{left} partitions have no other replica that can lead"
                if answer.error_code:
                    reason = f"the controller answered {errors.lookup(answer.error_code).name}"
            except ConnectionLoss:
                reason = "the store does not respond, so no controller can move leadership"
                event(log, logging.WARNING, "controlled shutdown failed", reason=reason)
                return False
            except KafkaError as problem:
                reason = problem.message
            alone = self._metadata.image.brokers.keys() <= {self._broker_id}
            if not last or alone or clock() + pause_s >= ends_s:
                event(log, logging.WARNING, "controlled shutdown failed", reason=reason)
                return False
            await asyncio.sleep(pause_s)
        return False

    async def _unless_away(self, asking: Coroutine[object, None, T]) -> T:
        """Return the controller's response. Raises ConnectionLoss if ZooKeeper stops responding first."""
        loop = asyncio.get_running_loop()
        task, away = loop.create_task(asking), asyncio.ensure_future(self._away())
        try:
            await asyncio.wait({task, away}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ConnectionLoss
            return task.result()
        finally:
            await cancel_and_wait(task, away)


async def is_answered(session: Callable[[], Session]) -> bool:
    """True if ZooKeeper responds within AWAY_SECONDS, on this session or the next."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(AWAY_SECONDS):
            while True:
                with contextlib.suppress(StoreError):  # the connection or session ended: try the next
                    await session().exists("/")
                    return True
                await asyncio.sleep(LOOK_SECONDS)
    return False
