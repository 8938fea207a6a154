"""Brokers of the stage that also read and write settings, and report the sizes of their replicas: what the continuous
balancer needs."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from pybroker.clock import wall_ms
from pybroker.config import BrokerConfig, Source
from pybroker.controller.controller import Controller
from pybroker.controller.requests import alter_partition
from pybroker.coordination.commit import commit
from pybroker.coordination.store import Create, Set
from pybroker.decisions.changes import Changes
from pybroker.decisions.config_repository import ConfigRepository
from pybroker.decisions.metadata_cache import MetadataCache, TopicStates, UpdateMetadata
from pybroker.decisions.orders import AskedIsr, AskedTopic
from pybroker.decisions.planning.balance_note import NOTE, BalanceNote
from pybroker.decisions.reassignment import is_under_way
from pybroker.metadata import nodes
from pybroker.metadata.config_admin import ConfigAdmin
from pybroker.metadata.config_watch import ConfigWatch
from pybroker.metadata.controllership import read_config
from pybroker.metadata.entities import EntityConfigs
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.security.credentials import Credentials
from pybroker.security.quotas import ClientQuotas
from tests import virtual
from tests.controller.brokers import FakeBroker, FakeCluster
from tests.controller.member import Held
from tests.controller.stage import live_broker
from tests.harness import eventually

INTERVAL_S = 60
RATE = 1_000_000
MB = 10**6
DISK_BYTES = 10**12
SETTINGS = (
    "auto.balance.enable=true", f"auto.balance.check.interval.seconds={INTERVAL_S}",
    "auto.balance.partitions.at.once=2", f"auto.balance.throttled.rate={RATE}",
)  # fmt: skip


class BalancedBroker(FakeBroker):
    """A broker with settings and disks of its own."""

    cluster: BalancedCluster

    def candidate(self) -> Controller:
        self.config = BrokerConfig.load(None, [*SETTINGS])
        self.topics, self.metadata = ConfigRepository(), MetadataCache("cluster")
        entities = EntityConfigs(Credentials(), ClientQuotas())
        self.watch = ConfigWatch(self.number, self.config, self.topics, Held(), entities)
        self.settings = ConfigAdmin(
            lambda: self.session, self.number, self.config, self.topics, self.metadata, self.watch, wall_ms
        )
        self.following = asyncio.get_running_loop().create_task(self.watch.follow(self.session))
        return Controller(
            self.session, self.number, self.config, self.topics.topic, self.known_topic, self.cluster.open_link,
            wall_ms, Changes(wall_ms), settings=self.settings,
        )  # fmt: skip

    async def stop_reading(self) -> None:
        """Read no further change of the settings, as a broker whose ZooKeeper server lags behind."""
        self.following.cancel()
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await self.following

    async def leave(self) -> None:
        await self.stop_reading()
        await super().leave()

    async def crash(self) -> None:
        """Die, with the session ended."""
        await self.die()
        await self.stop_reading()
        self.session.resume()
        self.session.expire()

    def answer(self, request: Any) -> Any:
        if isinstance(request, m.DescribeLogDirsRequest):
            self.told.append(request)
            return self._log_dirs()
        answer = super().answer(request)
        if isinstance(request, m.UpdateMetadataRequest) and not answer.error_code:
            topics = []
            for name in {key.topic for key in self.image}:
                known = self.known_topic(name)
                assert known is not None
                topics.append(TopicStates(name, known.id, dict(enumerate(known.partitions))))
            brokers = [live_broker(number) for number in self.live]
            self.metadata.update(UpdateMetadata(request.controller_id, request.controller_epoch, brokers, topics))
        return answer

    def _log_dirs(self) -> m.DescribeLogDirsResponse:
        kind = m.DescribeLogDirsResponse.Results
        by_topic, used = defaultdict[str, list[Any]](list), 0
        for (topic, index), state in sorted(self.states.items()):
            if self.number in state.replicas:
                size = self.cluster.sizes.get(TopicPartition(topic, index), 0)
                used += size
                by_topic[topic].append(
                    kind.Topics.Partitions(
                        partition_index=index, partition_size=size, offset_lag=0, is_future_key=False
                    )
                )
        topics = [kind.Topics(name=name, partitions=its) for name, its in by_topic.items()]
        log_dir = kind(
            error_code=0, log_dir="/disk", topics=topics, total_bytes=DISK_BYTES, usable_bytes=DISK_BYTES - used
        )
        return m.DescribeLogDirsResponse(error_code=0, results=[log_dir])


class BalancedCluster(FakeCluster):
    """Brokers that the controller keeps even; `sizes` are those of partitions."""

    brokers: dict[int, Any]

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[TopicPartition, int] = {}
        asyncio.get_running_loop()._default_executor = virtual.Inline()  # type: ignore[attr-defined]

    def broker(self, number: int) -> BalancedBroker:
        return BalancedBroker(self, number)

    async def fill(self, name: str, *replicas: tuple[int, ...], size: int = 100 * MB) -> list[TopicPartition]:
        """Create a topic whose partitions have this size."""
        keys = await self.create(name, *replicas)
        self.sizes |= dict.fromkeys(keys, size)
        return keys

    # -- settings ----------------------------------------------------------------------------------------------------

    async def all_brokers(self) -> dict[str, str]:
        """The settings of all brokers in the store."""
        return (await read_config(self.admin, nodes.broker_config(None)))[0]

    async def of_topic(self, name: str) -> dict[str, str]:
        """A topic's own settings in the store."""
        return (await read_config(self.admin, nodes.topic_config(name)))[0]

    async def set(self, **settings: str | None) -> None:
        """Write settings of all brokers, or remove those that are None, and wait until all brokers go by them."""
        named = {name.replace("__", "."): text for name, text in settings.items()}
        await self.write("brokers/<default>", named)

        def read() -> bool:
            told = [broker.config.dynamic(Source.DYNAMIC_DEFAULT_BROKER) for broker in self.living]
            return all(its.get(name) == text for its in told for name, text in named.items())

        await eventually("all brokers go by it", read)

    async def write(self, entity: str, changes: dict[str, str | None]) -> None:
        """Write settings as another broker does, with a notice."""
        path = f"{nodes.CONFIGS}/{entity}"
        held, version = await read_config(self.admin, path)
        after = {name: text for name, text in {**held, **changes}.items() if text is not None}
        data = nodes.dump_config(after)
        notice = Create(nodes.CONFIG_CHANGE, nodes.dump_config_change(entity), sequential=True)
        await commit(self.admin, [Create(path, data) if version is None else Set(path, data, version), notice])

    async def note(self) -> BalanceNote | None:
        """The balancer's note in the store."""
        return BalanceNote.parse((await self.all_brokers()).get(NOTE))

    # -- moves -------------------------------------------------------------------------------------------------------

    def under_way(self) -> dict[TopicPartition, Any]:
        """The partitions that are being moved, with their states as the controller has them."""
        context = self.controller.controller.context
        assert context is not None
        return {key: state for key, state in context.states() if is_under_way(state)}

    def replicas(self, name: str) -> list[tuple[int, ...]]:
        """The replicas of a topic's partitions, as the controller has them."""
        context = self.controller.controller.context
        assert context is not None
        return [state.replicas for key, state in context.states() if key.topic == name]

    async def arrive(self, key: TopicPartition) -> None:
        """Have the leader report that all replicas of a partition are in sync."""
        await self.report_isr(key, *self.controller.controller.context.state(key).replicas)
        await eventually("it has moved", lambda: key not in self.under_way())

    async def report_isr(self, key: TopicPartition, *isr: int) -> None:
        """Have the leader of a partition report an ISR."""
        leader, leader_epoch, _, partition_epoch = await self.state(key)
        asked = AskedTopic(None, key.topic, [AskedIsr(key.partition, leader_epoch, partition_epoch, isr, None)])
        [altered] = await alter_partition(self.controller.controller, leader, self.brokers[leader].epoch, [asked])
        assert altered.partitions[0].error_code == 0

    async def move(self, key: TopicPartition, *target: int) -> None:
        """Have a client move a partition, or without a target cancel its move."""
        controller = self.controller.controller
        [refusal] = (await controller.ask(lambda: controller.reassignments.alter({key: target or None}))).values()
        assert refusal is None, refusal

    async def until(self, what: str, probe: Callable[[], object]) -> None:
        """Wait, looking each second."""
        await eventually(what, probe, every_s=1.0)

    async def until_batch(self) -> dict[TopicPartition, Any]:
        """Wait until a batch is under way; return its partitions."""
        await self.until("a batch begins", self.under_way)
        return self.under_way()

    async def until_ended(self) -> None:
        """Wait until the balancer has removed its note."""

        async def gone() -> bool:
            return await self.note() is None

        await self.until("the note goes", gone)

    async def nothing_moves(self, seconds: float) -> None:
        """Check that no move begins for so long."""
        for _ in range(int(seconds)):
            await asyncio.sleep(1)
            assert not self.under_way()
