"""The bridge between the plane and Python: each letter stands alone."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pybroker import core
from pybroker.cluster.caller import Caller
from pybroker.server.bridge import Adopted, Bridge
from pybroker.server.closings import Closings
from pybroker.server.connection import Answer, Waiting

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
    """A plane whose letters come in one go, with a bad one before each."""

    bad: tuple[str, int, int, Any] | None = None

    def take(self) -> list[Any]:
        return [one for good in super().take() for one in ([self.bad, good] if self.bad else [good])]


class Script:
    """Does as the first word of a frame says: `fail` fails, the answer of `odd` cannot be sent, `later` does as the
    rest says a turn later; the answer to any other frame is the frame."""

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
        self.broker = core.Broker()
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
                raise RuntimeError("nobody can forget it")

        self.bridge.adopt(theirs, CALLER, forget)
        self.clients.append(ours)
        return ours

    async def ask(self, client: socket.socket, text: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(client, struct.pack(">i", len(text)) + text)

    async def answer(self, client: socket.socket) -> bytes:
        """What comes, without its size; empty at the end."""
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
    """The requests that are taken with it are answered."""
    stage.plane.bad = BAD_LETTERS[what]
    clients = [stage.client() for _ in range(5)]
    for client in clients:
        await stage.ask(client, b"echo:me....")
    for client in clients:
        assert await stage.answer(client) == b"echo:me...."


@pytest.mark.parametrize("bad", [b"fail:now", b"odd:now.", b"later:odd", b"later:fail"])
async def test_a_request_that_fails_costs_its_connection_alone(stage: Stage, bad: bytes) -> None:
    """Whether it cannot be executed or its answer cannot be sent, now or later: its client sees the end."""
    before, hit, after = (stage.client() for _ in range(3))
    await stage.ask(before, b"later:1..")
    await stage.ask(hit, bad)
    await stage.ask(after, b"later:2..")
    assert await stage.answer(hit) == b""
    assert await stage.answer(before) == b"1.." and await stage.answer(after) == b"2.."


async def test_an_end_that_cannot_be_told_is_nobody_elses_loss(stage: Stage) -> None:
    """The listener fails to forget one connection, and forgets those that ended with it."""
    clients = [stage.client(forget_fails=number == 1) for number in range(4)]
    for client in clients:
        client.close()
    async with asyncio.timeout(10):
        while len(stage.forgotten) < 4:
            await asyncio.sleep(0.01)
    assert sorted(stage.forgotten) == [0, 1, 2, 3]


async def test_what_the_plane_does_not_take_is_still_the_callers(stage: Stage, monkeypatch: Any) -> None:
    """A socket that could not be adopted is not lost: whoever handed it over can close it."""

    class Full:
        def adopt(self, fd: int, **_: Any) -> int:
            raise MemoryError

    monkeypatch.setattr(stage.bridge, "_plane", Full())
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(MemoryError):
        stage.bridge.adopt(theirs, CALLER, lambda _: None)
    assert theirs.fileno() == -1
    monkeypatch.undo()
