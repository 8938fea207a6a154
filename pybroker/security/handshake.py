"""A connection until somebody is logged in on it, as the broker sees it (KIP-43, KIP-152): frames in, answers out.

    start ──ApiVersions──> start, told ──SaslHandshake 1──> SaslAuthenticate, as often as the mechanism asks ──> a user
      └───────────────────────┴──────────SaslHandshake 0──> tokens without a header ───────────────────────────> a user
    whatever else comes: the connection ends. Nothing but these requests is parsed before somebody is logged in.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from pybroker import errors
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.protocol.apis import API_VERSIONS, KNOWN
from pybroker.security.mechanism import BadCredentials, ServerMechanism

HANDSHAKE: Final = 17
AUTHENTICATE: Final = 36

Mechanisms = Mapping[str, Callable[[], ServerMechanism]]
"""What a listener offers: by name, what begins an exchange."""


class Step(NamedTuple):
    """What is to be done after a frame: send the answer, if there is one; then end the connection if it `failed`, or
    hand it over if a `user` is logged in."""

    answer: bytes | None = None
    failed: str | None = None
    user: str | None = None
    mechanism: str = ""


class _State(Enum):
    START = 0
    TOKENS = 1  # without a header
    REQUESTS = 2
    OVER = 3


class Handshake:
    """Of one connection. `versions` answers a frame with ApiVersions, and says if the client is told by it."""

    def __init__(self, mechanisms: Mechanisms, versions: Callable[[bytes], tuple[bytes, bool]]) -> None:
        self._mechanisms = mechanisms
        self._versions = versions
        self._state = _State.START
        self._told = False
        self._exchange: ServerMechanism | None = None

    def receive(self, frame: bytes) -> Step:
        """Go on with what a client has sent, without its size."""
        if self._state is _State.TOKENS:
            return self._token(frame)
        try:
            header = codec.decode_request_header(frame)
            if header.api_key == API_VERSIONS and self._state is _State.START:
                return self._tell_versions(frame)
            if header.api_key == HANDSHAKE:
                return self._begin(header, frame)
            if header.api_key == AUTHENTICATE and self._state is _State.REQUESTS:
                return self._authenticate(header, frame)
        except codec.ProtocolError as problem:
            return self._end(f"malformed request: {problem.message}")
        api = KNOWN.get(header.api_key)
        name = api.name if api is not None else f"API {header.api_key}"
        return self._end(f"{name} came before a login")

    def _tell_versions(self, frame: bytes) -> Step:
        if self._told:
            return self._end("ApiVersions came twice before a login")
        answer, self._told = self._versions(frame)
        return Step(answer)

    def _begin(self, header: codec.RequestHeader, frame: bytes) -> Step:
        request, version = self._read(header, frame)
        name = request.mechanism
        kind = m.SaslHandshakeResponse
        if self._state is not _State.START:
            answer = kind(error_code=errors.ILLEGAL_SASL_STATE, mechanisms=[])
            data = codec.encode_response(HANDSHAKE, version, header.correlation_id, answer)
            return self._end("SaslHandshake came twice", data)
        begin = self._mechanisms.get(name)
        code = errors.NONE if begin is not None else errors.UNSUPPORTED_SASL_MECHANISM
        answer = kind(error_code=code, mechanisms=list(self._mechanisms))
        data = codec.encode_response(HANDSHAKE, version, header.correlation_id, answer)
        if begin is None:
            return self._end(f"the mechanism {name[:40]!r} is not offered", data)
        self._exchange = begin()
        self._state = _State.REQUESTS if version else _State.TOKENS
        return Step(data)

    def _authenticate(self, header: codec.RequestHeader, frame: bytes) -> Step:
        request, version = self._read(header, frame)
        kind = m.SaslAuthenticateResponse
        assert self._exchange is not None
        try:
            token = self._exchange.step(bytes(request.auth_bytes))
        except BadCredentials as problem:
            refusal = kind(error_code=errors.SASL_AUTHENTICATION_FAILED, error_message=str(problem), auth_bytes=b"")
            data = codec.encode_response(AUTHENTICATE, version, header.correlation_id, refusal)
            return self._end(str(problem), data)
        answer = kind(error_message=None, auth_bytes=token)
        return self._answered(codec.encode_response(AUTHENTICATE, version, header.correlation_id, answer))

    def _token(self, frame: bytes) -> Step:
        assert self._exchange is not None
        try:
            return self._answered(self._exchange.step(frame))
        except BadCredentials as problem:
            return self._end(str(problem))

    def _answered(self, data: bytes) -> Step:
        assert self._exchange is not None
        user = self._exchange.user
        if user is not None:
            self._state = _State.OVER
        return Step(data, user=user, mechanism=self._exchange.mechanism)

    def _end(self, why: str, answer: bytes | None = None) -> Step:
        self._state = _State.OVER
        return Step(answer, failed=why)

    def _read(self, header: codec.RequestHeader, frame: bytes) -> tuple[Any, int]:
        api, version = KNOWN[header.api_key], header.api_version
        if not api.has(version):
            raise codec.ProtocolError(f"{api.name} v{version} is not served")
        request, end = codec.decode(api.request, version, frame, header.body_offset)
        if end != len(frame):
            raise codec.ProtocolError(f"{api.name} v{version} is followed by {len(frame) - end} bytes")
        return request, version
