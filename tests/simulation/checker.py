"""The invariants of a cluster, checked after each turn of the loop: those of the TLA+ models of replication.

    in the store         the leader is in the ISR; epochs never go back; another leader has another leader epoch
    at each replica      the high watermark never goes back, nor beyond the log's end; one leader per epoch
    committed records    each member of the ISR has them, with the same bytes and offset everywhere, forever

A record is committed once any high watermark has passed it. Replicas are compared when a high watermark, a role or the
state in the store changes, and each batch once.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

from pybroker import core
from pybroker.coordination.store import NoNode
from pybroker.decisions.image import OFFSETS_TOPIC, PartitionState
from pybroker.metadata import nodes
from pybroker.model import TopicPartition
from pybroker.replication.replica import LEADER

if TYPE_CHECKING:
    from tests.simulation.broker import Life
    from tests.simulation.world import World

T, U, GROUPS = TopicPartition("t", 0), TopicPartition("u", 0), TopicPartition(OFFSETS_TOPIC, 0)
IDEMPOTENT = re.compile(rb"<i\d+:\d+>")
BASE_OFFSET, LAST_OFFSET_DELTA = slice(0, 8), slice(23, 27)


class Violated(AssertionError):
    """An invariant does not hold."""


class NothingPromised(Exception):
    """A member of the ISR that keeps records in the page cache lost power: the schedule is over."""


class Committed:
    """The committed records of one partition in one life of its topic."""

    def __init__(self) -> None:
        self.end = 0
        self.batches: dict[int, tuple[bytes, int]] = {}
        """{base offset: (batch, next offset)}."""
        self.leaders: dict[int, int] = {}
        """The leader of each leader epoch."""
        self.once: dict[bytes, int] = {}
        """The offset of each record that may exist only once."""


class Seen:
    """The state of a replica that was seen last, in one life of its broker."""

    __slots__ = ("end", "high_watermark", "log", "matched", "role")

    def __init__(self, log: core.Partition) -> None:
        self.log = log
        self.high_watermark = self.matched = self.end = 0
        self.role: Any = None


class Checker:
    def __init__(self, world: World) -> None:
        self._world = world
        self.states: dict[TopicPartition, PartitionState] = {}
        self._controller_epoch = -1
        self._promised = True
        self.others_have_it: dict[TopicPartition, int] = {}
        """Partitions whose replicas outside the ISR have all that a member lost with the power, so that the promise
        stands, and their leader epochs at the loss."""
        self._read: dict[TopicPartition, tuple[bytes, bytes, int]] = {}
        """The nodes that `states` were read from."""
        self._ids: dict[TopicPartition, bytes] = {}
        self._claims: set[TopicPartition] = set()
        """Partitions whose state is from an older copy of the store, or doubted: their ISR promises nothing."""
        self._committed: dict[tuple[TopicPartition, bytes], Committed] = {}

    def committed(self, key: TopicPartition, topic_id: bytes) -> Committed:
        return self._committed.setdefault((key, topic_id), Committed())

    def fail(self, why: str) -> None:
        raise Violated("\n".join([*self._world.history[-40:], f"{self._world.loop.time():.4f} {why}"]))

    def store_goes_back(self) -> None:
        """Note that the store is about to be restored from an older copy."""
        self._claims = set(self.states)
        self.states.clear()
        self._read.clear()
        self._controller_epoch = -1

    # -- the store ---------------------------------------------------------------------------------------------------

    def store_changed(self) -> None:
        epoch = self._controller_epoch
        with contextlib.suppress(NoNode):
            self._controller_epoch = int(self._world.store.read(nodes.CONTROLLER_EPOCH)[0])
        for key in (T, U, GROUPS):
            try:
                topic, _ = self._world.store.read(nodes.topic(key.topic))
                data, stat = self._world.store.read(nodes.state(*key))
            except NoNode:
                self.states.pop(key, None)
                continue
            before = self.states.get(key)
            if before is not None and self._read[key] == (topic, data, stat.version):
                continue
            moved = before is not None and self._read[key][1:] == (data, stat.version)  # only the topic's node is new
            self._read[key] = topic, data, stat.version
            node = nodes.load_topic(topic)
            state = nodes.load_state(data, node.replicas[0], stat.version).with_replicas_of(node.partition(0))
            same = before if before is not None and self._ids[key] == node.id else None
            self.states[key], self._ids[key] = state, node.id
            if nodes.is_doubted(data):
                self._claims.add(key)
            elif before is not None:
                self._claims.discard(key)
            self._world.say(f"{key} leader={state.leader} epoch={state.leader_epoch} isr={state.isr} v={stat.version}")
            if node.moves or (before is not None and state.assignment != before.assignment):
                self._world.say(f"{key} replicas, adding, removing, given up: {state.assignment}")
            if state.controller_epoch < epoch and not moved:
                self.fail(f"a controller of epoch {state.controller_epoch} wrote {key} after the election of {epoch}")
            self._check_state(key, same, state)
            self.compare(key, node.id)

    def _check_state(self, key: TopicPartition, before: PartitionState | None, state: PartitionState) -> None:
        if state.leader >= 0 and state.leader not in state.isr:
            self.fail(f"leader {state.leader} of {key} is not in ISR {state.isr}")
        if not state.isr:
            self.fail(f"nobody is in the ISR of {key}")
        if before is None:
            return
        if state.leader_epoch < before.leader_epoch or state.partition_epoch < before.partition_epoch:
            self.fail(f"epochs of {key} went back from {before} to {state}")
        if state.leader_epoch == before.leader_epoch and state.leader != before.leader:
            self.fail(f"{before.leader} and {state.leader} lead {key} in epoch {state.leader_epoch}")

    def differing_images(self) -> list[str]:
        """Return a sentence for each broker whose metadata has other topics, leaders or epochs than the store."""
        stored = {name: nodes.load_topic(self._world.store.read(nodes.topic(name))[0]).id for name in self._topics()}
        found = []
        for life in self._world.network.lives.values():
            image = life.metadata.image
            shown = {topic.name: topic.id for topic in image.topics()}
            if shown != stored:
                found.append(f"the metadata of {life.number} has {shown}, the store {stored}")
            for key, state in self.states.items():
                known = image.partition(*key)
                if known is not None and (known.leader, known.leader_epoch) != (state.leader, state.leader_epoch):
                    found.append(f"the metadata of {life.number} has {known} for {key}, the store {state}")
        return found

    def _topics(self) -> list[str]:
        return self._world.store.children(nodes.TOPICS)

    # -- replicas ----------------------------------------------------------------------------------------------------

    def opened(self, life: Life) -> None:
        """Note that a broker opened its logs: none is known to equal the others."""
        life.seen = {}
        self.after_turn({life})

    def registered(self, life: Life) -> None:
        """Note that from now on membership of an ISR counts for this life of the broker. Its earlier life, whose broker
        epoch the store still had, may have joined the ISR after its power failed."""
        life.lost = {key for key in life.lost if key in self.states and life.number in self.states[key].isr}
        self._promised = not life.lost - self.others_have_it.keys()

    def after_turn(self, ran: set[Life]) -> None:
        if not self._promised:
            raise NothingPromised
        for life in ran:
            if life.dead:
                continue
            if life.listens:
                self._check_controller(life)
            for replica in life.parts:
                log = replica.log
                if log is None or replica.gone:
                    continue
                key = replica.key, replica.topic_id
                seen = life.seen.get(key)
                if seen is None or seen.log is not log:  # it was deleted, and is copied anew
                    seen = life.seen[key] = Seen(log)
                high_watermark, end, role = log.high_watermark, log.log_end_offset, log.role
                seen.end = end
                if end < seen.matched:
                    seen.matched = end
                if high_watermark != seen.high_watermark or role != seen.role:
                    self._changed(life, key, seen, high_watermark, role)

    def _check_controller(self, life: Life) -> None:
        """Check that no controller is obeyed after a later one."""
        known = life.manager._controller_epoch, life.metadata.image.controller_epoch
        if known[0] < life.controllers[0] or known[1] < life.controllers[1]:
            self.fail(f"{life.number} obeyed a controller of epochs {known} after {life.controllers}")
        life.controllers = known

    def _changed(
        self, life: Life, key: tuple[TopicPartition, bytes], seen: Seen, high_watermark: int, role: core.Role
    ) -> None:
        if high_watermark < seen.high_watermark:
            self.fail(f"high watermark of {key[0]} at {life.number} went back: {seen.high_watermark}, {high_watermark}")
        if high_watermark > seen.end:
            self.fail(f"high watermark {high_watermark} of {key[0]} at {life.number} is behind its end {seen.end}")
        seen.high_watermark, seen.role = high_watermark, role
        if role.kind == LEADER:
            leaders = self.committed(*key).leaders
            if leaders.setdefault(role.leader_epoch, life.number) != life.number:
                self.fail(f"{life.number} and {leaders[role.leader_epoch]} lead {key[0]} in {role.leader_epoch}")
        self.compare(*key)

    def compare(self, key: TopicPartition, topic_id: bytes) -> None:
        """Check that members of the ISR have all committed records, and that each replica has those below its high
        watermark, with the same bytes."""
        committed, state = self.committed(key, topic_id), self.states.get(key)
        sound = state is not None and self._ids.get(key) == topic_id and key not in self._claims
        isr = state.isr if state is not None and sound else ()
        held = []
        for life in self._world.network.lives.values():
            seen = None if life.dead else life.seen.get((key, topic_id))
            replica = None if life.dead or not life.listens else life.replicas.get(*key)
            if replica is None and key != U and life.number in isr and life.listens and committed.end and not life.dead:
                self.fail(f"{life.number} of ISR {isr} of {key} has no log: {committed.end} are committed")
            if replica is None or replica.log is None or replica.topic_id != topic_id or seen is None:
                continue
            held.append((life, replica.log, seen))
            if seen.high_watermark > committed.end:
                self._commit(key, committed, replica.log, seen.high_watermark)
        for life, log, seen in held:
            lost_in = self.others_have_it.get(key)
            is_excused = lost_in is None or state is None or state.leader < 0 or state.leader_epoch <= lost_in
            if key in life.lost and life.number in isr and is_excused:
                continue
            if life.number in isr and log.log_end_offset < committed.end:
                self.fail(
                    f"{life.number} of ISR {isr} of {key} ends at {log.log_end_offset}: {committed.end} are committed"
                )
            upto = committed.end if life.number in isr else seen.high_watermark
            while seen.matched < upto:
                batch, end = _batch(log, seen.matched)
                if committed.batches.get(seen.matched, (b"", 0))[0] != batch:
                    self.fail(f"{key} at {life.number} differs at offset {seen.matched}, which is committed: {batch!r}")
                seen.matched = end

    def _commit(self, key: TopicPartition, committed: Committed, log: core.Partition, high_watermark: int) -> None:
        while committed.end < high_watermark:
            batch, end = _batch(log, committed.end)
            committed.batches[committed.end] = batch, end
            for value in IDEMPOTENT.findall(batch):
                at = committed.once.setdefault(value, committed.end)
                if at != committed.end:
                    self.fail(f"{value!r} of an idempotent producer is at {at} and at {committed.end} of {key}")
            committed.end = end

    def acknowledged(self, key: TopicPartition, offset: int, value: bytes) -> None:
        """Check that a record acknowledged to a client is committed at this offset."""
        for (committed_key, _), committed in self._committed.items():
            if committed_key == key and value in committed.batches.get(offset, (b"", 0))[0]:
                return
        self.fail(f"{value!r} was acknowledged at {offset} of {key}, and is not committed there")


def _batch(log: core.Partition, offset: int) -> tuple[bytes, int]:
    """The batch at an offset, and the offset after it."""
    found = log.read(offset, 1, minimum_one=True, to_log_end=True).slice
    assert found is not None
    try:
        data = found.tobytes()
    finally:
        found.close()
    base = int.from_bytes(data[BASE_OFFSET], "big")
    return data, base + int.from_bytes(data[LAST_OFFSET_DELTA], "big") + 1
