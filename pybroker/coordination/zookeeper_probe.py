"""A probe of a ZooKeeper server's address that explains, for the operator, why the server does not serve."""

import asyncio
import re
import socket
import ssl
from typing import Final, NamedTuple

from pybroker.errors import system_words
from pybroker.model import HostPort

from .tls_words import tls_words

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
            return ProbeResult(f"{at}: {tls_words(problem)}")
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
