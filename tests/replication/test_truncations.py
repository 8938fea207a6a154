"""A truncation that waits for the disk, and what comes meanwhile: another leader, another truncation, who waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.config import BrokerConfig
from pybroker.model import TopicPartition
from pybroker.replication.checkpoints import RECOVERY_POINTS
from pybroker.replication.logdirs import open_log_dirs
from pybroker.replication.opening import Wanted
from pybroker.replication.replica import Replica
from pybroker.replication.replicas import Replicas
from tests.core.following import TOPIC_ID, batch
from tests.harness import eventually

KEY = TopicPartition("t", 0)
LONG = TopicPartition("n" * 240, 0)


class Truncated:
    """A partition that a plane serves, and its log dir's checkpoint, at which a truncation can be kept."""

    def __init__(self, home: Path) -> None:
        (self.log_dir,) = open_log_dirs([str(home)])
        self.replicas = Replicas(7, BrokerConfig.load(None, []), MetadataCache("c"), [self.log_dir])
        self.plane = self.replicas.native_plane(reactors=1)
        asyncio.get_running_loop().add_reader(self.plane.fileno(), self._take)
        self.plane.start()
        self._go = threading.Event()

    def _take(self) -> None:
        for kind, key, _, _ in self.plane.take():
            if kind == "grown":
                self.replicas.grown(key)

    async def open(self) -> Replica:
        """With three records of the leader epoch 5, which it follows in."""
        await self.replicas.open_in_no_role([Wanted(KEY, TOPIC_ID, {"file.delete.delay.ms": "0"}, None, None)])
        replica = self.replicas.get(*KEY)
        assert replica is not None
        await replica.follow(2, 5, 0)
        assert replica.log is not None
        replica.log.append_replica(batch(3, 0), leader_epoch=5, high_watermark=0)
        return replica

    async def begin(self, replica: Replica, leader_epoch: int) -> asyncio.Task[None]:
        """Begin to cut the log, behind somebody who writes the checkpoint."""
        held = threading.Event()

        def hold() -> None:
            with self.log_dir._recording[RECOVERY_POINTS]:
                held.set()
                self._go.wait()

        threading.Thread(target=hold).start()
        await eventually("the checkpoint is being written", held.is_set)
        task = asyncio.create_task(self.replicas.truncate(replica, 2, leader_epoch))
        await eventually("the truncation has begun", lambda: replica.plane is None)
        return task

    async def end(self, *tasks: asyncio.Task[None]) -> None:
        self._go.set()
        await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        self._go.set()
        asyncio.get_running_loop().remove_reader(self.plane.fileno())
        self.plane.stop()
        self.replicas.abandon()
        self.log_dir.close()


@pytest.fixture
async def truncated(tmp_path: Path) -> AsyncIterator[Truncated]:
    made = Truncated(tmp_path)
    yield made
    made.close()


async def test_two_at_once_publish_it_once(truncated: Truncated) -> None:
    """The second is of the next leader epoch. When the partition is deleted nothing stays, and no file is open."""
    replica = await truncated.open()
    first = await truncated.begin(replica, 5)
    await replica.follow(3, 6, 1)
    second = asyncio.create_task(truncated.replicas.truncate(replica, 2, 6))
    await truncated.end(first, second)
    assert list(truncated.replicas._published.values()) == [replica]
    await truncated.replicas.remove([KEY])
    assert not truncated.replicas._published
    del replica, first, second
    await eventually("its files are closed", lambda: truncated.replicas._core.open_files == 0)


async def test_who_begins_to_wait_meanwhile_is_told(truncated: Truncated) -> None:
    """It leads by now: an acknowledgement that waits for its followers, and a follower that catches up."""
    replica = await truncated.open()
    joining: list[Replica] = []
    truncated.replicas.on_joining = joining.append
    cut = await truncated.begin(replica, 5)
    await replica.lead(6, 1, [2, 3], [7, 2])
    waits = asyncio.create_task(replica.committed(3, 6))
    await asyncio.sleep(0)
    await truncated.end(cut)
    assert joining == [replica]
    assert replica.log is not None
    for broker in (2, 3):
        replica.log.note_fetch(broker, 3, leader_epoch=6, now_ms=1)
    await asyncio.wait_for(waits, 5)


async def test_a_directory_with_a_long_name_is_set_aside(truncated: Truncated, tmp_path: Path) -> None:
    """It is not open here; no name can be longer, and it goes all the same."""
    await truncated.open()
    (tmp_path / str(LONG)).mkdir()
    await truncated.replicas.remove([LONG])
    assert not list(tmp_path.glob("nnn*"))
