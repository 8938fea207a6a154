"""The bridge to the native plane: sockets go in, and the requests that are Python's come out, are answered, go back.

The plane executes Produce and Fetch itself where all is in order; whatever it declines arrives here, one request a
connection at a time, so that answers keep their order. What runs for a client that went away is given up if nobody
needs its effects.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pybroker import core
from pybroker.cluster.caller import Caller, Disconnect, Rights, Throttle
from pybroker.cluster.image import Image
from pybroker.logs import event
from pybroker.security.tls import NativeStream
from pybroker.server.closings import Closings
from pybroker.server.connection import HEARD_MS, Answer, Last, Responder, Waiting

log = logging.getLogger(__name__)

NO_LISTENER = -1
TAKE_S_MAX = 0.005
"""How long requests that the plane declined are executed before the event loop has its turn."""
LISTENERS_MAX = 63
"""That the plane tells apart in its life, of which each number is one's for good."""


class Adopted:
    """A connection that the plane owns, as its listener counts it; the plane itself closes it when it is idle."""

    __slots__ = ("caller", "last_active")

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.last_active = float("inf")

    def finish(self) -> None:
        """End once nothing is owed: whoever closes the listener says so to all its connections at once."""

    def close(self, reason: str, level: int = logging.WARNING) -> None:
        """The plane closes what is left when it stops."""


