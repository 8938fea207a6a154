"""From a broker to its cluster's controller: found by the metadata, asked over one connection, asked again elsewhere.

A controller that is no more says NOT_CONTROLLER, or nothing: who asks waits for the next one, as the image names it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from pybroker import errors
from pybroker.client.link import Link
from pybroker.cluster.image import Image, LiveBroker
from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.errors import KafkaError

RETRY_S = 0.05
TIMEOUT_S = 30.0
CONNECT_S = 5.0


class ControllerLink:
    """Of one broker; `connect` opens a link to the inter-broker listener of another."""

    def __init__(self, metadata: MetadataCache, connect: Callable[[LiveBroker], Awaitable[Link]]) -> None:
        self._metadata = metadata
        self._connect = connect
        self._link: Link | None = None
        self._to: LiveBroker | None = None
        self._one = asyncio.Lock()
        self._ended = False
        metadata.watch(self._look)

    async def ask(self, message: Any, version: int, timeout_s: float = TIMEOUT_S) -> Any:
        """What the controller answers, whoever that is by then. Raises KafkaError: REQUEST_TIMED_OUT, and
        BROKER_NOT_AVAILABLE once this broker stops."""
        refused = ""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    if self._ended:
                        raise KafkaError(errors.BROKER_NOT_AVAILABLE, "this broker stops")
                    try:
                        answer = await self._ask(message, version)
                        refused = ""
                    except PermissionError as problem:
                        answer, refused = None, f": {problem}"
                    if answer is not None and answer.error_code != errors.NOT_CONTROLLER:
                        return answer
                    await asyncio.sleep(RETRY_S)
        except TimeoutError:
            words = f"no controller answered in {timeout_s:g} s{refused}"
            raise KafkaError(errors.REQUEST_TIMED_OUT, words) from None

    async def _ask(self, message: Any, version: int) -> Any:
        """None where there is no controller to be asked, or it ended. Raises PermissionError where it refuses the
        login."""
        try:
            link = await self._reach()
            return None if link is None else await link.ask(message, version, timeout_s=TIMEOUT_S)
        except PermissionError:
            raise
        except OSError:
            return None

    async def _reach(self) -> Link | None:
        async with self._one:
            image = self._metadata.image
            to = image.brokers.get(image.controller_id)
            if self._link is not None and (to != self._to or self._link.closed.done()):
                self.close()
            if self._link is None and to is not None:
                self._link, self._to = await self._connect(to), to
            return self._link

    def _look(self, image: Image) -> None:
        """Another controls: what the last one has not answered, as it stands still perhaps, is asked of the next."""
        if self._link is not None and image.brokers.get(image.controller_id) != self._to:
            self.close()

    def end(self) -> None:
        """Ask nobody any more: whoever waits is told."""
        self._ended = True
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self._link is not None:
                self._link.close()
        self._link = None
