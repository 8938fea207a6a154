"""TLS over a socket, without the GIL."""

from collections.abc import Sequence
from ssl import SSLContext
from typing import Literal

def tls_available() -> bool:
    """Can connections have TLS in core? Otherwise Python's ssl module has to do it all."""

def set_ciphersuites(context: SSLContext, names: Sequence[str]) -> None:
    """Have a context speak TLS 1.3 by these cipher suites, which Python's ssl module cannot be told. ValueError."""

class TlsSocket:
    """TLS by a context over a connected, non-blocking socket, whose descriptor stays its owner's.

    Not for two threads at a time. ValueError where tls_available() is False, for a socket that blocks, or for a host
    that is no name; once it was given to a plane, from everything."""

    pending: bool  # recv may have something though the socket has not
    version: str  # like TLSv1.3
    cipher: str  # like TLS_AES_128_GCM_SHA256; empty before the handshake
    resumed: bool  # it goes on with a session of before
    def __init__(self, fd: int, context: SSLContext, *, server: bool, host: str | None = None) -> None:
        """`host`: of a client, the name or address that it connects to: told to the server, and looked for in its
        certificate if the context says check_hostname."""
    def handshake(self) -> Literal["read", "write"] | None:
        """Go on with the handshake; what the socket has to be ready for first, None at its end. Raises OSError, which
        says why it failed."""
    def recv(self, n: int) -> bytes:
        """Receive up to n bytes; none at the end. As recv_into."""
    def recv_into(self, buffer: bytearray | memoryview) -> int:
        """Receive into a buffer; bytes, 0 at the end. BlockingIOError if there are none now, OSError."""
    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Send; how many of the bytes were. BlockingIOError: none, or not all that they have become: call it again with
        the same bytes once the socket takes more. OSError."""
    def end(self) -> None:
        """Say that nothing follows, as far as the socket takes it."""
    def peer_certificate(self) -> bytes | None:
        """The other end's certificate (DER), None if it showed none."""
