"""Metrics of partitions and topics, in bounded numbers.

A broker may hold ten thousand partitions. Their samples are written as text here, in one pass: the objects that
prometheus_client makes of each sample would take most of a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from pybroker.replication.replica import Replica
from pybroker.server.metrics.bounded import SeriesLimits, Totals

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from pybroker.replication.isr import LedPartition

ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
FAMILIES = {
    "pybroker_log_start_offset": "The first offset of a partition.",
    "pybroker_log_end_offset": "The offset of a partition's next record.",
    "pybroker_log_bytes": "Size of a partition's data files.",
    "pybroker_follower_lag": "Records that a follower has yet to fetch, as known by the leader.",
    "pybroker_group_lag": "Records between a group's committed offset and the high watermark.",
}
"""The gauges whose samples are written here."""


class Samples:
    """Gauges of partitions as text, up to a number of lines each."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lines: dict[str, list[str]] = {}
        self.left_out = 0

    def family(self, name: str) -> Callable[[str, int], None]:
        """Begin a gauge; return what adds a sample with these labels."""
        lines, most = self._lines.setdefault(name, []), self._most

        def add(labels: str, value: int) -> None:
            if len(lines) < most:
                lines.append(f"{name}{{{labels}}} {value}\n")
            else:
                self.left_out += 1

        return add

    def text(self) -> str:
        """Return all gauges in Prometheus' text format."""
        return "".join(
            f"# HELP {name} {FAMILIES[name]}\n# TYPE {name} gauge\n{''.join(lines)}"
            for name, lines in self._lines.items()
        )


def label(value: str) -> str:
    """Return the value of a label, escaped."""
    return value.translate(ESCAPED)


class Led(NamedTuple):
    """Numbers of led partitions in a state."""

    under_replicated: int = 0
    under_min_isr: int = 0
    at_min_isr: int = 0
    reassigning: int = 0


class Partitions:
    """The metrics of one broker's partitions. Not thread-safe."""

    def __init__(self, limits: SeriesLimits) -> None:
        self._limits = limits
        self._totals = Totals(limits.topics)
        self._copied = Totals(0)

    def samples(self) -> Samples:
        """Begin the samples of one scrape."""
        return Samples(self._limits.partitions)

    def metrics(self, topics: int, replicas: Sequence[Replica], samples: Samples) -> Iterator[Metric]:
        """Read the logs. `topics`: their number in the cluster."""
        logs = [(replica.key, log) for replica in replicas if (log := replica.log) is not None and not log.offline]
        counts, copied = {}, {}
        sizes: Counter[str] = Counter()
        read = []
        for key, log in logs:
            size, traffic = log.size, log.traffic
            sizes[key.topic] += size
            read.append((key, log, size))
            counts[key] = traffic["bytes_in"], traffic["bytes_out"], traffic["records_in"]
            copied[key] = traffic["replication_bytes_in"], traffic["replication_bytes_out"]
        chosen = self._totals.add(counts, sizes)
        start, end, bytes_ = map(samples.family, list(FAMILIES)[:3])
        for key, log, size in read:
            if key.topic in chosen:
                labels = f'topic="{label(key.topic)}",partition="{key.partition}"'
                start(labels, log.log_start_offset)
                end(labels, log.log_end_offset)
                bytes_(labels, size)
        yield from self._of_topics()
        self._copied.add(copied, {})
        yield from _copied(*next(iter(self._copied.sums().values()), (0, 0)))
        yield GaugeMetricFamily("pybroker_topics", "Topics of the cluster.", topics)
        yield GaugeMetricFamily("pybroker_partitions", "Partitions that this broker holds.", len(replicas))
        offline = len(replicas) - len(logs)
        yield GaugeMetricFamily("pybroker_partitions_offline", "Partitions of this broker that are offline.", offline)

    def _of_topics(self) -> Iterator[Metric]:
        families = [
            CounterMetricFamily(f"pybroker_topic_{name}", says, labels=["topic"])
            for name, says in (
                ("bytes_in", "Bytes of the batches appended to a topic by clients: Kafka's BytesInPerSec."),
                ("bytes_out", "Bytes of a topic's batches sent to clients: Kafka's BytesOutPerSec."),
                ("messages_in", "Records appended to a topic by clients: Kafka's MessagesInPerSec."),
            )
        ]
        for topic, sums in self._totals.sums().items():
            for family, count in zip(families, sums, strict=True):
                family.add_metric([topic], count)
        yield from families


def _copied(came: int, went: int) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "pybroker_replication_bytes_in", "Bytes of batches copied from leaders: Kafka's ReplicationBytesInPerSec.", came
    )  # fmt: skip
    yield CounterMetricFamily(
        "pybroker_replication_bytes_out", "Bytes of batches sent to followers: Kafka's ReplicationBytesOutPerSec.", went
    )  # fmt: skip


def led_partitions(led: Sequence[LedPartition], samples: Samples) -> Led:
    """Count led partitions by their state, and write the lag of their followers."""
    under = least_missed = at_least = moving = 0
    lag = samples.family("pybroker_follower_lag")
    for each in led:
        log, key, isr = each.replica.log, each.replica.key, len(each.isr)
        if log is None or each.replica.offline:
            continue
        followers, first, end = log.followers, log.log_start_offset, log.log_end_offset
        replicas = 1 + len(followers)
        if each.adding or each.removing:
            replicas -= len(set(each.adding) - set(each.isr))
            moving += 1
        least = min(each.replica.config["min.insync.replicas"], replicas)
        under += isr < replicas
        least_missed += isr < least
        at_least += isr == least
        for follower in followers:
            labels = f'topic="{label(key.topic)}",partition="{key.partition}",broker="{follower.broker}"'
            lag(labels, max(end - max(follower.log_end_offset, first), 0))
    return Led(under, least_missed, at_least, moving)
