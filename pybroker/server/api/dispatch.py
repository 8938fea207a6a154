"""Passes each frame to the handler of its API and encodes the response; all failures of requests are handled here.

malformed, or a version that is not served:        the connection is closed, and the log says why.
a version before KIP-896 that can be answered:     UNSUPPORTED_VERSION, encoded in that version.
more elements than its API's bound:                INVALID_REQUEST if the response has a top-level error code, else the
                                                   connection is closed.
more elements than are executed at once:           executed in slices (`large`).
ApiVersions at a version that is not served:       UNSUPPORTED_VERSION, encoded in version 0 (KIP-511).
KafkaError from a handler:                         its code, where the API's response has its error codes.
any other exception:                               UNKNOWN_SERVER_ERROR there, and a traceback in the log.
"""

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from pybroker.decisions.caller import Call, Caller, Disconnect
from pybroker.errors import INVALID_REQUEST, UNKNOWN_SERVER_ERROR, UNSUPPORTED_VERSION, KafkaError
from pybroker.logs import event
from pybroker.protocol import codec
from pybroker.protocol.apis import API_VERSIONS, KNOWN, SERVED, Api
from pybroker.protocol.bounds import Bound, bound_of
from pybroker.protocol.message import Message
from pybroker.server.api.large import Charge, Large, ReceivedRequest
from pybroker.server.api.responder import Answer, Waiting

log = logging.getLogger(__name__)


Q = TypeVar("Q", bound=Message)
"""The request of an API."""
A = TypeVar("A", bound=Message)
"""The response of the same API."""
Answered: TypeAlias = A | Coroutine[object, None, A | None] | None
"""The result of a handler: the response, None for no response, or a coroutine of one of these."""


class Handler(NamedTuple, Generic[Q, A]):
    """The functions that serve one API.

    `by` takes (request, Call) and returns `Answered`. `failed` takes (request, error code, message) and returns the
    response with this error for the whole request. `abandon`: the request has no effects and is cancelled when its
    client disconnects. `denied` returns the error code that denies a call before its request is decoded, or 0; None if
    that depends on the request. `size` returns the size of an element of the array at which requests are cut, if the
    handler limits the sum over a whole request.
    """

    by: Callable[[Q, Call], Answered[A]]
    failed: Callable[[Q, int, str], A]
    abandon: bool = False
    denied: Callable[[Call], int] | None = None
    size: Callable[[Any], int] | None = None


AnyHandler = Handler[Any, Any]
"""A handler in a table of all APIs, whose types differ."""


def nobody_pays(api: str, call: Call, spent_ns: int) -> int:
    """Charge nothing, as there are no quotas."""
    return 0


async def done(answer: Answered[A]) -> A | None:
    """Return the response of a handler, waiting for it if it is a coroutine."""
    return await answer if isinstance(answer, Coroutine) else answer


def nobody_hears(caller: Caller, reason: str) -> None:
    """Ignore a refusal."""


