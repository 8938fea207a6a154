"""A connection for bulk reads: the next Fetch is in flight while the previous answer is decoded."""

import time
from typing import Final

from pybroker.client.net.connection import BrokerConnection
from pybroker.client.security.tls import ClientTls
from pybroker.protocol import apis
from pybroker.protocol import messages as m
from pybroker.security.login import Account

_FETCH: Final = apis.KNOWN[m.FetchRequest.SCHEMA.key]


class FetchConnection(BrokerConnection):
    """A connection used as `ask`, `answer`, `ask`, ...: one request in flight; an answer is valid until the next one.

    The answer's records are views of memory that the next answer overwrites. A failure closes the connection."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout_s: float = 30.0,
        account: Account | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self._frame = bytearray()
        self.asked = False
        self._version = 0
        super().__init__(host, port, timeout_s=timeout_s, account=account, tls=tls)

    def ask(self, request: m.FetchRequest) -> None:
        """Send a Fetch request. KafkaError if the connection is lost."""
        assert not self.asked
        self._stay_logged_in()
        self._version = self.version_of(_FETCH)
        self._send(_FETCH, self._version, request, self.timeout_s)
        self.asked = True

    def answer(self) -> m.FetchResponse:
        """Return the FetchResponse to the last request. KafkaError if the connection is lost or the answer is
        malformed."""
        assert self.asked
        self.asked = False
        self._deadline = time.monotonic() + self.timeout_s
        answer: m.FetchResponse = self._answer(_FETCH, self._version, self.timeout_s)
        return answer

    def _receive(self, size: int) -> memoryview:
        """Receive exactly `size` bytes into reused memory."""
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
