"""Metrics of partitions and topics, in bounded numbers.

A broker may hold ten thousand partitions. Their samples are written as text here, in one pass: the objects that
prometheus_client makes of each sample would take most of a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from pybroker.model import TopicPartition
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
COUNTED: Final = ("bytes_in", "bytes_out", "records_in", "replication_bytes_in", "replication_bytes_out")
"""The counters of a log that are summed, those of replication last."""
counted = itemgetter(*COUNTED)


class Samples:
    """Gauges of partitions as text, up to a number of lines each."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lines: dict[str, list[str]] = {}
        self.left_out = 0

    def add(self, name: str, samples: Sequence[str]) -> None:
        """Add a gauge with these samples, each as `sample` makes it."""
        self._lines[name] = [f"{name}{each}" for each in samples[: self._most]]
        self.left_out += max(len(samples) - self._most, 0)

    def text(self) -> str:
        """Return all gauges in Prometheus' text format."""
        return "".join(
            f"# HELP {name} {FAMILIES[name]}\n# TYPE {name} gauge\n{''.join(lines)}"
            for name, lines in self._lines.items()
        )


def label(value: str) -> str:
    """Return the value of a label, escaped."""
    return value.translate(ESCAPED)


def sample(labels: Mapping[str, object], value: int) -> str:
    """Return the text of a sample, after the name of its metric."""
    return f"{{{','.join(f'{name}={chr(34)}{label(str(of))}{chr(34)}' for name, of in labels.items())}}} {value}\n"


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
        self._totals = Totals(limits.topics, len(COUNTED))
        self.offline = 0
        """Partitions that were offline in the last scrape."""

    def samples(self) -> Samples:
        """Begin the samples of one scrape."""
        return Samples(self._limits.partitions)

    def metrics(self, topics: int, replicas: Sequence[Replica], samples: Samples) -> Iterator[Metric]:
        """Read the logs. `topics`: their number in the cluster."""
        counts: dict[TopicPartition, tuple[int, ...]] = {}
        sizes: dict[str, int] = {}
        read = []
        for replica in replicas:
            log, key = replica.log, replica.key
            if log is None or log.offline:
                continue
            size, traffic = log.size, log.traffic
            sizes[key.topic] = sizes.get(key.topic, 0) + size
            counts[key] = counted(traffic)
            read.append((key, log, size))
        chosen = self._totals.add(counts, sizes)
        labels = {topic: f'{{topic="{label(topic)}",partition="' for topic in chosen}
        shown = [(labels[key.topic], key.partition, log, size) for key, log, size in read if key.topic in chosen]
        start, end, bytes_ = list(FAMILIES)[:3]
        samples.add(start, [f'{topic}{index}"}} {log.log_start_offset}\n' for topic, index, log, _ in shown])
        samples.add(end, [f'{topic}{index}"}} {log.log_end_offset}\n' for topic, index, log, _ in shown])
        samples.add(bytes_, [f'{topic}{index}"}} {size}\n' for topic, index, _, size in shown])
        yield from self._of_topics()
        yield from _copied(*self._totals.whole[-2:])
        yield GaugeMetricFamily("pybroker_topics", "Topics of the cluster.", topics)
        yield GaugeMetricFamily("pybroker_partitions", "Partitions that this broker holds.", len(replicas))
        self.offline = len(replicas) - len(read)
        says = "Partitions of this broker that are offline."
        yield GaugeMetricFamily("pybroker_partitions_offline", says, self.offline)

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
            for family, count in zip(families, sums, strict=False):  # without those of replication
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
    lags = []
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
            labels = {"topic": key.topic, "partition": key.partition, "broker": follower.broker}
            lags.append(sample(labels, max(end - max(follower.log_end_offset, first), 0)))
    samples.add("pybroker_follower_lag", lags)
    return Led(under, least_missed, at_least, moving)
