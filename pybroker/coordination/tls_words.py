"""The reason why a TLS handshake with a server of the store failed, for the operator."""

import ssl
from typing import Final

from pybroker.errors import system_words

_ALERTS: Final = {
    "CERTIFICATE_REQUIRED": "it requires a client certificate, and got none",
    "UNKNOWN_CA": "it does not trust the client certificate",
    "BAD_CERTIFICATE": "it does not accept the client certificate, or requires one and got none",
    "CERTIFICATE_UNKNOWN": "it does not accept the client certificate, or requires one and got none",
    "CERTIFICATE_EXPIRED": "the client certificate has expired",
    "HANDSHAKE_FAILURE": "it shares no cipher suite, or requires a client certificate and got none",
    "PROTOCOL_VERSION": "it supports none of the enabled versions of TLS",
}


def tls_words(problem: OSError) -> str:
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
