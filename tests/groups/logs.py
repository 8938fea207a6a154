"""A coordinator with its own logs, without a broker around it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Executor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pybroker import core, errors
from pybroker.clock import wall_ms
from pybroker.config import BrokerConfig
from pybroker.decisions.image import OFFSETS_TOPIC
from pybroker.decisions.offsets import Committed
from pybroker.errors import KafkaError
from pybroker.groups.coordinator import Coordinator
from pybroker.groups.loading import load
from pybroker.groups.shard import GroupEntry
from pybroker.model import TopicPartition
from tests.virtual import settle

PARTITIONS = 4
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


class Log:
    """A partition of the offsets topic on disk; its first read waits for `gate`."""

    def __init__(self, broker: core.LogManager, directory: Path, index: int) -> None:
        self.key = TopicPartition(OFFSETS_TOPIC, index)
        config = {"cleanup.policy": 2, "segment.bytes": 1 << 20}
        self._log = broker.open(str(directory), OFFSETS_TOPIC, index, topic_id=b"\1" * 16, config=config)
        self._log.become_leader(0, 0)
        self.gate = threading.Event()
        self.gate.set()
        self.asked = threading.Event()

    def partition(self) -> Any:
        return self

    def pass_by(self, offset: int) -> int:
        raise AssertionError(f"{offset} is damaged")

    async def append(
        self, records: core.Bytes, now_ms: int, leader_epoch: int = -1, acks: int = -2, guard: int = 0,
        *, internal: bool = False,
    ) -> core.Appended:  # fmt: skip
        return self._log.append(
            records, now_ms=now_ms, leader_epoch=leader_epoch, guard=guard, internal=internal
        )

    async def verify(self, producer_id: int, producer_epoch: int, base_sequence: int) -> int:
        return self._log.verify(producer_id, producer_epoch, base_sequence)

    async def append_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, commit: bool, now_ms: int
    ) -> core.Appended:
        return self._log.append_marker(producer_id, producer_epoch, coordinator_epoch, commit, now_ms=now_ms)

    async def committed(self, offset: int, leader_epoch: int) -> None:
        assert self._log.high_watermark >= offset

    @property
    def log_start_offset(self) -> int:
        self.asked.set()
        assert self.gate.wait(10)
        return self._log.log_start_offset

    def everything(self) -> bytes:
        """The bytes of all batches in the log."""
        piece = self._log.read(self._log.log_start_offset, 1 << 30, to_log_end=True).slice
        if piece is None:
            return b""
        try:
            return piece.tobytes()
        finally:
            piece.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class Replicated(Log):
    """A log with followers, which fetch when the test calls move()."""

    def __init__(self, broker: core.LogManager, directory: Path, index: int) -> None:
        super().__init__(broker, directory, index)
        self.high_watermark = self._log.log_end_offset
        self.appending = asyncio.Event()
        self.appending.set()
        self.refuses: int | None = None
        self.in_sync = True
        self._moved = asyncio.Condition()

    @property
    def offline(self) -> bool:
        return False

    async def append(
        self, records: core.Bytes, now_ms: int, leader_epoch: int = -1, acks: int = -2, guard: int = 0,
        *, internal: bool = False,
    ) -> core.Appended:  # fmt: skip
        await self.appending.wait()
        if self.refuses is not None:
            raise KafkaError(self.refuses, "the test says no")
        return await super().append(records, now_ms, leader_epoch, acks, guard, internal=internal)

    async def committed(self, offset: int, leader_epoch: int) -> None:
        async with self._moved:
            await self._moved.wait_for(lambda: self.high_watermark >= offset or self.high_watermark < 0)
        if self.high_watermark < 0:
            raise KafkaError(errors.NOT_LEADER_OR_FOLLOWER, "another broker leads")
        if not self.in_sync:
            raise KafkaError(errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "the followers went away")

    async def move(self, high_watermark: int | None = None) -> None:
        """Let the followers fetch the whole log, or up to an offset; -1 means that another broker leads."""
        async with self._moved:
            self.high_watermark = self._log.log_end_offset if high_watermark is None else high_watermark
            self._moved.notify_all()
        await settle()

    def seen_by_the_next(self) -> dict[str, GroupEntry]:
        """The groups that the next coordinator loads, which has only committed records."""
        return load(_UpTo(self, self.high_watermark), 1 << 20).entries


class _UpTo:
    """A view of the log up to an offset."""

    def __init__(self, log: Log, end: int) -> None:
        self._log, self.log_end_offset = log, end

    def partition(self) -> Any:
        return self

    def read(self, offset: int, max_bytes: int, **_: Any) -> Any:
        data = self._log.everything()
        inside = [(at, header) for at, header in core.iter_batches(data) if header.last_offset < self.log_end_offset]
        kept = b"".join(data[at : at + header.size] for at, header in inside if header.base_offset >= offset)
        return SimpleNamespace(slice=SimpleNamespace(tobytes=lambda: kept, close=lambda: None) if kept else None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class Bench:
    """The logs of 4 partitions, and coordinators of them that a test can load as often as it wants."""

    def __init__(self, directory: Path, workers: Executor, kind: type[Log] = Log) -> None:
        self._workers = workers
        self._core = core.LogManager()
        self.logs: list[Any] = [kind(self._core, directory, index) for index in range(PARTITIONS)]
        self.groups = self.fresh()

    def fresh(self, *sets: str, **world: Any) -> Coordinator:
        """A new coordinator of these logs; `world` replaces its clock and its ids."""
        self.groups = Coordinator(BrokerConfig.load(sets=sets), self._workers, **world)
        return self.groups

    async def lead(self, groups: Coordinator, leader_epoch: int = 0) -> None:
        """Make a coordinator the leader of all these logs, and wait until it has loaded them."""
        groups.partitions = len(self.logs)
        for log in self.logs:
            groups.lead(log.key.partition, leader_epoch, log)
        await groups.loaded()

    def close(self) -> None:
        self._core.close(clean=False)


def at(offset: int, commit_ms: int = 0) -> Committed:
    return Committed(offset, -1, "", commit_ms or wall_ms())
