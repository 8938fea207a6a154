"""Cold reads: a reader thread reads what is not in the page cache, while the reactor serves other requests."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker import core
from tests.core.page_cache import chill
from tests.core.stage import FETCH, PRODUCE, STUCK_MS, Client, Stage, batch, step_until
from tests.harness import until

BATCHES = 64
BATCH_BYTES = 100_000
READ_MS = 400
PRODUCES = 50
PATIENCE_SECONDS = 20


@pytest.fixture
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A stage on a real disk; partition 0 has six sealed segments of 1 MiB, none of them in the page cache."""
    stage = Stage(tmp_path_factory.mktemp("disk"))
    stage.log.configure({"segment.bytes": 1 << 20})
    for n in range(BATCHES):
        stage.log.append(batch(bytes([n]) * BATCH_BYTES), now_ms=1)
    stage.log.roll()
    stage.log.flush()
    chill(*Path(stage.log.directory).glob("*.log"))
    yield stage
    stage.close()


def values(client: Client) -> list[int]:
    """The batches in the next answer, each named by its fill byte."""
    part = client.receive(FETCH, 12)[1].responses[0].partitions[0]
    assert part.error_code == 0
    data = bytes(part.records)
    return [data[position + 1000] for position, _ in core.iter_batches(data)]


def test_a_cold_fetch_waits_and_others_do_not(disk: Stage) -> None:
    """While a reader thread reads for a Fetch, the reactor answers a Produce that came later."""
    reader, writer = Client(disk), Client(disk)
    disk.broker.arm("segment.read", "sleep", STUCK_MS)
    reader.fetch(0)
    writer.produce(batch(b"x"), partition=1)
    disk.step()
    assert writer.receive(PRODUCE, 9)[0] == 1 and reader.quiet()
    disk.broker.disarm()
    disk.plane.start()
    assert values(reader) == list(range(10))


def test_no_produce_waits_for_a_cold_reader(disk: Stage) -> None:
    """Many produces of one client are answered during each cold read of another."""
    reader, writer = Client(disk), Client(disk)
    reader.sock.settimeout(PATIENCE_SECONDS)
    disk.plane.start()
    seen: list[int] = []
    while len(seen) < BATCHES:
        disk.broker.arm("segment.read", "sleep", STUCK_MS)
        reader.fetch(len(seen))
        for _ in range(PRODUCES):
            writer.produce(batch(b"x"), partition=1)
            writer.receive(PRODUCE, 9)
        assert seen or reader.quiet()  # the next batches may have been read ahead
        disk.broker.disarm()
        seen += values(reader)
    assert seen == list(range(BATCHES))


def test_a_session_reads_cold_partitions(disk: Stage) -> None:
    """An incremental Fetch that is executed again after a cold read applies its session changes once."""
    client = Client(disk)
    client.fetch_in((0, 0), {1: 0})
    disk.step()
    session = client.receive(FETCH, 12)[1].session_id
    disk.broker.arm("segment.read", "sleep", STUCK_MS)
    client.fetch_in((session, 1), {0: 30})
    disk.step()
    assert client.quiet()
    disk.broker.disarm()
    disk.plane.start()
    response = client.receive(FETCH, 12)[1]
    assert (response.error_code, response.session_id) == (0, session)
    assert len(response.responses[0].partitions[0].records) > BATCH_BYTES
    client.fetch_in((session, 2), {0: BATCHES})
    assert client.receive(FETCH, 12)[1].error_code == 0


@pytest.mark.parametrize("ending", ["the client goes", "the plane ends", "the partition goes"])
def test_ends_while_a_reader_reads(disk: Stage, ending: str) -> None:
    """Nothing is freed while a reader thread uses it, and no answer goes to a connection that is gone."""
    client = Client(disk)
    disk.broker.arm("segment.read", "sleep", STUCK_MS)
    client.fetch(0)
    disk.step()
    assert client.quiet()
    letters = disk.plane.take()
    the_disk = threading.Timer(READ_MS / 1000, disk.broker.disarm)
    the_disk.start()
    if ending == "the client goes":
        client.sock.close()
        step_until(disk, lambda: not disk.plane.stats()[0]["connections"])
    elif ending == "the plane ends":
        disk.plane.stop()
        disk.plane = core.Plane(disk.broker)
    else:
        disk.plane.withdraw(disk.log)
        disk.broker.delete(disk.log)

        def came() -> bool:
            letters.extend(disk.plane.take())
            return bool(letters)

        step_until(disk, came)
        ((kind, _, token, _),) = letters
        assert kind == "request"
        disk.plane.reply(token, None, close=True)
    the_disk.join()


def test_an_answer_that_cannot_be_sent_while_a_reader_reads(disk: Stage) -> None:
    """A connection ends once if the rest of an answer is truncated away while the next Fetch waits for the disk."""
    for _ in range(20):
        disk.partitions[1].append(batch(bytes(BATCH_BYTES)), now_ms=1)
    client, other = Client(disk), Client(disk)
    client.fetch_in((0, -1), {1: 0})
    disk.step()
    disk.partitions[1].truncate(0)
    disk.broker.arm("segment.read", "sleep", READ_MS)
    client.fetch(0)
    disk.step()
    client.sock.recv(1 << 20)
    disk.step(1)
    until("the reader has read", lambda: not disk.broker.sleeping)  # and reports it between two turns
    disk.plane.start()
    until("the connection has ended", lambda: disk.plane.stats()[0]["connections"] <= 1)
    other.produce(batch(b"x"), partition=1)
    assert other.receive(PRODUCE, 9)[0] == 1


def test_a_full_wait_begins_when_the_pages_are_there(disk: Stage) -> None:
    """A Fetch with large min_bytes waits its full time after the cold read, and is answered with all records."""
    client = Client(disk)
    client.fetch(60, max_wait_ms=100, min_bytes=1 << 30)
    disk.plane.start()
    assert values(client) == [60, 61, 62, 63]


def test_a_log_that_is_cut_while_a_reader_reads_has_no_failed_disk(disk: Stage) -> None:
    """A read past the end of a log that was truncated meanwhile does not take the log dir offline."""
    reader = Client(disk)
    disk.broker.arm("segment.read", "sleep", STUCK_MS)
    before = slept()
    reader.fetch(0)
    disk.step()
    until("the reader sleeps in the call", lambda: slept() > before + 20)
    disk.log.become_follower(1, 1, 1)
    disk.log.truncate(1)
    disk.broker.disarm()
    disk.plane.start()
    reader.receive(FETCH, 12)
    assert not disk.broker.unread(str(Path(disk.log.directory).parent))


def slept() -> int:
    """Count voluntary context switches of other threads; a thread that is held in a file call makes one each ms."""
    others = [task for task in Path("/proc/self/task").iterdir() if int(task.name) != threading.get_native_id()]
    found = [re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.M) for task in others]
    return sum(int(each[1]) for each in found if each)
