"""SaslHandshake and SaslAuthenticate where they do not belong: who is here is logged in, or need not be.

A login itself happens before a connection is handed to the table of handlers (server/login.py).
"""

from typing import Any

from pybroker import errors
from pybroker.cluster.caller import Call
from pybroker.protocol import messages as m

WHY = "this connection is logged in already, or its listener asks nobody to log in"


def handshake(request: Any, call: Call) -> Any:
    return handshake_failed(request, errors.ILLEGAL_SASL_STATE, WHY)


def authenticate(request: Any, call: Call) -> Any:
    return authenticate_failed(request, errors.ILLEGAL_SASL_STATE, WHY)


def handshake_failed(request: Any, code: int, message: str) -> Any:
    return m.SaslHandshakeResponse(error_code=code)


def authenticate_failed(request: Any, code: int, message: str) -> Any:
    return m.SaslAuthenticateResponse(error_code=code, error_message=message, auth_bytes=b"")
