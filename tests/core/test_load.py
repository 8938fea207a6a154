"""The load generator with peers that answer well, badly, late and not at all."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pybroker.core import LoadGenerator, build_batch
from tests.harness import until
from tests.rows import with_each

FRAME = struct.pack(">i", 12) + b"....index..."
INDEX_AT = 8


def size(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


@contextmanager
def peer(answer: Callable[[int, bytes], bytes | None]) -> Iterator[tuple[socket.socket, list[bytes]]]:
    """A socket whose peer answers each frame with `answer(number, frame)`; None closes it."""
    here, there = socket.socketpair()
    seen: list[bytes] = []

    def work() -> None:
        with there, there.makefile("rb") as stream:
            while len(head := stream.read(4)) == 4:
                seen.append(head + stream.read(*struct.unpack(">i", head)))
                said = answer(len(seen), seen[-1])
                if said is None:
                    return
                there.sendall(said)

    thread = threading.Thread(target=work)
    thread.start()
    with here:
        yield here, seen
        here.shutdown(socket.SHUT_RDWR)
        thread.join()


def load(s: socket.socket, *, depth: int = 1, partitions: tuple[int, ...] = (0,), **layout: int) -> LoadGenerator:
    return LoadGenerator([s.fileno()], [FRAME], [partitions], depth=depth, index_at=INDEX_AT, error_at=4, **layout)


OK = size(b"corr\0\0")


def test_a_closed_loop_keeps_its_depth_and_counts_what_is_answered() -> None:
    """A closed loop keeps `depth` requests in flight, takes partitions in turn, and counts and times each answer."""
    with peer(lambda *_: OK) as (s, seen):
        g = load(s, depth=5, partitions=(3, 1, 2), batch_records=10, batch_bytes=1000)
        g.run(0.2)
        tally = g.tally
    assert tally["requests"] == len(seen) >= 5 and tally["errors"] == 0
    assert tally["records"] == 10 * len(seen) and tally["bytes"] == 1000 * len(seen)
    assert [struct.unpack_from(">i", frame, INDEX_AT)[0] for frame in seen[:6]] == [3, 1, 2, 3, 1, 2][: len(seen)]
    assert 0 < g.percentile_ns(50) <= g.percentile_ns(99) <= g.percentile_ns(100) < 5e9
    assert 0.2e9 <= tally["elapsed_ns"] < 5e9


def test_so_many_bytes_and_no_more() -> None:
    """bytes_max ends a run before its time is up."""
    with peer(lambda *_: OK) as (s, seen):
        g = load(s, batch_bytes=1000)
        g.run(30, bytes_max=10_000)
    assert len(seen) == 10 and g.tally["requests"] == 10


def test_an_open_loop_times_from_when_a_request_was_due() -> None:
    """An open loop measures from the time a request was due, so a stall of the peer shows in all due requests."""
    stall_s = 0.3

    def answer(number: int, _: bytes) -> bytes:
        if number == 10:
            time.sleep(stall_s)
        return OK

    with peer(answer) as (s, _):
        g = load(s, batch_bytes=1)
        g.run(30, rate=100, bytes_max=100)
        assert g.tally["requests"] == 100
    assert g.percentile_ns(100) >= stall_s * 1e9
    assert g.percentile_ns(85) >= stall_s * 1e9 / 4  # thirty were due during the stall: every third waits for long


def test_errors_are_counted_by_their_code() -> None:
    """An answer with an error code counts as an error, even if it carries data."""
    with peer(lambda number, _: size(b"corr" + struct.pack(">h", 3 if number % 2 else 0))) as (s, seen):
        g = load(s, batch_bytes=1, batch_records=1)
        g.run(30, bytes_max=10)
    assert g.tally["errors"] == g.tally["records"] == 5 and g.tally["last_error"] == 3 and len(seen) == 10


@pytest.mark.parametrize("nonsense", [bytes(4), b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"HTTP/1.1", size(b"corr\0")])
def test_answers_that_are_none(nonsense: bytes) -> None:
    """An impossible size or a short answer ends the connection with an error, and the process goes on."""
    with peer(lambda *_: nonsense) as (s, _):
        g = load(s)
        g.run(0.1)
    assert g.tally["requests"] == 0 and g.tally["errors"] == 1 and g.tally["last_error"] == -1


def test_a_peer_that_leaves() -> None:
    """Requests without an answer count as errors when the peer disconnects."""
    with peer(lambda number, _: None if number == 3 else OK) as (s, _):
        g = load(s, depth=4)
        g.run(5)
    assert g.tally["last_error"] == -1 and g.tally["requests"] == 2 and g.tally["errors"] >= 1


def test_stop_ends_a_run() -> None:
    """stop() from another thread ends a run long before its time."""
    with peer(lambda *_: OK) as (s, _):
        g = load(s)
        thread = threading.Thread(target=g.run, args=(600,))
        thread.start()
        until("the generator runs", lambda: g.tally["requests"] >= 10)
        g.stop()
        thread.join(30)
        assert not thread.is_alive()


def test_reading_goes_on_behind_what_was_read() -> None:
    """A Fetch continues behind the last whole batch; an empty answer restarts it; a partial batch does not count."""
    first = build_batch([(1, None, b"a", ())] * 3, base_offset=0)
    second = build_batch([(1, None, b"b", ())] * 2, base_offset=3)
    asked: list[int] = []

    def answer(_: int, frame: bytes) -> bytes:
        (offset,) = struct.unpack_from(">q", frame, 8)
        asked.append(offset)
        if len(asked) == 6:
            g.stop()
        records = {0: first + second[:-1], 3: second}.get(offset, b"")
        return size(b"corr\0\0" + size(records))

    with peer(answer) as (s, _):
        frame = struct.pack(">i", 16) + bytes(16)
        g = LoadGenerator([s.fileno()], [frame], [[0]], depth=1, index_at=4, error_at=4, records_at=6, offset_at=8)
        g.run(30)
    assert asked[:6] == [0, 3, 5, 0, 3, 5]
    rounds, rest = divmod(len(asked), 3)
    assert g.tally["records"] == 5 * rounds + (0, 3, 5)[rest]


@pytest.mark.parametrize("length", [7, 1 << 30, -2])
def test_lengths_that_lie(length: int) -> None:
    """Records that would end behind the answer are not read, and neither are those of a negative length."""
    with peer(lambda *_: size(b"corr\0\0" + struct.pack(">i", length) + b"short!")) as (s, _):
        frame = struct.pack(">i", 16) + bytes(16)
        g = LoadGenerator([s.fileno()], [frame], [[0]], depth=1, index_at=4, error_at=4, records_at=6, offset_at=8)
        g.run(0.05)
    assert g.tally["records"] == 0 and (g.tally["last_error"] == -1) == (length > 0)


@with_each(
    "wrong",
    [
        {"depth": 0},
        {"depth": 1001},
        {"index_at": 20},
        {"error_at": -1},
        {"offset_at": 13, "records_at": 6},
        {"records_at": 6, "depth": 2},
        {"partitions": [[]]},
        {"partitions": []},
        {"frames": [b""]},
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    """Positions outside a frame and impossible depths raise ValueError."""
    arguments = {"frames": [bytes(20)], "partitions": [[0]], "depth": 1, "index_at": 4, "error_at": 4} | wrong
    with pytest.raises(ValueError):
        LoadGenerator([0], **arguments)  # type: ignore[arg-type]
