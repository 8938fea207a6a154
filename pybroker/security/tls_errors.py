"""Text for OpenSSL's errors, in a module of its own so that code that only logs them need not import TLS."""

import re
import ssl
from typing import Final

HANDSHAKE_FAILED: Final = "the TLS handshake failed: "
FAILED: Final = "TLS failed: "
HUNG_UP: Final = "the other end closed the connection"
OF_CERTIFICATES: Final = frozenset({
    "bad certificate", "unsupported certificate", "certificate revoked", "certificate expired", "certificate unknown",
    "unknown ca",
})  # fmt: skip
"""Alerts about certificates (RFC 8446, 6.2)."""
_REQUIRED: Final = "certificate required"
_NO_HANDSHAKE: Final = "handshake failure"
"""TLS 1.2's alert for any failed negotiation."""
_UNTRUSTED: Final = re.compile("self.signed certificate|unable to get (local )?issuer certificate", re.IGNORECASE)
_OTHER_NAMES: Final = re.compile("(hostname|ip address) mismatch", re.IGNORECASE)
_IN_SOURCE: Final = re.compile(r" *\(_?ssl\.c:\d+\)$")


def handshake_failed(problem: OSError) -> ConnectionAbortedError:
    """The error of core for a failed handshake of the ssl module."""
    if not isinstance(problem, ssl.SSLError) or isinstance(problem, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        why = HUNG_UP
    elif isinstance(problem, ssl.SSLCertVerificationError):
        why = f"{ssl_words(problem)}: {problem.verify_message}"
    else:
        why = ssl_words(problem)
    return ConnectionAbortedError(HANDSHAKE_FAILED + why)


def ssl_words(problem: ssl.SSLError) -> str:
    """OpenSSL's error text, without the place in its source."""
    return _IN_SOURCE.sub("", problem.reason or str(problem)).lower().replace("_", " ")


def alert_of(why: str) -> str:
    """The alert of the other end, in OpenSSL's words; empty if there was none."""
    return why.partition(" alert ")[2]


def is_of_certificates(why: str) -> bool:
    """True if the other end refused a certificate, or the lack of one: it would do so again."""
    return alert_of(why) in OF_CERTIFICATES | {_REQUIRED}


def for_a_client(why: str) -> str:
    """OpenSSL's error text for a client, with the setting that may be missing."""
    alert = alert_of(why)
    if alert == _REQUIRED:
        return "the broker asks for a certificate: set ssl.keystore.location"
    if alert == _NO_HANDSHAKE:
        return f"{why}; the broker may ask for a certificate (ssl.keystore.location), or for other versions or ciphers"
    if alert in OF_CERTIFICATES:
        return f"the broker refuses this client's certificate: {alert}"
    if _UNTRUSTED.search(why):
        return f"{why}; set ssl.truststore.location to the certificate that signed the broker's"
    if _OTHER_NAMES.search(why):
        return f"{why.rstrip('.')}; the broker's certificate is for other names: connect with one of them"
    return why
