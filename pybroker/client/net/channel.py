"""One connection of a loop to one broker: any number of requests under way, answered in their order.

    idle --send--> connecting --> greeting --versions known--> (login) <-> ready --any failure--> idle
      ^                |              |                           |                                |
      +---- backoff ---+--------------+---------------------------+--------------------------------+

A request that comes before `ready` waits for it. A failure fails all that wait or are under way, each by its own call;
the next request connects again, after a pause that doubles up to a limit. Everything here runs on the loop's thread.
"""

import contextlib
import errno
import os
import socket
import time
from collections import deque
from functools import partial
from typing import Final, NamedTuple

from pybroker import __version__, errors
from pybroker.client.net.connection import (
    ANSWERED,
    CLIENT_ID,
    GREETED,
    REACHED,
    SERVED,
    agreed_version,
    connection_lost,
    no_address,
)
from pybroker.client.net.logins import ChannelLogins
from pybroker.client.net.loop import READ, WRITE, Address, Loop, Timer
from pybroker.client.net.requests import PLAIN, Answered, Done, Parcel, RequestOptions, RetryBackoff, complete
from pybroker.client.security.tls import ClientTls
from pybroker.errors import KafkaError
from pybroker.model import HostPort
from pybroker.protocol import apis, codec
from pybroker.protocol import messages as m
from pybroker.protocol.apis import Api
from pybroker.protocol.frames import SIZE, frame_size, nonsense, read_answer
from pybroker.protocol.message import Bytes, Message, R, Request, Sliced
from pybroker.security.login import Account
from pybroker.security.tls import SslStream, Stream, secure

HEAD_BYTES: Final = 1 << 16
"""The receive buffer: frames that fit are parsed in it, a larger one gets a buffer of its own."""

_VIEWS_MAX: Final = 64  # per sendmsg


def _view(part: Bytes | Sliced) -> memoryview:
    if isinstance(part, Parcel):
        return part.data
    return memoryview(part if isinstance(part, bytes | bytearray | memoryview) else part.tobytes())


class _SentRequest(NamedTuple):
    """A request under way."""

    api: Api
    version: int
    correlation_id: int
    done: Done
    due_s: float
    timeout_s: float


