"""From a frame to the handler of its API and back: one table, and one place for everything that can go wrong.

not readable, or a version that is not served      the connection is closed, with one line in the log
a version before KIP-896 that can be answered      UNSUPPORTED_VERSION, in the shape of that version
more elements than its API's bound                 INVALID_REQUEST if the answer has an error code for the whole, else
                                                   the connection is closed
more elements than are executed at once            executed in slices (`large`)
ApiVersions at a version that is not served        answered at version 0 with error 35 (KIP-511)
KafkaError from a handler                          its code, in the shape that the API answers errors in
any other exception                                UNKNOWN_SERVER_ERROR in that shape, and a traceback in the log
"""

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from pybroker.cluster.caller import Call, Caller, Disconnect
from pybroker.errors import INVALID_REQUEST, UNKNOWN_SERVER_ERROR, UNSUPPORTED_VERSION, KafkaError
from pybroker.logs import event
from pybroker.protocol import codec
from pybroker.protocol.apis import API_VERSIONS, KNOWN, SERVED, Api
from pybroker.protocol.bounds import Bound, bound_of
from pybroker.server.connection import Answer, Waiting
from pybroker.server.large import Charge, Large, Request

log = logging.getLogger(__name__)


class Handler(NamedTuple):
    """What serves one API.

    `by` takes (request, Call) and gives the response, None for no answer, or a coroutine of these. `failed` takes
    (request, error code, message) and gives the response that tells the whole request failed. `abandon`: it only waits
    for news, and is given up when the client is gone. `denied`: gives the code that denies a call regardless of its
    request, or 0; None if that depends on the request. `size`: gives the size of an element of the array at which
    requests of the API are cut, if the handler limits the sum over a whole request.
    """

    by: Callable[[Any, Call], Any]
    failed: Callable[[Any, int, str], Any]
    abandon: bool = False
    denied: Callable[[Call], int] | None = None
    size: Callable[[Any], int] | None = None


def nobody_pays(api: str, call: Call, spent_ns: int) -> int:
    """Charge nothing: there are no quotas."""
    return 0


def nobody_hears(caller: Caller, reason: str) -> None:
    """Log no refusal."""


class Dispatcher:
    """Executes frames by a table of handlers, one for each key of apis.SERVED."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        charge: Charge = nobody_pays,
        refused: Callable[[Caller, str], object] = nobody_hears,
    ) -> None:
        """`charge` counts the time of requests that are executed in slices. `refused` is called with the client of a
        request that is answered with INVALID_REQUEST because it is too large, and the reason."""
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
            asked = Request(api, call, frame, header)
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
        """Answer an old client that its version is no longer served. Raises Disconnect where no such answer is
        known."""
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

    async def _in_slices(self, asked: Request, bound: Bound, handler: Handler) -> Answer:
        api, call, correlation_id = asked.api, asked.call, asked.header.correlation_id
        if handler.denied is not None and bound.cut(api.request.STRUCT, call.version) is None and _tells_whole(asked):
            code = handler.denied(call)
            if code:
                return _refuse(asked, handler, code, "")

        async def execute(request: Any, whole: tuple[int, int] | None) -> Any:
            try:
                response = handler.by(request, call._replace(whole=whole))
                return await response if isinstance(response, Coroutine) else response
            except (Disconnect, codec.TooMany):
                raise
            except Exception as problem:
                return _failure(api, handler, request, call, problem)

        def encode(request: Any, response: Any) -> Answer:
            return _encode(api, handler, request, call, correlation_id, response)

        try:
            return await self._large.execute(asked, bound, execute, encode, handler.size)
        except codec.TooMany as problem:
            return self._too_large(asked, handler, problem)
        except codec.ProtocolError as problem:
            raise Disconnect(f"malformed request: {problem.message}") from None

    def _too_large(self, asked: Request, handler: Handler, problem: codec.TooMany) -> Answer:
        """Refuse a request with too many elements, and log that. Raises Disconnect as `_refuse`."""
        answer = _refuse(asked, handler, INVALID_REQUEST, problem.message)
        self._refused(asked.call.caller, f"{asked.api.name} is too large: {problem.message}")
        return answer


def _tells_whole(asked: Request) -> bool:
    """True if the answer has an error code for the whole request."""
    fields = asked.api.response.STRUCT.untagged(asked.call.version)
    return any(field.name == "error_code" for field in fields)


def _refuse(asked: Request, handler: Handler, code: int, message: str) -> Answer:
    """Refuse a request of which only the API is known. Raises Disconnect if the answer has no error code for the whole
    request."""
    if not _tells_whole(asked):
        raise Disconnect(f"too large a request: {message}")
    request = asked.api.request()
    response = handler.failed(request, code, message)
    return _encode(asked.api, handler, request, asked.call, asked.header.correlation_id, response)


async def _later(
    api: Api, handler: Handler, request: Any, call: Call, correlation_id: int, waiting: Coroutine[Any, Any, Any]
) -> Answer:
    try:
        response = await waiting
    except Disconnect:
        raise
    except Exception as problem:
        response = _failure(api, handler, request, call, problem)
    return _encode(api, handler, request, call, correlation_id, response)


def _failure(api: Api, handler: Handler, request: Any, call: Call, problem: Exception) -> Any:
    """The response to a request that failed as a whole; what nobody foresaw is told with its traceback."""
    if isinstance(problem, KafkaError):
        return handler.failed(request, problem.code, problem.message)
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
    return handler.failed(request, UNKNOWN_SERVER_ERROR, "the broker failed unexpectedly; its log has the details")


def _encode(api: Api, handler: Handler, request: Any, call: Call, correlation_id: int, response: Any) -> Answer:
    if response is None:
        return None
    try:
        return codec.encode_response_parts(api.key, call.version, correlation_id, response)
    except codec.EncodeError as problem:
        failure = _failure(api, handler, request, call, problem)
        return codec.encode_response_parts(api.key, call.version, correlation_id, failure)
