"""Two readings of a cluster become what `pybroker top` shows: rates between them, and the state at the second."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from pybroker import errors
from pybroker.cli.output import Document
from pybroker.cli.top.broker_metrics import Counts
from pybroker.cli.top.reading import BrokerReading, Reading
from pybroker.client.net.metadata import Node
from pybroker.model import TopicPartition
from pybroker.operations.metrics_listener import WAITING

SHARE: Final = 0.99


def document(before: Reading, after: Reading) -> Document:
    """Return the state of a cluster, with rates per second; None for what no broker reported twice."""
    seconds = after.at_s - before.at_s
    cluster = after.cluster
    return {
        "cluster": cluster.id, "controller": cluster.controller, "interval_s": round(seconds, 3),
        "brokers": [_broker(node, before, after, seconds) for node in cluster.nodes],
        "topics": _topics(before, after, seconds),
        "groups": [{"group": g.id, "state": g.state, "lag": g.lag} for g in after.groups],
        "reassignments": [
            {"topic": tp.topic, "partition": tp.partition, **{name: list(its) for name, its in each._asdict().items()}}
            for tp, each in sorted(after.reassignments.items())
        ],
        "not_registered": cluster.away(),
        "troubled": [each.document() for each in cluster.troubled()],
        "problems": list(after.problems),
    }  # fmt: skip


def per_s(before: float | None, after: float | None, seconds: float) -> float | None:
    """Return a rate; None if either count is unknown, or lower than before, as after a restart."""
    if before is None or after is None or after < before or seconds <= 0:
        return None
    return round((after - before) / seconds, 1)


def _broker(node: Node, before: Reading, after: Reading, seconds: float) -> Document:
    now, then = after.brokers.get(node.id), before.brokers.get(node.id)
    new, old = _counts(now), _counts(then)
    partitions = [p for topic in after.cluster.topics for p in topic.partitions if node.id in p.replicas]
    dirs = now.log_dirs or () if isinstance(now, BrokerReading) else ()
    return {
        "id": node.id, "host": node.host, "port": node.port, "rack": node.rack,
        "answers": isinstance(now, BrokerReading),
        "leaders": sum(p.leader == node.id for p in partitions), "replicas": len(partitions),
        "in_sync": sum(node.id in p.isr for p in partitions),
        **{
            f"{name}_per_s": per_s(old and old.broker.get(name), new and new.broker.get(name), seconds)
            for name in ("bytes_in", "bytes_out", "requests")
        },
        "p99_ms": slowest(old, new),
        "log_dirs": [
            {
                "path": d.path, "error": errors.lookup(d.error).name if d.error else None,
                "total_bytes": d.total_bytes, "usable_bytes": d.usable_bytes,
                "size_bytes": sum(replica.size_bytes for replica in d.replicas),
            }
            for d in dirs
        ],
    }  # fmt: skip


def _counts(broker: object) -> Counts | None:
    return broker.counts if isinstance(broker, BrokerReading) else None


def slowest(before: Counts | None, after: Counts | None) -> dict[str, float] | None:
    """Return the time in ms within which 99 % of the requests of each API were answered, by API, the slowest first,
    except where the histogram has no such bound. None without metrics."""
    if before is None or after is None:
        return None
    buckets: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for (api, histogram, seconds), count in sorted(after.times.items()):
        buckets[api, histogram].append((seconds, count - before.times.get((api, histogram, seconds), 0.0)))
    found: dict[str, float] = {}
    for (api, _), its in buckets.items():
        total = its[-1][1]
        within_s = next((s for s, count in its if count >= SHARE * total), math.inf)
        if api not in WAITING and total > 0 and within_s < math.inf:
            found[api] = max(found.get(api, 0.0), round(1000 * within_s, 3))
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def _topics(before: Reading, after: Reading, seconds: float) -> list[Document]:
    old, new = _ends(before), _ends(after)
    bytes_old, bytes_new = _bytes(before), _bytes(after)
    sizes = _sizes(after)
    troubles: Counter[str] = Counter(each.topic for each in after.cluster.troubled())
    found = []
    for topic in after.cluster.topics:
        keys = [TopicPartition(topic.name, p.partition) for p in topic.partitions]
        rates = [per_s(old.get(key), new.get(key), seconds) for key in keys]
        known = [rate for rate in rates if rate is not None]
        found.append({
            "topic": topic.name, "internal": topic.internal, "partitions": len(keys),
            "troubled": troubles[topic.name],
            "records_per_s": round(sum(known), 1) if known else None,
            **{
                f"{name}_per_s": per_s(bytes_old.get((topic.name, name)), bytes_new.get((topic.name, name)), seconds)
                for name in ("bytes_in", "bytes_out")
            },
            "size_bytes": sizes.get(topic.name),
        })  # fmt: skip
    return found


def _answers(reading: Reading) -> Iterable[BrokerReading]:
    return (each for each in reading.brokers.values() if isinstance(each, BrokerReading))


def _ends(reading: Reading) -> Mapping[TopicPartition, int | None]:
    return {tp: end for each in _answers(reading) for tp, end in (each.ends or {}).items()}


def _bytes(reading: Reading) -> Mapping[tuple[str, str], float]:
    total: Counter[tuple[str, str]] = Counter()
    for each in _answers(reading):
        for key, count in (each.counts.topics if each.counts is not None else {}).items():
            total[key] += count  # type: ignore[assignment]  # a float
    return total


def _sizes(reading: Reading) -> Mapping[str, int]:
    """The bytes of all replicas, by topic."""
    total: Counter[str] = Counter()
    for each in _answers(reading):
        for log_dir in each.log_dirs or ():
            for replica in log_dir.replicas:
                total[replica.partition.topic] += replica.size_bytes
    return total
