"""Metrics of damage in logs, and of the scrubs that look for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from pybroker.replication.replicas import Replicas

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

PARTITION = ["topic", "partition"]


def damage_metrics(replicas: Replicas) -> Iterator[Metric]:
    """The metrics of damage; only damaged partitions have any."""
    places = GaugeMetricFamily(
        "pybroker_damaged_places", "Damaged places in the files of a partition.", labels=PARTITION
    )
    lost = GaugeMetricFamily("pybroker_damaged_offsets", "Offsets that are lost in these places.", labels=PARTITION)
    last = GaugeMetricFamily(
        "pybroker_scrub_last_pass_timestamp_seconds", "When the last scrub of a log dir began; 0: never.",
        labels=["dir"],
    )
    for log_dir in replicas.log_dirs:
        for key, spots in log_dir.damage.items():
            labels = [key.topic, str(key.partition)]
            places.add_metric(labels, len(spots))
            lost.add_metric(labels, sum(spot.next - spot.first for spot in spots))
        last.add_metric([log_dir.path], replicas.scrubbed.last_pass_s.get(log_dir.path, 0))
    yield from (places, lost, last)
    checked = replicas.scrubbed.bytes
    yield CounterMetricFamily("pybroker_scrub_bytes", "Bytes of sealed segments that scrubs have checked.", checked)
