"""The broker's side of a SASL login on a connection (KIP-43, KIP-152): frames in, responses out.

    start ──ApiVersions──> start ──SaslHandshake 1──> SaslAuthenticate, as often as the mechanism needs ──> a user
      └──────────────────────┴─────SaslHandshake 0──> tokens without a header ────────────────────────────> a user

Any other request ends the connection: no others are parsed before a login. A logged-in client may log in again, from
SaslHandshake 1 on, as the same principal (KIP-368).
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from enum import Enum
from typing import Final, NamedTuple

from pybroker import errors
from pybroker.clock import wall_ms
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.protocol.apis import API_VERSIONS, KNOWN
from pybroker.protocol.codec import M
from pybroker.security.mechanism import BadCredentials, NotYet, ServerMechanism
from pybroker.security.principals import can_log_in

HANDSHAKE: Final = 17
AUTHENTICATE: Final = 36

LIFETIME_MS_MIN: Final = 1
"""The lifetime of a login with a token that has just expired: 0 would mean no end."""


class Offer(NamedTuple):
    """One mechanism of a listener: `begin` starts an exchange; a login lasts `max_reauth_ms`, 0: no limit."""

    begin: Callable[[], ServerMechanism]
    max_reauth_ms: int = 0


Mechanisms = Mapping[str, Offer]
"""The mechanisms that a listener offers, by name."""


class Step(NamedTuple):
    """The actions after a frame: send `answer`, if any; then end the connection if `failed` is set, or hand it over if
    a `user` has logged in, for `lifetime_ms` (0: no limit). `until`: pass the same frame again once it is done.
    `claimed` is the user name that a failed client gave; `credentials` is true if its password, proof or token was
    refused."""

    answer: bytes | None = None
    failed: str | None = None
    user: str | None = None
    claimed: str = ""
    credentials: bool = False
    by_token: bool = False
    mechanism: str = ""
    lifetime_ms: int = 0
    until: "Future[None] | None" = None


class _State(Enum):
    START = 0
    TOKENS = 1  # without a header
    REQUESTS = 2
    OVER = 3


class Handshake:
    """The login on one connection. `versions` answers an ApiVersions frame, and returns True unless it was an error."""

    def __init__(
        self,
        mechanisms: Mechanisms,
        versions: Callable[[bytes], tuple[bytes, bool]] | None = None,
        principal: str | None = None,
        by_token: bool = False,
    ) -> None:
        """For a re-authentication `versions` is None, and `principal` and `by_token` are those of the present login."""
        self._mechanisms = mechanisms
        self._principal = principal
        self._by_token = by_token
        self._versions = versions
        self._state = _State.START
        self._told = self._waited = False
        self._exchange: ServerMechanism | None = None
        self._max_reauth_ms = 0

    def receive(self, frame: bytes) -> Step:
        """Handle a frame from the client, without its size."""
        if self._state is _State.TOKENS:
            return self._token(frame)
        try:
            header = codec.decode_request_header(frame)
            if header.api_key == API_VERSIONS and self._state is _State.START and self._versions is not None:
                return self._tell_versions(frame, self._versions)
            if header.api_key == HANDSHAKE:
                return self._begin(header, frame)
            if header.api_key == AUTHENTICATE and self._state is _State.REQUESTS:
                return self._authenticate(header, frame)
        except codec.ProtocolError as problem:
            return self._end(f"malformed request: {problem.message}")
        except NotYet as problem:
            return self._later(problem)
        api = KNOWN.get(header.api_key)
        name = api.name if api is not None else f"API {header.api_key}"
        return self._end(f"{name} came before a login")

    def _tell_versions(self, frame: bytes, versions: Callable[[bytes], tuple[bytes, bool]]) -> Step:
        if self._told:
            return self._end("ApiVersions came twice before a login")
        answer, self._told = versions(frame)
        return Step(answer)

    def _begin(self, header: codec.RequestHeader, frame: bytes) -> Step:
        request, version = self._read(m.SaslHandshakeRequest, header, frame)
        name = request.mechanism
        kind = m.SaslHandshakeResponse
        if self._state is not _State.START:
            answer = kind(error_code=errors.ILLEGAL_SASL_STATE, mechanisms=[])
            data = codec.encode_response(HANDSHAKE, version, header.correlation_id, answer)
            return self._end("SaslHandshake came twice", data)
        offer = self._mechanisms.get(name)
        code = errors.NONE if offer is not None else errors.UNSUPPORTED_SASL_MECHANISM
        answer = kind(error_code=code, mechanisms=list(self._mechanisms))
        data = codec.encode_response(HANDSHAKE, version, header.correlation_id, answer)
        if offer is None:
            return self._end(f"the mechanism {name[:40]!r} is not offered", data)
        self._exchange, self._max_reauth_ms = offer.begin(), offer.max_reauth_ms
        self._state = _State.REQUESTS if version else _State.TOKENS
        return Step(data)

    def _authenticate(self, header: codec.RequestHeader, frame: bytes) -> Step:
        request, version = self._read(m.SaslAuthenticateRequest, header, frame)
        kind = m.SaslAuthenticateResponse
        assert self._exchange is not None
        try:
            token = self._exchange.step(bytes(request.auth_bytes))
            self._check_principal(self._exchange)
        except BadCredentials as problem:
            refusal = kind(error_code=errors.SASL_AUTHENTICATION_FAILED, error_message=str(problem), auth_bytes=b"")
            data = codec.encode_response(AUTHENTICATE, version, header.correlation_id, refusal)
            return self._end(problem.reason, data)._replace(credentials=True)
        done = self._answered()
        answer = kind(error_message=None, auth_bytes=token, session_lifetime_ms=done.lifetime_ms)
        return done._replace(answer=codec.encode_response(AUTHENTICATE, version, header.correlation_id, answer))

    def _check_principal(self, exchange: ServerMechanism) -> None:
        """Raise BadCredentials for a reserved name, and for a re-authentication as another user (in Kafka's words) or
        by a delegation token instead of another login, or the reverse."""
        user = exchange.user
        if user is None:
            return
        if not can_log_in(user):
            raise BadCredentials(f"Authentication failed: the user name {user!r} is reserved")
        if self._principal is None:
            return
        if exchange.by_token != self._by_token:
            words = "a login by delegation token and another login cannot renew each other"
            raise BadCredentials(f"Authentication failed: {words}")
        if self._principal != f"User:{user}":
            was = self._principal.replace(":", ".", 1)
            raise BadCredentials(f"Cannot change principals during re-authentication from {was}: User.{user}")

    def _token(self, frame: bytes) -> Step:
        assert self._exchange is not None
        try:
            token = self._exchange.step(frame)
            self._check_principal(self._exchange)
        except BadCredentials as problem:
            return self._end(problem.reason)._replace(credentials=True)
        except NotYet as problem:
            return self._later(problem)
        return self._answered()._replace(answer=token)

    def _answered(self) -> Step:
        assert self._exchange is not None
        user = self._exchange.user
        if user is None:
            return Step()
        self._state = _State.OVER
        by_token, mechanism = self._exchange.by_token, self._exchange.mechanism
        return Step(user=user, by_token=by_token, mechanism=mechanism, lifetime_ms=self._lifetime_ms())

    def _lifetime_ms(self) -> int:
        """The lifetime of the login: the listener's limit or the rest of the token's life, whichever is shorter."""
        assert self._exchange is not None
        held, expires_ms = self._max_reauth_ms, self._exchange.expires_ms
        if expires_ms is None:
            return held
        left = max(LIFETIME_MS_MIN, expires_ms - wall_ms())
        return min(left, held) if held else left

    def _later(self, problem: NotYet) -> Step:
        """Wait for keys once. A client that waited in vain gets no response, as its token may be good: it retries."""
        if self._waited:
            return self._end(str(problem))
        self._waited = True
        return Step(until=problem.read())

    def _end(self, why: str, answer: bytes | None = None) -> Step:
        self._state = _State.OVER
        return Step(answer, failed=why, claimed="" if self._exchange is None else self._exchange.claimed)

    def _read(self, kind: type[M], header: codec.RequestHeader, frame: bytes) -> tuple[M, int]:
        api, version = KNOWN[header.api_key], header.api_version
        if not api.has(version):
            raise codec.ProtocolError(f"{api.name} v{version} is not served")
        request, end = codec.decode(kind, version, frame, header.body_offset)
        if end != len(frame):
            raise codec.ProtocolError(f"{api.name} v{version} has {len(frame) - end} bytes after its end")
        return request, version
