"""The listening socket of the Python path: accepts within limits, keeps its connections, closes the idle ones."""

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Protocol

from pybroker import forks
from pybroker.clock import wall_ms
from pybroker.cluster.caller import Caller
from pybroker.config import BrokerConfig
from pybroker.config.listeners import EVERY_INTERFACE as EVERY_ADDRESS
from pybroker.config.listeners import parse_per_ip
from pybroker.logs import event
from pybroker.security.tls import SslStream, Stream
from pybroker.server.bridge import Bridge
from pybroker.server.closings import SILENT_SECONDS, Closings
from pybroker.server.connection import Connection, Responder
from pybroker.server.connection_quotas import CONNECTIONS_SHARE, UNLIMITED, PendingLogins, Quotas
from pybroker.server.connection_rates import Held
from pybroker.server.endings import Endings
from pybroker.server.login import Login, Logins
from pybroker.server.pool import Pool
from pybroker.server.tls_handshake import Tls, TlsHandshake

log = logging.getLogger(__name__)

RECEIVE_BYTES = 256 << 10
ACCEPTS_PER_TURN = 64
ACCEPT_PAUSE_SECONDS = 0.5
ACCEPT_RETRY_SECONDS = 0.05
"""When the listener looks again for a descriptor that another's connection was asked to give back."""
HOLDER_PATIENCE_SECONDS = 10.0
STALL_SECONDS = 2.0
"""How long a stop waits for a client that takes nothing of the answers that it is owed."""
STALL_LOOK_SECONDS = 0.1
DESCRIPTORS_KEPT = 128
"""File descriptors that stay for the logs when connections have taken the others."""
DESCRIPTORS_MIN = 256
"""What a broker has to be allowed in all, so that some are left for clients."""
TOO_MANY = "max.connections is exceeded, and it was silent for longest"
EVERY_INTERFACE = "every interface"
_NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


@dataclass(frozen=True, slots=True)
class Limits:
    """What one listener allows; bytes and counts, None for no limit."""

    request_bytes_max: int
    idle_seconds_max: float | None
    connections_max: int
    connections_per_ip_max: int
    backlog: int
    send_buffer_bytes: int | None
    receive_buffer_bytes: int | None
    creation_rate_max: int = UNLIMITED
    connections_of_ip_max: Mapping[str, int] = field(default_factory=dict)
    """Of some addresses, in place of `connections_per_ip_max`."""

    @classmethod
    def of(cls, config: BrokerConfig, listener: str) -> "Limits":
        """What the settings say of a listener."""
        idle_ms = config["connections.max.idle.ms"]
        send, receive = config["socket.send.buffer.bytes"], config["socket.receive.buffer.bytes"]
        return cls(
            request_bytes_max=config["socket.request.max.bytes"],
            idle_seconds_max=idle_ms / 1000 if idle_ms >= 0 else None,
            connections_max=config.of_listener(listener, "max.connections"),
            connections_per_ip_max=config["max.connections.per.ip"],
            backlog=config["socket.listen.backlog.size"],
            send_buffer_bytes=send if send > 0 else None,
            receive_buffer_bytes=receive if receive > 0 else None,
            creation_rate_max=config.of_listener(listener, "max.connection.creation.rate"),
            connections_of_ip_max=parse_per_ip(config["max.connections.per.ip.overrides"]),
        )


def why_not(problem: OSError | ValueError) -> str:
    """Why an address cannot be listened at, in words for whoever chose it."""
    if isinstance(problem, socket.gaierror | ValueError):  # ValueError: no resolver can be asked for such a name
        return "the name is not known"
    if problem.errno == errno.EADDRINUSE:
        return "the port is in use: stop the program that listens there, or choose another"
    return os.strerror(problem.errno or errno.EIO).lower()


