"""What OpenSSL says of a failure, in words; here so that whoever only tells of it need not load what speaks TLS."""

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
"""What alerts say of a certificate (RFC 8446, 6.2)."""
_REQUIRED: Final = "certificate required"
_NO_HANDSHAKE: Final = "handshake failure"
"""That of TLS 1.2, whatever it is that is not agreed on."""
_UNTRUSTED: Final = re.compile("self.signed certificate|unable to get (local )?issuer certificate", re.IGNORECASE)
_OTHER_NAMES: Final = re.compile("(hostname|ip address) mismatch", re.IGNORECASE)
_IN_SOURCE: Final = re.compile(r" *\(_?ssl\.c:\d+\)$")


def handshake_failed(problem: OSError) -> ConnectionAbortedError:
    """What the ssl module says of a handshake, in the words of core."""
    if not isinstance(problem, ssl.SSLError) or isinstance(problem, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        why = HUNG_UP
    elif isinstance(problem, ssl.SSLCertVerificationError):
        why = f"{ssl_words(problem)}: {problem.verify_message}"
    else:
        why = ssl_words(problem)
    return ConnectionAbortedError(HANDSHAKE_FAILED + why)


def ssl_words(problem: ssl.SSLError) -> str:
    """What OpenSSL says, without where in its source."""
    return _IN_SOURCE.sub("", problem.reason or str(problem)).lower().replace("_", " ")


def alert_of(why: str) -> str:
    """What the other end said by an alert, as OpenSSL has it; empty where it said nothing."""
    return why.partition(" alert ")[2]


def is_of_certificates(why: str) -> bool:
    """Did the other end refuse a certificate, or that there is none? It does so again."""
    return alert_of(why) in OF_CERTIFICATES | {_REQUIRED}


def for_a_client(why: str) -> str:
    """What OpenSSL says, for whoever connects to a broker: with the setting that may be missing."""
    alert = alert_of(why)
    if alert == _REQUIRED:
        return "the broker asks for a certificate: set ssl.keystore.location"
    if alert == _NO_HANDSHAKE:
        return f"{why}; the broker may ask for a certificate (ssl.keystore.location), or for other versions or ciphers"
    if alert in OF_CERTIFICATES:
        return f"the broker does not take this client's certificate: {alert}"
    if _UNTRUSTED.search(why):
        return f"{why}; set ssl.truststore.location to who signed the broker's certificate"
    if _OTHER_NAMES.search(why):
        return f"{why.rstrip('.')}; the broker's certificate is for other names: connect by one of them"
    return why
