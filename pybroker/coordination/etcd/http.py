"""HTTP/1.1 for etcd's JSON gateway: one POST at a time on a connection that is kept, and answers that never end.

Each length is checked before it is read. Nothing is repeated: a connection that ends before the answer leaves the
outcome of its request unknown.

Libraries with pools (httpx, aiohttp, urllib3) may repeat a request, http.client blocks its thread, and h11 would
replace some 50 lines of this at the price of a dependency of every broker.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from pybroker.coordination.tls_words import tls_words
from pybroker.model import HostPort

ANSWER_BYTES_MAX: Final = 256 << 20
"""The size limit of an answer: a page of the largest nodes fits."""
CHUNK_LINE_BYTES_MAX: Final = 64
HEADERS_MAX: Final = 100
KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""Socket options: a watch of a peer that is gone ends within half a minute, though nothing is sent over it."""


class EtcdUnanswered(Exception):
    """The connection broke or made no sense, so that the outcome of a request is unknown; the text is a reason."""


class HttpAnswer(NamedTuple):
    status: int
    body: bytes


class HttpConnection:
    """A connection to a server, opened by the first request. A failed or cancelled request closes it."""

    def __init__(self, at: HostPort, tls: ssl.SSLContext | None) -> None:
        self._at = at
        self._tls = tls
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._asking = asyncio.Lock()

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def ask(self, request: bytes) -> HttpAnswer:
        """Send a request and return the whole answer; after those of earlier requests. Raises EtcdUnanswered, and
        OSError if no connection was made."""
        async with self._asking:
            return await self._ask(request)

    async def _ask(self, request: bytes) -> HttpAnswer:
        done = False
        try:
            status, headers, reader = await self._send(request)
            size, parts, chunks = 0, [], _chunks(reader, headers)
            async for chunk in chunks:
                size += len(chunk)
                if size > ANSWER_BYTES_MAX:
                    raise EtcdUnanswered(f"its answer is larger than {ANSWER_BYTES_MAX} bytes")
                parts.append(chunk)
            done = b"close" not in headers.get(b"connection", b"").lower()
            return HttpAnswer(status, b"".join(parts))
        finally:
            if not done:
                self.close()

    async def lines(self, request: bytes) -> AsyncIterator[bytes]:
        """Send a request and yield each line of the answer as it comes. Raises as `ask`, also if the answer ends."""
        rest = bytearray()
        try:
            _, headers, reader = await self._send(request)
            async for chunk in _chunks(reader, headers):
                rest += chunk
                if len(rest) > ANSWER_BYTES_MAX:
                    raise EtcdUnanswered(f"a line of its answer is larger than {ANSWER_BYTES_MAX} bytes")
                if b"\n" in chunk:
                    *lines, last = bytes(rest).split(b"\n")
                    rest = bytearray(last)
                    for line in lines:
                        if line:
                            yield line
            if rest:
                yield bytes(rest)
            raise EtcdUnanswered("it ended a stream")
        finally:
            self.close()

    async def _send(self, request: bytes) -> tuple[int, dict[bytes, bytes], asyncio.StreamReader]:
        """Send a request, and read the answer up to its body."""
        reader, writer = await self._opened()
        try:
            writer.write(request)
            await writer.drain()
            status = _status(await reader.readline())
            return status, await _headers(reader), reader
        except (OSError, ValueError, asyncio.IncompleteReadError) as problem:  # ValueError: a line is too long
            # in TLS 1.3 an alert about the client's certificate comes after the handshake
            words = tls_words(problem) if isinstance(problem, ssl.SSLError) else str(problem)
            raise EtcdUnanswered(words or "it closed the connection") from problem

    async def _opened(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is not None and (self._streams[0].at_eof() or self._streams[0].exception() is not None):
            self.close()  # a proxy ends connections that were idle for long: nothing was sent, nothing is lost
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._at, ssl=self._tls)
            sock: socket.socket = self._streams[1].get_extra_info("socket")
            for level, option, value in KEEPALIVE:
                sock.setsockopt(level, option, value)
        return self._streams


def post(path: str, body: bytes, at: HostPort, token: str) -> bytes:
    """Return the bytes of a POST; `token`: of a login, or empty."""
    host = f"[{at.host}]" if ":" in at.host else at.host
    login = f"Authorization: {token}\r\n" if token else ""
    head = f"POST {path} HTTP/1.1\r\nHost: {host}:{at.port}\r\n{login}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _status(line: bytes) -> int:
    version, _, rest = line.partition(b" ")
    if not line:
        raise EtcdUnanswered("it closed the connection")
    if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
        raise EtcdUnanswered("it does not speak HTTP/1.1 there")
    return int(rest[:3])


async def _headers(reader: asyncio.StreamReader) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for _ in range(HEADERS_MAX):
        line = await reader.readline()
        if line in (b"\r\n", b"\n"):
            return found
        name, colon, value = line.partition(b":")
        if not colon:
            raise EtcdUnanswered("it closed the connection")
        found[name.strip().lower()] = value.strip()
    raise EtcdUnanswered(f"its answer has more than {HEADERS_MAX} headers")


async def _chunks(reader: asyncio.StreamReader, headers: dict[bytes, bytes]) -> AsyncIterator[bytes]:
    """Yield the parts of a body."""
    try:
        if headers.get(b"transfer-encoding", b"").lower() != b"chunked":
            yield await reader.readexactly(_length(headers.get(b"content-length", b""), 10))
            return
        while True:
            line = await reader.readline()
            if not line.endswith(b"\n") or len(line) > CHUNK_LINE_BYTES_MAX:
                raise EtcdUnanswered("it closed the connection")
            size = _length(line.partition(b";")[0].strip(), 16)
            if not size:
                await _headers(reader)
                return
            chunk = await reader.readexactly(size + 2)
            yield chunk[:-2]
    except (OSError, ValueError, asyncio.IncompleteReadError) as problem:
        raise EtcdUnanswered("it closed the connection") from problem


def _length(text: bytes, base: int) -> int:
    """Return a length of the server. Raises EtcdUnanswered if it is none, or too large."""
    if not text.isalnum():
        raise EtcdUnanswered("its answer has no length")
    length = int(text, base)
    if length > ANSWER_BYTES_MAX:
        raise EtcdUnanswered(f"its answer is larger than {ANSWER_BYTES_MAX} bytes")
    return length
