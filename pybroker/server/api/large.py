"""Executes large requests in slices, so that no request holds the event loop.

    survey    decode the request once, in slices that are discarded: this checks that it is complete and within its
              API's bound, and yields the fields outside the array at which it is cut
    slices    decode it again; execute each slice as a request of its own, and join the encoded responses
    whole     if the API cannot be cut: decode it in slices, execute it at once (the handler yields to the event loop),
              and encode the response on another thread

Each slice waits for its turn, and is charged to `request_percentage`: a client over its quota waits before the next.
"""

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Final, NamedTuple

from pybroker.decisions.caller import Call, Disconnect
from pybroker.protocol import codec
from pybroker.protocol.apis import Api
from pybroker.protocol.bounds import Bound, Cut
from pybroker.protocol.joiner import Joiner, key_of
from pybroker.protocol.message import Message
from pybroker.protocol.reader import Piece
from pybroker.server.api.responder import Answer
from pybroker.server.api.turns import Turns
from pybroker.server.api.twice import Twice

ANSWER_BYTES_MAX: Final = 1 << 28
SURVEY_STEP: Final = 1_000
"""Elements that the survey decodes at once, in about half a millisecond."""
WAIT_MS_MAX: Final = 1_000

Charge = Callable[[str, Call, int], int]
"""(API, call, nanoseconds spent) -> milliseconds that the client has to wait."""
Execute = Callable[[Message, tuple[int, int] | None], Awaitable[Message | None]]
"""(request or slice, (elements, sum of their sizes) of the whole request or None) -> the response."""


class ReceivedRequest(NamedTuple):
    """A request whose header is decoded."""

    api: Api
    call: Call
    frame: bytes | memoryview
    header: codec.RequestHeader


class Large:
    """Executes large requests of all connections."""

    def __init__(self, charge: Charge) -> None:
        self._charge = charge
        self._turns = Turns()

    async def execute(
        self,
        asked: ReceivedRequest,
        bound: Bound,
        execute: Execute,
        encode: Callable[[Message, Message | None], Answer],
        size: Callable[[object], int] | None = None,
    ) -> Answer:
        """Return the encoded response. `execute` handles a request or a slice, and gets the element count and sizes of
        the whole request; `encode` encodes the response to a request that is not cut. Raises ProtocolError, TooMany
        above the API's bound, Disconnect."""
        cut = bound.cut(asked.api.request.STRUCT, asked.header.api_version)
        twice = Twice(() if cut is None else bound.once)
        await self._pay(asked, 0)
        sizes = [0, 0]

        def see(elements: Sequence[object]) -> None:
            twice.see(elements)
            if size is not None:
                sizes[0] += len(elements)
                sizes[1] += sum(map(size, elements))

        request = await self._read(asked, bound.most, () if cut is None else cut.asked, see)
        if cut is None:
            response = await execute(request, None)
            return await asyncio.to_thread(encode, request, response)
        whole = None if size is None else (sizes[0], sizes[1])
        return await self._slices(asked, bound, cut, request, twice, lambda less: execute(less, whole))

    async def _read(
        self, asked: ReceivedRequest, most: int, path: tuple[str, ...], see: Callable[[Sequence[object]], None]
    ) -> Message:
        """Decode the request in slices, and call `see` with each. The returned request has only the last slice of the
        array at which it is cut."""
        slices = self._decoded(asked, most, SURVEY_STEP, path)
        request: Message | None = None
        while request is None:
            began_ns = await self._turn(asked)
            try:
                piece = next(slices)
                if piece is not None:
                    see(piece[0])
            except StopIteration as done:
                request = done.value
                if path:
                    see(getattr(request, path[0]) or [])
            await self._pay(asked, time.perf_counter_ns() - began_ns)
        return request

    def _decoded(
        self, asked: ReceivedRequest, most: int, step: int, path: tuple[str, ...]
    ) -> Generator[Piece, None, Message]:
        header = asked.header
        return codec.decode_slices(
            asked.api.request, header.api_version, asked.frame, header.body_offset, most, step, path
        )

    async def _slices(
        self,
        asked: ReceivedRequest,
        bound: Bound,
        cut: Cut,
        request: Message,
        twice: Twice,
        execute: Callable[[Message], Awaitable[Message | None]],
    ) -> Answer:
        api, header = asked.api, asked.header
        joiner = Joiner(api.key, header.api_version, header.correlation_id, api.response, cut.told)

        async def answer(elements: Sequence[object], depth: int, began_ns: int) -> None:
            less = copy.copy(request)
            setattr(less, cut.asked[0], elements)
            decoded_ns = time.perf_counter_ns()
            answer = await execute(less)
            if answer is None:
                return
            answered_ns = time.perf_counter_ns()
            joiner.add(answer, _keys(elements, cut.asked, depth))
            if joiner.size > ANSWER_BYTES_MAX:
                raise Disconnect(f"the answer to {api.name} has more than {ANSWER_BYTES_MAX} bytes")
            await self._pay(asked, time.perf_counter_ns() - answered_ns + decoded_ns - began_ns)

        slices, is_last = self._decoded(asked, bound.most, bound.at_once, cut.asked), False
        while not is_last:
            began_ns = await self._turn(asked)
            try:
                piece = next(slices)
            except StopIteration as done:
                piece, is_last = (getattr(done.value, cut.asked[0]), 0), True
            if piece is not None:
                elements, depth = piece
                await answer(twice.keep_back(elements), depth, began_ns)
        for elements in twice.slices(bound.at_once):
            await answer(elements, 0, await self._turn(asked))
        return joiner.finish()

    async def _turn(self, asked: ReceivedRequest) -> int:
        """Wait for a turn, and return when it began, in nanoseconds."""
        await self._turns.take(asked.call.caller.principal)
        return time.perf_counter_ns()

    async def _pay(self, asked: ReceivedRequest, spent_ns: int) -> None:
        """Charge the time spent outside the handler (the handler's is charged separately), and wait if that is due."""
        wait_ms = self._charge(asked.api.name, asked.call, spent_ns)
        throttle = asked.call.caller.throttle
        if throttle is not None:
            wait_ms = max(wait_ms, throttle.mute_ms)
        if wait_ms:
            await asyncio.sleep(min(wait_ms, WAIT_MS_MAX) / 1000)


def _keys(elements: Sequence[object], path: tuple[str, ...], depth: int) -> list[object]:
    """Return the key of the last element, of the last element nested in it, and so on, down to `depth`: these continue
    in the next slice."""
    keys = []
    for name in path[1 : depth + 1]:
        keys.append(key_of(elements[-1]))
        elements = getattr(elements[-1], name)
    return keys
