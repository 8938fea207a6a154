"""A schedule that can be followed line by line: the actions of brokers, store and client, in virtual ms.

    12 ms   broker 2     appends offset 1 of leader epoch 0: its log ends at 2

Nothing is random: each message takes MESSAGE_S, each way to the store STORE_S, and nothing else takes time. Facts are
compared at the end of each virtual moment, not at each turn of the loop, and lines of one moment are ordered by actor.
So the trace is the same with each version of Python, whose tasks may take more turns or fewer.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pybroker import core
from pybroker.coordination.store import Create
from pybroker.decisions.image import PartitionState
from pybroker.metadata import nodes
from pybroker.metadata.lone_broker.loading import prepare
from pybroker.protocol import messages as m
from pybroker.replication.replica import LEADER
from tests.simulation.broker import Life
from tests.simulation.checker import T, _batch
from tests.simulation.clients import ACKS_ALL, PRODUCE, Unanswered, _partitions, _produce
from tests.simulation.store import FarStore
from tests.simulation.virtual import VirtualLoop
from tests.simulation.world import Script, World

MESSAGE_S = 0.001
STORE_S = 0.002
SEED = 1
LEADER_EPOCH = slice(12, 16)  # of a batch
CLIENT, STORE = "client", "store"


class TracedWorld(World):
    """Three brokers with one partition, without a seed's clients and faults; `lines` is the trace."""

    def __init__(self, seed: int, home: Path, loop: VirtualLoop) -> None:
        super().__init__(seed, home, loop)
        self.lines: list[str] = []
        self._moment: list[tuple[str, str]] = []
        self._known: dict[object, Any] = {}
        """The last value of each fact that a line has shown."""
        self.network.delay = lambda: MESSAGE_S  # type: ignore[method-assign]
        self.store = FarStore(loop, lambda: STORE_S)
        self.store.changed = self.checker.store_changed
        loop.after_turn = self._after_turn
        loop.slowness = lambda: 0.0

    def tell(self, actor: str, what: str) -> None:
        """Add a line at this moment."""
        self._moment.append((actor, what))

    def stage(self, what: str) -> None:
        """Add a line of the schedule itself: an action on the cluster, or an observation."""
        self._end_moment()
        self.lines += ["", f"# {what}"]

    def _after_turn(self, ran: set[Life]) -> None:
        self.checker.after_turn(ran)
        if not self.loop._ready:  # the time moves on from here
            self._end_moment()

    def _end_moment(self) -> None:
        self._compare()
        for actor, what in sorted(self._moment, key=lambda line: line[0]):
            self.lines.append(f"{self.loop.ms():6} ms   {actor:<10}   {what}")
        self._moment.clear()

    # -- changes -----------------------------------------------------------------------------------------------------

    def _is_new(self, key: object, value: object) -> tuple[bool, Any]:
        """True if the value has changed, and the former value."""
        before, self._known[key] = self._known.get(key), value
        return before != value, before

    def _compare(self) -> None:
        """Add a line for each fact that has changed."""
        state = self.checker.states.get(T)
        new, before = self._is_new(STORE, state)
        if new and state is not None:
            self.tell(STORE, _of_state(before, state))
        for number, life in self.network.lives.items():
            if not life.dead:
                for what in self._of_broker(number, life):
                    self.tell(f"broker {number}", what)

    def _of_broker(self, number: int, life: Life) -> Iterator[str]:
        new, _ = self._is_new((number, "epoch"), life.epoch)
        if new and life.epoch >= 0:
            yield f"is registered, broker epoch {life.epoch}"
        reigns = life.controller is not None and life.controller.active
        if self._is_new((number, "reigns"), reigns)[0] and reigns:
            yield f"is the controller, controller epoch {life.controller.context.fence.epoch}"  # type: ignore[union-attr]
        replica = life.replicas.get(*T) if life.listens else None
        if replica is not None and replica.log is not None:
            yield from self._of_log(number, replica.log)

    def _of_log(self, number: int, log: core.Partition) -> Iterator[str]:
        end, high_watermark, role = log.log_end_offset, log.high_watermark, log.role
        new, before = self._is_new((number, "role"), (role.kind, role.leader, role.leader_epoch))
        if new and role.leader_epoch >= 0:
            if role.kind == LEADER:
                yield f"leads in leader epoch {role.leader_epoch}; its log ends at {end}"
            elif role.leader >= 0:
                yield f"follows broker {role.leader} in leader epoch {role.leader_epoch}; its log ends at {end}"
            else:
                yield f"opens its log, which ends at {end} in leader epoch {role.leader_epoch}"
        new, before = self._is_new((number, "end"), end)
        if new and before is not None and end < before:
            yield f"cuts its log back from {before} to {end}"
        elif new and before is not None:
            offsets = f"offset {before}" if end == before + 1 else f"offsets {before} to {end - 1}"
            epoch = int.from_bytes(_batch(log, end - 1)[0][LEADER_EPOCH], "big")
            yield f"appends {offsets} of leader epoch {epoch}: its log ends at {end}"
        new, before = self._is_new((number, "high watermark"), high_watermark)
        if new and before is not None:
            yield f"has the high watermark {high_watermark} (it was {before})"

    # -- brokers and messages ----------------------------------------------------------------------------------------

    def start(self, number: int) -> None:
        self._known = {key: value for key, value in self._known.items() if key[:1] != (number,)}  # type: ignore[index]
        self.tell(f"broker {number}", "starts")
        super().start(number)
        life = self.network.lives[number]
        life.answer = partial(self._answer, life, life.answer)  # type: ignore[method-assign]

    def kill(self, number: int) -> None:
        """End a broker as kill -9 does."""
        self.tell(f"broker {number}", "is killed")
        self.network.lives[number].kill()

    async def _answer(self, life: Life, answer: Any, request: Any, version: int) -> Any:
        actor = f"broker {life.number}"
        for what in _of_request(request):
            self.tell(actor, what)
        found = await answer(request, version)
        for what in _of_answer(request, found):
            self.tell(actor, what)
        return found

    async def produce(self, number: int, value: bytes) -> None:
        """Send a record to a broker with acks=all, once, and wait for the answer or the timeout."""
        self.tell(CLIENT, f"sends {value.decode()!r} to broker {number}, acks=all")
        batch = core.build_batch([(1, b"k", value, ())])
        try:
            answer, _ = await self.clients._ask(number, _produce(T, batch, ACKS_ALL), PRODUCE)
        except Unanswered:
            self.tell(CLIENT, f"has no answer about {value.decode()!r}")
            return
        (p,) = _partitions(answer)
        assert p.error_code == 0
        self.tell(CLIENT, f"knows that {value.decode()!r} is at offset {p.base_offset}")
        self.checker.acknowledged(T, p.base_offset, value)

    # -- the schedule ------------------------------------------------------------------------------------------------

    async def run(self, script: Script | None = None) -> None:
        assert script is not None
        await self.store.open()
        admin = await self.store.session(60_000)
        await prepare(admin, nodes.OF_A_CLUSTER)
        await script(self)
        self._look()
        self._end_moment()
        self.history[:] = self.lines

    async def create_topic(self, *replicas: int) -> None:
        """Write the topic into the store, as any broker does for a client."""
        admin = await self.store.session(60_000)
        self.tell(CLIENT, f"creates the topic {T.topic}, one partition, replicas {_of_all(replicas)}")
        data = nodes.dump_assignment(T.topic.encode() * 16, [replicas])
        config = Create(nodes.topic_config(T.topic), nodes.dump_config({}))
        await admin.multi([config, Create(nodes.topic(T.topic), data)])


