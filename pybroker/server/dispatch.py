"""From a frame to the handler of its API and back: one table, and one place for everything that can go wrong.

not readable, or a version that is not served      the connection is closed, with one line in the log
ApiVersions at a version that is not served        answered at version 0 with error 35 (KIP-511)
KafkaError from a handler                          its code, in the shape that the API answers errors in
any other exception                                UNKNOWN_SERVER_ERROR in that shape, and a traceback in the log
"""

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from pybroker.cluster.caller import Call, Caller, Disconnect
from pybroker.errors import UNKNOWN_SERVER_ERROR, KafkaError
from pybroker.logs import event
from pybroker.protocol import codec
from pybroker.protocol.apis import API_VERSIONS, SERVED, Api
from pybroker.server.connection import Answer, Waiting

log = logging.getLogger(__name__)


class Handler(NamedTuple):
    """What serves one API.

    `by` takes (request, Call) and gives the response, None for no answer, or a coroutine of these. `failed` takes
    (request, error code, message) and gives the response that tells the whole request failed. `abandon`: it only waits
    for news, and is given up when the client is gone.
    """

    by: Callable[[Any, Call], Any]
    failed: Callable[[Any, int, str], Any]
    abandon: bool = False


class Dispatcher:
    """Executes frames by a table of handlers, one for each key of apis.SERVED."""

    def __init__(self, handlers: Mapping[int, Handler]) -> None:
        if handlers.keys() != SERVED.keys():
            raise ValueError(f"handlers and served APIs differ: {sorted(handlers.keys() ^ SERVED.keys())}")
        self._handlers = handlers

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
            name = f"{api.name} v{header.api_version}" if api else f"API {header.api_key}"
            raise Disconnect(f"{name} is not served")
        try:
            request, _ = codec.decode(api.request, header.api_version, frame, header.body_offset)
        except codec.ProtocolError as problem:
            raise Disconnect(f"malformed request: {problem.message}") from None
        call = Call(header.api_version, header.client_id, caller, size=len(frame))
        handler = self._handlers[header.api_key]
        try:
            response = handler.by(request, call)
        except Disconnect:
            raise
        except Exception as problem:
            response = _failure(api, handler, request, call, problem)
        if isinstance(response, Coroutine):
            return Waiting(_later(api, handler, request, call, header.correlation_id, response), handler.abandon)
        return _encode(api, handler, request, call, header.correlation_id, response)


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
