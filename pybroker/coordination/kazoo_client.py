"""kazoo's client, as a session of ours needs it: what the server grants, soon another try, TLS and a login.

    connect --> TLS --> session --> SASL --> CONNECTED, and requests
       |         |         |         |
       +---------+---------+---------+--> the next server: a login that is refused ends no session, which may go on
                                          as soon as it is not

kazoo has a login of its own: it comes after CONNECTED, and takes a connection that breaks meanwhile for a refusal.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped
from kazoo.protocol.connection import PING_XID
from kazoo.protocol.serialization import SASL

from pybroker.clock import boot_ms
from pybroker.security.digest_md5 import DigestError, DigestMd5

from .kazoo_handler import OneThread, Patience
from .zookeeper_access import Access, Login

READ_SHARE: Final = 2 / 3
"""Of the timeout that the server granted: how long kazoo waits for something to read."""
ASKS: Final = 6
"""How often in a session's timeout it is asked: a handshake is waited for about as long at first."""
HANDSHAKE_S_MIN: Final = 1.0
HANDSHAKE_S_MAX: Final = 60.0
"""Or the session's timeout, if that is longer: what it grows to while no server answers."""
RETRY: Final = {"max_tries": -1, "delay": 0.02, "backoff": 2, "max_delay": 1.0}
"""How kazoo comes back when a connection breaks: soon at first, for the session's time runs."""
DIGEST_URI: Final = "zookeeper/zk-sasl-md5"
"""The same for every server: ZooKeeper's SecurityUtils has it so for DIGEST-MD5."""
NO_SASL: Final = "takes no part in a login by DIGEST-MD5: perhaps its JAAS file has no section Server"


class Client(KazooClient):  # type: ignore[misc]
    """A client of ZooKeeper. `refused` says why the server refuses it, "" if it does not. Both callbacks run on kazoo's
    thread: `on_refused` when the server refuses, `on_answer` with the time at which an answered ping was sent."""

    def __init__(
        self,
        hosts: str,
        timeout_ms: int,
        access: Access,
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
        logger.setLevel(logging.ERROR)  # each host that is tried, it tells: what counts, the states say
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
        """Hear what the server grants, at each connection: kazoo tells how long it will read, which is a share of it.

        A server that starts may take a connection and never answer on it, and kazoo waits for a share of the session:
        the next try, or the next server, comes sooner."""
        connect, invoke = self._connection._connect, self._connection._invoke

        def invoke_soon(timeout_s: float, *arguments: Any, **named: Any) -> Any:
            bound_s = self._patience.take(timeout_s)
            found = invoke(bound_s, *arguments, **named)
            if self._login is not None and found[0].time_out > 0:  # 0: the session has expired
                self._log_in(self._login, bound_s)
            self._patience.met()
            return found

        def connect_and_tell(*arguments: Any) -> tuple[float, float]:
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

        def connect_anew(*arguments: Any) -> Any:
            sent_ms.clear()
            return connect(*arguments)

        def ping_and_note(*arguments: Any) -> None:
            sent_ms.append(boot_ms())
            ping(*arguments)

        def read_and_tell(*arguments: Any) -> Any:
            found = read_header(*arguments)
            if found[0].xid == PING_XID and sent_ms:
                self._on_answer(sent_ms.popleft())
            return found

        connection._connect, connection._send_ping = connect_anew, ping_and_note
        connection._read_header = read_and_tell

    def _log_in(self, login: Login, timeout_s: float) -> None:
        """On kazoo's thread, before it tells of the connection. Raises ConnectionDropped."""
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
        """What the server answers to a token. Raises DigestError where it refuses, ConnectionDropped."""
        connection = self._connection
        connection._submit(SASL(token), timeout_s, xid)
        header, answer, position = connection._read_header(timeout_s)
        if header.xid != xid:
            raise ConnectionDropped("something else came in place of an answer to a login")
        if header.err:
            raise DigestError("knows no such user, or another password")
        try:
            return SASL.deserialize(answer, position)[0] or b""
        except struct.error:
            raise DigestError(NO_SASL) from None

    def hang_up(self) -> None:
        """End the connection, not the session: kazoo's thread hears of it, and looks for a server."""
        with contextlib.suppress(OSError, AttributeError, TypeError):  # there is none at the moment
            # Not that of an SSLSocket, which would have kazoo take what is encrypted for what is not.
            socket.socket.shutdown(self._connection._socket, socket.SHUT_RDWR)
