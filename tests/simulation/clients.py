"""Clients of a simulated cluster: producers that remember acknowledged records, and a group that commits offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pybroker import core, errors
from pybroker.decisions.image import PartitionState
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from tests.simulation.checker import GROUPS, T, U

if TYPE_CHECKING:
    from tests.simulation.broker import Life
    from tests.simulation.world import World

PRODUCE, OFFSET_COMMIT = 9, 8
TIMEOUT_S = 1.5
PAUSE_S = 0.3
ACKS_ALL = -1
FATAL = (errors.OUT_OF_ORDER_SEQUENCE_NUMBER, errors.UNKNOWN_PRODUCER_ID, errors.INVALID_PRODUCER_EPOCH)
"""Errors of an idempotent producer whose records were lost."""


class Unanswered(Exception):
    """The broker is down, or does not answer in time."""


class Clients:
    def __init__(self, world: World) -> None:
        self._world = world
        self.acked = self.refused = self.commits = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._sent = 0
        self._known: dict[TopicPartition, PartitionState] = {}
        self._one_shots: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        work = [self._plain(), self._idempotent(1), self._idempotent(2), self._group()]
        self._tasks = [self._begin(each) for each in work]

    def _begin(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._world.loop.create_task(work, context=self._world.loop.outside)
        return task

    def stop(self) -> None:
        for task in (*self._tasks, *self._one_shots):
            task.cancel()

    def check(self) -> None:
        """Raise the error that a client found."""
        for task in (*self._tasks, *self._one_shots):
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]

    async def _pause(self) -> None:
        await asyncio.sleep(PAUSE_S * self._world.random.random())

    async def _ask(self, number: int, request: Any, version: int) -> tuple[Any, Life]:
        """Send a request; return the answer and the life that gave it. Raises Unanswered."""
        network, loop = self._world.network, self._world.loop
        life = network.lives.get(number)
        if life is None or life.dead or not life.listens:
            raise Unanswered
        answer: asyncio.Future[Any] = loop.create_future()

        async def serve() -> None:
            found = await life.answer(request, version)
            network.send(number, 0, lambda: None if answer.done() else answer.set_result(found))

        network.send(0, number, lambda: None if life.dead else life.run(serve()))
        late = loop.call_later(TIMEOUT_S, lambda: None if answer.done() else answer.set_result(None))
        found = await answer
        late.cancel()
        if found is None:
            raise Unanswered
        return found, life

    def _leader(self, key: TopicPartition) -> int:
        """The leader in some broker's metadata, never an earlier one than before; any broker if none is known."""
        random = self._world.random
        lives = [life for life in self._world.network.lives.values() if not life.dead and life.listens]
        told = random.choice(lives).metadata.image.partition(*key) if lives else None
        known = self._known.get(key)
        if told is not None and (known is None or told.leader_epoch >= known.leader_epoch):
            known = self._known[key] = told
        return known.leader if known is not None and known.leader >= 0 else random.choice(self._world.brokers)

    # -- records -----------------------------------------------------------------------------------------------------

    async def _plain(self) -> None:
        """Produce many records at once with acks=all or 1, to the leader or to another broker, without retries."""
        random = self._world.random
        while True:
            await self._pause()
            self._sent += 1
            number = self._leader(T) if random.random() < 0.5 else random.choice(self._world.brokers)
            key = T if random.random() < 0.8 else U
            task = self._begin(self._write(number, key, b"<p%d>" % self._sent, random.choice((ACKS_ALL, ACKS_ALL, 1))))
            self._one_shots.add(task)
            task.add_done_callback(self._written)

    def _written(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is None:
            self._one_shots.discard(task)

    async def _write(self, number: int, key: TopicPartition, value: bytes, acks: int, **stamp: int) -> None:
        batch = core.build_batch([(1, b"k", value, ())], **stamp)  # type: ignore[arg-type]
        life = self._world.network.lives.get(number)
        freezes = life.freezes if life is not None else 0
        try:
            answer, life = await self._ask(number, _produce(key, batch, acks), PRODUCE)
        except Unanswered:
            return
        (p,) = _partitions(answer)
        if p.error_code:
            self.refused += 1
            return
        if acks == ACKS_ALL:
            self._acked(life, key, p.base_offset, value)
        elif life.freezes == freezes:  # a frozen one may have appended before the freeze and answered after it
            self._world.check_lease(life, value)

    def _acked(self, life: Life, key: TopicPartition, offset: int, value: bytes) -> None:
        self.acked += 1
        self._world.say(f"{value.decode()} acknowledged at {offset} of {key} by {life.number}")
        self._world.checker.acknowledged(key, offset, value)

    async def _idempotent(self, number: int) -> None:
        """Produce one record after the other, each until it is acknowledged."""
        sequence = 0
        while True:
            await self._pause()
            value = b"<i%d:%d>" % (number, sequence)
            batch = core.build_batch(
                [(1, b"k", value, ())], producer_id=1000 + number, producer_epoch=0, base_sequence=sequence
            )
            while not await self._deliver(batch, value):
                await self._pause()
            sequence += 1

    async def _deliver(self, batch: bytes, value: bytes) -> bool:
        try:
            answer, life = await self._ask(self._leader(T), _produce(T, batch, ACKS_ALL), PRODUCE)
        except Unanswered:
            return False
        (p,) = _partitions(answer)
        if p.error_code in FATAL:
            self._world.checker.fail(f"{value!r} was refused by {life.number}: {errors.lookup(p.error_code).name}")
        if p.error_code:
            self.refused += 1
            return False
        self._acked(life, T, p.base_offset, value)
        return True

    # -- a group -----------------------------------------------------------------------------------------------------

    async def _group(self) -> None:
        """Commit one offset after the other; no coordinator may return an older one than was acknowledged."""
        offset = told = 0
        while True:
            await self._pause()
            offset += 1
            try:
                answer, life = await self._ask(self._leader(GROUPS), _commit(offset), OFFSET_COMMIT)
            except Unanswered:
                continue
            if _code(answer) == errors.NONE:
                told = offset
                self.commits += 1
                self._world.say(f"commit of {offset} acknowledged by {life.number}")
            self._check_group(told, offset)

    def _check_group(self, told: int, sent: int) -> None:
        state = self._world.checker.states.get(GROUPS)
        for life in self._world.network.lives.values():
            shard = None if life.dead or not life.listens else life.groups._shards.get(0)
            if shard is None or shard.loading or shard.failed or state is None:
                continue
            if shard.writer._leader_epoch != state.leader_epoch:  # of a former leader
                continue
            entry = shard.entries.get("g")
            found = entry.offsets.get(T) if entry is not None else None
            stands = 0 if found is None else found.offset
            if not told <= stands <= sent:
                self._world.checker.fail(f"group at {life.number} stands at {stands}; {told} was told, {sent} sent")


def _produce(key: TopicPartition, batch: bytes, acks: int) -> Any:
    kind = m.ProduceRequest.TopicData
    data = kind.PartitionData(index=key.partition, records=batch)
    return m.ProduceRequest(
        transactional_id=None, acks=acks, timeout_ms=1000, topic_data=[kind(name=key.topic, partition_data=[data])]
    )


def _partitions(answer: Any) -> Iterator[Any]:
    for topic in answer.responses:
        yield from topic.partition_responses


def _commit(offset: int) -> Any:
    kind = m.OffsetCommitRequest.Topics
    partition = kind.Partitions(
        partition_index=T.partition, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
    )
    return m.OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
        topics=[kind(name=T.topic, partitions=[partition])],
    )  # fmt: skip


def _code(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].error_code)
