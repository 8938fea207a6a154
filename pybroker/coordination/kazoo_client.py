"""kazoo's client with what our sessions need besides: the granted timeout, quick retries, TLS and a SASL login.

    connect --> TLS --> session --> SASL --> CONNECTED, and requests
       |         |         |         |
       +---------+---------+---------+--> the next server. A refused login does not end the session, which continues
                                          as soon as a login succeeds

kazoo's own SASL login runs after CONNECTED, and takes a connection that breaks during the login for a refusal.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Final

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped
from kazoo.protocol.connection import PING_XID
from kazoo.protocol.serialization import SASL

from pybroker.clock import boot_ms
from pybroker.security.digest_md5 import DigestError, DigestMd5

from .kazoo_handler import OneThread, Patience
from .zookeeper_access import ZooKeeperAccess, ZooKeeperLogin

READ_SHARE: Final = 2 / 3
"""kazoo's read timeout, as a share of the session timeout that the server granted."""
ASKS: Final = 6
"""Requests that a session sends per session timeout. The first handshake timeout is one such interval."""
HANDSHAKE_S_MIN: Final = 1.0
HANDSHAKE_S_MAX: Final = 60.0
"""The handshake timeout grows up to this, or to the session timeout if that is longer, while no server answers."""
RETRY: Final = {"max_tries": -1, "delay": 0.02, "backoff": 2, "max_delay": 1.0}
"""kazoo's reconnect policy: soon at first, since the session timeout is running."""
DIGEST_URI: Final = "zookeeper/zk-sasl-md5"
"""The same for every server, as in ZooKeeper's SecurityUtils for DIGEST-MD5."""
NO_SASL: Final = "does not offer a login by DIGEST-MD5: perhaps its JAAS file has no section Server"


class ZooKeeperClient(KazooClient):  # type: ignore[misc]
    """A client of ZooKeeper. `refused` says why the server refuses it, "" if it does not. Both callbacks run on kazoo's
    thread: `on_refused` when the server refuses, `on_answer` with the time at which an answered ping was sent."""

    def __init__(
        self,
        hosts: str,
        timeout_ms: int,
        access: ZooKeeperAccess,
        on_refused: Callable[[], object],
        on_answer: Callable[[int], object] = lambda sent_ms: None,
    ) -> None:
        self.granted_ms = timeout_ms
        self.refused = ""
        self._login = access.login
        self._on_refused = on_refused
        self._on_answer = on_answer
        least_s, most_s = max(HANDSHAKE_S_MIN, timeout_ms / 1000 / ASKS), max(HANDSHAKE_S_MAX, timeout_ms / 1000)
        self._patience = Patience(least_s, most_s)
        logger = logging.getLogger("pybroker.coordination.kazoo")
        logger.setLevel(logging.ERROR)  # below it, kazoo logs each host that it tries
        super().__init__(
            hosts,
            timeout=timeout_ms / 1000,
            handler=OneThread(access.tls, self._patience),
            connection_retry=RETRY,
            logger=logger,
        )
        self._watch_handshake()
        self._watch_pings()

    def _watch_handshake(self) -> None:
        """Note the timeout that the server grants at each connection: kazoo returns a read timeout, a share of it.

        A server that is starting may accept a connection and never answer on it. kazoo would wait for a share of the
        session timeout; with the shorter handshake timeout, it tries the next server sooner."""
        connect, invoke = self._connection._connect, self._connection._invoke

        def invoke_soon(timeout_s: float, *arguments: object, **named: object) -> object:
            bound_s = self._patience.take(timeout_s)
            found = invoke(bound_s, *arguments, **named)
            if self._login is not None and found[0].time_out > 0:  # 0: the session has expired
                self._log_in(self._login, bound_s)
            self._patience.met()
            return found

        def connect_and_tell(*arguments: object) -> tuple[float, float]:
            read_timeout_ms, connect_timeout_ms = connect(*arguments)
            self.granted_ms = round(read_timeout_ms / READ_SHARE)
            return read_timeout_ms, connect_timeout_ms

        self._connection._connect = connect_and_tell
        self._connection._invoke = invoke_soon

    def _watch_pings(self) -> None:
        """Call `on_answer` for each answered ping: kazoo sends pings when it is idle for a third of a session."""
        connection = self._connection
        connect, ping, read_header = connection._connect, connection._send_ping, connection._read_header
        sent_ms: deque[int] = deque()

        def connect_anew(*arguments: object) -> object:
            sent_ms.clear()
            return connect(*arguments)

        def ping_and_note(*arguments: object) -> None:
            sent_ms.append(boot_ms())
            ping(*arguments)

        def read_and_tell(*arguments: object) -> object:
            found = read_header(*arguments)
            if found[0].xid == PING_XID and sent_ms:
                self._on_answer(sent_ms.popleft())
            return found

        connection._connect, connection._send_ping = connect_anew, ping_and_note
        connection._read_header = read_and_tell

    def _log_in(self, login: ZooKeeperLogin, timeout_s: float) -> None:
        """Log in, on kazoo's thread, before kazoo reports CONNECTED. Raises ConnectionDropped."""
        digest = DigestMd5(login.user, login.password, DIGEST_URI)
        try:
            challenge = self._say(1, b"", timeout_s)
            if not challenge:
                raise DigestError(NO_SASL)
            digest.check(self._say(2, digest.respond(challenge), timeout_s))
        except DigestError as problem:
            self.refused = str(problem)
            self._on_refused()
            raise ConnectionDropped(self.refused) from None
        self.refused = ""

    def _say(self, xid: int, token: bytes, timeout_s: float) -> bytes:
        """Send a SASL token and return the server's answer. Raises DigestError if it refuses, ConnectionDropped."""
        connection = self._connection
        connection._submit(SASL(token), timeout_s, xid)
        header, answer, position = connection._read_header(timeout_s)
        if header.xid != xid:
            raise ConnectionDropped(f"the answer to the login has xid {header.xid}, not {xid}")
        if header.err:
            raise DigestError("does not know the user, or the password is wrong")
        try:
            return SASL.deserialize(answer, position)[0] or b""
        except struct.error:
            raise DigestError(NO_SASL) from None

    def hang_up(self) -> None:
        """End the connection, not the session: kazoo's thread then connects to a server again."""
        with contextlib.suppress(OSError, AttributeError, TypeError):  # there is no connection at the moment
            # Not SSLSocket.shutdown, which drops its TLS state: kazoo would read ciphertext as plain text.
            socket.socket.shutdown(self._connection._socket, socket.SHUT_RDWR)
