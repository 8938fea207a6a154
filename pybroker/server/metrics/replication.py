"""Metrics of replication, with Kafka's names and meanings, and the last changes of partitions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from pybroker.controller.balancer import NO_PROGRESS, Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client.metrics_core import Metric

    from pybroker.controller.controller import Controller
    from pybroker.decisions.changes import Changes
    from pybroker.replication.isr import IsrKeeper, LedPartition
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


def replication_metrics(cluster: Cluster | None, replicas: Replicas) -> Iterator[Metric]:
    """Kafka's metrics of replication. Without a `cluster` they are a lone broker's: it leads all partitions that are
    not offline, and is the controller."""
    if cluster is None:
        offline = sum(replica.offline for replica in replicas)
        yield from _counts(len(replicas) - offline, [0, 0, 0, 0], 1, offline)
        yield from _changes(0, 0, 0, 0)
        yield from _balance(NO_PROGRESS)
        return
    led, changes = cluster.isr.partitions(), cluster.changes
    controller = cluster.controller()
    context = controller.context if controller is not None else None
    offline = sum(state.leader < 0 for _, state in list(context.states())) if context is not None else 0
    yield from _counts(len(led), _lacking(led), int(context is not None), offline)
    yield from _changes(changes.isr_shrinks, changes.isr_expands, changes.elections, changes.unclean_elections)
    yield from _balance(NO_PROGRESS if controller is None else controller.balancing)
    yield from _lag(led)
    yield from _session(cluster.member)


def _lacking(led: list[LedPartition]) -> list[int]:
    """The numbers of partitions led here that are under-replicated, under min ISR, at min ISR, being reassigned."""
    counts = [0, 0, 0, 0]
    for each in led:
        if each.replica.log is None or each.replica.offline:
            continue
        replicas = each.replicas
        least = min(each.replica.config["min.insync.replicas"], replicas)
        counts[0] += len(each.isr) < replicas
        counts[1] += len(each.isr) < least
        counts[2] += len(each.isr) == least
        counts[3] += bool(each.adding or each.removing)
    return counts


def _counts(leaders: int, lacking: list[int], controllers: int, offline: int) -> Iterator[Metric]:
    gauges = (
        ("leader_count", "Partitions that this broker leads: Kafka's LeaderCount.", leaders),
        ("under_replicated_partitions", "Partitions led here with a replica that is not in sync: Kafka's "
         "UnderReplicatedPartitions.", lacking[0]),
        ("under_min_isr_partition_count", "Partitions led here with fewer replicas in sync than min.insync.replicas: "
         "Kafka's UnderMinIsrPartitionCount.", lacking[1]),
        ("at_min_isr_partition_count", "Partitions led here with just as many in sync as min.insync.replicas: Kafka's "
         "AtMinIsrPartitionCount.", lacking[2]),
        ("reassigning_partitions", "Partitions led here whose replicas are being moved: Kafka's "
         "ReassigningPartitions.", lacking[3]),
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
    counters = (
        ("disconnects", "Connections to ZooKeeper that were lost: Kafka's ZooKeeperDisconnectsPerSec.",
         member.disconnects),
        ("expires", "Sessions that ZooKeeper ended: Kafka's ZooKeeperExpiresPerSec.", member.expiries),
    )  # fmt: skip
    for name, says, value in counters:
        yield CounterMetricFamily(f"pybroker_zookeeper_{name}", says, value)


def _lag(led: list[LedPartition]) -> Iterator[Metric]:
    lag = GaugeMetricFamily(
        "pybroker_follower_lag", "Records that a follower has yet to fetch, as known by the leader.",
        labels=["topic", "partition", "broker"],
    )  # fmt: skip
    for each in led:
        log, key = each.replica.log, each.replica.key
        if log is None or each.replica.offline:
            continue
        end = log.log_end_offset
        for follower in log.followers:
            behind = max(end - max(follower.log_end_offset, log.log_start_offset), 0)
            lag.add_metric([key.topic, str(key.partition), str(follower.broker)], behind)
    yield lag


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
