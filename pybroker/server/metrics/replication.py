"""Metrics of replication, with Kafka's names and meanings, and the last changes of partitions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from pybroker.controller.balancer import NO_PROGRESS, Progress
from pybroker.server.metrics.partitions import Led, Samples, led_partitions
from pybroker.server.metrics.requests import exposed

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client.metrics_core import Metric

    from pybroker.controller.controller import Controller
    from pybroker.decisions.changes import Changes
    from pybroker.replication.isr import IsrKeeper
    from pybroker.replication.replicas import Replicas
    from pybroker.server.cluster.membership import Membership


class Cluster(NamedTuple):
    """The parts of a broker of a cluster that metrics read."""

    isr: IsrKeeper
    controller: Callable[[], Controller | None]
    changes: Changes
    epochs: Callable[[], dict[str, int]]
    member: Membership
    no_member: Callable[[], str]
    """Returns why the broker is not a member of the cluster, or ""."""


def replication_metrics(cluster: Cluster | None, count: int, offline: int, samples: Samples) -> Iterator[Metric]:
    """Kafka's metrics of replication. Without a `cluster` they are a lone broker's, of `count` partitions: it leads all
    that are not offline, and is the controller."""
    if cluster is None:
        yield from _counts(count - offline, Led(), 1, offline)
        yield from _changes(0, 0, 0, 0)
        yield from _balance(NO_PROGRESS)
        return
    led, changes = cluster.isr.partitions(), cluster.changes
    controller = cluster.controller()
    context = controller.context if controller is not None else None
    offline = sum(state.leader < 0 for _, state in list(context.states())) if context is not None else 0
    yield from _counts(len(led), led_partitions(led, samples), int(context is not None), offline)
    yield from _changes(changes.isr_shrinks, changes.isr_expands, changes.elections, changes.unclean_elections)
    yield from _balance(NO_PROGRESS if controller is None else controller.balancing)
    yield from _session(cluster.member)


def _counts(leaders: int, led: Led, controllers: int, offline: int) -> Iterator[Metric]:
    gauges = (
        ("leader_count", "Partitions that this broker leads: Kafka's LeaderCount.", leaders),
        ("under_replicated_partitions", "Partitions led here with a replica that is not in sync: Kafka's "
         "UnderReplicatedPartitions.", led.under_replicated),
        ("under_min_isr_partition_count", "Partitions led here with fewer replicas in sync than min.insync.replicas: "
         "Kafka's UnderMinIsrPartitionCount.", led.under_min_isr),
        ("at_min_isr_partition_count", "Partitions led here with just as many in sync as min.insync.replicas: Kafka's "
         "AtMinIsrPartitionCount.", led.at_min_isr),
        ("reassigning_partitions", "Partitions led here whose replicas are being moved: Kafka's "
         "ReassigningPartitions.", led.reassigning),
        ("active_controller_count", "1 on the controller, or else 0: Kafka's ActiveControllerCount.", controllers),
        ("offline_partitions_count", "On the controller, partitions without a leader: Kafka's OfflinePartitionsCount.",
         offline),
    )  # fmt: skip
    for name, says, value in gauges:
        yield GaugeMetricFamily(f"pybroker_{name}", says, value)


def _changes(shrinks: int, expands: int, elections: int, unclean: int) -> Iterator[Metric]:
    counters = (
        ("isr_shrinks", "ISR shrinks of partitions led by this broker: Kafka's IsrShrinksPerSec.", shrinks),
        ("isr_expands", "ISR expansions of partitions led by this broker: Kafka's IsrExpandsPerSec.", expands),
        ("leader_elections", "Leaders that this broker, as controller, elected.", elections),
        ("unclean_leader_elections", "Elected leaders that were not in sync: Kafka's UncleanLeaderElectionsPerSec.",
         unclean),
    )  # fmt: skip
    for name, says, value in counters:
        yield CounterMetricFamily(f"pybroker_{name}", says, value)


def _balance(progress: Progress) -> Iterator[Metric]:
    gauges = (
        ("moving_partitions", "On the controller, partitions that the continuous balancer moves now.",
         progress.partitions),
        ("left_bytes", "On the controller, bytes that the continuous balancer has to copy by its last plan.",
         progress.left_bytes),
    )  # fmt: skip
    for name, says, value in gauges:
        yield GaugeMetricFamily(f"pybroker_balancer_{name}", says, value)


def _session(member: Membership) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "pybroker_zookeeper_connected", "1 while the broker's session is alive, as far as it knows: Kafka's "
        "SessionState is CONNECTED.", int(member.connected)
    )  # fmt: skip
    yield GaugeMetricFamily(
        "pybroker_registered", "1 while the broker is registered in its cluster, or else 0: it is fenced.",
        int(member.registered),
    )  # fmt: skip
    times = HistogramMetricFamily(
        "pybroker_zookeeper_request_seconds", "Time of a request to the store: Kafka's ZooKeeperRequestLatencyMs."
    )
    times.add_metric([], *exposed(member.store_times))
    yield times
    counters = (
        ("disconnects", "Connections to ZooKeeper that were lost: Kafka's ZooKeeperDisconnectsPerSec.",
         member.disconnects),
        ("expires", "Sessions that ZooKeeper ended: Kafka's ZooKeeperExpiresPerSec.", member.expiries),
    )  # fmt: skip
    for name, says, value in counters:
        yield CounterMetricFamily(f"pybroker_zookeeper_{name}", says, value)


def changes_text(cluster: Cluster | None, partition: str) -> bytes:
    """The last changes of a partition (TOPIC-NUMBER), or of all, as one JSON object per line, the oldest first."""
    lines = []
    for change in cluster.changes.of(partition) if cluster is not None else ():
        at = datetime.fromtimestamp(change.time_ms / 1000, UTC).isoformat(timespec="milliseconds")
        fields = change._asdict() | {"time": at.replace("+00:00", "Z"), "partition": str(change.partition)}
        del fields["time_ms"]
        lines.append(json.dumps({"time": fields.pop("time"), **fields}) + "\n")
    return "".join(lines).encode()


def epochs_text(cluster: Cluster | None, replicas: Replicas | None) -> bytes:
    """A JSON object with the epochs, which a lone broker does not have, and the log dirs that are full."""
    dirs = () if replicas is None else replicas.log_dirs
    full = {each.path: each.space.lack for each in dirs if each.space.lack}
    return (json.dumps({**(cluster.epochs() if cluster is not None else {}), "full_log_dirs": full}) + "\n").encode()