class ClientChannel:
    """A connection that is opened when it is needed, and again after it was lost."""

    def __init__(
        self,
        loop: Loop,
        host: str,
        port: int,
        *,
        client_id: str,
        timeout_s: float,
        pauses: RetryBackoff,
        account: Account | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self.host, self.port = host, port
        self.address = str(HostPort(host, port))
        self._tls = tls
        self._stream: Stream | None = None
        """TLS on the socket: all bytes pass through it."""
        self._encrypting = False
        """True during the TLS handshake."""
        self.client_id = client_id
        self.timeout_s = timeout_s
        self.ready = self._served = False
        self.asked: deque[_SentRequest] = deque()
        self._loop = loop
        self._logins = None if account is None else ChannelLogins(loop, account, self)
        self._pauses = pauses
        self._failures = 0
        self._not_before_s = 0.0
        self._waiting: deque[tuple[Request[Message], Done, RequestOptions]] = deque()
        self._versions: dict[int, tuple[int, int]] = {}
        self._correlation_id = 0
        self._socket: socket.socket | None = None
        self._addresses: list[Address] = []
        self._muted = False  # by a throttle time (KIP-219)
        self._timer: Timer | None = None
        self._opening: Timer | None = None
        self._lookup: object | None = None
        """The name look-up under way."""
        self._out: deque[memoryview | Done] = deque()  # with calls to make once the bytes before them are sent
        self._events = 0
        self._head = bytearray(HEAD_BYTES)
        self._head_view = memoryview(self._head)
        self._have = 0
        self._frame: memoryview | None = None
        self._filled = 0

    @property
    def load(self) -> int:
        """The number of requests that wait or are under way."""
        return len(self.asked) + len(self._waiting) + sum(not isinstance(item, memoryview) for item in self._out)

    @property
    def failing(self) -> bool:
        """True during the pause after a failure."""
        return self._socket is None and time.monotonic() < self._not_before_s

    def send(self, message: Request[R], done: Answered[R], how: RequestOptions = PLAIN) -> None:
        """Send a request at the highest common version."""
        if self.ready and not self._muted:
            self._send(message, done, how)
            return
        self._waiting.append((message, done, how))
        if self._socket is None and self._opening is None and self._lookup is None:
            self._opening = self._loop.call_later(max(0.0, self._not_before_s - time.monotonic()), self._open)

    def close(self, error: KafkaError) -> None:
        """Close the connection, and fail all its requests."""
        self.ready = False
        for timer in (self._timer, self._opening):
            if timer is not None:
                timer.cancel()
        self._timer = self._opening = self._lookup = None
        if self._logins is not None:
            self._logins.end()
        self._close_socket()
        failed = [item for item in self._out if not isinstance(item, memoryview)]  # acks=0 requests not sent in full
        failed += [asked.done for asked in self.asked] + [done for _, done, _ in self._waiting]
        self._out.clear()
        self._have, self._frame = 0, None
        self.asked.clear()
        self._waiting.clear()
        for done in failed:
            complete(done, None, error)

    def forked(self) -> None:
        """In a forked child: the connection is the parent's."""
        if self._socket is not None:
            self._socket.close()

    # -- opening ------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._opening = None
        lookup = self._lookup = object()
        self._timer = self._loop.call_by(self._timer, time.monotonic() + self.timeout_s, self._check_due)
        self._loop.resolve(self.host, self.port, partial(self._resolved, lookup))

    def _resolved(self, lookup: object, found: list[Address] | Exception) -> None:
        """Connect to the name's addresses, unless another look-up has begun since."""
        if lookup is not self._lookup:
            return
        self._lookup = None
        if isinstance(found, OSError):
            self._fail(connection_lost(found, REACHED, self.host, self.port, self.timeout_s))
            return
        if isinstance(found, Exception):
            self._fail(no_address(self.host, self.port))
            return
        self._addresses = found[::-1]
        self._connect_next(ConnectionRefusedError(errno.ECONNREFUSED, "no address"))

    def _connect_next(self, last: OSError) -> None:
        """Try the next address of the name; fail with the error of the last one."""
        while self._addresses:
            family, kind, protocol, _, address = self._addresses.pop()
            try:
                sock = self._socket = socket.socket(family, kind, protocol)
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                status = sock.connect_ex(address)
            except OSError as error:
                last, status = error, error.errno or errno.EIO
            if status in (0, errno.EINPROGRESS):
                self._watch(WRITE)
                self._timer = self._loop.call_by(self._timer, time.monotonic() + self.timeout_s, self._check_due)
                return
            last = OSError(status, os.strerror(status))
            self._close_socket()
        self._fail(connection_lost(last, REACHED, self.host, self.port, self.timeout_s))

    def _connected(self) -> None:
        assert self._socket is not None
        status = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if status or self._is_its_own_peer():
            self._close_socket()
            status = status or errno.ECONNREFUSED
            self._connect_next(OSError(status, os.strerror(status)))
            return
        self._addresses.clear()
        if self._tls is None:
            self._begin()
            return
        self._stream = secure(self._socket, self._tls.context(), server=False, host=self.host)
        if isinstance(self._stream, SslStream):
            self._watch(0)
            self._socket = self._stream.sock
        self._encrypting = True
        self._encrypt()

    def _encrypt(self) -> None:
        """One step of TLS's handshake."""
        assert self._stream is not None
        try:
            wanted = self._stream.handshake()
        except OSError as error:
            self._lost(error)
            return
        if wanted is not None:
            self._watch(READ if wanted == "read" else WRITE)
            return
        self._encrypting = False
        self._begin()

    def _begin(self) -> None:
        """The connection is there."""
        self._watch(READ)
        self._versions = {apis.API_VERSIONS: (0, apis.SPOKEN[apis.API_VERSIONS].max_version)}
        self._greet(apis.SPOKEN[apis.API_VERSIONS].max_version)

    def _is_its_own_peer(self) -> bool:
        """TCP connects a socket to itself when the port that is tried is the one that it was given."""
        assert self._socket is not None
        with contextlib.suppress(OSError):
            return bool(self._socket.getsockname() == self._socket.getpeername())
        return False

    def _greet(self, version: int) -> None:
        self._versions[apis.API_VERSIONS] = (0, version)
        asked = m.ApiVersionsRequest(client_software_name=CLIENT_ID, client_software_version=__version__)
        self._send(asked, self._greeted, PLAIN)

    def _greeted(self, answer: m.ApiVersionsResponse | None, error: KafkaError | None) -> None:
        """Versions are learnt; from an older broker in two steps (KIP-511)."""
        if error is not None:
            return
        assert answer is not None
        if answer.error_code == errors.UNSUPPORTED_VERSION and self._versions[apis.API_VERSIONS][1] > 0:
            highest = max((k.max_version for k in answer.api_keys if k.api_key == apis.API_VERSIONS), default=0)
            self._greet(min(self._versions[apis.API_VERSIONS][1] - 1, highest))
            return
        if answer.error_code:
            self._fail(KafkaError(answer.error_code, f"the broker at {self.address} refused ApiVersions"))
            return
        self._versions = {k.api_key: (k.min_version, k.max_version) for k in answer.api_keys}
        if self._logins is None:
            self.logged_in()
        else:
            self._logins.begin()

    def hold(self) -> None:
        """Send nothing but by `send_alone` until a login is done."""
        self.ready = False

    def send_alone(self, message: Request[R], done: Answered[R]) -> None:
        """Send one request of a login."""
        self._send(message, done, PLAIN)

    def refused(self, error: KafkaError) -> None:
        """A login failed, or the connection did before."""
        if self._socket is not None:
            self._fail(error)

    def logged_in(self) -> None:
        """Send requests from now on, and those that waited."""
        self.ready, self._served = True, False
        self._failures = 0
        self._send_waiting()

    def _send_waiting(self) -> None:
        while self._waiting and self.ready and not self._muted:
            self._send(*self._waiting.popleft())

    def _fail(self, error: KafkaError) -> None:
        """Close a connection that is lost or failed; the next attempt waits."""
        self._failures += 1
        self._not_before_s = time.monotonic() + self._pauses.after(self._failures)
        self.close(error)

    # -- sending ------------------------------------------------------------------------------------------------------

    def _send(self, message: Request[R], done: Answered[R], how: RequestOptions) -> None:
        api = apis.SPOKEN[type(message).SCHEMA.key]
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        try:
            version = agreed_version(self._versions, api, self.address, how.version_max)
            parts = codec.encode_request_parts(api.key, version, correlation_id, self.client_id, message)
        except codec.EncodeError as error:
            complete(done, None, KafkaError(errors.INVALID_REQUEST, f"no such request can be written: {error}"))
            return
        except KafkaError as error:
            complete(done, None, error)
            return
        first, *rest = parts
        assert isinstance(first, bytes), "the header comes first"
        self._out.append(memoryview(SIZE.pack(sum(map(len, parts))) + first))
        self._out.extend(map(_view, rest))
        if how.answered:
            timeout_s = self.timeout_s if how.timeout_s is None else how.timeout_s
            asked = _SentRequest(api, version, correlation_id, done, time.monotonic() + timeout_s, timeout_s)
            self.asked.append(asked)
            self._timer = self._loop.call_by(self._timer, asked.due_s, self._check_due)
        else:
            self._out.append(done)
        if not self._events & WRITE:
            self._flush()

    def _flush(self) -> None:
        out = self._out
        try:
            while out:
                due = out[0]
                if not isinstance(due, memoryview):
                    out.popleft()
                    complete(due, None, None)
                    continue
                views: list[memoryview] = []
                for item in out:
                    if len(views) == _VIEWS_MAX or not isinstance(item, memoryview):
                        break
                    views.append(item)
                assert self._socket is not None
                sent = (self._stream or self._socket).sendmsg(views)
                while sent:
                    first = out[0]
                    assert isinstance(first, memoryview)
                    size = len(first)
                    if sent < size:
                        out[0] = first[sent:]
                        break
                    out.popleft()
                    sent -= size
        except BlockingIOError:
            pass
        except OSError as error:
            self._lost(error)
            return
        self._watch(READ | WRITE if out else READ)

    # -- receiving ----------------------------------------------------------------------------------------------------

    def _on_events(self, events: int) -> None:
        if self._encrypting:
            self._encrypt()
            return
        if self._socket is not None and self._events == WRITE:
            self._connected()
            return
        if events & READ:
            self._receive()
        if events & WRITE and self._socket is not None:
            self._flush()

    def _receive(self) -> None:
        self._receive_once()
        while self._stream is not None and self._stream.pending:  # decrypted bytes, for which the socket has no event
            self._receive_once()

    def _receive_once(self) -> None:
        assert self._socket is not None
        source = self._stream or self._socket
        try:
            if self._frame is None:
                received = source.recv_into(self._head_view[self._have :])
            else:
                received = source.recv_into(self._frame[self._filled :])
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(error)
            return
        if not received:
            self._lost(ConnectionResetError())
        elif self._frame is None:
            self._have += received
            self._parse()
        else:
            self._filled += received
            if self._filled == len(self._frame):
                frame, self._frame = self._frame, None
                self._answer(frame)

    def _parse(self) -> None:
        """The frames in the head; the rest moves to its front, or becomes the begin of a large frame."""
        position = 0
        while self._have - position >= SIZE.size:
            try:
                size = frame_size(self._head, self.address, position)
            except KafkaError as error:
                self._fail(error)
                return
            start, end = position + SIZE.size, position + SIZE.size + size
            if end > self._have:
                if size > HEAD_BYTES - SIZE.size:
                    self._begin_frame(size, start)
                    return
                break
            self._answer(bytes(self._head_view[start:end]))
            if self._socket is None:
                return
            position = end
        if position:
            left = self._have - position
            self._head[:left] = self._head[position : self._have]
            self._have = left

    def _begin_frame(self, size: int, start: int) -> None:
        self._frame = memoryview(bytearray(size))
        self._filled = self._have - start
        self._frame[: self._filled] = self._head_view[start : self._have]
        self._have = 0

    def _answer(self, frame: bytes | memoryview) -> None:
        if not self.asked:
            self._fail(nonsense(self.address, "an answer that nobody asked for"))
            return
        asked = self.asked[0]
        try:
            answer = read_answer(asked.api, asked.version, asked.correlation_id, frame, self.address)
        except KafkaError as error:
            self._fail(error)
            return
        self.asked.popleft()
        self._served = self.ready
        if throttle_ms := getattr(answer, "throttle_time_ms", 0):
            self._muted = True
            self._loop.call_later(min(throttle_ms / 1000, self.timeout_s), self._unmute)  # as long as requests may wait
        complete(asked.done, answer, None, asked.api.name)

    def _unmute(self) -> None:
        self._muted = False
        self._send_waiting()

    # -- its end ------------------------------------------------------------------------------------------------------

    def _watch(self, events: int) -> None:
        if self._socket is not None and events != self._events:
            self._events = events
            self._loop.watch(self._socket, events, self._on_events)

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._watch(0)
            self._socket.close()
            self._socket = None
        self._stream, self._encrypting = None, False

    def _lost(self, error: OSError) -> None:
        doing = ANSWERED if self._served else SERVED if self.ready else GREETED
        self._fail(connection_lost(error, doing, self.host, self.port, self.timeout_s))

    def _check_due(self) -> None:
        """Fail if an answer is due; look again when the next is."""
        self._timer = None
        if self._socket is None and self._lookup is None:
            return
        if not self.asked:
            if not self.ready:
                self._fail(connection_lost(TimeoutError(), REACHED, self.host, self.port, self.timeout_s))
            return
        first = min(self.asked, key=lambda asked: asked.due_s)
        if first.due_s <= time.monotonic():
            self._fail(connection_lost(TimeoutError(), ANSWERED, self.host, self.port, first.timeout_s))
        else:
            self._timer = self._loop.call_by(None, first.due_s, self._check_due)
