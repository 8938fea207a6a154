"""Reactor threads are added and removed while the plane serves; each connection stays with its thread."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path

import pytest

from tests.core.stage import PRODUCE, Client, Stage, batch


def counts(stage: Stage) -> list[int]:
    """The connections of each reactor."""
    return [reactor["connections"] for reactor in stage.plane.stats()]


def turn(stage: Stage) -> None:
    for number in range(len(stage.plane.stats())):
        stage.plane.step(number)


def produced(stage: Stage, client: Client) -> bool:
    """Append a record over a connection; True if its offset was the log end."""
    before = stage.log.log_end_offset
    client.produce(batch(b"v"))
    turn(stage)  # a new connection is taken over
    turn(stage)
    return int(client.receive(PRODUCE, 9)[1].responses[0].partition_responses[0].base_offset) == before


def test_more_threads_take_new_connections_and_fewer_keep_theirs(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    clients = [Client(stage)]
    turn(stage)
    stage.plane.resize(3, 0)
    clients += [Client(stage) for _ in range(3)]
    turn(stage)
    assert counts(stage) == [2, 1, 1]
    stage.plane.resize(1, 0)
    clients += [Client(stage) for _ in range(2)]
    turn(stage)
    assert counts(stage) == [4, 1, 1]
    assert all(produced(stage, client) for client in clients)
    assert stage.plane.close_longest_silent(9) == 6  # of all threads
    turn(stage)
    assert counts(stage) == [0, 0, 0]
    stage.plane.resize(3, 0)
    clients = [Client(stage) for _ in range(3)]
    turn(stage)
    assert counts(stage) == [1, 1, 1]  # the earlier threads
    stage.close()


def test_threads_change_while_they_run(tmp_path: Path) -> None:
    """An added reactor thread serves connections like the first ones, and all threads end with the plane."""
    stage = Stage(tmp_path)
    stage.plane.start()
    clients = []
    for number in (4, 2, 6, 1):
        stage.plane.resize(number, 0)
        clients += [Client(stage) for _ in range(6)]
        for client in clients:
            client.produce(batch(b"v"))
            assert client.receive(PRODUCE, 9)[1].responses[0].partition_responses[0].error_code == 0
    assert len(counts(stage)) == 6 and sum(counts(stage)) == 24
    names = {thread.name for thread in threading.enumerate()}
    assert {f"pybroker-network-{number}" for number in range(6)} <= names
    stage.close()


def test_threads_at_their_limits_and_beyond(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    for serving, copying in ((0, 0), (1025, 0), (1, -1), (1, 1025)):
        with pytest.raises(ValueError, match="reactors"):
            stage.plane.resize(serving, copying)
    stage.plane.resize(1, 1)
    assert len(counts(stage)) == 2
    stage.close()


def test_without_descriptors_there_are_as_many_threads_as_before(tmp_path: Path) -> None:
    """A plane that has no descriptor for another reactor keeps its threads, and adds more once it can."""
    stage = Stage(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        with pytest.raises(OSError, match="epoll"):
            stage.plane.resize(2, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert counts(stage) == [0] and produced(stage, Client(stage))
    stage.plane.resize(2, 0)
    assert len(counts(stage)) == 2 and produced(stage, Client(stage))
    stage.close()


def test_a_thread_that_cannot_start_takes_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(tmp_path)
    stage.plane.start()

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start"):
            stage.plane.resize(2, 0)
    for client in (Client(stage), Client(stage)):
        client.produce(batch(b"v"))
        assert client.receive(PRODUCE, 9)[1].responses[0].partition_responses[0].error_code == 0
    assert counts(stage) == [2]
    stage.close()
