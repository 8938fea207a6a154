"""Says why a plan is refused, and which goals it does not reach, with the numbers."""

from collections.abc import Iterable, Sequence
from typing import Final

from pybroker.decisions.planning.draft import BAND, Draft
from pybroker.decisions.planning.placing import Homeless
from pybroker.decisions.planning.snapshot import Goals
from pybroker.model import bytes_text, percent_text

NAMED_MAX: Final = 3
"""Brokers and topics that a sentence names, at most."""


def of_goals(draft: Draft, goals: Goals) -> list[str]:
    """Return a sentence for each goal that names a broker or a number of replicas that cannot be."""
    said = []
    for broker in sorted(goals.drain):
        if broker not in draft.brokers:
            said.append(f"broker {broker} is unknown: it is not live, and holds no replica")
        if broker in goals.add:
            said.append(f"broker {broker} cannot be drained and added at once")
    for broker in sorted(goals.add | set(goals.successors.values())):
        known = draft.brokers.get(broker)
        if known is None or not known.live:
            said.append(f"broker {broker} is not live: it cannot get replicas")
        elif broker in goals.drain and broker not in goals.add:
            said.append(f"broker {broker} is drained: it cannot take over for another one")
    if not draft.targets:
        said.append("no live broker is left that could hold replicas")
    for topic, factor in sorted(goals.factors.items()):
        if factor > len(draft.targets):
            live = "is live" if len(draft.targets) == 1 else "are live"
            left = f"{live} and not drained" if goals.drain else live
            said.append(f"topic {topic} cannot have {factor} replicas: {_number(len(draft.targets), 'broker')} {left}")
    return said


def of_replicas(draft: Draft, homeless: Sequence[Homeless]) -> list[str]:
    """Return a sentence for each broker whose replicas have nowhere to go, and for new replicas without a broker."""
    said = []
    for source in sorted({each.source for each in homeless}, key=lambda source: -1 if source is None else source):
        indices = [each.number for each in homeless if each.source == source]
        what = f"broker {source} cannot be drained" if source is not None else _of_topics(draft, indices)
        said += [f"{what}: {why}" for why in _whys(draft, indices, source)]
    return said


def of_spared(draft: Draft) -> list[str]:
    """Return a sentence that names the live brokers which a plan was not allowed to fill, if there are any."""
    spared = sorted(b for b in draft.spared if b in draft.brokers and draft.brokers[b].live)
    if not spared:
        return []
    ids = ", ".join(map(str, spared))
    return [
        f"broker {ids} is drained: pybroker brokers admit lets it get replicas" if len(spared) == 1
        else f"brokers {ids} are drained: pybroker brokers admit lets them get replicas"
    ]  # fmt: skip


def _of_topics(draft: Draft, indices: Iterable[int]) -> str:
    return f"{_names({draft.partitions[index].partition.topic for index in indices})} cannot get more replicas"


def _whys(draft: Draft, indices: Sequence[int], source: int | None) -> list[str]:
    few, apart, full = list[int](), list[int](), list[int]()
    for index in indices:
        free = [broker for broker in draft.targets if broker not in draft.replicas[index]]
        kept = [broker for broker in draft.replicas[index] if broker not in draft.goals.drain]
        missing = len(draft.replicas[index]) - len(kept) - 1 if source is not None else 0
        may = [broker for broker in free if draft.keeps_apart(index, kept, broker, missing)]
        (full if may else apart if free else few).append(index)
    said = []
    if few:
        most = max(len(draft.replicas[index]) for index in few)
        names = _names({draft.partitions[index].partition.topic for index in few})
        said.append(
            f"{_count(few)} of {names} need {most} brokers, and {_number(len(draft.targets), 'live broker')} would be "
            "left; add a broker, or lower the replication factor"
        )
    if apart:
        said.append(_apart(draft, apart))
    if full:
        said.append(_full(draft, full))
    return said


def _apart(draft: Draft, indices: Sequence[int]) -> str:
    racks, hosts = draft.distinct(draft.original[indices[0]])
    left_racks, left_hosts = draft.distinct(draft.targets)
    kind, spread, left = ("racks", racks, left_racks) if left_racks < racks else ("hosts", hosts, left_hosts)
    return (
        f"{_count(indices)} would be in fewer racks, or on fewer hosts, than now: "
        f"{draft.partitions[indices[0]].partition} is spread over {spread} {kind}, and brokers with room are in {left}"
        "; --fewer-racks allows it"
    )


def _full(draft: Draft, indices: Sequence[int]) -> str:
    """The sentence for replicas that fit on no broker, with what the disks of the emptiest brokers would hold."""
    size = max(draft.sizes[index] for index in indices)
    total = sum(draft.sizes[index] for index in indices)
    would = []
    for broker in sorted(draft.targets, key=lambda broker: (draft.peak_share(broker, size), broker))[:NAMED_MAX]:
        disk = draft.brokers[broker]
        peak = bytes_text(int(draft.peak_share(broker, size) * disk.total_bytes))
        share = percent_text(draft.peak_share(broker, size))
        would.append(f"broker {broker} {peak} of {bytes_text(disk.total_bytes)} ({share})")
    limit = percent_text(draft.goals.disk_limit)
    return (
        f"{_count(indices)} of {bytes_text(total)} fit on no broker whose disks stay below {limit}; with the largest, "
        f"of {bytes_text(size)}, would hold: {', '.join(would)}"
    )


def of_balance(draft: Draft, receivers: Iterable[int]) -> list[str]:
    """Return a sentence if a broker's bytes are not within BAND of its share."""
    far = [(draft.load[b] / draft.share(b) - 1, b) for b in receivers if draft.share(b) >= 1]
    off = [each for each in far if abs(each[0]) > BAND + 1e-9]
    if not off:
        return []
    by, broker = max(off, key=lambda each: (abs(each[0]), each[1]))
    word = "more" if by > 0 else "fewer"
    return [
        f"broker {broker} will hold {percent_text(abs(by))} {word} bytes than its share: no other partition is small "
        "enough, fits, and keeps racks and hosts apart"
    ]


def _count(indices: Sequence[int]) -> str:
    return _number(len(set(indices)), "partition")


def _number(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number:,} {noun}s"


def _names(topics: Iterable[str]) -> str:
    named = sorted(topics)
    rest = f" and {len(named) - NAMED_MAX:,} more" if len(named) > NAMED_MAX else ""
    return f"{'topic' if len(named) == 1 else 'topics'} {', '.join(named[:NAMED_MAX])}{rest}"
