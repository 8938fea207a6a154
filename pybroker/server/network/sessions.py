"""Logins that expire, and re-authentication on the live connection (KIP-368).

    logged in ──SaslHandshake 1──> SaslAuthenticate, as often as the mechanism needs ──> logged in, with a new expiry
        │                                   └── refused, or another principal ──> answered after a delay, closed
        └── expired ──SaslHandshake 1──> as above
                    └──any other request──> closed.

The expiry is checked when a request arrives, as in Kafka, so an idle connection stays open. After it the data plane
passes on all requests (core/plane/thread/receive.pyx). Other requests during re-authentication are executed.
"""

import asyncio
import math
from typing import Final

from pybroker.decisions.caller import Caller, Disconnect, LoginSession
from pybroker.security.handshake import AUTHENTICATE, HANDSHAKE, Handshake, Step
from pybroker.server.api.responder import Answer, Last, Responder, Waiting
from pybroker.server.network.closed_connections import Closings
from pybroker.server.network.login import Logins

RENEWED_S_MIN: Final = 1.0
"""The shortest interval between re-authentications of a connection, as in Kafka."""
_KEY, _VERSION = slice(0, 2), slice(2, 4)


class Sessions:
    """Checks the expiry of logins before it passes requests to another responder."""

    def __init__(self, responder: Responder, logins: Logins, closings: Closings) -> None:
        self._responder = responder
        self._logins = logins
        self._closings = closings
        self._loop = asyncio.get_running_loop()

    def respond(self, frame: bytes | memoryview, caller: Caller) -> Answer | Waiting:
        """Execute a request if the login of its client has not expired. Raises Disconnect."""
        session = caller.session
        if session is None:
            return self._responder.respond(frame, caller)
        now_s = self._loop.time()
        key, version = int.from_bytes(frame[_KEY], "big"), int.from_bytes(frame[_VERSION], "big")
        if key == HANDSHAKE and version > 0 and now_s - session.renewed_s >= RENEWED_S_MIN:
            session.renewed_s = now_s
            offered = self._logins.mechanisms[caller.listener]
            session.handshake = handshake = Handshake(
                {session.mechanism: offered[session.mechanism]}, principal=caller.principal, by_token=caller.by_token
            )
            return self._go_on(bytes(frame), caller, session, handshake)
        if key == AUTHENTICATE and isinstance(session.handshake, Handshake):
            return self._go_on(bytes(frame), caller, session, session.handshake)
        if now_s >= session.ends_s:
            self._logins.expired += 1
            raise Disconnect("its login has expired, and it did not re-authenticate")
        return self._responder.respond(frame, caller)

    def _go_on(self, frame: bytes, caller: Caller, session: LoginSession, handshake: Handshake) -> Answer | Waiting:
        step = handshake.receive(frame)
        if step.until is not None:
            return Waiting(self._later(frame, caller, session, handshake, step), False)
        if step.failed is not None:
            return Waiting(self._refuse(caller, step), False)
        if step.user is not None:
            session.handshake = None
            session.ends_s = self._loop.time() + (step.lifetime_ms / 1000 or math.inf)
        assert step.answer is not None, "a login that goes on, or is done, is answered"
        return [step.answer]

    async def _later(
        self, frame: bytes, caller: Caller, session: LoginSession, handshake: Handshake, step: Step
    ) -> Answer:
        """Continue once the token keys have been read."""
        assert step.until is not None
        await asyncio.shield(asyncio.wrap_future(step.until))
        answer = self._go_on(frame, caller, session, handshake)
        return await answer.answer if isinstance(answer, Waiting) else answer

    async def _refuse(self, caller: Caller, step: Step) -> Answer:
        """Refuse and close, after the delay for failed authentications."""
        assert step.failed is not None
        self._logins.count_refused(step)
        if step.answer is not None:  # logged before the wait, as the client may disconnect during it
            self._closings.tell(
                "login refused", caller, step.failed, self._loop.time(), step.claimed, credentials=step.credentials
            )
        await asyncio.sleep(self._logins.delay_seconds)
        if step.answer is None:
            raise Disconnect(step.failed)
        return Last([step.answer])