def descriptors_for_logs() -> int:
    """How many descriptors the logs may have, so that the others are there for connections and for short uses."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed < 0:
        return 0
    return max(allowed - allowed // CONNECTIONS_SHARE - DESCRIPTORS_KEPT, DESCRIPTORS_MIN // CONNECTIONS_SHARE)


async def address_of(host: str) -> str:
    """The address of a host, IPv4 if it has one: one that is none yet is looked up on a thread, for whoever is asked
    may take his time. Raises OSError, ValueError."""
    if host in EVERY_ADDRESS or ":" in host:
        return host
    with contextlib.suppress(OSError):
        return socket.inet_ntoa(socket.inet_aton(host))
    found = await asyncio.to_thread(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
    return str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])


class Peer(Protocol):
    """A live connection, as its listener sees it."""

    caller: Caller
    last_active: float

    def finish(self) -> None: ...
    def close(self, reason: str, level: int = ...) -> None: ...


class Listener:
    """One endpoint: its name, its bound address and its live connections."""

    responder: Responder
    bridge: Bridge | None = None  # to the native plane, which then owns the sockets

    free: Callable[[str], bool] | None = None  # which principals nobody asks for their rights; None: no one is asked

    def __init__(
        self,
        name: str,
        pool: Pool,
        limits: Limits,
        quotas: Quotas | None = None,
        logins: Logins | None = None,
        tls: Tls | None = None,
    ) -> None:
        """`quotas`: what it counts together with others, if there are any; `logins`: where clients have to log in;
        `tls`: what it speaks TLS by."""
        self.name = name
        self.pool = pool
        self.limits = limits
        self.request_bytes_max = limits.request_bytes_max
        self.loop = asyncio.get_running_loop()
        self.scratch = memoryview(bytearray(RECEIVE_BYTES))
        self.closing = False
        self.closings = Closings()
        self.host, self.port = "", 0
        self._sock: socket.socket | None = None
        self._connections: set[Peer] = set()
        self._quotas = quotas or Quotas()
        self._logins = logins
        self.tls = tls
        self._endings = Endings(name)
        self._pending = PendingLogins()
        self._held = Held(self.loop)
        self._rests_until = 0.0  # connections came too fast
        self._accepting = False
        self._told_full_s = -inf  # when it was last logged that accepting is paused
        self._hurried = False
        self._timer: asyncio.TimerHandle | None = None
        self._resumption: asyncio.TimerHandle | None = None
        self._empty: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def pending(self) -> PendingLogins:
        """Who is there and not logged in yet."""
        return self._pending

    # -- life ------------------------------------------------------------------------------------------------------

    @property
    def is_bound(self) -> bool:
        return self._sock is not None

    def bind(self, host: str, port: int, address: str | None = None) -> None:
        """Bind and listen, without accepting yet; an empty host is every interface. `address` is that of a host that is
        a name. Raises OSError."""
        address = host if address is None else address
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        if not host:
            family, address = (socket.AF_INET6, "::") if socket.has_dualstack_ipv6() else (socket.AF_INET, "")
        self._sock = sock = socket.socket(family, socket.SOCK_STREAM)
        forks.tell(self)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if not host and family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            if self.limits.receive_buffer_bytes:  # before listen: an accepted socket inherits its window scale
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.limits.receive_buffer_bytes)
            sock.setblocking(False)
            sock.bind((address, port))
            sock.listen(self.limits.backlog)
        except BaseException:
            sock.close()
            self._sock = None
            raise
        self.host, self.port = host, sock.getsockname()[1]

    def is_in_the_way(self, address: str, port: int) -> bool:
        """Can nobody listen at this address as long as it is bound?"""
        if self._sock is None or port != self.port:
            return False
        mine = self._sock.getsockname()[0]
        return address in EVERY_ADDRESS or mine in EVERY_ADDRESS or address == mine

    def open(self, responder: Responder) -> None:
        """Begin to accept, and have requests executed by `responder`."""
        self.responder = responder
        self._tell_if_reachable()
        self._resume()
        self._tend()

    def _tell_if_reachable(self) -> None:
        """Say so where other machines can connect: nobody is asked who they are."""
        assert self._sock is not None
        address = self._sock.getsockname()[0]
        knows = self._logins is not None or (self.tls is not None and self.tls.context.verify_mode == ssl.CERT_REQUIRED)
        if not knows and address != "::1" and not address.startswith("127."):
            event(
                log,
                logging.WARNING,
                "listener without authentication",
                listener=self.name,
                address=EVERY_INTERFACE if address in ("::", "0.0.0.0") else address,
                port=self.port,
                reason="anyone who can connect to it can read, write and delete every topic",
            )

    def finish(self) -> None:
        """Accept no more, hang up on who is not logged in yet, and let the others end once they are owed nothing."""
        self.stop_accepting()
        self.closing = True
        for connection in list(self._connections):
            connection.finish()

    async def close(self, timeout_seconds: float, reason: str = "the broker stops") -> None:
        """Accept no more, let the running requests end within the time, close every connection."""
        self.finish()
        self._empty = self.loop.create_future()
        ends = self.loop.time() + timeout_seconds
        while self._connections and not self._hurried and (left := ends - self.loop.time()) > 0:
            await asyncio.wait([self._empty], timeout=min(left, STALL_LOOK_SECONDS))
            for peer in list(self._connections):
                if isinstance(peer, Connection) and peer.stalls(STALL_SECONDS):
                    peer.close(f"{reason}, and it did not read its answers")
        for connection in list(self._connections):
            connection.close(reason, logging.INFO)
        self._held.close()
        self.closings.close()

    def disconnect(self) -> None:
        """Close the connections that there are, and go on accepting."""
        for connection in list(self._connections):
            connection.close("it was asked for", logging.INFO)

    def limit(self, limits: Limits) -> None:
        """Accept by other limits from now on; what cannot change while the broker runs is what it was."""
        self.limits = replace(
            self.limits,
            connections_max=limits.connections_max,
            connections_per_ip_max=limits.connections_per_ip_max,
            creation_rate_max=limits.creation_rate_max,
            connections_of_ip_max=limits.connections_of_ip_max,
        )
        self._resume()

    def close_longest_silent(self, count: int) -> int:
        """Close so many connections, at first those of clients that are not logged in yet; how many were. Those of the
        native plane are not among them."""
        peers = [peer for peer in self._connections if isinstance(peer, Connection | Login | TlsHandshake)]
        peers.sort(key=lambda peer: (isinstance(peer, Connection), peer.last_active))
        for peer in peers[:count]:
            peer.close(TOO_MANY)
        return len(peers[:count])

    def abandon(self) -> None:
        """Wait for no running request: close() comes to its end at once."""
        self._hurried = True
        if self._empty and not self._empty.done():
            self._empty.set_result(None)

    def stop_accepting(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._pause()
        self._resume_in(None)
        if self._sock:
            forks.hang_up(self._sock)
            self._sock = None

    def forked(self) -> None:
        """In a forked child: the sockets are the parent's."""
        if self._sock:
            self._sock.close()
        for connection in self._connections:
            if isinstance(connection, Connection | Login | TlsHandshake):  # the plane sees to its own
                connection.forked()
        self._held.forked()

    # -- accepting -------------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Accept, or go on with it; not before connections that came too fast have had their rest."""
        if not self._sock or self._accepting:
            return
        rest = self._rests_until - self.loop.time()
        if rest > 0:
            self._resume_in(rest)
            return
        self._resume_in(None)
        self._accepting = True
        self.loop.add_reader(self._sock.fileno(), self._accept)

    def _resume_in(self, seconds: float | None) -> None:
        """Have it called then, in place of what was said before; None: by no timer."""
        if self._resumption is not None:
            self._resumption.cancel()
        self._resumption = None if seconds is None else self.loop.call_later(seconds, self._resume)

    def _pause(self) -> None:
        if self._sock and self._accepting:
            self._accepting = False
            self.loop.remove_reader(self._sock.fileno())

    def _accept(self) -> None:
        """Take what waits; where there is no room, or no descriptor to spare, leave it in the backlog for a while."""
        for _ in range(ACCEPTS_PER_TURN):
            if not self._accepting:
                return
            assert self._sock is not None
            try:
                if not self._has_room():
                    return
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as problem:
                if problem.errno not in _NO_DESCRIPTORS:
                    raise
                self._wait_for_room(str(problem))
                return
            self._admit(sock, address[0], address[1])

    def _has_room(self) -> bool:
        """May one more connection be taken? If not, accepting is paused. Raises OSError without a descriptor."""
        reason = self._quotas.full(self.name, self.limits.connections_max)
        if reason is None and len(self._pending) >= self._quotas.logins_max(self.limits.connections_max):
            reason = "too many clients are not logged in yet"
        if reason is None and not self._may_take_a_descriptor():
            reason = "the other file descriptors are kept for the logs"
            if self.name == self._quotas.spared and self._quotas.close_longest_silent(1):
                self._wait_for_room(reason, ACCEPT_RETRY_SECONDS)
                return False
        if reason is None or not (wait := self._pending.make_room(self.loop.time(), len(self._quotas.per_host))):
            return True
        self._wait_for_room(reason, min(wait, ACCEPT_PAUSE_SECONDS))
        return False

    def _may_take_a_descriptor(self) -> bool:
        """Is the next one none of those that are kept? Asked before a connection is taken, which would be reset: in the
        backlog it waits. Raises OSError where there is none."""
        assert self._sock is not None
        following = os.dup(self._sock.fileno())
        os.close(following)
        return following < resource.getrlimit(resource.RLIMIT_NOFILE)[0] - DESCRIPTORS_KEPT

    def _wait_for_room(self, reason: str, seconds: float = ACCEPT_PAUSE_SECONDS) -> None:
        """Stop accepting until a connection ends, or for a moment; logged once a minute."""
        now = self.loop.time()
        if now - self._told_full_s >= SILENT_SECONDS:
            self._told_full_s = now
            event(log, logging.WARNING, "accepting paused", listener=self.name, reason=reason,
                  connections=self._quotas.count)  # fmt: skip
        self._pause()
        self._quotas.wait(self._resume)
        self._resume_in(seconds)

    def _admit(self, sock: socket.socket, host: str, port: int) -> None:
        if host.startswith("::ffff:"):
            host = host.removeprefix("::ffff:")
        most = self.limits.connections_of_ip_max.get(host, self.limits.connections_per_ip_max)
        if self._quotas.per_host[host] >= most:
            forks.hang_up(sock)
            reason = f"max.connections.per.ip is {most}"
            self.closings.tell("connection refused", Caller(host, port, self.name), reason, self.loop.time())
            return
        now = self.loop.time()
        if seconds := self._quotas.addresses.over(host, now):
            self._held.add(sock, seconds)
            reason = "connection_creation_rate of its address is exceeded"
            self.closings.tell("connection refused", Caller(host, port, self.name), reason, now)
            return
        if seconds := self._quotas.created(self.name, self.limits.creation_rate_max, now):
            self._rests_until = now + seconds
            self._pause()
            self._resume()
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self.limits.send_buffer_bytes:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.limits.send_buffer_bytes)
        except OSError:  # it is gone already
            sock.close()
            return
        caller = Caller(host, port, self.name)
        if self.tls is None:
            self._identify(sock, caller)
        else:
            self._add(TlsHandshake(self, sock, caller, self.tls, self._identify))

    def _identify(self, sock: socket.socket | Stream, caller: Caller) -> None:
        """Have a client log in, if clients have to."""
        if self._logins is None:
            self._take(sock, caller)
        else:
            self._add(Login(self, sock, caller, self._logins, self._take))

    def _take(self, sock: socket.socket | Stream, caller: Caller) -> None:
        """Execute what a client asks, who is known."""
        bridge = self.bridge
        judged = self.free is not None and not self.free(caller.principal)
        if bridge is None or isinstance(sock, SslStream):
            self._add(Connection(self, sock, caller))
        else:
            self._add(bridge.adopt(sock, caller, self.forget, judged=judged))

    def _add(self, peer: Peer) -> None:
        self._connections.add(peer)
        if isinstance(peer, Login | TlsHandshake):
            self._pending.add(peer.caller.host, peer)
        self._quotas.add(peer.caller.host, self.name)
        if self.name == self._quotas.spared:
            self._quotas.make_room(self.loop.time())

    def forget(self, connection: Peer) -> None:
        """A connection closed itself."""
        self._connections.discard(connection)
        self._pending.discard(connection.caller.host, connection)
        self._quotas.remove(connection.caller.host, self.name)
        if self._empty and not self._connections and not self._empty.done():
            self._empty.set_result(None)

    # -- tending ---------------------------------------------------------------------------------------------------

    def _tend(self) -> None:
        """Close what is idle, and what holds the memory pool's last place without getting on."""
        now = self.loop.time()
        self.closings.tend(now)
        if self.tls is not None:
            self._endings.tell(self.tls.context, wall_ms())
        self._quotas.make_room(now)
        idle = self.limits.idle_seconds_max
        if idle is not None:
            for connection in [c for c in self._connections if now - c.last_active > idle]:
                connection.close(f"idle for more than {idle:g} s", logging.DEBUG)
        stuck = self.pool.overdue(now, HOLDER_PATIENCE_SECONDS)
        if isinstance(stuck, Connection) and stuck in self._connections:
            stuck.close("it was too slow with a request while memory is short")
        self._timer = self.loop.call_later(min(1.0, idle / 4) if idle else 1.0, self._tend)
