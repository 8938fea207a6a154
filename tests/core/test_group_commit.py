"""flush.messages natively: an acknowledgement waits until what it acknowledges is on disk, and many wait together."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pybroker import core, errors
from tests.core.stage import FETCH, PRODUCE, STUCK_MS, TOPIC_ID, Client, Stage, batch

PATIENCE_SECONDS = 10
SYNC_MS = 300


def until(stage: Stage, probe: Callable[[], object]) -> None:
    """Step until it is true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not probe():
        assert time.monotonic() < deadline
        stage.plane.step(0, 20)


def answer(client: Client) -> tuple[int, int]:
    """(error, base offset) of the next Produce."""
    until(client.stage, lambda: not client.quiet())
    part = client.receive(PRODUCE, 9)[1].responses[0].partition_responses[0]
    return part.error_code, part.base_offset


def syncs(stage: Stage) -> int:
    """How many times a file was synced so far."""
    return sum(stage.broker.sync_times()["counts"])


@pytest.fixture
def synced(stage: Stage) -> Iterator[Stage]:
    """Partition 0 is durable before each acknowledgement, partition 1 is not."""
    stage.log.configure({"flush.messages": 1})
    yield stage


def test_an_acknowledgement_waits_for_the_disk(synced: Stage) -> None:
    """While the sync takes its time nothing is answered, others are served; then it is, and it is durable."""
    client, other = Client(synced), Client(synced)
    synced.broker.arm("segment.sync", "sleep", STUCK_MS)
    client.produce(batch(b"a", b"b"))
    other.produce(batch(b"x"), partition=1)
    synced.step()
    assert other.receive(PRODUCE, 9)[0] == 1 and client.quiet()
    synced.broker.disarm()
    assert answer(client) == (0, 0)


def test_those_that_wait_share_a_sync(synced: Stage) -> None:
    """Twenty connections, two requests each, behind a slow sync: one sync for the first, one for all of the others."""
    first = Client(synced)
    first.produce(batch(b"0"))
    assert answer(first) == (0, 0)
    before = syncs(synced)
    synced.broker.arm("segment.sync", "sleep", STUCK_MS)
    first.produce(batch(b"1"))
    synced.step()
    clients = [Client(synced) for _ in range(20)]
    for client in clients:
        client.produce(batch(b"x"), number=1)
        client.produce(batch(b"y"), number=2)
    synced.step()
    synced.broker.disarm()
    offsets = [answer(client) for client in clients for _ in range(2)]
    assert answer(first) == (0, 1)
    assert sorted(offsets) == [(0, n) for n in range(2, 42)]
    assert syncs(synced) - before <= 3


def test_every_hundredth_record(stage: Stage) -> None:
    """flush.messages=100: the batch that makes it a hundred waits, those before it do not."""
    stage.log.configure({"flush.messages": 100})
    client = Client(stage)
    client.produce(batch(*[b"x"] * 99))
    assert answer(client) == (0, 0)
    stage.broker.arm("segment.sync", "sleep", STUCK_MS)
    client.produce(batch(b"y"))
    stage.step()
    assert client.quiet()
    stage.broker.disarm()
    assert answer(client) == (0, 99)
    client.produce(batch(*[b"x"] * 99))
    stage.step()
    assert not client.quiet()


def test_a_duplicate_waits_as_its_original(synced: Stage) -> None:
    """The retry comes by another connection while the original is on its way to the disk: neither is acknowledged."""
    sequenced = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    one, two = Client(synced), Client(synced)
    synced.broker.arm("segment.sync", "sleep", STUCK_MS)
    one.produce(sequenced)
    synced.step()
    two.produce(sequenced)
    synced.step()
    assert one.quiet() and two.quiet()
    synced.broker.disarm()
    assert answer(one) == (0, 0) and answer(two) == (0, 0)


def test_what_follows_waits_too(synced: Stage) -> None:
    """Answers keep their order: a fetch of the same connection is answered behind its produce."""
    client = Client(synced)
    synced.broker.arm("segment.sync", "sleep", STUCK_MS)
    client.produce(batch(b"a"), number=1)
    client.fetch(0, number=2)
    client.produce(batch(b"b"), number=3)
    synced.step()
    assert client.quiet()
    synced.broker.disarm()
    until(synced, lambda: not client.quiet())
    assert client.receive(PRODUCE, 9)[0] == 1
    until(synced, lambda: not client.quiet())
    assert client.receive(FETCH, 12)[0] == 2
    assert answer(client) == (0, 1)


