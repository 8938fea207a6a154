"""One connection to another broker, on the event loop; all inter-broker requests go through here.

    open ──ask──> sent, and answered in the order of the requests
      └──the other end closes, sends nonsense, or is late, or close()──> closed

The caller chooses the version of each request: like Kafka's, our brokers use those of their inter-broker protocol and
send no ApiVersions request first. After a request timed out the connection is unusable, and is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, NamedTuple

from pybroker.errors import KafkaError
from pybroker.model import HostPort, check_port
from pybroker.protocol import apis, codec
from pybroker.protocol.apis import Api
from pybroker.protocol.frames import FRAME_BYTES_MAX, SIZE, frame_size, read_answer
from pybroker.protocol.message import Message, R, Request
from pybroker.security.login import AUTHENTICATE_VERSION, HANDSHAKE_VERSION, Account, Login
from pybroker.security.tls import NativeStream
from pybroker.security.tls_errors import FAILED, for_a_client, handshake_failed, ssl_words

TIMEOUT_S: Final = 30.0
Dialled = socket.socket | NativeStream


class _PendingAnswer(NamedTuple):
    """A request that waits for its answer."""

    api: Api
    version: int
    correlation_id: int
    answer: asyncio.Future[Any]


class Link(asyncio.Protocol):
    """A connection to the broker at `host:port`. `closed` is done once it has ended; its result is the reason."""

    def __init__(self, host: str, port: int, client_id: str, account: Account | None = None) -> None:
        self.address = str(HostPort(host, port))
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._client_id = client_id
        self._correlation_id = 0
        self._asked: deque[_PendingAnswer] = deque()
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._account = account
        self._renew_s = math.inf
        self._login: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str,
        timeout_s: float = TIMEOUT_S,
        account: Account | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> Link:
        """Connect, and log in. Raises OSError: TimeoutError after `timeout_s`, ConnectionRefusedError if no server
        listens, PermissionError if the login is refused."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            with _resolved(host, port):
                try:
                    transport, link = await loop.create_connection(
                        lambda: cls(host, port, client_id, account), host, port, ssl=tls
                    )
                except ssl.SSLError as problem:
                    raise handshake_failed(problem) from None
        if transport.get_extra_info("sockname") == transport.get_extra_info("peername"):
            # If no server listens on an ephemeral port, the kernel may connect the socket to itself.
            transport.abort()
            raise ConnectionRefusedError(f"no server listens at {link.address}")
        if account is not None:
            await link._log_in(account, timeout_s)
        return link

    async def _log_in(self, account: Account, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                login = await _login(account, self.address)
                message: Request[Message] | None = login.start()
                version = HANDSHAKE_VERSION
                while message is not None:
                    answer = await self._ask(message, version, timeout_s)
                    message, version = login.step(answer), AUTHENTICATE_VERSION
        except KafkaError as refused:
            self.close()
            raise PermissionError(refused.message) from refused
        except BaseException:
            self.close()
            raise
        renew_in_s = login.renew_in_s()
        if renew_in_s is not None:
            self._renew_s = time.monotonic() + renew_in_s

    async def ask(
        self, message: Request[R], version: int, *, timeout_s: float = TIMEOUT_S,
        tail: Callable[[], codec.Tail] | None = None,
    ) -> R:  # fmt: skip
        """Send a request at this version and return its answer. `tail` returns its encoded end, if other requests share
        it. Raises ConnectionError if the connection ends first, TimeoutError. Logs in again first if the last login is
        about to expire (KIP-368)."""
        if time.monotonic() >= self._renew_s and not self.closed.done():
            assert self._account is not None
            self._renew_s = math.inf
            self._login = asyncio.get_running_loop().create_task(self._log_in(self._account, TIMEOUT_S))
        if self._login is not None:
            await asyncio.wait([self._login])
            with contextlib.suppress(OSError):  # a failed login has closed the connection: _ask raises
                self._login.result()
        return await self._ask(message, version, timeout_s, None if tail is None else tail())

    async def _ask(self, message: Request[R], version: int, timeout_s: float, tail: codec.Tail | None = None) -> R:
        if self.closed.done() or self._transport is None:
            raise ConnectionError(f"the connection to {self.address} is closed")
        api = apis.SPOKEN[type(message).SCHEMA.key]
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        body = codec.encode_request(api.key, version, self._correlation_id, self._client_id, message, tail)
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._asked.append(_PendingAnswer(api, version, self._correlation_id, answer))
        self._transport.write(SIZE.pack(len(body)) + body)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            self._end(f"{self.address} did not answer {api.name} in {timeout_s:g} s")
            raise

    @property
    def hung_up(self) -> bool:
        """True if the other end has closed the connection, even before the event loop notices."""
        if self.closed.done() or self._transport is None:
            return True
        return hung_up(self._transport.get_extra_info("socket").fileno())

    def close(self) -> None:
        """End the connection; unanswered requests fail. A second call does nothing."""
        self._end("it was closed here")

    # -- what the transport calls ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        try:
            while len(self._received) >= SIZE.size:
                (size,) = SIZE.unpack_from(self._received)
                if not SIZE.size <= size <= FRAME_BYTES_MAX or not self._asked:
                    return self._end(f"{self.address} sent a frame of {size} bytes: unrequested, or of a wrong size")
                if len(self._received) < SIZE.size + size:
                    return None
                frame = bytes(memoryview(self._received)[SIZE.size : SIZE.size + size])
                del self._received[: SIZE.size + size]
                asked = self._asked.popleft()
                try:
                    message = read_answer(asked.api, asked.version, asked.correlation_id, frame, self.address)
                except KafkaError:
                    self._asked.appendleft(asked)
                    raise
                if not asked.answer.done():  # its caller may have given up
                    asked.answer.set_result(message)
        except KafkaError as problem:
            self._end(problem.message)

    def connection_lost(self, problem: Exception | None) -> None:
        why = f"{self.address} closed the connection" if problem is None else str(problem)
        self._end(FAILED + for_a_client(ssl_words(problem)) if isinstance(problem, ssl.SSLError) else why)

    def _end(self, why: str) -> None:
        if self.closed.done():
            return
        self.closed.set_result(why)
        if self._transport is not None:
            self._transport.abort()
        for asked in self._asked:
            if not asked.answer.done():
                asked.answer.set_exception(ConnectionError(why))
        self._asked.clear()
        self._received.clear()


@contextlib.contextmanager
def _resolved(host: str, port: int) -> Iterator[None]:
    """Raise OSError for an address that cannot be resolved: an empty or too long label (kafka..example.com), a port of
    99999."""
    try:
        check_port(port)
        yield
    except (ValueError, OverflowError) as problem:
        raise OSError(f"{HostPort(host, port)} is not a valid address") from problem


async def dial(
    host: str,
    port: int,
    *,
    client_id: str,
    timeout_s: float = TIMEOUT_S,
    account: Account | None = None,
    tls: ssl.SSLContext | None = None,
) -> Dialled:
    """Return a non-blocking socket that is connected to another broker and logged in. Raises OSError as Link.open.

    `tls`: encrypt with core's TLS."""
    below = await _connected(host, port, timeout_s)
    sock: Dialled = below
    try:
        async with asyncio.timeout(timeout_s):
            if tls is not None:
                sock = stream = NativeStream(below, tls, server=False, host=host)
                await _encrypt(stream)
            if account is not None:
                await _log_in(sock, account, str(HostPort(host, port)), client_id)
    except KafkaError as refused:
        sock.close()
        raise PermissionError(refused.message) from refused
    except BaseException:
        sock.close()
        raise
    return sock


async def _encrypt(stream: NativeStream) -> None:
    while (wanted := stream.handshake()) is not None:
        await _ready(stream, wanted)


async def _ready(stream: NativeStream, wanted: Literal["read", "write"]) -> None:
    """Wait until the underlying socket is readable or writable."""
    loop = asyncio.get_running_loop()
    there: asyncio.Future[None] = loop.create_future()
    is_read = wanted == "read"
    add = loop.add_reader if is_read else loop.add_writer
    remove = loop.remove_reader if is_read else loop.remove_writer

    def ready() -> None:
        if not there.done():
            there.set_result(None)

    add(stream.fileno(), ready)
    try:
        await there
    finally:
        remove(stream.fileno())


async def _send(sock: Dialled, data: bytes) -> None:
    if isinstance(sock, socket.socket):
        await asyncio.get_running_loop().sock_sendall(sock, data)
        return
    while data:
        try:
            data = data[sock.send(data) :]
        except BlockingIOError:
            await _ready(sock, "write")


async def _recv(sock: Dialled, size: int) -> bytes:
    if isinstance(sock, socket.socket):
        return await asyncio.get_running_loop().sock_recv(sock, size)
    while True:
        try:
            return sock.recv(size)
        except BlockingIOError:
            await _ready(sock, "read")


async def _login(account: Account, address: str) -> Login:
    """Return a new login; with OAuth tokens, it is made on a thread, as getting one may block. Raises KafkaError."""
    if account.tokens is None:
        return Login(account, address)
    return await asyncio.to_thread(Login, account, address)


async def _log_in(sock: Dialled, account: Account, address: str, client_id: str) -> None:
    """Log in on a socket that core takes over then: no byte is read beyond the login. Raises OSError, KafkaError."""
    login = await _login(account, address)
    message: Request[Message] | None = login.start()
    version, number = HANDSHAKE_VERSION, 0
    while message is not None:
        api = apis.SPOKEN[type(message).SCHEMA.key]
        number += 1
        body = codec.encode_request(api.key, version, number, client_id, message)
        await _send(sock, SIZE.pack(len(body)) + body)
        size = frame_size(await _exactly(sock, SIZE.size), address)
        answer = read_answer(api, version, number, await _exactly(sock, size), address)
        message, version = login.step(answer), AUTHENTICATE_VERSION


async def _exactly(sock: Dialled, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = await _recv(sock, size - len(data))
        if not more:
            raise ConnectionResetError("the other end closed the connection during the login")
        data += more
    return data


async def _connected(host: str, port: int, timeout_s: float) -> socket.socket:
    loop = asyncio.get_running_loop()
    problem = OSError(f"{host} has no address")
    async with asyncio.timeout(timeout_s):
        with _resolved(host, port):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in found:
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.sock_connect(sock, address)
                if sock.getsockname() == sock.getpeername():
                    raise ConnectionRefusedError(f"no server listens at {HostPort(host, port)}")
            except OSError as refused:
                sock.close()
                problem = refused
            except BaseException:
                sock.close()
                raise
            else:
                return sock
    raise problem


def hung_up(descriptor: int) -> bool:
    """True if the other end has closed the connection. Nothing is read."""
    looked = select.poll()
    looked.register(descriptor, select.POLLRDHUP)
    return bool(looked.poll(0))
