"""SaslHandshake and SaslAuthenticate on a connection that is logged in or needs no login: both are refused.

Logins happen before a connection's requests reach the table of handlers (server/network/login.py).
"""

from __future__ import annotations

from pybroker import errors
from pybroker.decisions.caller import Call
from pybroker.protocol import messages as m

WHY = "this connection is logged in already, or its listener does not use SASL: check security.protocol"


def handshake(request: m.SaslHandshakeRequest, call: Call) -> m.SaslHandshakeResponse:
    return handshake_failed(request, errors.ILLEGAL_SASL_STATE, WHY)


def authenticate(request: m.SaslAuthenticateRequest, call: Call) -> m.SaslAuthenticateResponse:
    return authenticate_failed(request, errors.ILLEGAL_SASL_STATE, WHY)


def handshake_failed(request: m.SaslHandshakeRequest, code: int, message: str) -> m.SaslHandshakeResponse:
    return m.SaslHandshakeResponse(error_code=code)


def authenticate_failed(request: m.SaslAuthenticateRequest, code: int, message: str) -> m.SaslAuthenticateResponse:
    return m.SaslAuthenticateResponse(error_code=code, error_message=message, auth_bytes=b"")
