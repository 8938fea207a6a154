"""A leader's requests to the controller for ISR changes, without sockets and logs."""

from __future__ import annotations

import asyncio
import logging
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from pybroker import errors
from pybroker.config import BrokerConfig
from pybroker.decisions.changes import Changes
from pybroker.decisions.image import LiveBroker, PartitionState
from pybroker.decisions.metadata_cache import MetadataCache, TopicStates, UpdateMetadata
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.protocol.wire import ELEMENTS_MAX
from pybroker.replication.controller_link import ControllerLink
from pybroker.replication.isr import ASKED_AT_ONCE, IsrKeeper
from tests.harness import eventually, looked

KEY, ID = TopicPartition("t", 0), b"i" * 16
SILENT = -2


class Log:
    """A leader's log of ten records, with the offsets of its followers."""

    high_watermark = log_end_offset = epoch_start = 10

    def __init__(self) -> None:
        self.followers = [self.follower(2, 20), self.follower(3, 30)]

    def follower(self, broker: int, epoch: int, end: int = 10) -> Any:
        return SimpleNamespace(broker=broker, log_end_offset=end, caught_up_ms=0, broker_epoch=epoch)

    def epochs(self) -> list[tuple[int, int]]:
        return [(5, 0)]

    def set_isr(self, *_: Any, **__: Any) -> None: ...


class Controller:
    """Answers one request after another with these codes, and omits the partition for SILENT."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.asked: list[dict[int, int]] = []
        self.sizes: list[int] = []
        self.before = lambda: None
        self.settled = asyncio.Event()

    async def ask(self, request: Any, version: int) -> Any:
        partitions = request.topics[0].partitions
        self.sizes.append(sum(len(topic.partitions) for topic in request.topics))
        self.asked.append({member.broker_id: member.broker_epoch for member in partitions[0].new_isr_with_epochs})
        self.before()
        code = self.codes.pop(0)
        if not self.codes:
            self.settled.set()
        kind = m.AlterPartitionResponse.Topics
        if code == SILENT:
            return m.AlterPartitionResponse()
        how = {"error_code": code, "leader_id": 1, "leader_epoch": 5, "isr": [1, 2, 3], "partition_epoch": 8}
        told = [kind.Partitions(partition_index=each.partition_index, **how) for each in partitions]
        return m.AlterPartitionResponse(topics=[kind(topic_id=ID, partitions=told)])


def replica_of(log: Log, index: int = 0) -> Any:
    return SimpleNamespace(
        key=KEY._replace(partition=index), topic_id=ID, offline=False, partition=lambda: log,
        watch_joining=lambda: None, tell=lambda: None,
    )  # fmt: skip


def keeper_of(metadata: MetadataCache, controller: Controller) -> IsrKeeper:
    return IsrKeeper(
        1, BrokerConfig.load(None, []), metadata, controller, lambda: 10, lambda: 1000, lambda: False,
        Changes(lambda: 0),
    )  # type: ignore[arg-type]  # fmt: skip


async def grown(controller: Controller, partitions: int = 1) -> None:
    """Lead without broker 3, which has caught up, until the controller has given its last answer."""
    metadata = MetadataCache("c")
    metadata.update(UpdateMetadata(1, 1, [LiveBroker(n, {}, {}) for n in (1, 2, 3)]))
    keeper = keeper_of(metadata, controller)
    keeper.start()
    for index in range(partitions):
        keeper.lead(replica_of(Log(), index), 5, 7, (1, 2))
    async with asyncio.timeout(10):
        await controller.settled.wait()
    await keeper.stop()


async def test_partitions_that_are_refused_together_share_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """Partitions that the controller refuses together share one log line."""
    caplog.set_level(logging.INFO)
    await grown(Controller(errors.INELIGIBLE_REPLICA), partitions=3)
    said = [r.getMessage() for r in caplog.records if r.getMessage().startswith("ISR not changed")]
    assert said == [f"ISR not changed partitions=3 first={KEY} error=INELIGIBLE_REPLICA asked=1,2,3"]


async def test_a_leader_of_many_partitions_asks_for_some_at_a_time() -> None:
    """A request has ASKED_AT_ONCE partitions at most: a larger one takes the controller long, and is refused above the
    bound of elements, again and again."""
    controller = Controller(errors.NONE, errors.NONE)
    await grown(controller, partitions=ASKED_AT_ONCE + 1)
    assert controller.sizes == [ASKED_AT_ONCE, 1]
    members = 32
    assert ASKED_AT_ONCE * (2 + members) < ELEMENTS_MAX  # a struct of its topic and of each partition and member


async def test_what_the_controller_leaves_out_is_asked_for_again() -> None:
    """A partition that the controller's answer omits is requested again."""
    controller = Controller(SILENT, errors.NONE)
    await grown(controller)
    assert controller.asked == [{1: 10, 2: 20, 3: 30}] * 2


async def test_a_later_life_of_a_follower_is_not_vouched_for() -> None:
    """A follower that restarted with another broker epoch is not proposed for the ISR (KIP-903).

    It had caught up, but the request had to be repeated, and meanwhile it lost its log.
    """
    metadata, log = MetadataCache("c"), Log()
    metadata.update(UpdateMetadata(1, 1, [LiveBroker(n, {}, {}) for n in (1, 2, 3)]))
    replica = replica_of(log)
    controller = Controller(errors.NOT_CONTROLLER, errors.INELIGIBLE_REPLICA)

    def reborn() -> None:
        log.followers = [log.follower(2, 20), log.follower(3, 31, end=0)]

    controller.before = reborn
    keeper = keeper_of(metadata, controller)
    keeper.start()
    keeper.lead(replica, 5, 7, (1, 2))
    async with asyncio.timeout(10):
        await controller.settled.wait()
    await keeper.stop()
    assert controller.asked == [{1: 10, 2: 20, 3: 30}] * 2


