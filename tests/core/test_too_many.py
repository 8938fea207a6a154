"""The connections that the plane closes when there are too many."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.core.stage import Client, Stage


def ended(client: Client) -> bool:
    """True if the connection was closed without further bytes."""
    client.sock.setblocking(False)
    try:
        return client.sock.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False


def test_those_that_are_silent_for_longest_are_closed(stage: Stage) -> None:
    """The longest silent connections are closed, as many as asked, with or without a pending request.

    Connections of the spared listener stay, and a number beyond those left is ignored.
    """
    clients = [Client(stage, listener=number % 2) for number in range(6)]
    for number in (4, 2, 0, 5, 3, 1):
        clients[number].fetch(0, max_wait_ms=60_000)
        stage.step()
    assert stage.plane.close_longest_silent(2, spared=1) == 2
    stage.step()
    assert [ended(client) for client in clients] == [False, False, True, False, True, False]
    why = {letter[1]: letter[3] for letter in stage.plane.take() if letter[0] == "closed"}
    assert set(why) == {clients[2].id, clients[4].id}
    assert set(why.values()) == {b"max.connections is exceeded, and it was silent for longest"}
    assert stage.plane.close_longest_silent(100, spared=1) == 4
    stage.step()
    assert [ended(client) for client in clients] == [True, False, True, False, True, False]
    late = Client(stage)
    stage.step()
    assert not ended(late) and stage.plane.close_longest_silent(0) == 0


def test_each_is_closed_by_the_reactor_that_has_most(tmp_path: Path) -> None:
    stage = Stage(tmp_path, reactors=2)
    try:
        clients = [Client(stage) for _ in range(6)]
        for turn in (0, 1):
            stage.plane.step(turn)
        for client in clients[:4:2]:  # two of the first reactor close
            client.sock.close()
        stage.plane.step(0)
        assert [each["connections"] for each in stage.plane.stats()] == [1, 3]
        assert stage.plane.close_longest_silent(2) == 2
        for turn in (0, 1):
            stage.plane.step(turn)
        assert [each["connections"] for each in stage.plane.stats()] == [1, 1]
    finally:
        stage.close()
