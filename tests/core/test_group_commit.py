"""flush.messages in core: an acknowledgement waits until its records are on disk, and many share one sync."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker import core, errors
from tests.core.stage import FETCH, PRODUCE, STUCK_MS, TOPIC_ID, Client, Stage, batch, step_until

SYNC_MS = 300


def answer(client: Client) -> tuple[int, int]:
    """Receive the next Produce answer; return (error code, base offset)."""
    step_until(client.stage, lambda: not client.quiet())
    part = client.receive(PRODUCE, 9)[1].responses[0].partition_responses[0]
    return part.error_code, part.base_offset


def syncs(stage: Stage) -> int:
    """Count the file syncs so far."""
    return sum(stage.broker.sync_times()["counts"])


@pytest.fixture
def synced(stage: Stage) -> Iterator[Stage]:
    """A stage whose partition 0 syncs before each acknowledgement, and whose partition 1 does not."""
    stage.log.configure({"flush.messages": 1})
    yield stage


def test_an_acknowledgement_waits_for_the_disk(synced: Stage) -> None:
    """A Produce is answered after its sync; other partitions are served while it takes its time."""
    client, other = Client(synced), Client(synced)
    synced.broker.arm("segment.sync", "sleep", STUCK_MS)
    client.produce(batch(b"a", b"b"))
    other.produce(batch(b"x"), partition=1)
    synced.step()
    assert other.receive(PRODUCE, 9)[0] == 1 and client.quiet()
    synced.broker.disarm()
    assert answer(client) == (0, 0)


def test_those_that_wait_share_a_sync(synced: Stage) -> None:
    """Produces of twenty connections that wait behind a slow sync share the next sync."""
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
    """With flush.messages=100, only the batch that reaches 100 records waits for a sync."""
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
    """A duplicate that arrives while its original waits for the disk waits as well."""
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
    """Answers of a connection keep their order: a Fetch is answered after the Produce before it."""
    client = Client(synced)
    synced.broker.arm("segment.sync", "sleep", STUCK_MS)
    client.produce(batch(b"a"), number=1)
    client.fetch(0, number=2)
    client.produce(batch(b"b"), number=3)
    synced.step()
    assert client.quiet()
    synced.broker.disarm()
    step_until(synced, lambda: not client.quiet())
    assert client.receive(PRODUCE, 9)[0] == 1
    step_until(synced, lambda: not client.quiet())
    assert client.receive(FETCH, 12)[0] == 2
    assert answer(client) == (0, 1)


def test_acks_0_goes_to_the_disk_unasked(synced: Stage) -> None:
    client = Client(synced)
    before = syncs(synced)
    client.produce(batch(b"a"), acks=0)
    step_until(synced, lambda: syncs(synced) > before)
    assert client.quiet()


def test_a_sync_that_fails_takes_the_log_dir_offline(tmp_path: Path) -> None:
    """A failed sync answers KAFKA_STORAGE_ERROR for each partition of its log dir; another log dir goes on."""
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
    """Records in a segment whose directory entry could not be synced, and later ones, are not acknowledged."""
    synced.broker.arm("directory.sync", "errno", errno.ENOSPC, after=after)
    client = Client(synced)
    for value in (b"a", b"b"):
        client.produce(batch(value))
        assert answer(client) == (errors.KAFKA_STORAGE_ERROR, -1)
    assert synced.log.offline


def test_a_client_that_goes_while_the_disk_works(synced: Stage) -> None:
    """A client that disconnects during its sync gets no answer, and its connection is freed after the sync."""
    client = Client(synced)
    synced.broker.arm("segment.sync", "sleep", SYNC_MS)
    client.produce(batch(b"a"))
    synced.step()
    client.sock.close()
    step_until(synced, lambda: synced.plane.stats()[0]["connections"] == 0)
    assert synced.log.log_end_offset == 1


def test_rolls_in_between(tmp_path: Path) -> None:
    """Records that were acknowledged while segments rolled are durable and in order."""
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
    """A long poll ends at its deadline while other connections wait for a slow sync."""
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
    step_until(synced, lambda: not short.quiet())
    assert ends.quiet() and before.quiet() and after.quiet()
    synced.broker.disarm()
    assert answer(ends) == (0, 0)


@pytest.mark.parametrize("partitions", [1, 2])
def test_the_plane_ends_while_the_disk_works(tmp_path: Path, partitions: int) -> None:
    """A plane that stops waits for the pending syncs of its partitions and frees nothing before."""
    stage = Stage(tmp_path)
    stage.broker.arm("segment.sync", "sleep", SYNC_MS, times=partitions)
    for index in range(partitions):
        stage.partitions[index].configure({"flush.messages": 1})
        Client(stage).produce(batch(b"a"), partition=index)
    stage.step()
    stage.plane.stop()
    stage.plane = core.Plane(stage.broker)
    stage.close()