def test_acks_0_goes_to_the_disk_unasked(synced: Stage) -> None:
    client = Client(synced)
    before = syncs(synced)
    client.produce(batch(b"a"), acks=0)
    until(synced, lambda: syncs(synced) > before)
    assert client.quiet()


def test_a_sync_that_fails_takes_the_log_dir_offline(tmp_path: Path) -> None:
    """Its acknowledgements are errors, so are those of every partition there; another log dir goes on."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    stage = Stage(tmp_path / "one")
    elsewhere = stage.broker.open(str(tmp_path / "two"), "t", 2, topic_id=TOPIC_ID, config={})
    elsewhere.become_leader(0, 0)
    stage.plane.publish(elsewhere, native_append=True)
    stage.log.configure({"flush.messages": 1})
    stage.broker.arm("segment.sync", "errno", errno.EIO)
    clients = [Client(stage), Client(stage)]
    for client in clients:
        client.produce(batch(b"a"))
    assert [answer(client) for client in clients] == [(errors.KAFKA_STORAGE_ERROR, -1)] * 2
    assert stage.log.offline and stage.partitions[1].offline and not elsewhere.offline
    for partition, expected in ((0, errors.KAFKA_STORAGE_ERROR), (1, errors.KAFKA_STORAGE_ERROR), (2, 0)):
        clients[0].produce(batch(b"b"), partition=partition)
        assert answer(clients[0])[0] == expected
    stage.close()


@pytest.mark.parametrize("after", [0, 1], ids=["of its files", "of its directory"])
def test_a_name_that_cannot_be_made_durable(synced: Stage, after: int) -> None:
    """Records in a file that nobody finds after a loss of power are not durable: neither the first of them is
    acknowledged nor those behind it."""
    synced.broker.arm("directory.sync", "errno", errno.ENOSPC, after=after)
    client = Client(synced)
    for value in (b"a", b"b"):
        client.produce(batch(value))
        assert answer(client) == (errors.KAFKA_STORAGE_ERROR, -1)
    assert synced.log.offline


def test_a_client_that_goes_while_the_disk_works(synced: Stage) -> None:
    """Nothing is told to nobody, and the connection is gone once the disk is done."""
    client = Client(synced)
    synced.broker.arm("segment.sync", "sleep", SYNC_MS)
    client.produce(batch(b"a"))
    synced.step()
    client.sock.close()
    until(synced, lambda: synced.plane.stats()[0]["connections"] == 0)
    assert synced.log.log_end_offset == 1


def test_rolls_in_between(tmp_path: Path) -> None:
    """Segments roll while acknowledgements wait: all of it is durable, in order."""
    stage = Stage(tmp_path)
    stage.log.configure({"flush.messages": 1, "segment.bytes": 2000})
    clients = [Client(stage) for _ in range(5)]
    for _ in range(20):
        for client in clients:
            client.produce(batch(bytes(300)))
        stage.step(1)
        assert all(answer(client)[0] == 0 for client in clients)
    assert stage.log.log_end_offset == 100 and stage.log.segment_count > 10
    stage.close()


def test_no_deadline_waits_for_the_disk(synced: Stage) -> None:
    """A client ends its stream while its fetch waits behind a slow sync; who asks to wait a moment waits no longer."""
    before, ends, after, short = (Client(synced) for _ in range(4))
    wait = {"session": (0, -1), "offsets": {1: 0}}
    before.fetch_in(**wait, max_wait_ms=60_000)
    synced.step()
    synced.broker.arm("segment.sync", "sleep", STUCK_MS)
    ends.produce(batch(b"a"))
    ends.fetch_in(**wait, max_wait_ms=60_000)
    synced.step()
    after.fetch_in(**wait, max_wait_ms=60_000)
    synced.step()
    ends.sock.shutdown(socket.SHUT_WR)
    synced.step()
    short.fetch_in(**wait, max_wait_ms=10)
    until(synced, lambda: not short.quiet())
    assert ends.quiet() and before.quiet() and after.quiet()
    synced.broker.disarm()
    assert answer(ends) == (0, 0)


@pytest.mark.parametrize("partitions", [1, 2])
def test_the_plane_ends_while_the_disk_works(tmp_path: Path, partitions: int) -> None:
    """What waits is waited for, one after the other, and nothing is freed under it."""
    stage = Stage(tmp_path)
    stage.broker.arm("segment.sync", "sleep", SYNC_MS, times=partitions)
    for index in range(partitions):
        stage.partitions[index].configure({"flush.messages": 1})
        Client(stage).produce(batch(b"a"), partition=index)
    stage.step()
    stage.plane.stop()
    stage.plane = core.Plane(stage.broker)
    stage.close()
