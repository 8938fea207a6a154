"""Detects that the controller's process has died without waiting for its session to expire.

    the image names a controller ──> a connection to it is held ──it ends──> opened again at once
                                                                 └──refused──> its nodes are deleted: a new election

The controller's registration and the /controller node are deleted if both belong to one session, and if a connection
succeeded under that registration: Kafka's own brokers register, and may be elected, before their port accepts. A false
alarm costs an election; epochs fence the old controller.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from pybroker.coordination.commit import commit, until_answered
from pybroker.coordination.store import BadVersion, Delete, NoNode, Session, Stat, StoreError
from pybroker.decisions.image import Image, LiveBroker
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.interbroker.link import Link
from pybroker.logs import event
from pybroker.metadata import nodes
from pybroker.tasks import wait_for_either

log = logging.getLogger(__name__)

RETRY_S = 0.1


class ControllerWatch:
    """Watches the controller on behalf of one broker."""

    def __init__(
        self,
        broker_id: int,
        metadata: MetadataCache,
        session: Callable[[], Session],
        connect: Callable[[LiveBroker], Awaitable[Link]],
    ) -> None:
        """`session` returns the current session; `connect` opens a link to a broker, and raises OSError."""
        self._broker_id = broker_id
        self._metadata = metadata
        self._session = session
        self._connect = connect
        self._news = asyncio.Event()
        self._reached = -1  # the registration under which a controller was last reached: its czxid

    async def run(self) -> None:
        """Watch until cancelled."""
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
        """The controller in the metadata image, if it is another broker."""
        image = self._metadata.image
        return None if image.controller_id == self._broker_id else image.brokers.get(image.controller_id)

    async def _hold(self, controller: LiveBroker) -> None:
        """Hold a connection to the controller until it ends or the controller changes. Raises OSError, StoreError."""
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
                await wait_for_either(self._news, link.closed)
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
        event(log, logging.WARNING, "controller is dead", broker=broker_id, cause="connection refused")
        with contextlib.suppress(NoNode, BadVersion):  # another broker was faster
            await commit(session, [Delete(path, now.version), Delete(nodes.CONTROLLER, control.version)])
