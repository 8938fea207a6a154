"""A connection until somebody is logged in on it, as the broker sees it (KIP-43, KIP-152): frames in, answers out.

    start ──ApiVersions──> start, told ──SaslHandshake 1──> SaslAuthenticate, as often as the mechanism asks ──> a user
      └───────────────────────┴──────────SaslHandshake 0──> tokens without a header ───────────────────────────> a user
    whatever else comes: the connection ends. Nothing but these requests is parsed before somebody is logged in.

Who is logged in may do so again from SaslHandshake 1 on, as the same principal (KIP-368).
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from enum import Enum
from typing import Any, Final, NamedTuple

from pybroker import errors
from pybroker.clock import wall_ms
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.protocol.apis import API_VERSIONS, KNOWN
from pybroker.security.mechanism import BadCredentials, NotYet, ServerMechanism
from pybroker.security.principals import can_log_in

HANDSHAKE: Final = 17
AUTHENTICATE: Final = 36

LIFETIME_MS_MIN: Final = 1
"""Of a login by what has just ended: 0 would be none, and for good."""


class Offer(NamedTuple):
    """One mechanism of a listener: what begins an exchange, and how long a login holds; 0 for good."""

    begin: Callable[[], ServerMechanism]
    max_reauth_ms: int = 0


Mechanisms = Mapping[str, Offer]
"""What a listener offers, by name."""


class Step(NamedTuple):
    """What is to be done after a frame: send the answer, if there is one; then end the connection if it `failed`, or
    hand it over if a `user` is logged in, for `lifetime_ms`; 0 for good. `until`: bring the same frame again then.
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
    """Of one connection. `versions` answers a frame with ApiVersions, and says if the client is told by it."""

    def __init__(
        self,
        mechanisms: Mechanisms,
        versions: Callable[[bytes], tuple[bytes, bool]] | None = None,
        principal: str | None = None,
        by_token: bool = False,
    ) -> None:
        """`versions` is None, and `principal` and `by_token` given, where somebody who is logged in does so again."""
        self._mechanisms = mechanisms
        self._principal = principal
        self._by_token = by_token
        self._versions = versions
        self._state = _State.START
        self._told = self._waited = False
        self._exchange: ServerMechanism | None = None
        self._max_reauth_ms = 0

    def receive(self, frame: bytes) -> Step:
        """Go on with what a client has sent, without its size."""
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
        request, version = self._read(header, frame)
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
        request, version = self._read(header, frame)
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
        """Raise BadCredentials for a reserved name, and for a client that logs in again as another user (in Kafka's
        words), or with a token where it had none before, or without one where it had one."""
        user = exchange.user
        if user is None:
            return
        if not can_log_in(user):
            raise BadCredentials(f"Authentication failed: no user can be called {user!r}")
        if self._principal is None:
            return
        if exchange.by_token != self._by_token:
            raise BadCredentials("Authentication failed: a delegation token renews its own login, and no other")
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
        """The least of what the listener gives, and what is left of that by which somebody logged in."""
        assert self._exchange is not None
        held, expires_ms = self._max_reauth_ms, self._exchange.expires_ms
        if expires_ms is None:
            return held
        left = max(LIFETIME_MS_MIN, expires_ms - wall_ms())
        return min(left, held) if held else left

    def _later(self, problem: NotYet) -> Step:
        """Whoever waits in vain is told nothing, since it may be no fault of theirs: they try again."""
        if self._waited:
            return self._end(str(problem))
        self._waited = True
        return Step(until=problem.read())

    def _end(self, why: str, answer: bytes | None = None) -> Step:
        self._state = _State.OVER
        return Step(answer, failed=why, claimed="" if self._exchange is None else self._exchange.claimed)

    def _read(self, header: codec.RequestHeader, frame: bytes) -> tuple[Any, int]:
        api, version = KNOWN[header.api_key], header.api_version
        if not api.has(version):
            raise codec.ProtocolError(f"{api.name} v{version} is not served")
        request, end = codec.decode(api.request, version, frame, header.body_offset)
        if end != len(frame):
            raise codec.ProtocolError(f"{api.name} v{version} is followed by {len(frame) - end} bytes")
        return request, version
