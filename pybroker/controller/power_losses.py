"""Members of ISRs that lost power, and with it perhaps the end of their log."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from pybroker.decisions.image import NO_LEADER, PartitionState
from pybroker.model import TopicPartition


class PowerLosses(dict[TopicPartition, set[int]]):
    """The brokers of each partition that lost power while they were in sync, as long as one must not lead for that."""

    def note(self, broker: int, key: TopicPartition, state: PartitionState | None, *, lost: bool = True) -> None:
        """Note that a member of the ISR may lack the end of its log, or that it does not."""
        if lost and state is not None and broker in state.isr and len(state.replicas) > 1:
            self.setdefault(key, set()).add(broker)
        elif key in self:
            self[key].discard(broker)
            if not self[key]:
                del self[key]

    def forget_topic(self, name: str) -> None:
        """Forget what is known of a topic that is gone."""
        for key in [key for key in self if key.topic == name]:
            del self[key]

    def forget_brokers(self, gone: AbstractSet[int]) -> None:
        """Forget what is known of brokers whose registrations are gone."""
        for key in list(self):
            self[key] -= gone
            if not self[key]:
                del self[key]

    def written(self, states: Mapping[TopicPartition, PartitionState]) -> None:
        """Forget partitions that have a leader again: members that lost power have left the ISR, or lead."""
        for key in self.keys() & states.keys():
            if states[key].leader != NO_LEADER:
                del self[key]
