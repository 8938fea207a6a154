"""Links to the other brokers, for requests that do not wait for each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from pybroker.interbroker.link import TIMEOUT_S, Link
from pybroker.protocol.message import Message, Request

A = TypeVar("A", bound=Message)


class BrokerLinks:
    """Links by broker, kept open between requests. A request takes an idle link, or opens one: a broker answers the
    requests of one link in their order, so that one that waits would hold up the others."""

    def __init__(self, connect: Callable[[int], Awaitable[Link]]) -> None:
        """`connect` opens a link to a broker; it raises OSError."""
        self._connect = connect
        self._idle: dict[int, list[Link]] = {}
        self._closed = False

    async def ask(self, broker: int, message: Request[A], version: int, *, timeout_s: float = TIMEOUT_S) -> A:
        """Send a request to a broker and return its answer. Raises OSError."""
        link = await self._take(broker)
        try:
            answer = await link.ask(message, version, timeout_s=timeout_s)
        except BaseException:
            link.close()  # an answer that comes late would be taken for that of the next request
            raise
        if self._closed:
            link.close()
        else:
            self._idle.setdefault(broker, []).append(link)
        return answer

    async def _take(self, broker: int) -> Link:
        idle = self._idle.get(broker, [])
        while idle:
            link = idle.pop()
            if not link.closed.done() and not link.hung_up:
                return link
            link.close()
        return await self._connect(broker)

    def close(self) -> None:
        """Close the links; those in use are closed after their answers."""
        self._closed = True
        for link in [link for links in self._idle.values() for link in links]:
            link.close()
        self._idle.clear()
