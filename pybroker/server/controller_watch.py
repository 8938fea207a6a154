"""Misses a controller whose process has died, as the controller misses everybody else: nobody waits for its session.

    the image names a controller ──> a connection to it is held ──it ends──> opened again at once
                                                                 └──refused──> its nodes are deleted: a new election

What is deleted is its registration and its controllership, if both are of one session, and that registration is the one
under which a connection stood: Kafka's own broker registers, and is elected, before its port accepts. A wrong alarm
costs an election: epochs fence the one who was alive.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from pybroker.client.link import Link
from pybroker.cluster.image import Image, LiveBroker
from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.controller import nodes
from pybroker.coordination.commit import commit, until_answered
from pybroker.coordination.store import BadVersion, Delete, NoNode, Session, Stat, StoreError
from pybroker.logs import event

log = logging.getLogger(__name__)

RETRY_S = 0.1


class ControllerWatch:
    """Of one broker, for as long as its task runs."""

    def __init__(
        self,
        broker_id: int,
        metadata: MetadataCache,
        session: Callable[[], Session],
        connect: Callable[[LiveBroker], Awaitable[Link]],
    ) -> None:
        """`session` is the present one; `connect` opens a link to a broker. Raises OSError."""
        self._broker_id = broker_id
        self._metadata = metadata
        self._session = session
        self._connect = connect
        self._news = asyncio.Event()
        self._reached = -1  # the registration under which a controller was last reached: its czxid

    async def run(self) -> None:
        """Watch, until it is cancelled."""
        self._metadata.watch(self._told)
        try:
            while True:
                self._news.clear()
                controller = self._controller()
                if controller is None:
                    await self._news.wait()
                    continue
                try:
                    await self._hold(controller)
                except (OSError, StoreError) as problem:
                    event(log, logging.DEBUG, "controller not watched", controller=controller.id, reason=problem)
                    await asyncio.sleep(RETRY_S)
        finally:
            self._metadata.unwatch(self._told)

    def _told(self, image: Image) -> None:
        self._news.set()

    def _controller(self) -> LiveBroker | None:
        """The controller that the image names, if it is another broker."""
        image = self._metadata.image
        return None if image.controller_id == self._broker_id else image.brokers.get(image.controller_id)

    async def _hold(self, controller: LiveBroker) -> None:
        """Hold a connection to it until it ends or another one controls. Raises OSError, StoreError."""
        path = nodes.broker(controller.id)
        registered = await until_answered(lambda: self._session().exists(path))
        try:
            link = await self._connect(controller)
        except ConnectionRefusedError:
            if registered is not None and registered.czxid == self._reached:
                await self._bury(controller.id, registered)
            await asyncio.sleep(RETRY_S)
            return
        self._reached = -1 if registered is None else registered.czxid
        try:
            while self._controller() == controller and not link.closed.done():
                self._news.clear()
                waiting = asyncio.get_running_loop().create_task(self._news.wait())
                ends: list[asyncio.Future[Any]] = [waiting, link.closed]
                try:
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waiting.cancel()
        finally:
            link.close()

    async def _bury(self, broker_id: int, registered: Stat) -> None:
        """Delete the nodes of a dead controller. Raises StoreError."""
        session = self._session()
        path = nodes.broker(broker_id)
        now = await until_answered(lambda: session.exists(path))
        control = await until_answered(lambda: session.exists(nodes.CONTROLLER))
        if now is None or now.czxid != registered.czxid:
            return
        if control is None or control.ephemeral_owner != now.ephemeral_owner:
            return
        event(log, logging.WARNING, "controller is dead", broker=broker_id, cause="its address refuses")
        with contextlib.suppress(NoNode, BadVersion):  # somebody else was as quick
            await commit(session, [Delete(path, now.version), Delete(nodes.CONTROLLER, control.version)])
