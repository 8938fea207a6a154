"""A client with small answers does not wait for clients with large ones."""

from __future__ import annotations

import fcntl
import statistics
import struct
import termios
import time
from pathlib import Path

import pytest

from pybroker.protocol import codec
from pybroker.protocol import messages as m
from tests.core.stage import METADATA, PRODUCE, Client, Stage, batch

PIECE_BYTES = 128 << 10


def test_a_turn_sends_what_is_small_first_and_of_what_is_large_one_piece(stage: Stage) -> None:
    """A small answer is sent in the turn that sends another client the first piece of a large one.

    Clients with large answers get their pieces in turn.
    """
    for _ in range(4):
        stage.log.append(batch(bytes(250_000)), now_ms=1)
    large = [Client(stage), Client(stage)]
    little = Client(stage)
    for client in large:
        client.fetch(0)
    little.produce(batch(b"a"))
    stage.step(1)
    assert little.receive(PRODUCE, 9)[1].responses[0].partition_responses[0].base_offset == 4
    assert [came(client) > 0 for client in large] == [True, False]
    taken = [0, 0]
    order = []
    while sum(taken) < 2_000_000:
        before = [came(client) for client in large]
        assert max(before) <= PIECE_BYTES
        for i, client in enumerate(large):
            taken[i] += len(client.sock.recv(PIECE_BYTES)) if before[i] else 0
        order += [i for i in (0, 1) if before[i]]
        stage.step(1)
    assert order[:8] == [0, 1] * 4


def test_a_turn_does_not_look_at_those_whose_turn_it_is_not(stage: Stage, descriptors: int) -> None:
    """The cost of sending a piece of a log does not grow with the number of waiting connections."""
    for _ in range(4):
        stage.log.append(batch(bytes(250_000)), now_ms=1)

    def turn_ns(readers: int) -> float:
        clients = [Client(stage) for _ in range(readers)]
        for client in clients:
            client.fetch(0)
        took = []
        for _ in range(readers):
            began_ns = time.thread_time_ns()
            stage.step(1)
            took.append(time.thread_time_ns() - began_ns)
        assert all(came(client) for client in clients)
        for client in clients:
            client.sock.close()
        stage.step(1)
        return statistics.median(took)

    many = min(2000, (descriptors - 200) // 2)
    assert turn_ns(many) <= 3 * max(turn_ns(20), turn_ns(20))


def test_answers_count_before_it_is_their_turn(stage: Stage) -> None:
    clients = [Client(stage) for _ in range(10)]
    for client in clients:
        client.send(codec.encode_request(METADATA, 9, 5, "c", m.MetadataRequest(topics=None)))
    stage.step()
    for _, _, token, _ in stage.plane.take():
        stage.plane.reply(token, [bytes(400_000)])
    stage.step(1)
    assert sum(came(client) > 0 for client in clients) == 1
    assert stage.plane.held_bytes >= 9 * 400_000


def test_who_waits_for_its_turn_is_not_closed_for_it(tmp_path: Path) -> None:
    """A client that waits its turn for a second is not closed as one that reads nothing, though memory is short."""
    stage = Stage(tmp_path, pool_bytes=64 << 10)
    for _ in range(4):
        stage.log.append(batch(bytes(250_000)), now_ms=1)
    clients = [Client(stage) for _ in range(60)]
    for client in clients:
        client.fetch(0)
    for _ in range(20):
        stage.step(1)
        time.sleep(0.08)
    waiting = [client for client in clients if not came(client)]
    assert len(waiting) == 40
    for client in waiting:
        client.sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.sock.recv(1)
    stage.close()


def came(client: Client) -> int:
    """The bytes that the client has not read yet."""
    return struct.unpack("i", fcntl.ioctl(client.sock, termios.FIONREAD, bytes(4)))[0]
