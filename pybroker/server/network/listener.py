"""A listening socket: accepts within limits, lets clients log in, hands them to the plane, and closes idle ones."""

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

from pybroker import fork_safety
from pybroker.clock import wall_ms
from pybroker.config import BrokerConfig
from pybroker.config.listeners import EVERY_INTERFACE as EVERY_ADDRESS
from pybroker.config.listeners import parse_per_ip
from pybroker.decisions.caller import Caller
from pybroker.logs import event
from pybroker.security.tls import Stream
from pybroker.server.api.responder import Responder
from pybroker.server.network.certificate_expiry import Endings
from pybroker.server.network.closed_connections import SILENT_SECONDS, Closings
from pybroker.server.network.connection_quotas import CONNECTIONS_SHARE, UNLIMITED, PendingLogins, Quotas
from pybroker.server.network.connection_rates import Held
from pybroker.server.network.login import LoginConnection, Logins
from pybroker.server.network.plane import Peer, Plane
from pybroker.server.network.tls_handshake import Tls, TlsHandshake

log = logging.getLogger(__name__)

ACCEPTS_PER_TURN = 64
ACCEPT_PAUSE_SECONDS = 0.5
ACCEPT_RETRY_SECONDS = 0.05
"""Seconds until the listener retries after it asked for a connection to be closed to free a descriptor."""
DESCRIPTORS_KEPT = 128
"""File descriptors reserved for the logs when connections have taken the others."""
DESCRIPTORS_MIN = 256
"""The lowest limit of open files with which a broker starts, so that some are left for clients."""
TOO_MANY = "max.connections is exceeded, and it was silent for longest"
EVERY_INTERFACE = "every interface"
_NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """The limits of one listener, in bytes and counts; None for no limit."""

    idle_seconds_max: float | None
    connections_max: int
    connections_per_ip_max: int
    backlog: int
    send_buffer_bytes: int | None
    receive_buffer_bytes: int | None
    creation_rate_max: int = UNLIMITED
    connections_of_ip_max: Mapping[str, int] = field(default_factory=dict)
    """Overrides of `connections_per_ip_max`, by address."""

    @classmethod
    def of(cls, config: BrokerConfig, listener: str) -> "ListenerLimits":
        """The limits of a listener by the settings."""
        idle_ms = config["connections.max.idle.ms"]
        send, receive = config["socket.send.buffer.bytes"], config["socket.receive.buffer.bytes"]
        return cls(
            idle_seconds_max=idle_ms / 1000 if idle_ms >= 0 else None,
            connections_max=config.of_listener(listener, "max.connections"),
            connections_per_ip_max=config["max.connections.per.ip"],
            backlog=config["socket.listen.backlog.size"],
            send_buffer_bytes=send if send > 0 else None,
            receive_buffer_bytes=receive if receive > 0 else None,
            creation_rate_max=config.of_listener(listener, "max.connection.creation.rate"),
            connections_of_ip_max=parse_per_ip(config["max.connections.per.ip.overrides"]),
        )