class Bridge:
    """Carries requests between a plane and a responder; on the event loop's thread."""

    def __init__(
        self,
        plane: core.Plane,
        grown: Callable[[int], object],
        listeners: Sequence[str] = (),
        fetched: Callable[[int, str, bytes | None], object] | None = None,
        joining: Callable[[int], object] | None = None,
    ) -> None:
        """`grown` is told the plane's id of a partition that was watched and grew; `listeners` are the names of those
        that connections come by; `fetched` is handed the letters of fetchers by their keys: "fetcher", "closed";
        `joining` the id of a partition of which a follower has caught up."""
        self._plane = plane
        self._grown = grown
        self._fetched = fetched
        self._joining = joining
        self._loop = asyncio.get_running_loop()
        self._adopted: dict[int, tuple[Adopted, Callable[[Adopted], object]]] = {}
        self._letters: deque[tuple[str, int, int, bytes | None]] = deque()
        self._running: dict[int, tuple[asyncio.Task[Answer], Waiting]] = {}
        self._responder: Responder | None = None
        self._closings: Closings | None = None
        self._finishing = False
        self._listeners: dict[str, int] = {}
        self._told_apart = 0  # listeners that it had
        for name in listeners:
            self.add_listener(name)
        self._nodes: list[tuple[int, int, str, int, str | None]] = []

    def open(self, responder: Responder, closings: Closings) -> None:
        """Begin to execute what the plane declines; `closings` hears of connections that had to be closed."""
        self._responder = responder
        self._closings = closings
        self._loop.add_reader(self._plane.fileno(), self._take)
        self._plane.start()

    def adopt(
        self,
        sock: socket.socket | NativeStream,
        caller: Caller,
        forget: Callable[[Any], object],
        *,
        judged: bool = False,
    ) -> Adopted:
        """Hand a socket to the plane; `forget` is called when its connection ended. `judged`: the client may do what
        answers to it bring rights for, and is asked for its rights otherwise."""
        if judged:
            caller = caller._replace(rights=Rights())
        caller = caller._replace(throttle=Throttle())
        adopted = Adopted(caller)
        number = self._listeners.get(caller.listener, NO_LISTENER)
        below, tls = (sock.sock, sock.tls) if isinstance(sock, NativeStream) else (sock, None)
        ends_ms = 0 if caller.session is None else caller.session.ends_ms()
        key = self._plane.adopt(below.fileno(), listener=number, judged=judged, tls=tls, login_ends_ms=ends_ms)
        self._adopted[key] = adopted, forget
        below.detach()  # it is the plane's now
        return adopted

    def judge_by(self, rules: int) -> None:
        """The rules that say who may do what are others now; this is their number."""
        self._plane.set_rules(rules)

    def count_by(self, number: int) -> None:
        """The quotas are others now; this is their number, 0 where there are none."""
        self._plane.set_quotas(number)

    def show(self, image: Image) -> None:
        """Have refusals name leaders at the addresses that clients of each listener use."""
        nodes = [(number, *node) for name, number in self._listeners.items() for node in image.nodes(name)]
        if nodes != self._nodes:
            self._plane.set_nodes(nodes)
            self._nodes = nodes

    def add_listener(self, name: str) -> bool:
        """Take connections of one more; false where there were too many already, so that the plane can have none."""
        if self._told_apart == LISTENERS_MAX:
            why = f"{LISTENERS_MAX} listeners came in this life: the native plane tells no more apart; a restart helps"
            event(log, logging.WARNING, "listener is slow", listener=name, reason=why)
            return False
        self._listeners[name] = self._told_apart
        self._told_apart += 1
        return True

    def has_listener(self, name: str) -> bool:
        """Does it take connections of one?"""
        return name in self._listeners

    def remove_listener(self, name: str) -> int:
        """Close the connections of one that takes no more, once they got what they are owed; its number, for `cut`."""
        number = self._listeners.pop(name, NO_LISTENER)
        if number != NO_LISTENER:
            self._plane.close_listener(number, owed=True)
        return number

    def finish(self, stall_seconds: float) -> None:
        """Let every connection end once it is owed nothing, or has taken nothing of that for so long."""
        if not self._finishing:
            self._finishing = True
            self._plane.finish(int(stall_seconds * 1000))

    def cut(self, listener: int | None = None) -> None:
        """Close every connection; clients may come back at once. Or those of a listener that was removed."""
        if listener is None:
            self._plane.cut()
        elif listener != NO_LISTENER:
            self._plane.close_listener(listener, owed=False)

    def close_longest_silent(self, count: int, spared: str | None) -> int:
        """Close so many clients' connections, none of the listener `spared`; how many were asked for."""
        return self._plane.close_longest_silent(count, spared=self._listeners.get(spared or "", NO_LISTENER))

    def close(self) -> None:
        """Stop the reactors; waits for their turns, not for requests."""
        self._loop.remove_reader(self._plane.fileno())
        for task, _ in self._running.values():
            task.cancel()
        self._plane.stop()
        self._letters.clear()
        for adopted, forget in self._adopted.values():
            forget(adopted)
        self._adopted.clear()

    def _take(self) -> None:
        """Take what the plane has sent."""
        is_idle = not self._letters
        self._letters.extend(self._plane.take())
        if is_idle:
            self._go_on()

    def _go_on(self) -> None:
        """Each letter stands alone: what fails with one costs its connection, and not those taken with it."""
        until_s = time.monotonic() + TAKE_S_MAX
        while self._letters:
            kind, key, token, frame = self._letters.popleft()
            try:
                self._deliver(kind, key, token, frame)
            except Exception as problem:
                event(log, logging.ERROR, "plane message failed", kind=kind, id=key, reason=problem, exc_info=problem)
                if kind == "request":
                    self._end(token)
            if self._letters and time.monotonic() > until_s:
                self._loop.call_soon(self._go_on)
                return

    def _deliver(self, kind: str, key: int, token: int, frame: bytes | None) -> None:
        if kind == "request":
            self._execute(key, token, frame)
        elif kind == "grown":
            self._grown(key)
        elif kind == "joining":
            if self._joining is not None:
                self._joining(key)
        elif self._fetched is not None and (kind == "fetcher" or (kind == "closed" and key not in self._adopted)):
            self._fetched(key, kind, frame)
        elif kind == "closed":
            adopted, forget = self._adopted.pop(key)
            try:
                if frame:
                    self._tell(adopted.caller, frame.decode())
            finally:
                forget(adopted)
        elif token in self._running and self._running[token][1].abandon:
            # A turn later: what has not begun, both being told at one go, would not be closed in good order.
            self._loop.call_soon(self._running[token][0].cancel)

    def _execute(self, key: int, token: int, frame: bytes | None) -> None:
        assert self._responder is not None
        held = self._adopted.get(key)
        if held is None:  # it went before its request was looked at
            self._end(token)
            return
        caller = held[0].caller
        try:
            if frame is None:
                raise Disconnect("no memory for a request")
            answer = self._responder.respond(frame, caller)
        except Disconnect as problem:
            self._refuse(token, caller, problem)
        except Exception as problem:
            self._fail(token, caller, problem)
        else:
            if isinstance(answer, Waiting):
                task = self._loop.create_task(answer.answer)  # itself: one that is cancelled before it runs is closed
                self._running[token] = task, answer
                task.add_done_callback(lambda done: self._done(token, caller, done))
            else:
                self._reply(token, caller, answer)

    def _done(self, token: int, caller: Caller, task: "asyncio.Task[Answer]") -> None:
        del self._running[token]
        try:
            if task.cancelled():
                self._end(token)
            elif isinstance(problem := task.exception(), Disconnect):
                self._refuse(token, caller, problem)
            elif problem is not None:
                self._fail(token, caller, problem)
            else:
                self._reply(token, caller, task.result())
        except Exception as problem:
            self._fail(token, caller, problem)

    def _end(self, token: int) -> None:
        """Close the connection of a request that gets no answer; one that has its answer already keeps it."""
        with contextlib.suppress(ValueError):
            self._plane.reply(token, None, close=True)

    def _fail(self, token: int, caller: Caller, problem: BaseException) -> None:
        self._end(token)
        event(log, logging.ERROR, "request failed", client=caller.address, reason=problem, exc_info=problem)

    def _refuse(self, token: int, caller: Caller, problem: Disconnect) -> None:
        self._end(token)
        self._tell(caller, str(problem))

    def _tell(self, caller: Caller, reason: str) -> None:
        assert self._closings is not None
        self._closings.tell("connection closed", caller, reason, self._loop.time())

    def _reply(self, token: int, caller: Caller, answer: Answer) -> None:
        rights, session, throttle = caller.rights, caller.session, caller.throttle
        self._plane.reply(
            token,
            answer,  # type: ignore[arg-type]  # its parts are bytes and core.Slices
            close=isinstance(answer, Last),
            rights=None if rights is None else rights.take(),
            rules=0 if rights is None else rights.rules,
            login_ends_ms=-1 if session is None else session.ends_ms(),
            quotas=None if throttle is None else throttle.take_told(),
            mute_ms=HEARD_MS if isinstance(answer, Last) else 0 if throttle is None else throttle.take_mute(),
        )
        for part in answer or ():
            if isinstance(part, core.Slice):
                part.close()
