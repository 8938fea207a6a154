"""Delays requests of clients that reconnect while their quota is exceeded.

    first request of a connection, first Produce ──quota not exceeded──> executed
                              └──exceeded──> held, in order of arrival ──until no longer exceeded──> executed

A client over its quota has its connection muted (quotas.py). A client that reconnects would escape this, because the
first request of each connection would be executed. So this request waits before it is executed, and its connection is
not read meanwhile; the native plane gets the client's quotas after the wait. Requests of one bucket are released one at
a time, so each is counted before the next is checked. If the client disconnects meanwhile, its request is neither
executed nor counted.
"""

import asyncio
from typing import Final

from pybroker.clock import monotonic_ms
from pybroker.core import QuotaBucket
from pybroker.decisions.caller import Caller, Disconnect
from pybroker.protocol import codec
from pybroker.protocol.apis import SERVED
from pybroker.server.api.quotas import BETWEEN_BROKERS, QuotaManager
from pybroker.server.api.responder import Answer, Responder, Waiting

HELD_BYTES_MAX: Final = 64 << 20
"""Bytes of requests held at one time; a connection whose request exceeds this is closed."""
LOOK_MS: Final = 500
"""Interval at which a bucket is checked again; a quota that was raised or removed takes effect then."""
PRODUCE: Final = 0
FREE: Final = frozenset(
    key for key, api in SERVED.items() if api.name in BETWEEN_BROKERS | {"Fetch", "SaslHandshake", "SaslAuthenticate"}
)
"""APIs that need not wait. A Fetch beyond the quota is answered without records, on any connection."""


class _Line:
    """The requests that wait for one bucket."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.waiting = 0


class Debts:
    """Holds requests back before it passes them to another responder."""

    def __init__(self, responder: Responder, quotas: QuotaManager) -> None:
        self._responder = responder
        self._quotas = quotas
        self._lines: dict[QuotaBucket, _Line] = {}
        self._held_bytes = 0

    def respond(self, frame: bytes | memoryview, caller: Caller) -> Answer | Waiting:
        """Execute a request, at once unless its client has exceeded a quota. Raises Disconnect."""
        throttle = caller.throttle
        key = int.from_bytes(frame[:2], "big")
        if throttle is None or key in FREE or not self._quotas.in_force or throttle.is_settled(key == PRODUCE):
            return self._responder.respond(frame, caller)
        try:
            client_id = codec.decode_request_header(frame).client_id
        except codec.ProtocolError:
            return self._responder.respond(frame, caller)  # it reports the error
        throttle.settle(key == PRODUCE)
        if self._owes(caller, client_id, key) is None:
            return self._responder.respond(frame, caller)
        if self._held_bytes and self._held_bytes + len(frame) > HELD_BYTES_MAX:
            raise Disconnect(
                f"quota exceeded, and requests held back for quotas already take {self._held_bytes} of"
                f" {HELD_BYTES_MAX} bytes"
            )
        waiting = Waiting(None, True)  # type: ignore[arg-type]  # its answer is set on the next line
        waiting.answer = self._hold(bytes(frame), caller, client_id, key, waiting)
        self._held_bytes += len(frame)
        return waiting

    def _owes(self, caller: Caller, client_id: str | None, key: int) -> QuotaBucket | None:
        return self._quotas.owed(caller, client_id, key == PRODUCE)

    async def _hold(self, frame: bytes, caller: Caller, client_id: str | None, key: int, waiting: Waiting) -> Answer:
        held = True
        try:
            while (bucket := self._owes(caller, client_id, key)) is not None:
                line = self._lines.setdefault(bucket, _Line())
                line.waiting += 1
                try:
                    async with line.turn:
                        if not await self._paid(bucket, caller, client_id, key):
                            continue  # the request counts in another bucket by now
                        held = False
                        self._held_bytes -= len(frame)
                        return await self._execute(frame, caller, waiting)
                finally:
                    line.waiting -= 1
                    if not line.waiting:
                        del self._lines[bucket]
            return await self._execute(frame, caller, waiting)
        finally:
            if held:
                self._held_bytes -= len(frame)

    async def _paid(self, bucket: QuotaBucket, caller: Caller, client_id: str | None, key: int) -> bool:
        """Wait until the bucket is no longer exceeded; False if the client has to wait for another bucket instead."""
        while self._owes(caller, client_id, key) is bucket:
            left_ms = bucket.wait(monotonic_ms())
            if left_ms == 0:
                return True
            while left_ms > 0 and self._owes(caller, client_id, key) is bucket:
                await asyncio.sleep(min(left_ms, LOOK_MS) / 1000)
                left_ms -= LOOK_MS
        return self._owes(caller, client_id, key) is None

    async def _execute(self, frame: bytes, caller: Caller, waiting: Waiting) -> Answer:
        answer = self._responder.respond(frame, caller)
        if isinstance(answer, Waiting):
            waiting.abandon = answer.abandon
            return await answer.answer
        return answer
