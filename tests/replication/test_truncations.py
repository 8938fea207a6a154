"""A truncation that waits for the disk stays correct if another leader, truncation or wait comes meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pybroker.config import BrokerConfig
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.model import TopicPartition
from pybroker.replication.disks.checkpoints import RECOVERY_POINTS
from pybroker.replication.disks.logdirs import open_log_dirs
from pybroker.replication.opening import WantedReplica
from pybroker.replication.replica import Replica
from pybroker.replication.replicas import Replicas
from tests.core.following import TOPIC_ID, batch
from tests.harness import eventually

KEY = TopicPartition("t", 0)
LONG = TopicPartition("n" * 240, 0)


class Truncated:
    """A partition that a plane serves, in a log dir whose checkpoint can delay a truncation."""

    def __init__(self, home: Path) -> None:
        (self.log_dir,) = open_log_dirs([str(home)])
        self.joining: list[TopicPartition] = []
        self.replicas = Replicas(
            7, BrokerConfig.load(None, []), MetadataCache("c"), [self.log_dir],
            on_joining=lambda replica: self.joining.append(replica.key),
        )  # fmt: skip
        self.plane = self.replicas.native_plane(reactors=1)
        asyncio.get_running_loop().add_reader(self.plane.fileno(), self._take)
        self.plane.start()
        self._go = threading.Event()

    def _take(self) -> None:
        for kind, key, _, _ in self.plane.take():
            if kind == "grown":
                self.replicas.grown(key)

    async def open(self) -> Replica:
        """Open the partition with three records, as a follower in leader epoch 5."""
        await self.replicas.open([WantedReplica(KEY, TOPIC_ID, {"file.delete.delay.ms": "0"})])
        replica = self.replicas.get(*KEY)
        assert replica is not None
        await replica.follow(2, 5, 0)
        assert replica.log is not None
        replica.log.append_replica(batch(3, 0), leader_epoch=5, high_watermark=0)
        return replica

    async def begin(self, replica: Replica, leader_epoch: int) -> asyncio.Task[None]:
        """Begin a truncation that waits for another thread to write the checkpoint."""
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
    """Two truncations in successive leader epochs publish the log once, and its deletion leaves no file open."""
    replica = await truncated.open()
    first = await truncated.begin(replica, 5)
    await replica.follow(3, 6, 1)
    second = asyncio.create_task(truncated.replicas.truncate(replica, 2, 6))
    await truncated.end(first, second)
    assert list(truncated.replicas._published.values()) == [replica]
    await truncated.replicas.remove([KEY])
    assert not truncated.replicas._published
    del replica, first, second
    await eventually("the partition's files are closed", lambda: truncated.replicas._core.open_files == 0)


async def test_who_begins_to_wait_meanwhile_is_told(truncated: Truncated) -> None:
    """A new leader's waits that begin during a truncation are woken, for acks=all and for joining followers."""
    replica = await truncated.open()
    joining = truncated.joining
    cut = await truncated.begin(replica, 5)
    await replica.lead(6, 1, [2, 3], [7, 2])
    waits = asyncio.create_task(replica.committed(3, 6))
    await asyncio.sleep(0)
    await truncated.end(cut)
    assert joining == [KEY]
    assert replica.log is not None
    for broker in (2, 3):
        replica.log.note_fetch(broker, 3, leader_epoch=6, now_ms=1)
    await asyncio.wait_for(waits, 5)


async def test_a_directory_with_a_long_name_is_set_aside(truncated: Truncated, tmp_path: Path) -> None:
    """A partition that is not open is set aside even if its name has the maximum length."""
    await truncated.open()
    (tmp_path / str(LONG)).mkdir()
    await truncated.replicas.remove([LONG])
    assert not list(tmp_path.glob("nnn*"))
