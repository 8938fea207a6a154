"""Evens out preferred leaders by the order of replicas, for which no byte is copied."""

from collections.abc import Iterable
from math import ceil, floor

from pybroker.decisions.planning.draft import BAND, Draft


def even_leaders(draft: Draft, among: Iterable[int]) -> None:
    """Reorder replicas of the partitions `among` until no broker is preferred leader of more, or fewer, than its even
    share of all that a target has a replica of, or no order of one partition more helps."""
    if not draft.targets:
        return
    mean = len(set[int]().union(*(draft.on[broker] for broker in draft.targets))) / len(draft.targets)
    low, high = floor(mean * (1 - BAND)), ceil(mean * (1 + BAND))
    leads: dict[int, set[int]] = {broker: set() for broker in draft.brokers}
    held: dict[int, set[int]] = {broker: set() for broker in draft.brokers}
    for index in among:
        for broker in draft.replicas[index]:
            held[broker].add(index)
        leads[draft.replicas[index][0]].add(index)

    def give(index: int, leader: int) -> None:
        leads[draft.replicas[index][0]].discard(index)
        draft.lead(index, leader)
        leads[leader].add(index)

    for broker in sorted(draft.brokers, key=lambda broker: (-draft.led[broker], broker)):
        for index in sorted(leads[broker]):
            if draft.led[broker] <= high:
                break
            able = [other for other in draft.replicas[index] if other in draft.weight]
            to = min(able, key=lambda other: (draft.led[other], other), default=broker)
            if draft.led[to] + 1 < draft.led[broker]:
                give(index, to)
    for broker in sorted(draft.targets, key=lambda broker: (draft.led[broker], broker)):
        followed = held[broker] - leads[broker]
        for index in sorted(followed, key=lambda index: (-draft.led[draft.replicas[index][0]], index)):
            if draft.led[broker] >= low:
                break
            if draft.led[draft.replicas[index][0]] > max(low, draft.led[broker] + 1):
                give(index, broker)
