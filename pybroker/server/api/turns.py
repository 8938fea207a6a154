"""Gives large requests turns on the event loop: after each slice, other requests that have arrived are executed.

    turn of the loop   slice of ann's | other requests | slice of bob's | other requests | slice of ann's ...

A principal with many connections gets no more turns than one with a single connection.
"""

import asyncio
from collections import deque


class Turns:
    """The turns of one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the next principal comes first
        self._ringing = False

    async def take(self, who: str) -> None:
        """Wait for a turn. The turn ends when the caller awaits something or asks for the next turn."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(who, deque()).append(turn)
        if not self._ringing:
            self._ringing = True
            loop.call_soon(self._ring)
        await turn

    def _ring(self) -> None:
        """Give one turn in every second iteration of the loop while a request waits."""
        while self._waiting:
            who = next(iter(self._waiting))
            waiting = self._waiting.pop(who)
            turn = waiting.popleft()
            if waiting:
                self._waiting[who] = waiting
            if not turn.done():  # else its client has disconnected
                turn.set_result(None)
                # Two iterations later: in the first, the slice is executed, and the request asks for its next turn.
                loop = asyncio.get_running_loop()
                loop.call_soon(loop.call_soon, self._ring)
                return
        self._ringing = False
