"""The cost of large clusters: the controller of one, on a store in memory, with brokers that answer every request.

    topics are in the store ──> each event, one after the other: the controller's cpu, the requests and bytes it sends,
                                until no work is left in its inbox, its channels or the store

The controller, its encoder and its decoder are the product's. Its cpu is that of the process less the time spent in the
store and in the brokers' answers. Rules of time (sessions, sockets) are not part of it: `world.py` has these.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pybroker.clock import wall_ms
from pybroker.config import BrokerConfig
from pybroker.controller.controller import Controller
from pybroker.coordination.memory import MemorySession, MemoryStore
from pybroker.coordination.store import Create
from pybroker.decisions.changes import Changes
from pybroker.decisions.image import LiveBroker, PartitionState
from pybroker.metadata import nodes
from pybroker.metadata.lone_broker.loading import prepare
from pybroker.model import PLAINTEXT, HostPort, TopicPartition
from pybroker.protocol import apis, codec
from pybroker.protocol import messages as m
from pybroker.protocol.apis import Api
from pybroker.protocol.bounds import bound_of
from pybroker.protocol.frames import read_answer
from tests.controller.brokers import alter_partition

PER_TOPIC = 100
RF = 3
RACKS = 3
CONTROLLERS = (1, 2)
"""The brokers that stand for election. They stay alive, but for the controller that fails."""
OPS = 500
QUIET_TURNS = 50
"""Turns of the event loop without work, after which an event is over."""


@dataclass(slots=True)
class Meter:
    """The costs of one event, from its beginning."""

    requests: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    others_s: float = 0.0
    """The cpu of the store and of the brokers."""
    began_s: float = field(default_factory=time.process_time)
    largest: int = 0

    @contextmanager
    def other(self) -> Iterator[None]:
        """Count the time within as the store's or a broker's."""
        began_s = time.process_time()
        try:
            yield
        finally:
            self.others_s += time.process_time() - began_s

    def request(self, name: str, size: int) -> None:
        self.requests[name] += 1
        self.sent += size
        self.largest = max(self.largest, size)


class Cost(NamedTuple):
    """The cost of one event at one size of a cluster."""

    brokers: int
    partitions: int
    event: str
    changed: int
    """Partitions whose state was written."""
    cpu_s: float
    requests: dict[str, int]
    sent: int
    largest: int


class MeteredStore(MemoryStore):
    """A store whose work is not the controller's."""

    def __init__(self, meter: Callable[[], Meter]) -> None:
        super().__init__(timeouts_ms=(100, 3_600_000))
        self._meter = meter

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def _turn(self) -> None:
        with self._meter().other():
            super()._turn()


class MeteredLink:
    """A connection to a broker that answers every request with success."""

    def __init__(self, cluster: LargeCluster, broker: int) -> None:
        self._cluster, self._broker = cluster, broker
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def ask(self, message: Any, version: int, *, tail: Callable[[], codec.Tail] | None = None) -> Any:
        api = apis.SPOKEN[type(message).SCHEMA.key]
        data = codec.encode_request(api.key, version, 1, "pybroker", message, None if tail is None else tail())
        meter = self._cluster.meter
        meter.request(api.name, len(data))
        self._cluster.in_flight += 1
        await asyncio.sleep(0)
        self._cluster.in_flight -= 1
        if self.closed.done():
            raise ConnectionError("the broker is gone")
        with meter.other():
            if self._broker == self._cluster.reader:
                _read(api, version, data)
            answer = codec.encode_response(api.key, version, 1, _answer(message))
        return read_answer(api, version, 1, answer, "broker")

    def close(self) -> None:
        if not self.closed.done():
            self.closed.set_result("closed")


def _read(api: Api, version: int, data: bytes) -> None:
    """Decode a request within its bounds, as a broker does. Raises ProtocolError."""
    at = codec.decode_request_header(data).body_offset
    codec.decode(api.request, version, data, at, bound_of(api.name).most)


def _answer(request: Any) -> Any:
    """Return the answer of a broker that executes a request."""
    if isinstance(request, m.LeaderAndIsrRequest):
        kind = m.LeaderAndIsrResponse.Topics
        topics = [
            kind(
                topic_id=topic.topic_id,
                partition_errors=[
                    kind.PartitionErrors(partition_index=p.partition_index) for p in topic.partition_states
                ],
            )
            for topic in request.topic_states
        ]
        return m.LeaderAndIsrResponse(topics=topics)
    if isinstance(request, m.UpdateMetadataRequest):
        return m.UpdateMetadataResponse()
    stopped = m.StopReplicaResponse.PartitionErrors
    return m.StopReplicaResponse(
        partition_errors=[
            stopped(topic_name=topic.topic_name, partition_index=p.partition_index)
            for topic in request.topic_states
            for p in topic.partition_states
        ]
    )


