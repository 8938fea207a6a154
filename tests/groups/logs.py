"""A coordinator on logs of its own, without a broker around it."""

from __future__ import annotations

import threading
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from pybroker import core
from pybroker.clock import wall_ms
from pybroker.cluster.offsets import Committed
from pybroker.config import BrokerConfig
from pybroker.groups.coordinator import OFFSETS_TOPIC, Coordinator
from pybroker.model import TopicPartition

PARTITIONS = 4
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


class Log:
    """A partition of the offsets topic on disk; its first read waits for `gate`."""

    def __init__(self, broker: core.Broker, directory: Path, index: int) -> None:
        self.key = TopicPartition(OFFSETS_TOPIC, index)
        config = {"cleanup.policy": 2, "segment.bytes": 1 << 20}
        self._log = broker.open(str(directory), OFFSETS_TOPIC, index, topic_id=b"\1" * 16, config=config)
        self._log.become_leader(0, 0)
        self.gate = threading.Event()
        self.gate.set()

    def partition(self) -> Any:
        return self

    def pass_by(self, offset: int) -> int:
        raise AssertionError(f"{offset} is damaged")

    async def append(self, records: core.Bytes, now_ms: int) -> core.Appended:
        return self._log.append(records, now_ms=now_ms)

    @property
    def log_start_offset(self) -> int:
        assert self.gate.wait(10)
        return self._log.log_start_offset

    def everything(self) -> bytes:
        """All batches, as they lie in the log."""
        piece = self._log.read(self._log.log_start_offset, 1 << 30, to_log_end=True).slice
        if piece is None:
            return b""
        try:
            return piece.tobytes()
        finally:
            piece.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class Bench:
    """A coordinator of 4 partitions, to load again as often as a test wants."""

    def __init__(self, directory: Path, workers: Executor) -> None:
        self._workers = workers
        self._core = core.Broker()
        self.logs = [Log(self._core, directory, index) for index in range(PARTITIONS)]
        self.groups = self.fresh()

    def fresh(self, *sets: str, **world: Any) -> Coordinator:
        """Another coordinator of these logs; `world`: the clock and the ids that it is given."""
        self.groups = Coordinator(BrokerConfig.load(sets=sets), self._workers, **world)
        return self.groups

    def close(self) -> None:
        self._core.close(clean=False)


def at(offset: int, commit_ms: int = 0) -> Committed:
    return Committed(offset, -1, "", commit_ms or wall_ms())