def descriptors_for_logs() -> int:
    """The number of file descriptors for logs; the others are for connections and short uses. 0 for no limit."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed < 0:
        return 0
    return max(allowed - allowed // CONNECTIONS_SHARE - DESCRIPTORS_KEPT, DESCRIPTORS_MIN // CONNECTIONS_SHARE)


async def address_of(host: str) -> str:
    """The address of a host, IPv4 if it has one. Names are resolved on a thread, as that may take long. Raises OSError,
    ValueError."""
    if host in EVERY_ADDRESS or ":" in host:
        return host
    with contextlib.suppress(OSError):
        return socket.inet_ntoa(socket.inet_aton(host))
    found = await asyncio.to_thread(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
    return str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])


class Listener:
    """One listener: its name, its bound address and its live connections."""
    responder: Responder
    plane: Plane | None = None  # while the listener is open
    free: Callable[[str], bool] | None = None  # True for principals that need no authorization; None: no authorizer

    def __init__(
        self,
        name: str,
        limits: ListenerLimits,
        quotas: Quotas | None = None,
        logins: Logins | None = None,
        tls: Tls | None = None,
    ) -> None:
        """`quotas`: connection counts shared with other listeners; `logins`: None if clients do not log in; `tls`: None
        without TLS."""
        self.name = name
        self.limits = limits
        self.loop = asyncio.get_running_loop()
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
        """The connections in a login or handshake."""
        return self._pending

    # -- life ------------------------------------------------------------------------------------------------------

    @property
    def is_bound(self) -> bool:
        return self._sock is not None

    def bind(self, host: str, port: int, address: str | None = None) -> None:
        """Bind and listen, without accepting yet; an empty host is every interface. `address`: the resolved address if
        the host is a name. Raises OSError."""
        address = host if address is None else address
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        if not host:
            family, address = (socket.AF_INET6, "::") if socket.has_dualstack_ipv6() else (socket.AF_INET, "")
        self._sock = sock = socket.socket(family, socket.SOCK_STREAM)
        fork_safety.tell(self)
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
        """True if this listener's bound socket prevents binding this address."""
        if self._sock is None or port != self.port:
            return False
        mine = self._sock.getsockname()[0]
        return address in EVERY_ADDRESS or mine in EVERY_ADDRESS or address == mine

    def open(self, responder: Responder, plane: Plane) -> None:
        """Begin to accept: `responder` executes requests before the login, then `plane` serves the client."""
        self.responder, self.plane = responder, plane
        self._tell_if_reachable()
        self._resume()
        self._tend()

    def _tell_if_reachable(self) -> None:
        """Warn if other machines can connect without authentication."""
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
        """Stop accepting, close connections that have not logged in, and let the others finish their responses."""
        self.stop_accepting()
        for connection in list(self._connections):
            connection.finish()

    async def close(self, timeout_seconds: float, reason: str = "the broker stops") -> None:
        """Stop accepting, wait for running requests until the timeout, then close every connection."""
        self.finish()
        self._empty = self.loop.create_future()
        if self._connections and not self._hurried:
            await asyncio.wait([self._empty], timeout=timeout_seconds)
        for connection in list(self._connections):
            connection.close(reason, logging.INFO)
        self._held.close()
        self.closings.close()

    def disconnect(self) -> None:
        """Close all current connections, and continue accepting."""
        for connection in list(self._connections):
            connection.close("disconnect was requested", logging.INFO)

    def limit(self, limits: ListenerLimits) -> None:
        """Apply new limits; those that cannot change while the broker runs stay."""
        self.limits = replace(
            self.limits,
            connections_max=limits.connections_max,
            connections_per_ip_max=limits.connections_per_ip_max,
            creation_rate_max=limits.creation_rate_max,
            connections_of_ip_max=limits.connections_of_ip_max,
        )
        self._resume()

    def close_longest_silent(self, count: int) -> int:
        """Close up to `count` connections of clients that have not logged in; return how many."""
        peers = [peer for peer in self._connections if isinstance(peer, LoginConnection | TlsHandshake)]
        peers.sort(key=lambda peer: peer.last_active)
        for peer in peers[:count]:
            peer.close(TOO_MANY)
        return len(peers[:count])

    def abandon(self) -> None:
        """Do not wait for running requests: close() ends at once."""
        self._hurried = True
        if self._empty and not self._empty.done():
            self._empty.set_result(None)

    def stop_accepting(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._pause()
        self._resume_in(None)
        if self._sock:
            fork_safety.hang_up(self._sock)
            self._sock = None

    def forked(self) -> None:
        """Close this process's copies of the sockets, in a forked child."""
        if self._sock:
            self._sock.close()
        for connection in self._connections:
            connection.forked()
        self._held.forked()

    # -- accepting -------------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Begin or continue to accept, after the pause that the connection creation rate requires."""
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
        """Schedule `_resume`, replacing an earlier timer; None: without a timer."""
        if self._resumption is not None:
            self._resumption.cancel()
        self._resumption = None if seconds is None else self.loop.call_later(seconds, self._resume)

    def _pause(self) -> None:
        if self._sock and self._accepting:
            self._accepting = False
            self.loop.remove_reader(self._sock.fileno())

    def _accept(self) -> None:
        """Accept pending connections; without room or free descriptors leave them in the backlog for a while."""
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
        """True if another connection may be accepted; else pause accepting. Raises OSError without a descriptor."""
        reason = self._quotas.full(self.name, self.limits.connections_max)
        if reason is None and len(self._pending) >= self._quotas.logins_max(self.limits.connections_max):
            reason = "too many clients have not logged in yet"
        if reason is None and not self._may_take_a_descriptor():
            reason = "the remaining file descriptors are reserved for the logs: raise ulimit -n"
            if self.name == self._quotas.spared and self._quotas.close_longest_silent(1):
                self._wait_for_room(reason, ACCEPT_RETRY_SECONDS)
                return False
        if reason is None or not (wait := self._pending.make_room(self.loop.time(), len(self._quotas.per_host))):
            return True
        self._wait_for_room(reason, min(wait, ACCEPT_PAUSE_SECONDS))
        return False

    def _may_take_a_descriptor(self) -> bool:
        """True if the next descriptor is not a reserved one. Checked before accept: a connection in the backlog waits,
        but an accepted one would have to be reset. Raises OSError if there is no descriptor."""
        assert self._sock is not None
        following = os.dup(self._sock.fileno())
        os.close(following)
        return following < resource.getrlimit(resource.RLIMIT_NOFILE)[0] - DESCRIPTORS_KEPT

    def _wait_for_room(self, reason: str, seconds: float = ACCEPT_PAUSE_SECONDS) -> None:
        """Pause accepting until a connection ends, or for `seconds`; log it once a minute."""
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
            fork_safety.hang_up(sock)
            reason = f"max.connections.per.ip is {most}"
            self.closings.tell("connection refused", Caller(host, port, self.name), reason, self.loop.time())
            return
        now = self.loop.time()
        if seconds := self._quotas.addresses.over(host, now):
            self._held.add(sock, seconds)
            reason = "quota connection_creation_rate of the client's address is exceeded"
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
        except OSError:  # the client has disconnected
            sock.close()
            return
        caller = Caller(host, port, self.name)
        if self.tls is None:
            self._identify(sock, caller)
        else:
            self._add(TlsHandshake(self, sock, caller, self.tls, self._identify))

    def _identify(self, sock: socket.socket | Stream, caller: Caller) -> None:
        """Let a client log in, if clients have to."""
        if self._logins is None:
            self._take(sock, caller)
        else:
            self._add(LoginConnection(self, sock, caller, self._logins, self._take))

    def _take(self, sock: socket.socket | Stream, caller: Caller) -> None:
        """Hand a client to the plane, after its login."""
        assert self.plane is not None
        judged = self.free is not None and not self.free(caller.principal)
        self._add(self.plane.adopt(sock, caller, self.forget, judged=judged))

    def _add(self, peer: Peer) -> None:
        self._connections.add(peer)
        if isinstance(peer, LoginConnection | TlsHandshake):
            self._pending.add(peer.caller.host, peer)
        self._quotas.add(peer.caller.host, self.name)
        if self.name == self._quotas.spared:
            self._quotas.make_room(self.loop.time())

    def forget(self, connection: Peer) -> None:
        """Remove a connection that has ended."""
        self._connections.discard(connection)
        self._pending.discard(connection.caller.host, connection)
        self._quotas.remove(connection.caller.host, self.name)
        if self._empty and not self._connections and not self._empty.done():
            self._empty.set_result(None)

    # -- tending ---------------------------------------------------------------------------------------------------

    def _tend(self) -> None:
        """Close idle connections that are not the plane's, and run periodic checks, once a second."""
        now = self.loop.time()
        self.closings.tend(now)
        if self.tls is not None:
            self._endings.tell(self.tls.context, wall_ms())
        self._quotas.make_room(now)
        idle = self.limits.idle_seconds_max
        if idle is not None:
            for connection in [c for c in self._connections if now - c.last_active > idle]:
                connection.close(f"idle for more than {idle:g} s", logging.DEBUG)
        self._timer = self.loop.call_later(min(1.0, idle / 4) if idle else 1.0, self._tend)
