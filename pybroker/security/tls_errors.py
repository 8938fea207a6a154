"""What OpenSSL says of a failure, in words; here so that whoever only tells of it need not load what speaks TLS."""

import errno
import ssl
from typing import Final

HANDSHAKE_FAILED: Final = "the TLS handshake failed: "
HUNG_UP: Final = "the other end closed the connection"


def handshake_failed(problem: OSError) -> ConnectionAbortedError:
    """What the ssl module says of a handshake, in the words of core."""
    if not isinstance(problem, ssl.SSLError) or isinstance(problem, ssl.SSLEOFError):
        why = HUNG_UP
    elif isinstance(problem, ssl.SSLCertVerificationError):
        why = f"{ssl_words(problem)}: {problem.verify_message}"
    else:
        why = ssl_words(problem)
    return ConnectionAbortedError(errno.EPROTO, HANDSHAKE_FAILED + why)


def ssl_words(problem: ssl.SSLError) -> str:
    """What OpenSSL says, without where in its source."""
    return (problem.reason or str(problem)).lower().replace("_", " ")