async def test_a_leader_whose_epoch_is_over_does_not_ask_again_and_again() -> None:
    """A leader whose epoch is over asks at most every 10 s, and not at all once the metadata has a newer epoch."""
    metadata, now_ms = MetadataCache("c"), [1000]
    metadata.update(UpdateMetadata(1, 1, [LiveBroker(n, {}, {}) for n in (1, 2, 3)]))
    controller = Controller(errors.FENCED_LEADER_EPOCH, errors.FENCED_LEADER_EPOCH, errors.NONE)
    keeper = keeper_of(metadata, controller)
    keeper._now_ms = lambda: now_ms[0]
    replica = replica_of(Log())
    keeper.start()
    keeper.lead(replica, 5, 7, (1, 2))
    await eventually("the controller is asked", lambda: len(controller.codes) == 2)
    await looked()
    for now_ms[0] in (2_000, 9_000):
        keeper.caught_up(replica)
        keeper._look(1)
        await looked()
        assert len(controller.asked) == 1
    now_ms[0] = 11_001
    keeper.caught_up(replica)
    await eventually("the controller is asked again", lambda: len(controller.asked) == 2)
    now_ms[0] = 30_000
    state = PartitionState((1, 2, 3), 2, 6, (1, 2), 1, 8)
    brokers = [LiveBroker(n, {}, {}) for n in (1, 2, 3)]
    metadata.update(UpdateMetadata(1, 1, brokers, [TopicStates("t", ID, {0: state})]))
    keeper.caught_up(replica)
    keeper._look(1)
    await looked()
    assert len(controller.asked) == 2
    await keeper.stop()


async def test_what_is_led_no_more_is_not_held() -> None:
    """The ISR keeper does not keep a reference to a replica that is no longer led, as it would keep its files open."""
    looked = asyncio.Event()

    class Led(SimpleNamespace):
        def partition(self) -> Any:
            looked.set()
            return log

    log = Log()
    replica: Any = Led(key=KEY, topic_id=ID, offline=False)
    config = BrokerConfig.load(None, ["replica.lag.time.max.ms=1", "replica.fetch.wait.max.ms=1"])
    keeper = IsrKeeper(
        1, config, MetadataCache("c"), Controller(), lambda: 10, lambda: 0, lambda: False,
        Changes(lambda: 0),
    )  # type: ignore[arg-type]  # fmt: skip
    keeper.lead(replica, 5, 7, (1, 2, 3))
    looked.clear()
    keeper.start()
    async with asyncio.timeout(10):
        await looked.wait()
    keeper.resign(KEY)
    gone = weakref.ref(replica)
    del replica
    assert gone() is None
    await keeper.stop()


async def test_a_mistake_in_asking_ends_no_asking(caplog: pytest.LogCaptureFixture) -> None:
    """An unexpected exception in a request is logged once with its traceback, and the request is repeated."""
    controller = Controller(errors.NONE)
    failures = iter([ValueError("nobody foresaw it")] * 2)

    def fail() -> None:
        for problem in failures:
            raise problem

    controller.before = fail
    await grown(controller)
    assert len(controller.asked) == 3
    (said,) = [r for r in caplog.records if r.getMessage().startswith("ISR not changed")]
    assert said.exc_info


async def test_a_controller_that_stands_still_is_not_waited_for() -> None:
    """Requests that a hanging controller has not answered are sent at once to the next elected controller."""
    metadata, asked = MetadataCache("c"), list[int]()
    old, new = (LiveBroker(n, {}, {}) for n in (1, 2))
    metadata.update(UpdateMetadata(1, 1, [old, new]))

    class Link:
        def __init__(self, broker: LiveBroker) -> None:
            self.broker = broker.id
            self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def ask(self, message: Any, version: int, timeout_s: float) -> Any:
            asked.append(self.broker)
            if self.broker == 1:
                raise ConnectionError(await self.closed)
            return m.AlterPartitionResponse()

        def close(self) -> None:
            self.closed.set_result("it was closed here")

    async def connect(broker: LiveBroker) -> Any:
        return Link(broker)

    link = ControllerLink(metadata, connect)
    answer = asyncio.ensure_future(link.ask(m.AlterPartitionRequest(broker_id=3, broker_epoch=1, topics=[]), 3))
    while not asked:
        await asyncio.sleep(0)
    metadata.update(UpdateMetadata(2, 2, [old, new]))
    await asyncio.wait_for(answer, 5)
    assert asked == [1, 2]


async def test_who_stops_asks_nobody() -> None:
    """A broker that stops fails its waiting controller requests at once, as its stop waits for them."""
    link = ControllerLink(MetadataCache("c"), None)  # type: ignore[arg-type]
    request = m.AlterPartitionRequest(broker_id=3, broker_epoch=1, topics=[])
    waits = asyncio.ensure_future(link.ask(request, 3))
    await asyncio.sleep(0)
    link.end()
    for asked in (waits, link.ask(request, 3)):
        with pytest.raises(KafkaError) as told:
            await asyncio.wait_for(asked, 5)
        assert told.value.code == errors.BROKER_NOT_AVAILABLE
