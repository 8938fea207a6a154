"""What stands at an address where a ZooKeeper is to be, in words for a person."""

import contextlib
import re
import socket
import ssl
from typing import Final, NamedTuple

from pybroker.errors import system_words
from pybroker.model import HostPort

ASK_WHY_S: Final = 1.0
ASK_TLS_S: Final = 3.0
"""A JVM that has just started takes a second and more for its first handshake."""
ENABLE: Final = "zookeeper.ssl.client.enable"


class Found(NamedTuple):
    """A description of what answers at an address, and the last zxid of a ZooKeeper that serves there; -1 otherwise."""

    words: str
    zxid: int = -1


def found_at(at: HostPort, seen: int, context: ssl.SSLContext | None = None) -> Found:
    """Look at an address, for a client that has seen a zxid there; `context` is for TLS, None without."""
    try:
        asking = socket.create_connection(at, ASK_WHY_S)
    except TimeoutError:
        return Found(f"{at} does not answer")
    except OSError as problem:
        return Found(f"{at}: {system_words(problem)}")
    said = b""
    asking.settimeout(ASK_WHY_S if context is None else ASK_TLS_S)
    try:
        with asking if context is None else context.wrap_socket(asking, server_hostname=at.host) as asked:
            asked.sendall(b"srvr")
            said = asked.makefile("rb").read(4096)
    except OSError as problem:
        if context is not None:
            return Found(f"{at}: {_words(problem)}")
    zxid = re.search(rb"^Zxid: 0x([0-9a-f]{1,16})", said, re.MULTILINE)
    if zxid is None:
        if context is None and _speaks_tls(at):
            return Found(f"{at} speaks TLS, and {ENABLE} is false")
        return Found(f"{at} accepts connections, and does not answer as a ZooKeeper that serves")
    last = int(zxid[1], 16)
    if last < seen:
        why = "it was restored from an older copy, has lost its data, or is another ZooKeeper"
        return Found(f"{at} knows less than was seen there before: {why}", last)
    return Found(f"{at} serves, and did not answer in time", last)


def _speaks_tls(at: HostPort) -> bool:
    """Whoever it is: nothing is told there."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(OSError), socket.create_connection(at, ASK_TLS_S) as asking:
        try:
            context.wrap_socket(asking).close()
        except ssl.SSLEOFError:
            return False
        except ssl.SSLError as problem:  # an alert is an answer, too
            return "ALERT" in (problem.reason or "").upper()
        return True
    return False


_ALERTS: Final = {
    "CERTIFICATE_REQUIRED": "it wants a certificate, and is shown none",
    "UNKNOWN_CA": "it does not trust the certificate that it is shown",
    "BAD_CERTIFICATE": "it does not take the certificate that it is shown, or wants one and is shown none",
    "CERTIFICATE_UNKNOWN": "it does not take the certificate that it is shown, or wants one and is shown none",
    "CERTIFICATE_EXPIRED": "the certificate that it is shown has expired",
    "HANDSHAKE_FAILURE": "it shares no cipher suite, or wants a certificate and is shown none",
    "PROTOCOL_VERSION": "it speaks none of the enabled versions of TLS",
}


def _words(problem: OSError) -> str:
    """Why a handshake with a server, or the first read behind it, failed: the end of a sentence about that."""
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
            return "it ends the TLS handshake: it speaks no TLS there, or takes no part in it"
        return f"the TLS handshake fails: {(problem.reason or str(problem)).replace('_', ' ').lower()}"
    if isinstance(problem, ConnectionError):
        return "it ends the TLS handshake: it speaks no TLS there, or takes no part in it"
    if isinstance(problem, TimeoutError):
        return "it does not answer to a TLS handshake"
    return system_words(problem)
