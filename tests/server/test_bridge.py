"""The bridge between the plane and Python: a message that fails does not affect the others."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pybroker import core
from pybroker.decisions.caller import Caller
from pybroker.server.api.responder import Answer, Waiting
from pybroker.server.network.bridge import Adopted, Bridge
from pybroker.server.network.closed_connections import Closings
from tests.harness import eventually

CALLER = Caller("somewhere", 7, "PLAINTEXT")
BAD_LETTERS: dict[str, tuple[str, int, int, Any]] = {
    "the end of a connection that nobody knows": ("closed", 999, 0, b""),
    "a partition whose watchers fail": ("grown", 13, 0, b""),
    "a request of a connection that nobody knows": ("request", 999, 999, b"echo"),
    "a request that there was no memory for": ("request", 1, 999, None),
    "a request that fails": ("request", 1, 999, b"fail:now"),
    "a kind that is not known": ("unheard of", 1, 999, None),
}


class Plane(core.Plane):
    """A plane that delivers all its messages at once, with a bad one before each."""

    bad: tuple[str, int, int, Any] | None = None

    def take(self) -> list[Any]:
        return [one for good in super().take() for one in ([self.bad, good] if self.bad else [good])]


class Script:
    """Act on the first word of a frame: `fail` raises, `odd` gets an answer that cannot be sent, `later` acts on the
    rest one turn later; any other frame is echoed."""

    def respond(self, frame: bytes | memoryview, caller: Caller) -> Answer | Waiting:
        verb, _, rest = bytes(frame).partition(b":")
        return Waiting(self._later(rest), abandon=False) if verb == b"later" else self._now(verb, bytes(frame))

    async def _later(self, rest: bytes) -> Answer:
        await asyncio.sleep(0)
        return self._now(rest, rest)

    def _now(self, verb: bytes, answer: bytes) -> Answer:
        if verb == b"fail":
            raise RuntimeError("it was to fail")
        return [1] if verb == b"odd" else [answer]  # type: ignore[list-item]


class Stage:
    def __init__(self) -> None:
        self.broker = core.LogManager()
        self.plane = Plane(self.broker)
        self.bridge = Bridge(self.plane, self.grown)
        self.forgotten: list[int] = []
        self.clients: list[socket.socket] = []
        self.bridge.open(Script(), Closings())

    def grown(self, key: int) -> None:
        raise RuntimeError(f"of partition {key}")

    def client(self, *, forget_fails: bool = False) -> socket.socket:
        number = len(self.clients)
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        ours.setblocking(False)

        def forget(_: Adopted) -> None:
            self.forgotten.append(number)
            if forget_fails:
                raise RuntimeError("this connection cannot be forgotten")

        self.bridge.adopt(theirs, CALLER, forget)
        self.clients.append(ours)
        return ours

    async def ask(self, client: socket.socket, text: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(client, struct.pack(">i", len(text)) + text)

    async def answer(self, client: socket.socket) -> bytes:
        """Receive the next answer without its size; empty when the connection is closed."""
        async with asyncio.timeout(10):
            data = await asyncio.get_running_loop().sock_recv(client, 1000)
        return data[4:]


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage()
    yield made
    made.bridge.close()
    for client in made.clients:
        client.close()
    made.broker.close()


@pytest.mark.parametrize("what", BAD_LETTERS)
async def test_a_bad_letter_is_nobody_elses_loss(stage: Stage, what: str) -> None:
    """Requests that are taken together with a bad message are answered."""
    stage.plane.bad = BAD_LETTERS[what]
    clients = [stage.client() for _ in range(5)]
    for client in clients:
        await stage.ask(client, b"echo:me....")
    for client in clients:
        assert await stage.answer(client) == b"echo:me...."


@pytest.mark.parametrize("bad", [b"fail:now", b"odd:now.", b"later:odd", b"later:fail"])
async def test_a_request_that_fails_costs_its_connection_alone(stage: Stage, bad: bytes) -> None:
    """A request that raises, or whose answer cannot be sent, at once or later, ends only its own connection."""
    before, hit, after = (stage.client() for _ in range(3))
    await stage.ask(before, b"later:1..")
    await stage.ask(hit, bad)
    await stage.ask(after, b"later:2..")
    assert await stage.answer(hit) == b""
    assert await stage.answer(before) == b"1.." and await stage.answer(after) == b"2.."


async def test_an_end_that_cannot_be_told_is_nobody_elses_loss(stage: Stage) -> None:
    """A listener that fails to forget one connection still forgets those that ended with it."""
    clients = [stage.client(forget_fails=number == 1) for number in range(4)]
    for client in clients:
        client.close()
    await eventually("all are forgotten", lambda: len(stage.forgotten) >= 4)
    assert sorted(stage.forgotten) == [0, 1, 2, 3]


async def test_what_the_plane_does_not_take_is_still_the_callers(stage: Stage, monkeypatch: Any) -> None:
    """A socket that the plane could not adopt is still the caller's, so the caller can close it."""

    class Full:
        def adopt(self, fd: int, **_: Any) -> int:
            raise MemoryError

    monkeypatch.setattr(stage.bridge, "_plane", Full())
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(MemoryError):
        stage.bridge.adopt(theirs, CALLER, lambda _: None)
    assert theirs.fileno() == -1
    monkeypatch.undo()