class Dispatcher:
    """Executes frames by a table of handlers, one for each key of apis.SERVED."""

    def __init__(
        self,
        handlers: Mapping[int, AnyHandler],
        charge: Charge = nobody_pays,
        refused: Callable[[Caller, str], object] = nobody_hears,
    ) -> None:
        """`charge` counts the time of requests that are executed in slices. `refused` is called with the client and the
        reason when a request gets INVALID_REQUEST because it is too large."""
        if handlers.keys() != SERVED.keys():
            raise ValueError(f"handlers and served APIs differ: {sorted(handlers.keys() ^ SERVED.keys())}")
        self._handlers = handlers
        self._bounds = {key: bound_of(api.name) for key, api in SERVED.items()}
        self._large = Large(charge)
        self._refused = refused

    def respond(self, frame: bytes | memoryview, caller: Caller) -> Answer | Waiting:
        """Execute one request. Raises Disconnect."""
        try:
            header = codec.decode_request_header(frame)
        except codec.ProtocolError as problem:
            raise Disconnect(f"malformed request: {problem.message}") from None
        api = SERVED.get(header.api_key)
        if api is None or not api.has(header.api_version):
            if header.api_key == API_VERSIONS:
                return [codec.encode_unsupported(header.correlation_id)]
            return self._unserved(api, header, frame, caller)
        call = Call(header.api_version, header.client_id, caller, size=len(frame))
        handler, bound = self._handlers[header.api_key], self._bounds[header.api_key]
        try:
            request, _ = codec.decode(api.request, header.api_version, frame, header.body_offset, bound.at_once)
        except codec.TooMany as problem:
            asked = ReceivedRequest(api, call, frame, header)
            if bound.at_once < bound.most:
                return Waiting(self._in_slices(asked, bound, handler), handler.abandon or bound.reads)
            return self._too_large(asked, handler, problem)
        except codec.ProtocolError as problem:
            raise Disconnect(f"malformed request: {problem.message}") from None
        try:
            response = handler.by(request, call)
        except Disconnect:
            raise
        except Exception as problem:
            response = _failure(api, handler, request, call, problem)
        if isinstance(response, Coroutine):
            return Waiting(_later(api, handler, request, call, header.correlation_id, response), handler.abandon)
        return _encode(api, handler, request, call, header.correlation_id, response)

    def _unserved(
        self, api: Api | None, header: codec.RequestHeader, frame: bytes | memoryview, caller: Caller
    ) -> Answer:
        """Answer an old client with UNSUPPORTED_VERSION. Raises Disconnect if its version cannot be encoded."""
        name = f"{api.name} v{header.api_version}" if api else f"API {header.api_key}"
        if api is None or not KNOWN[api.key].min_version <= header.api_version < api.min_version:
            raise Disconnect(f"{name} is not served")
        handler, call = self._handlers[api.key], Call(header.api_version, header.client_id, caller, size=len(frame))
        try:
            most = self._bounds[api.key].at_once
            request, _ = codec.decode(api.request, header.api_version, frame, header.body_offset, most)
        except codec.ProtocolError as problem:
            raise Disconnect(f"{name} is not served: {problem.message}") from None
        answer = handler.failed(request, UNSUPPORTED_VERSION, f"{name} is no longer served: the client is too old")
        return _encode(api, handler, request, call, header.correlation_id, answer)

    async def _in_slices(self, asked: ReceivedRequest, bound: Bound, handler: AnyHandler) -> Answer:
        api, call, correlation_id = asked.api, asked.call, asked.header.correlation_id
        if handler.denied is not None and bound.cut(api.request.STRUCT, call.version) is None and _tells_whole(asked):
            code = handler.denied(call)
            if code:
                return _refuse(asked, handler, code, "")

        async def execute(request: Message, whole: tuple[int, int] | None) -> Message | None:
            try:
                response = handler.by(request, call._replace(whole=whole))
                return await done(response)
            except (Disconnect, codec.TooMany):
                raise
            except Exception as problem:
                return _failure(api, handler, request, call, problem)

        def encode(request: Message, response: Message | None) -> Answer:
            return _encode(api, handler, request, call, correlation_id, response)

        try:
            return await self._large.execute(asked, bound, execute, encode, handler.size)
        except codec.TooMany as problem:
            return self._too_large(asked, handler, problem)
        except codec.ProtocolError as problem:
            raise Disconnect(f"malformed request: {problem.message}") from None

    def _too_large(self, asked: ReceivedRequest, handler: AnyHandler, problem: codec.TooMany) -> Answer:
        """Refuse a request with too many elements, and log that. Raises Disconnect as `_refuse` does."""
        answer = _refuse(asked, handler, INVALID_REQUEST, problem.message)
        self._refused(asked.call.caller, f"{asked.api.name} is too large: {problem.message}")
        return answer


def _tells_whole(asked: ReceivedRequest) -> bool:
    """True if the response has a top-level error code."""
    fields = asked.api.response.STRUCT.untagged(asked.call.version)
    return any(field.name == "error_code" for field in fields)


def _refuse(asked: ReceivedRequest, handler: AnyHandler, code: int, message: str) -> Answer:
    """Refuse a request whose body is not decoded. Raises Disconnect if the response has no top-level error code."""
    if not _tells_whole(asked):
        raise Disconnect(f"the request is too large: {message}")
    request = asked.api.request()
    response = handler.failed(request, code, message)
    return _encode(asked.api, handler, request, asked.call, asked.header.correlation_id, response)


async def _later(
    api: Api, handler: AnyHandler, request: Message, call: Call, correlation_id: int,
    waiting: Coroutine[object, None, Message | None],
) -> Answer:
    try:
        response = await waiting
    except Disconnect:
        raise
    except Exception as problem:
        response = _failure(api, handler, request, call, problem)
    return _encode(api, handler, request, call, correlation_id, response)


def _failure(api: Api, handler: AnyHandler, request: Message, call: Call, problem: Exception) -> Message:
    """The response to a request that failed as a whole; an unexpected exception is logged with its traceback."""
    if isinstance(problem, KafkaError):
        refused: Message = handler.failed(request, problem.code, problem.message)
        return refused
    event(
        log,
        logging.ERROR,
        "request failed",
        api=api.name,
        version=call.version,
        client=call.caller.address,
        client_id=call.client_id,
        reason=f"{type(problem).__name__}: {problem}",
        exc_info=problem,
    )
    words = 'the broker failed unexpectedly: look for "request failed" in its log'
    failed: Message = handler.failed(request, UNKNOWN_SERVER_ERROR, words)
    return failed


def _encode(
    api: Api, handler: AnyHandler, request: Message, call: Call, correlation_id: int, response: Message | None
) -> Answer:
    if response is None:
        return None
    try:
        return codec.encode_response_parts(api.key, call.version, correlation_id, response)
    except codec.EncodeError as problem:
        failure = _failure(api, handler, request, call, problem)
        return codec.encode_response_parts(api.key, call.version, correlation_id, failure)
