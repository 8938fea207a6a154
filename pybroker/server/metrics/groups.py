"""Metrics of consumer groups, as their coordinator knows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from pybroker.groups.coordinator import Coordinator
from pybroker.replication.replicas import Replicas
from pybroker.server.metrics.bounded import OTHER, Chosen
from pybroker.server.metrics.partitions import Samples, sample

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from pybroker.groups.shard import GroupEntry


def group_metrics(
    groups: Coordinator, replicas: Replicas | None, chosen: Chosen, samples: Samples
) -> Iterator[Metric]:
    """The metrics of groups. Only partitions that this broker holds have a lag."""
    entries = groups.entries()
    own = chosen.among({entry.group.id: len(entry.offsets) for entry in entries})
    lag = []
    members: Counter[str] = Counter()
    lags: Counter[str] = Counter()
    states: Counter[str] = Counter()
    for entry in entries:
        name = entry.group.id if entry.group.id in own else OTHER
        states[entry.group.state.value] += 1
        members[name] += len(entry.group.members)
        for topic, partition, behind in _behind(entry, replicas):
            lags[name] += behind
            if name is not OTHER:
                lag.append(sample({"group": name, "topic": topic, "partition": partition}, behind))
    samples.add("pybroker_group_lag", lag)
    for what, says, counts, labelled in (
        ("group_total_lag", "Sum of a group's lag in the partitions that its coordinator holds.", lags, "group"),
        ("group_members", "Members of a group.", members, "group"),
        ("groups", "Groups in each state.", states, "state"),
    ):
        family = GaugeMetricFamily(f"pybroker_{what}", says, labels=[labelled])
        for name, count in counts.items():
            family.add_metric([name], count)
        yield family
    rebalances = CounterMetricFamily("pybroker_rebalances", "Rebalances that began, by their cause.", labels=["cause"])
    for cause, count in list(groups.rebalances.items()):
        rebalances.add_metric([cause.value], count)
    yield rebalances


def _behind(entry: GroupEntry, replicas: Replicas | None) -> Iterator[tuple[str, int, int]]:
    """The lag of a group in each partition: (topic, partition, records)."""
    for key, committed in list(entry.offsets.items()):
        replica = None if replicas is None else replicas.get(*key)
        if replica is not None and replica.log is not None:
            yield *key, max(replica.log.high_watermark - committed.offset, 0)