def _of_all(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers))


def _of_state(before: PartitionState | None, state: PartitionState) -> str:
    leader, epoch, isr = state.leader, state.leader_epoch, _of_all(state.isr)
    if before is None:
        return f"{T}: leader {leader}, leader epoch {epoch}, ISR {isr}"
    was = []
    if before.leader != leader or before.leader_epoch != epoch:
        was.append(f"leader {before.leader} -> {leader}, leader epoch {before.leader_epoch} -> {epoch}")
    if before.isr != state.isr:
        was.append(f"ISR {_of_all(before.isr)} -> {isr}")
    return f"{T}: {', '.join(was)}; partition epoch {state.partition_epoch}"


def _of_request(request: Any) -> Iterator[str]:
    """Yield what a request has about the partition."""
    if isinstance(request, m.LeaderAndIsrRequest):
        for topic in request.topic_states:
            for p in topic.partition_states:
                isr = _of_all(tuple(p.isr))
                yield (
                    f"hears LeaderAndIsr of the controller {request.controller_id}: leader {p.leader}, "
                    f"leader epoch {p.leader_epoch}, ISR {isr}, partition epoch {p.partition_epoch}"
                )
    if isinstance(request, m.AlterPartitionRequest):
        for topic in request.topics:
            for p in topic.partitions:
                isr = _of_all(tuple(member.broker_id for member in p.new_isr_with_epochs))
                yield f"hears AlterPartition of the leader {request.broker_id}: ISR {isr}"


def _of_answer(request: Any, answer: Any) -> Iterator[str]:
    """Yield the point of divergence in an answer to a follower."""
    if isinstance(request, m.FetchRequest):
        for asked in request.topics:
            for topic in answer.responses:
                for p in topic.partitions:
                    found = p.diverging_epoch
                    if found is not None and found.epoch >= 0:
                        (q,) = asked.partitions
                        yield (
                            f"answers broker {request.replica_state.replica_id}, whose log ends at {q.fetch_offset} in "
                            f"epoch {q.last_fetched_epoch}: here epoch {found.epoch} ends at {found.end_offset}"
                        )
