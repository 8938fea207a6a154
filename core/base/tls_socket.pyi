"""TLS over a socket, without the GIL."""

from collections.abc import Sequence
from ssl import SSLContext
from typing import Literal

def tls_available() -> bool:
    """True if core can do TLS; otherwise use Python's ssl module."""

def set_ciphersuites(context: SSLContext, names: Sequence[str]) -> None:
    """Set the cipher suites of a context for TLS 1.3, which Python's ssl module cannot do. Raises ValueError."""

class TlsSocket:
    """TLS with an ssl.SSLContext over a connected, non-blocking socket; its owner keeps the descriptor.

    Only one thread at a time may use it. Raises ValueError if tls_available() is False, for a blocking socket, for an
    invalid host name, and in every method after the socket was handed to a data plane."""

    pending: bool  # recv may return something although the socket is not readable
    version: str  # like TLSv1.3
    cipher: str  # like TLS_AES_128_GCM_SHA256; empty before the handshake
    resumed: bool  # it resumed an earlier session
    def __init__(self, fd: int, context: SSLContext, *, server: bool, host: str | None = None) -> None:
        """`host`: for a client, the name or address that it connects to. It is sent to the server, and checked against
        the server's certificate if the context has check_hostname."""
    def handshake(self) -> Literal["read", "write"] | None:
        """Continue the handshake; return what the socket must be ready for first, None at the end. Raises OSError with
        the reason of the failure."""
    def recv(self, n: int) -> bytes:
        """Receive up to n bytes; empty at the end. Raises as recv_into does."""
    def recv_into(self, buffer: bytearray | memoryview) -> int:
        """Receive into a buffer; return the number of bytes, 0 at the end. Raises BlockingIOError if there are none
        now, OSError."""
    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Send; return how many of the bytes were sent. Raises OSError, and BlockingIOError if none or only a part of
        their encrypted form were: then call again with the same bytes once the socket is writable."""
    def end(self) -> None:
        """Send a close_notify, as far as the socket takes it."""
    def peer_certificate(self) -> bytes | None:
        """The peer's certificate (DER); None if it sent none."""
