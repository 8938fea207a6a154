"""Logins that have an end, and that are renewed on the live connection (KIP-368): what stands before the handlers.

    logged in ──SaslHandshake 1──> SaslAuthenticate, as often as the mechanism asks ──> logged in, for as long again
        │                                   └── refused, or another principal: told so after a while, closed
        └── the end ──SaslHandshake 1──> as above
                    └──any other request──> closed

An end is looked at when a request arrives, as Kafka does: a connection that asks nothing stays. From the end on the
data plane hands over all requests (core/plane/receive.pyx). Whatever else is asked while somebody logs in again is
answered.
"""

import asyncio
import math
from typing import Final

from pybroker.cluster.caller import Caller, Disconnect, Session
from pybroker.security.handshake import AUTHENTICATE, HANDSHAKE, Handshake, Step
from pybroker.server.closings import Closings
from pybroker.server.connection import Answer, Last, Responder, Waiting
from pybroker.server.login import Logins

RENEWED_S_MIN: Final = 1.0
"""Between two attempts of a connection to log in again: as Kafka has it."""
_KEY, _VERSION = slice(0, 2), slice(2, 4)


class Sessions:
    """A responder that stands before another."""

    def __init__(self, responder: Responder, logins: Logins, closings: Closings) -> None:
        self._responder = responder
        self._logins = logins
        self._closings = closings
        self._loop = asyncio.get_running_loop()

    def respond(self, frame: bytes | memoryview, caller: Caller) -> Answer | Waiting:
        """Execute a request, if the login of its client has not ended. Raises Disconnect."""
        session = caller.session
        if session is None:
            return self._responder.respond(frame, caller)
        now_s = self._loop.time()
        key, version = int.from_bytes(frame[_KEY], "big"), int.from_bytes(frame[_VERSION], "big")
        if key == HANDSHAKE and version > 0 and now_s - session.renewed_s >= RENEWED_S_MIN:
            session.renewed_s = now_s
            offered = self._logins.mechanisms[caller.listener]
            session.handshake = Handshake(
                {session.mechanism: offered[session.mechanism]}, principal=caller.principal, by_token=caller.by_token
            )
            return self._go_on(bytes(frame), caller, session)
        if key == AUTHENTICATE and session.handshake is not None:
            return self._go_on(bytes(frame), caller, session)
        if now_s >= session.ends_s:
            self._logins.expired += 1
            raise Disconnect("its login has ended, and it has not logged in again")
        return self._responder.respond(frame, caller)

    def _go_on(self, frame: bytes, caller: Caller, session: Session) -> Answer | Waiting:
        step = session.handshake.receive(frame)
        if step.until is not None:
            return Waiting(self._later(frame, caller, session, step), False)
        if step.failed is not None:
            return Waiting(self._refuse(caller, step), False)
        if step.user is not None:
            session.handshake = None
            session.ends_s = self._loop.time() + (step.lifetime_ms / 1000 or math.inf)
        return [step.answer]

    async def _later(self, frame: bytes, caller: Caller, session: Session, step: Step) -> Answer:
        """Once what is to be read for it was read."""
        assert step.until is not None
        await asyncio.shield(asyncio.wrap_future(step.until))
        answer = self._go_on(frame, caller, session)
        return await answer.answer if isinstance(answer, Waiting) else answer

    async def _refuse(self, caller: Caller, step: Step) -> Answer:
        """Say no, and hang up, a while from now."""
        assert step.failed is not None
        self._logins.count_refused(step)
        if step.answer is not None:  # logged before the wait, because the client may leave during it
            self._closings.tell(
                "login refused", caller, step.failed, self._loop.time(), step.claimed, credentials=step.credentials
            )
        await asyncio.sleep(self._logins.delay_seconds)
        if step.answer is None:
            raise Disconnect(step.failed)
        return Last([step.answer])
