"""A probe of a ZooKeeper server's address that explains, for the operator, why the server does not serve."""

import asyncio
import re
import socket
import ssl
from typing import Final, NamedTuple

from pybroker.errors import system_words
from pybroker.model import HostPort

ASK_WHY_S: Final = 1.0
ASK_TLS_S: Final = 3.0
"""A JVM that has just started takes more than a second for its first handshake."""
ANSWER_BYTES_MAX: Final = 4096
END: Final = b"\nMode:"
"""The last line but one of an answer; it comes after the zxid."""
ENABLE: Final = "zookeeper.ssl.client.enable"


class ProbeResult(NamedTuple):
    """A description of what answers at an address, and the last zxid if a ZooKeeper serves there, else -1."""

    words: str
    zxid: int = -1


async def found_at(
    at: HostPort, seen: int, context: ssl.SSLContext | None = None, patience_s: float = ASK_TLS_S
) -> ProbeResult:
    """Probe an address. `seen` is the last zxid that the client has seen, `context` is for TLS, None without, and
    `patience_s` is the timeout of the TLS handshake and the answer."""
    try:
        asking = await _connected(at)
    except TimeoutError:
        return ProbeResult(f"{at} does not answer")
    except OSError as problem:
        return ProbeResult(f"{at}: {system_words(problem)}")
    said = b""
    try:
        async with asyncio.timeout(ASK_WHY_S if context is None else patience_s):
            said = await _asked(asking, at.host, context)
    except OSError as problem:
        if context is not None:
            return ProbeResult(f"{at}: {_words(problem)}")
    zxid = re.search(rb"^Zxid: 0x([0-9a-f]{1,16})", said, re.MULTILINE)
    if zxid is None:
        if context is None and await _speaks_tls(at):
            return ProbeResult(f"{at} speaks TLS, but {ENABLE} is false")
        return ProbeResult(f"{at} accepts connections, but does not answer like a serving ZooKeeper")
    last = int(zxid[1], 16)
    if last < seen:
        why = "it was restored from an older copy, has lost its data, or is another ZooKeeper"
        return ProbeResult(f"{at} has fewer transactions than it had before: {why}", last)
    return ProbeResult(f"{at} serves, but did not answer in time", last)


async def _connected(at: HostPort) -> socket.socket:
    """Connect to the first of the host's addresses that accepts. Raises OSError."""
    loop, problem = asyncio.get_running_loop(), OSError("it has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(*at, type=socket.SOCK_STREAM):
        asking = socket.socket(family, kind, protocol)
        asking.setblocking(False)
        try:
            async with asyncio.timeout(ASK_WHY_S):
                await loop.sock_connect(asking, address)
            return asking
        except OSError as refused:
            asking.close()
            problem = refused
        except BaseException:
            asking.close()
            raise
    raise problem


async def _asked(asking: socket.socket, host: str, context: ssl.SSLContext | None) -> bytes:
    """Send `srvr` and return the answer. Raises OSError."""
    named = None if context is None else host
    try:
        reader, writer = await asyncio.open_connection(sock=asking, ssl=context, server_hostname=named)
    except BaseException:
        asking.close()
        raise
    try:
        writer.write(b"srvr")
        said = b""
        while END not in said and len(said) < ANSWER_BYTES_MAX and (more := await reader.read(ANSWER_BYTES_MAX)):
            said += more
        return said
    finally:
        writer.transport.abort()


async def _speaks_tls(at: HostPort) -> bool:
    """True if a server there speaks TLS. Any certificate is accepted, as no secret is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(ASK_TLS_S):
            await _asked(await _connected(at), at.host, context)
    except ssl.SSLEOFError:
        return False
    except ssl.SSLError as problem:  # only TLS servers send alerts
        return "ALERT" in (problem.reason or "").upper()
    except OSError:
        return False
    return True


_ALERTS: Final = {
    "CERTIFICATE_REQUIRED": "it requires a client certificate, and got none",
    "UNKNOWN_CA": "it does not trust the client certificate",
    "BAD_CERTIFICATE": "it does not accept the client certificate, or requires one and got none",
    "CERTIFICATE_UNKNOWN": "it does not accept the client certificate, or requires one and got none",
    "CERTIFICATE_EXPIRED": "the client certificate has expired",
    "HANDSHAKE_FAILURE": "it shares no cipher suite, or requires a client certificate and got none",
    "PROTOCOL_VERSION": "it supports none of the enabled versions of TLS",
}


def _words(problem: OSError) -> str:
    """Return why a TLS handshake, or the first read after it, failed, as the end of a sentence about the server."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {problem.verify_message.rstrip('.').lower()}"
    if isinstance(problem, ssl.SSLError):
        reason = (problem.reason or "").upper()
        for alert, meaning in _ALERTS.items():
            if reason.endswith(f"ALERT_{alert}"):
                return meaning
        if reason in ("UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE", "WRONG_SSL_VERSION"):
            return _ALERTS["PROTOCOL_VERSION"]
        if reason in ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
            return "it does not speak TLS there"
        if isinstance(problem, ssl.SSLEOFError) or "EOF" in reason:
            return "it closes the connection during the TLS handshake: perhaps it does not speak TLS there"
        return f"the TLS handshake fails: {(problem.reason or str(problem)).replace('_', ' ').lower()}"
    if isinstance(problem, ConnectionError):
        return "it closes the connection during the TLS handshake: perhaps it does not speak TLS there"
    if isinstance(problem, TimeoutError):
        return "it does not answer to a TLS handshake"
    return system_words(problem)
