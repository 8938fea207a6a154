"""A connection for bulk reading: the next Fetch is under way while the answer before it is decoded."""

import time
from typing import Any, Final

from pybroker.client.connection import FRAME_BYTES_MAX, Connection
from pybroker.protocol import apis, codec
from pybroker.protocol import messages as m

RECEIVE_BUFFER_BYTES: Final = 4 << 20
"""Of the socket: so much of the next answer arrives while the last one is worked on."""
_FETCH: Final = apis.KNOWN[m.FetchRequest.SCHEMA.key]
_SIZE_BYTES: Final = 4


class FetchConnection(Connection):
    """`ask`, `answer`, `ask`, ...: one request is under way at most, and an answer is good until the next one is taken.

    Its records are views of memory that the next answer overwrites. A failure closes the connection."""

    def __init__(self, host: str, port: int, *, timeout_s: float = 30.0) -> None:
        super().__init__(host, port, timeout_s=timeout_s)
        self._frame = bytearray()
        self.asked = False

    def ask(self, request: Any) -> None:
        """Send a Fetch request. KafkaError where the connection is lost."""
        assert not self.asked and self._socket is not None
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        body = codec.encode_request(_FETCH.key, self.fetch_version, self._correlation_id, self.client_id, request)
        try:
            self._socket.settimeout(self.timeout_s)
            self._socket.sendall(len(body).to_bytes(_SIZE_BYTES, "big") + body)
        except OSError as error:
            raise self._lost(error, "ask", self.timeout_s) from error
        self.asked = True

    @property
    def fetch_version(self) -> int:
        return self.version_of(_FETCH)

    def answer(self) -> Any:
        """The FetchResponse to what was asked. KafkaError where the connection is lost or nonsense comes."""
        assert self.asked
        self.asked = False
        self._deadline = time.monotonic() + self.timeout_s
        try:
            size = int.from_bytes(self._fill(_SIZE_BYTES), "big", signed=True)
            if not _SIZE_BYTES <= size <= FRAME_BYTES_MAX:
                raise self._nonsense(f"an answer of {size} bytes")
            frame = self._fill(size)
        except OSError as error:
            raise self._lost(error, "get an answer from", self.timeout_s) from error
        try:
            correlation_id, response = codec.decode_response(_FETCH.key, self.fetch_version, frame)
        except codec.ProtocolError as error:
            raise self._nonsense(f"an answer to Fetch that does not parse: {error.message}") from error
        if correlation_id != self._correlation_id:
            raise self._nonsense(f"an answer to request {correlation_id}, where {self._correlation_id} was asked")
        return response

    def _fill(self, size: int) -> memoryview:
        """Exactly `size` bytes, in memory that is used again."""
        assert self._socket is not None
        if len(self._frame) < size:
            self._frame = bytearray(size)
        view = memoryview(self._frame)[:size]
        filled = 0
        while filled < size:
            left_s = self._deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._socket.settimeout(left_s)
            received = self._socket.recv_into(view[filled:])
            if not received:
                raise ConnectionResetError
            filled += received
        return view
