"""Elects a leader where each in-sync replica that is alive may have lost the end of its log (KIP-966's case).

Without flush.messages=1 a record is acknowledged from the page cache. If the ISR shrinks to one replica, all brokers
die, and that one loses power, then it returns without what it had not synced, while a replica outside the ISR may still
have that. The store cannot know: its ISR has the one replica.

    heard    Each live replica reports the last leader epoch in its log and the log's end.
    waited   Absent replicas may have more: they are waited for, unclean.recovery.timeout.ms at most, for when the power
             comes back brokers start one after the other.
    elected  The log with the latest epoch leads, the longest among several. No other has a committed record that it
             lacks: what was committed in an epoch is in each log with a later epoch, and logs with the same last epoch
             were copied from the same leader. A member of the ISR leads rather than an equal replica outside.

The ISR begins anew with the leader: the others cut their logs, and join once they have caught up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pybroker.decisions import election
from pybroker.decisions.image import PartitionState
from pybroker.decisions.rollback import Known


def is_unsure(state: PartitionState, sure: Collection[int], power_lost: Collection[int]) -> bool:
    """True if live members of the ISR lost power (`power_lost`), and none of the others is alive (`sure`)."""
    return not any(broker in sure for broker in state.isr) and any(broker in power_lost for broker in state.isr)


def missing(state: PartitionState, heard: Collection[int]) -> list[int]:
    """The replicas whose logs are not known: the brokers are absent, or did not answer."""
    return [broker for broker in state.replicas if broker not in heard]


def elected(state: PartitionState, heard: Mapping[int, Known], live: Collection[int]) -> PartitionState | None:
    """The state led by the best log of the live replicas, alone in the ISR; None if none of these has a usable log."""
    usable = [broker for broker in state.replicas if broker in live and broker in heard and heard[broker].log_end >= 0]
    if not usable:
        return None
    best = max(usable, key=lambda each: (heard[each].log_epoch, heard[each].log_end, each in state.isr))
    return election.above(state, best, (best,))
