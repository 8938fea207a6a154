"""The latest changes of partitions that a broker made or received: elections, ISR changes, roles, fencing.

They show an operator why a partition is in its state. The log has the same lines; these are bounded, and in memory.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from pybroker.decisions.image import PartitionState
from pybroker.model import TopicPartition

CHANGES_MAX: Final = 16
"""The latest changes kept of each partition."""
PARTITIONS_MAX: Final = 4096
"""Partitions whose changes are kept: those that changed last."""
ELECTED: Final = "leader elected"
SHRUNK: Final = "ISR shrunk"
EXPANDED: Final = "ISR expanded"


class Change(NamedTuple):
    """One change; an unknown epoch is -1."""

    time_ms: int
    partition: TopicPartition
    what: str
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    cause: str


class Changes:
    """The changes noted by one broker, and counters by kind. Read on any thread; `now_ms` is the wall clock's."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._kept: OrderedDict[TopicPartition, deque[Change]] = OrderedDict()
        self.elections = 0
        self.unclean_elections = 0
        self.isr_shrinks = 0
        self.isr_expands = 0

    def note(
        self, partition: TopicPartition, what: str, cause: str, *, leader: int, leader_epoch: int,
        partition_epoch: int = -1, isr: Collection[int] = (),
    ) -> None:  # fmt: skip
        """Note a change."""
        kept = self._kept.get(partition)
        if kept is None:
            kept = self._kept[partition] = deque(maxlen=CHANGES_MAX)
            if len(self._kept) > PARTITIONS_MAX:
                self._kept.popitem(last=False)
        self._kept.move_to_end(partition)
        kept.append(Change(self._now_ms(), partition, what, leader, leader_epoch, partition_epoch, tuple(isr), cause))

    def written(
        self, partition: TopicPartition, was: PartitionState, state: PartitionState, cause: str
    ) -> tuple[str, bool]:
        """Note and count a change that the controller wrote. Return its kind, and True if the election was unclean."""
        elected, unclean = was.leader != state.leader, state.leader >= 0 and state.leader not in was.isr
        what = ELECTED if elected else "ISR changed"
        self.elections += elected and state.leader >= 0
        self.unclean_elections += unclean
        self.note(
            partition, what, f"{cause}; unclean" if unclean else cause, leader=state.leader,
            leader_epoch=state.leader_epoch, partition_epoch=state.partition_epoch, isr=state.isr,
        )  # fmt: skip
        return what, unclean

    def of(self, partition: str = "") -> list[Change]:
        """The changes of a partition (TOPIC-NUMBER), or of all; oldest first."""
        rings = [ring for key, ring in list(self._kept.items()) if partition in ("", str(key))]
        return sorted((change for ring in rings for change in list(ring)), key=lambda change: change.time_ms)
