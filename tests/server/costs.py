"""Print the cost of each API, for a client with rights and one without: `python -m tests.server.costs [-n N] [API]`.

Each array of each API's newest version gets one request, of N elements or as large as its bound allows:

    CPU us an element   on the event loop's thread, in total
    held ms             the longest CPU time of one callback of the event loop

The broker is its table of handlers and guards, in this process, without sockets.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pybroker.config import BrokerConfig
from pybroker.decisions.caller import Caller, Disconnect
from pybroker.protocol import codec
from pybroker.protocol.apis import SERVED, Api
from pybroker.protocol.bounds import bound_of
from pybroker.protocol.wire import ELEMENTS_MAX
from pybroker.server.api.authorization import Authorization
from pybroker.server.api.dispatch import Dispatcher
from pybroker.server.api.responder import Waiting
from tests.server.handlers.desk import Desk
from tests.wide import Path as Names
from tests.wide import arrays, wide

ANN, BOB = (Caller("127.0.0.1", 1, "CLIENTS", f"User:{name}") for name in ("ann", "bob"))
"""Ann may do everything, Bob nothing."""
BEFORE_LOGIN = {"SaslHandshake", "SaslAuthenticate", "ApiVersions"}
PATIENCE_S = 60.0


class Cost(NamedTuple):
    """The cost of a request; `answer` is its result in one word."""

    elements: int
    request_bytes: int
    answer: str
    cpu_s: float
    held_s: float

    def __str__(self) -> str:
        each_us = 1e6 * self.cpu_s / self.elements
        return (
            f"{self.elements:7,d} elements {self.request_bytes / 1e3:7,.0f} kB  {each_us:7.2f} us an element  "
            f"{1e3 * self.cpu_s:7.1f} ms in all  held {1e3 * self.held_s:6.1f} ms  {self.answer}"
        )


class Stretches:
    """A context in which the run time of each event loop callback, and of each garbage collection, is measured."""

    def __init__(self) -> None:
        self.longest_s = self.all_s = 0.0

    def __enter__(self) -> Stretches:
        run = self._run = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            began_s = time.thread_time()
            try:
                run(handle)
            finally:
                self.note(time.thread_time() - began_s)

        asyncio.Handle._run = timed  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.Handle._run = self._run  # type: ignore[method-assign]

    def note(self, spent_s: float) -> None:
        self.all_s += spent_s
        self.longest_s = max(self.longest_s, spent_s)


def requests(most: int | None, only: list[str]) -> Iterator[tuple[Api, Names, int]]:
    """Yield each array of each API, and the number of elements that the innermost array of a request gets."""
    for api in SERVED.values():
        if api.name in BEFORE_LOGIN or (only and api.name not in only):
            continue
        for path in arrays(api.request.STRUCT, api.max_version):
            bound = min(bound_of(api.name).most, most or ELEMENTS_MAX)
            yield api, path, max(1, bound - len(path) + 1)


async def cost(dispatcher: Dispatcher, caller: Caller, api: Api, path: Names, count: int) -> Cost:
    """Send one request, whose outer arrays have one element each."""
    request = wide(api.request, api.max_version, path, (1,) * (len(path) - 1) + (count,))
    frame = codec.encode_request(api.key, api.max_version, 1, "costs", request)
    del request
    gc.collect()

    async def ask() -> Any:
        answer: Any = dispatcher.respond(frame, caller)
        return await answer.answer if isinstance(answer, Waiting) else answer

    with Stretches() as stretches:
        try:
            answer = await asyncio.wait_for(ask(), PATIENCE_S)
            told = "no answer" if answer is None else f"answered with {sum(map(len, answer)) / 1e3:,.0f} kB"
        except Disconnect as closed:
            told = f"closed: {closed}"
        except TimeoutError:
            told = f"no answer in {PATIENCE_S:g} s"
    return Cost(count, len(frame), told, stretches.all_s, stretches.longest_s)


async def show(most: int | None, only: list[str], path: Path) -> None:
    desk = await Desk(path).begin()
    await desk.topic("t", partitions=3)
    config = BrokerConfig.load(
        None, ["authorizer.class.name=kafka.security.authorizer.AclAuthorizer", f"super.users={ANN.principal}"]
    )
    authorization = Authorization.of(config, lambda: desk.stage.session)
    assert authorization is not None
    dispatcher = Dispatcher(authorization.guard(desk.table, desk.stage.metadata))
    gc.freeze()
    for api, names, count in requests(most, only):
        for caller in (BOB, ANN):
            who = "denied " if caller is BOB else "allowed"
            found = await cost(dispatcher, caller, api, names, count)
            print(f"{api.name:28s} {'.'.join(names):36s} {who} {found}", flush=True)
    await desk.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=None, help="elements of a request; else as many as its bound allows")
    parser.add_argument("api", nargs="*")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(show(given.n, given.api, Path(place) / "data"))


if __name__ == "__main__":
    main()