class LargeCluster:
    """Brokers in RACKS racks, two of which stand for election, and topics of PER_TOPIC partitions."""

    def __init__(self, brokers: int, partitions: int, show: Callable[[Cost], object]) -> None:
        self.count, self.partitions, self.show = brokers, partitions, show
        self.meter = Meter()
        self.in_flight = 0
        self.reader = brokers // 2
        """The broker that decodes what it gets; the others would take their share of the time for the same."""
        self.store = MeteredStore(lambda: self.meter)
        self.controllers: dict[int, tuple[MemorySession, Controller]] = {}
        self.costs: list[Cost] = []
        self.config = BrokerConfig.load(None, [])

    async def begin(self) -> None:
        """Put all brokers and topics into the store."""
        await self.store.open()
        self.admin = await self.store.session(3_600_000)
        await prepare(self.admin, nodes.OF_A_CLUSTER)
        for broker in range(1, self.count + 1):
            await self._register(broker)
        for number in range(self.partitions // PER_TOPIC):
            name = f"topic-{number:05d}"
            rows = [self._replicas(number * PER_TOPIC + index) for index in range(PER_TOPIC)]
            data = nodes.dump_assignment(name.encode().ljust(16, b"_"), rows)
            config = Create(nodes.topic_config(name), nodes.dump_config({}))
            await self.admin.multi([config, Create(nodes.topic(name), data)])

    def _replicas(self, partition: int) -> list[int]:
        """RF brokers of different racks, as broker n is in rack n % RACKS; no two brokers share all partitions."""
        turn, first = divmod(partition, self.count)
        step = 1 + RACKS * (turn % (self.count // RACKS))
        return [(first + step * place) % self.count + 1 for place in range(RF)]

    async def _register(self, broker: int) -> None:
        at = {PLAINTEXT: HostPort(f"broker-{broker:03d}.example.org", 9092)}
        live = LiveBroker(broker, at, {PLAINTEXT: PLAINTEXT}, f"rack-{broker % RACKS}")
        await self.admin.create(nodes.broker(broker), nodes.dump_broker(live, 0))

    async def stand(self, broker: int) -> None:
        """Let a broker stand for election."""
        session = await self.store.session(3_600_000)
        controller = Controller(
            session, broker, self.config, lambda topic: {}, lambda name: None, self._open_link, wall_ms,
            Changes(wall_ms),
        )  # fmt: skip
        self.controllers[broker] = session, controller
        controller.start()

    async def _open_link(self, broker: LiveBroker) -> Any:
        return MeteredLink(self, broker.id)

    @property
    def controller(self) -> Controller:
        return next(each for _, each in self.controllers.values() if each.active)

    # -- events --------------------------------------------------------------------------------------------------------

    async def fail(self, brokers: Iterable[int]) -> None:
        for broker in brokers:
            await self.admin.delete(nodes.broker(broker))

    async def come_back(self, brokers: Iterable[int]) -> None:
        for broker in brokers:
            await self._register(broker)

    async def join_isr(self, brokers: Iterable[int]) -> None:
        """Add the replicas of brokers to the ISR: each leader sends one AlterPartition for each of them."""
        for broker in brokers:
            await self._join(lambda state, its=broker: its if its in state.replicas and its not in state.isr else None)

    async def _join(self, joining: Callable[[PartitionState], int | None]) -> None:
        """Add one replica of each partition, or none, to the ISR: each leader sends one AlterPartition."""
        context = self.controller.context
        assert context is not None
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for key, state in context.states():
            if (broker := joining(state)) is not None:
                by_leader.setdefault(state.leader, {})[key] = broker
        with self.meter.other():
            requests = [self._alter(leader, its) for leader, its in by_leader.items()]
        await asyncio.gather(*(alter_partition(self.controller, request, 3) for request in requests))

    async def move_all(self) -> None:
        """Begin to move each partition to RF other brokers, in the same racks."""
        controller, targets = self.controller, dict[TopicPartition, tuple[int, ...]]()
        assert controller.context is not None
        for key, state in controller.context.states():
            targets[key] = tuple((broker - 1 + RACKS) % self.count + 1 for broker in state.replicas)
        found = await controller.ask(lambda: controller.reassignments.alter(targets))
        assert not any(found.values()), next(filter(None, found.values()))

    async def copied(self) -> None:
        """Add the replicas that moves have added to the ISR, one of each partition after the other."""
        for _ in range(RF):
            await self._join(lambda state: next((b for b in state.adding if b not in state.isr), None))

    def _alter(self, leader: int, joining: Mapping[TopicPartition, int]) -> m.AlterPartitionRequest:
        context = self.controller.context
        assert context is not None
        kind = m.AlterPartitionRequest.Topics
        by_topic: dict[str, list[Any]] = {}
        for key, broker in joining.items():
            state = context.state(key)
            assert state is not None
            isr = [kind.Partitions.NewIsrWithEpochs(broker_id=b) for b in (*state.isr, broker)]
            by_topic.setdefault(key.topic, []).append(
                kind.Partitions(
                    partition_index=key.partition, leader_epoch=state.leader_epoch, new_isr_with_epochs=isr,
                    partition_epoch=state.partition_epoch,
                )
            )
        topics = [kind(topic_id=context.topics[name].id, partitions=parts) for name, parts in by_topic.items()]
        return m.AlterPartitionRequest(broker_id=leader, broker_epoch=context.epochs[leader], topics=topics)

    async def over(self) -> None:
        """Wait until all work is done: the event loop turns without a request, a write or a change."""
        quiet, last = 0, None
        while quiet < QUIET_TURNS:
            await asyncio.sleep(0)
            now = sum(self.meter.requests.values()), self.store.busy, self.in_flight, self._turns()
            quiet = quiet + 1 if now == last and not self.store.busy and not self.in_flight else 0
            last = now

    def _turns(self) -> int:
        return sum(session.state.value == "" for session, _ in self.controllers.values())

    async def event(self, name: str, work: Callable[[], Awaitable[object]]) -> Cost:
        """Run an event to its end, and return what it cost."""
        before = self._states()
        gc.collect()
        self.meter = Meter()
        await work()
        await self.over()
        meter, spent_s = self.meter, time.process_time() - self.meter.began_s
        after = self._states()
        changed = sum(after[key] != state for key, state in before.items()) if before else len(after)
        cost = Cost(
            self.count, self.partitions, name, changed, spent_s - meter.others_s, dict(meter.requests), meter.sent,
            meter.largest,
        )  # fmt: skip
        self.costs.append(cost)
        self.show(cost)
        return cost

    def _states(self) -> dict[TopicPartition, tuple[int, int]]:
        active = [each for _, each in self.controllers.values() if each.context is not None]
        if not active or active[0].context is None:
            return {}
        return {key: (state.leader_epoch, state.partition_epoch) for key, state in active[0].context.states()}

    async def end(self) -> None:
        for session, controller in self.controllers.values():
            await controller.stop()
            await session.close()
        await self.store.close()


async def measure(
    brokers: int, partitions: int, show: Callable[[Cost], object] = lambda cost: None, only: str = ""
) -> list[Cost]:
    """Run the events of a cluster's life, or only those of its "failures" or "moves", and return what each cost; `show`
    is called after each."""
    cluster = LargeCluster(brokers, partitions, show)
    await cluster.begin()
    await cluster.event("first start, partitions created", lambda: _elected(cluster, CONTROLLERS[0]))
    if only in ("", "failures"):
        await _failures(cluster)
    if only in ("", "moves"):
        await cluster.event("all partitions begin to move", cluster.move_all)
        await cluster.event("their copies join the ISR", cluster.copied)
    await cluster.end()
    return cluster.costs


async def _failures(cluster: LargeCluster) -> None:
    first, second = CONTROLLERS
    one = [cluster.count]
    rack = [broker for broker in range(1, cluster.count + 1) if broker % RACKS == 0]

    async def controller_fails() -> None:
        session, controller = cluster.controllers.pop(first)
        await controller.stop()
        await session.close()

    await cluster.stand(second)
    await cluster.event("a broker fails", lambda: cluster.fail(one))
    await cluster.event("it comes back", lambda: cluster.come_back(one))
    await cluster.event("its replicas join the ISR", lambda: cluster.join_isr(one))
    await cluster.event("a rack fails", lambda: cluster.fail(rack))
    await cluster.event("it comes back ", lambda: cluster.come_back(rack))
    await cluster.event("its replicas join the ISR ", lambda: cluster.join_isr(rack))
    await cluster.event("the controller fails", controller_fails)


async def _elected(cluster: LargeCluster, broker: int) -> None:
    await cluster.stand(broker)
    while not any(each.active for _, each in cluster.controllers.values()):
        await asyncio.sleep(0)


def main() -> None:
    """Print the costs for each pair of sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", type=int, nargs="*", default=[300])
    parser.add_argument("--partitions", type=int, nargs="*", default=[50_000])
    parser.add_argument("--only", choices=("failures", "moves"), default="")
    arguments = parser.parse_args()
    for brokers in arguments.brokers:
        for partitions in arguments.partitions:
            asyncio.run(measure(brokers, partitions, _show, arguments.only))


def _show(cost: Cost) -> None:
    sent = f"{sum(cost.requests.values()):,} requests, {cost.sent / 1e6:,.1f} MB, largest {cost.largest / 1e6:.2f} MB"
    sizes = f"{cost.brokers:4} {cost.partitions:6,} {cost.event:32} {cost.changed:6,}"
    print(f"{sizes} {cost.cpu_s:8.2f} s cpu, {sent} {json.dumps(cost.requests)}", flush=True)


if __name__ == "__main__":
    main()
