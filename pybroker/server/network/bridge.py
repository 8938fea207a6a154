"""The bridge to the native plane: hands sockets to it, executes the requests that it declines, and returns responses.

The plane executes valid Produce and Fetch requests itself. Requests that it declines arrive here, one at a time for
each connection, so that responses keep their order. A request whose client disconnects is cancelled if its effects are
not needed. A socket that core cannot use is connected to the plane by a relay (relay.py).
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence

from pybroker import core
from pybroker.config import BrokerConfig
from pybroker.decisions.caller import Caller, Disconnect, Rights, Throttle
from pybroker.decisions.image import Image
from pybroker.logs import event
from pybroker.replication.replicas import Replicas
from pybroker.security.tls import NativeStream, SslStream, Stream
from pybroker.server.api.responder import HEARD_MS, Answer, Last, Responder, Waiting
from pybroker.server.network.closed_connections import Closings
from pybroker.server.network.network_threads import NetworkThreads
from pybroker.server.network.plane import Forget
from pybroker.server.network.relay import Relay, relay_pair

log = logging.getLogger(__name__)

POOL_BYTES = 512 << 20
"""Bytes of memory for requests if queued.max.request.bytes is not set."""
NO_LISTENER = -1
TAKE_S_MAX = 0.005
"""Seconds that requests declined by the plane are executed before other work of the event loop."""
LISTENERS_MAX = 63
"""Listeners whose connections the plane can tell apart and close; the number of a removed listener is not reused."""


class Adopted:
    """A connection owned by the plane, as counted by its listener; the plane closes it when it is idle."""

    __slots__ = ("caller", "last_active")

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.last_active = float("inf")

    def finish(self) -> None:
        """Do nothing: `Plane.finish` and `remove_listener` end all connections of a listener at once."""

    def close(self, reason: str, level: int = logging.WARNING) -> None:
        """Do nothing: the plane closes its connections when it stops."""

    def forked(self) -> None:
        """Do nothing: the plane closes its sockets in a forked child."""


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
        """`grown` is called with the plane's id of a watched partition that grew; `listeners` are the names of the
        listeners; `fetched` is called with messages of fetchers ("fetcher", "closed") and their keys; `joining` with
        the id of a partition of which a follower has caught up."""
        self._plane = plane
        self._grown = grown
        self._fetched = fetched
        self._joining = joining
        self._loop = asyncio.get_running_loop()
        self._adopted: dict[int, tuple[Adopted | Relay, Forget]] = {}
        self._letters: deque[tuple[str, int, int, bytes | None]] = deque()
        self._running: dict[int, tuple[asyncio.Task[Answer], Waiting]] = {}
        self._responder: Responder | None = None
        self._closings: Closings | None = None
        self._finishing = False
        self._listeners: dict[str, int] = {}
        self._told_apart = 0  # number of listeners so far
        for name in listeners:
            self.add_listener(name)
        self._nodes: list[tuple[int, int, str, int, str | None]] = []

    def open(self, responder: Responder, closings: Closings) -> None:
        """Begin to execute requests that the plane declines; `closings` logs connections that were closed."""
        self._responder = responder
        self._closings = closings
        self._loop.add_reader(self._plane.fileno(), self._take)
        self._plane.start()

    def adopt(
        self,
        sock: socket.socket | Stream,
        caller: Caller,
        forget: Callable[[Adopted], object],
        *,
        judged: bool = False,
    ) -> Adopted | Relay:
        """Hand a socket to the plane; `forget` is called when its connection has ended. `judged`: the plane executes
        only requests for which earlier responses brought rights; the others are authorized in Python."""
        if judged:
            caller = caller._replace(rights=Rights())
        caller = caller._replace(throttle=Throttle())
        number = self._listeners.get(caller.listener, NO_LISTENER)
        if number >= LISTENERS_MAX or isinstance(sock, SslStream):
            ours, theirs = relay_pair()
            try:
                key = self._give(theirs, None, number, judged, caller)
            except BaseException:
                ours.close()
                theirs.close()
                raise
            relay = Relay(sock, ours, caller, forget)
            self._adopted[key] = relay, Relay.left
            return relay
        adopted = Adopted(caller)
        below, tls = (sock.sock, sock.tls) if isinstance(sock, NativeStream) else (sock, None)
        key = self._give(below, tls, number, judged, caller)
        self._adopted[key] = adopted, forget
        return adopted

    def _give(
        self, sock: socket.socket, tls: core.TlsSocket | None, number: int, judged: bool, caller: Caller
    ) -> int:
        """Hand a socket to the plane, and return the id of its connection there."""
        ends_ms = 0 if caller.session is None else caller.session.ends_ms()
        key = self._plane.adopt(sock.fileno(), listener=number, judged=judged, tls=tls, login_ends_ms=ends_ms)
        sock.detach()  # the plane owns the descriptor now
        return key

    def judge_by(self, rules: int) -> None:
        """Set the version of the ACLs, which have changed."""
        self._plane.set_rules(rules)

    def count_by(self, number: int) -> None:
        """Set the version of the quotas, which have changed; 0 if there are none."""
        self._plane.set_quotas(number)

    def show(self, image: Image) -> None:
        """Set the brokers' addresses for each listener, which the plane names as new leaders in error responses."""
        nodes = [(number, *node) for name, number in self._listeners.items() for node in image.nodes(name)]
        if nodes != self._nodes:
            self._plane.set_nodes(nodes)
            self._nodes = nodes

    def add_listener(self, name: str) -> None:
        """Take connections of a new listener, through relays if there were LISTENERS_MAX before."""
        if self._told_apart >= LISTENERS_MAX:
            why = f"more than {LISTENERS_MAX} listeners since the start, so this one uses relays: restart the broker"
            event(log, logging.WARNING, "listener is slow", listener=name, reason=why)
        self._listeners[name] = self._told_apart
        self._told_apart += 1

    def remove_listener(self, name: str) -> int:
        """Close the connections of a removed listener once they have their responses; return its number, for `cut`."""
        number = self._listeners.pop(name, NO_LISTENER)
        if 0 <= number < LISTENERS_MAX:
            self._plane.close_listener(number, owed=True)
            return number
        for peer, _ in list(self._adopted.values()):
            if isinstance(peer, Relay) and peer.caller.listener == name:
                peer.end_of_client()
        return NO_LISTENER

    def finish(self, stall_seconds: float) -> None:
        """Close each connection once it has received its responses, or has received nothing for `stall_seconds`."""
        if not self._finishing:
            self._finishing = True
            self._plane.finish(int(stall_seconds * 1000))

    def cut(self, listener: int | None = None) -> None:
        """Close every connection, or those of a removed listener; clients may reconnect at once."""
        if listener is None:
            self._plane.cut()
        elif listener != NO_LISTENER:
            self._plane.close_listener(listener, owed=False)

    def close_longest_silent(self, count: int, spared: str | None) -> int:
        """Close up to `count` connections, none of the listener `spared`; return how many will be closed."""
        return self._plane.close_longest_silent(count, spared=self._listeners.get(spared or "", NO_LISTENER))

    def close(self) -> None:
        """Stop the reactors, without waiting for requests."""
        self._loop.remove_reader(self._plane.fileno())
        for task, _ in self._running.values():
            task.cancel()
        self._plane.stop()
        self._letters.clear()
        for adopted, forget in list(self._adopted.values()):
            adopted.close("the broker stops")
            forget(adopted)
        self._adopted.clear()

    def _take(self) -> None:
        """Take the messages of the plane."""
        is_idle = not self._letters
        self._letters.extend(self._plane.take())
        if is_idle:
            self._go_on()

    def _go_on(self) -> None:
        """Deliver messages of the plane. If one fails, only its connection is closed."""
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
            # In the next iteration: a task that has not begun cannot close its coroutine properly.
            self._loop.call_soon(self._running[token][0].cancel)

    def _execute(self, key: int, token: int, frame: bytes | None) -> None:
        assert self._responder is not None
        held = self._adopted.get(key)
        if held is None:  # the client disconnected before its request was executed
            self._end(token)
            return
        caller = held[0].caller
        self._plane.begin(token)
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
                task = self._loop.create_task(answer.answer)  # directly, so that cancelling before it runs closes it
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
        """Close the connection of a request without a response; does nothing if the request was answered."""
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


def native_plane(
    config: BrokerConfig, replicas: Replicas, threads: NetworkThreads, *, replica_listener: int, rack: str | None
) -> Bridge:
    """The plane of core, whose reactors execute Produce and Fetch; requests that they decline go to the handlers."""
    plane = replicas.native_plane(
        reactors=threads.serving,
        fetchers=threads.copying,
        frame_bytes_max=config["socket.request.max.bytes"],
        fetch_bytes_max=config["fetch.max.bytes"],
        idle_ms=config["connections.max.idle.ms"],
        pool_bytes=pool_bytes(config),
        requests_max=config["queued.max.requests"],
        fetch_sessions=config["max.incremental.fetch.session.cache.slots"],
        replica_listener=replica_listener,
        rack=rack,
    )
    listeners = [endpoint.listener for endpoint in config.listeners.endpoints]
    return Bridge(plane, replicas.grown, listeners, replicas.fetched, replicas.joining)


def pool_bytes(config: BrokerConfig) -> int:
    """The bytes of memory that requests may hold."""
    most: int = config["queued.max.request.bytes"]
    return most if most > 0 else POOL_BYTES
