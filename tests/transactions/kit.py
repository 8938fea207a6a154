"""A transaction coordinator with a log, and partitions that take or refuse markers, without a broker around it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from pybroker import core, errors
from pybroker.config import BrokerConfig
from pybroker.decisions.image import TRANSACTION_TOPIC, LiveBroker, PartitionState
from pybroker.decisions.metadata_cache import MetadataCache, TopicStates, UpdateMetadata
from pybroker.decisions.transaction import ProducerIdAndEpoch, Transaction
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.transactions.coordinator import TransactionCoordinator
from pybroker.transactions.markers import MarkerQueues
from pybroker.transactions.shard import load
from tests.groups.logs import Replicated
from tests.virtual import settle

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
BROKER, OTHER = 1, 2
TIMEOUT_MS = 60_000
TX = "tx"


class StateOfLog(Replicated):
    """A partition of __transaction_state whose followers fetch at once, unless the test says that they do not."""

    def __init__(self, broker: core.LogManager, directory: Path, index: int) -> None:
        super().__init__(broker, directory, index)
        self.key = TopicPartition(TRANSACTION_TOPIC, index)
        self.fetched = True

    async def append(
        self, records: core.Bytes, now_ms: int, leader_epoch: int = -1, acks: int = -2
    ) -> core.Appended:
        assert acks == -1, "a decision needs replicas in sync"
        appended = await super().append(records, now_ms, leader_epoch, acks)
        if self.fetched:
            self.high_watermark = self._log.log_end_offset
        return appended

    def transactions(self) -> dict[str, Transaction]:
        """The states in the log, as the next coordinator reads them."""
        return load(self, 1 << 20)[0]


class World:
    """One partition of __transaction_state, its coordinator, and a cluster of two brokers that get markers."""

    def __init__(self, directory: Path, workers: Executor, *sets: str) -> None:
        self._core = core.LogManager()
        self.log = StateOfLog(self._core, directory, 0)
        self._workers = workers
        self.config = BrokerConfig.load(sets=sets)
        self.now = 1_000_000
        self.ids = itertools.count(10)
        self.metadata = MetadataCache("c")
        self.in_store: set[TopicPartition] = {T0, T1, U0}
        self.sent: list[tuple[int, int, int, int, bool, TopicPartition]] = []
        """The markers that were answered: broker, producer id, epoch, coordinator epoch, commit, partition."""
        self.answers: Callable[[int, TopicPartition], int] = lambda broker, key: errors.NONE
        self.show()
        self.coordinator: TransactionCoordinator = None  # type: ignore[assignment]
        self.fresh()

    def fresh(self) -> TransactionCoordinator:
        """A new coordinator of the log, which a test has to make its leader; the one before has died."""
        if self.coordinator is not None:
            self.coordinator.resign_all()
            self.queues.close()
        self.queues = MarkerQueues(self.metadata, self._ask, self._exists)
        self.coordinator = TransactionCoordinator(
            self.config, self._workers, self._draw, self.queues, wall_ms=lambda: self.now
        )
        self.coordinator.partitions = 1
        return self.coordinator

    def elect(self, epoch: int) -> None:
        """Make the coordinator the leader of the log in this epoch."""
        self.log.partition().become_leader(epoch, epoch)
        self.coordinator.take_lead(0, epoch, self.log)

    async def lead(self, epoch: int = 0) -> None:
        """Make the coordinator the leader of the log, and wait until it has loaded it."""
        self.elect(epoch)
        await self.coordinator.loaded()

    def show(self, leader: int = BROKER, topics: str = "tu", brokers: tuple[int, ...] = (BROKER, OTHER)) -> None:
        """Have the controller say which broker leads the partitions, and which topics there are."""
        state = PartitionState((1, 2), leader, 0, (1, 2), 1, 0)
        states = [
            TopicStates(name, name.encode() * 16, dict.fromkeys(range(2 if name == "t" else 1), state))
            for name in topics
        ]
        gone = [name for name in self.metadata.image.by_name if name not in topics]
        live = [LiveBroker(number, {}, {}) for number in brokers]
        self.metadata.update(UpdateMetadata(1, 1, live, states, gone))

    def show_many(self, partitions: int) -> None:
        """Have topic t so many partitions."""
        state = PartitionState((1, 2), BROKER, 0, (1, 2), 1, 0)
        topic = TopicStates("t", b"t" * 16, dict.fromkeys(range(partitions), state))
        live = [LiveBroker(number, {}, {}) for number in (BROKER, OTHER)]
        self.metadata.update(UpdateMetadata(1, 1, live, [topic]))

    async def _draw(self) -> int:
        await settle()
        return next(self.ids)

    async def _exists(self, key: TopicPartition) -> bool:
        return key in self.in_store

    async def _ask(self, broker: int, request: m.WriteTxnMarkersRequest) -> m.WriteTxnMarkersResponse:
        kind = m.WriteTxnMarkersResponse.Markers
        response = m.WriteTxnMarkersResponse()
        for marker in request.markers:
            found = kind(producer_id=marker.producer_id)
            response.markers.append(found)
            for topic in marker.topics:
                codes = []
                for index in topic.partition_indexes:
                    key = TopicPartition(topic.name, index)
                    code = self.answers(broker, key)
                    codes.append(kind.Topics.Partitions(partition_index=index, error_code=code))
                    if not code:
                        self.sent.append((
                            broker, marker.producer_id, marker.producer_epoch, marker.coordinator_epoch,
                            marker.transaction_result, key,
                        ))  # fmt: skip
                found.topics.append(kind.Topics(name=topic.name, partitions=codes))
        await settle()
        return response

    # -- requests ----------------------------------------------------------------------------------------------------

    async def init(self, expected: ProducerIdAndEpoch | None = None, name: str = TX) -> ProducerIdAndEpoch:
        return await self.coordinator.init_producer(name, TIMEOUT_MS, expected)

    async def code(self, work: Any) -> int:
        """The error code of a request, NONE if it succeeds."""
        try:
            await work
        except KafkaError as problem:
            return problem.code
        return errors.NONE

    @property
    def state(self) -> str:
        """The state of the transactional id."""
        tx = self.coordinator.find(TX)
        return "none" if tx is None else tx.state.label

    def close(self) -> None:
        self.coordinator.resign_all()
        self.queues.close()
        self._core.close(clean=False)
