"""The report of one broker, read from the text of its /metrics: connections, slow requests, certificates, scrubs.

Only lines of metrics that are shown are parsed: a broker with many partitions has megabytes of others.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pybroker.operations.metrics_listener import WAITING

CONNECTIONS: Final = "pybroker_connections"
SLOW: Final = {"pybroker_request_seconds": "0.1", "pybroker_plane_request_seconds": "0.131072"}
"""The histograms of request times, each with the bound, in s, that is nearest to a tenth of a second."""
CERTIFICATES: Final = "pybroker_certificate_end_timestamp_seconds"
SCRUB: Final = "pybroker_scrub_last_pass_timestamp_seconds"
PLACES: Final = "pybroker_damaged_places"
OFFSETS: Final = "pybroker_damaged_offsets"
SHOWN: Final = (CONNECTIONS, *SLOW, CERTIFICATES, SCRUB, PLACES, OFFSETS)
DAMAGED_MAX: Final = 200


class RequestTimes(NamedTuple):
    """The requests of one API since the broker's start."""

    api: str
    served: int
    slow: int
    """Those that took longer than a tenth of a second, or than SLOW has."""
    mean_s: float


class DamagedPartition(NamedTuple):
    """A damaged partition: its places that cannot be read, and the offsets that are lost there."""

    topic: str
    partition: str
    places: int
    offsets: int


class BrokerReport(NamedTuple):
    """The report of one broker; times are in ms since the epoch."""

    connections: int
    requests: Sequence[RequestTimes]
    certificates: Mapping[str, int]
    """When the first certificate of a listener ends."""
    scrubs: Mapping[str, int]
    """When the last scrub of a log dir began; 0 for never."""
    damaged: Sequence[DamagedPartition]


def report_of(text: str) -> BrokerReport:
    """Read a report. ValueError if the text is no text of metrics."""
    connections = 0
    counts: dict[str, int] = defaultdict(int)
    seconds: dict[str, float] = defaultdict(float)
    quick: dict[str, int] = defaultdict(int)
    certificates, scrubs = dict[str, int](), dict[str, int]()
    damaged: dict[tuple[str, str], dict[str, int]] = {}
    for name, labels, value, *_ in _samples(text):
        api = labels.get("api", "")
        if name == CONNECTIONS:
            connections = int(value)
        elif name in (f"{each}_count" for each in SLOW):
            counts[api] += int(value)
        elif name in (f"{each}_sum" for each in SLOW):
            seconds[api] += value
        elif name in (f"{each}_bucket" for each in SLOW):
            quick[api] += int(value)
        elif name == CERTIFICATES:
            certificates[labels.get("listener", "")] = int(value * 1000)
        elif name == SCRUB:
            scrubs[labels.get("dir", "")] = int(value * 1000)
        elif name in (PLACES, OFFSETS):
            damaged.setdefault((labels.get("topic", ""), labels.get("partition", "")), {})[name] = int(value)
    requests = [RequestTimes(api, n, max(0, n - quick[api]), seconds[api] / n) for api, n in counts.items() if n]
    requests.sort(key=lambda each: (-each.slow, -each.mean_s))
    lost = [DamagedPartition(*key, each.get(PLACES, 0), each.get(OFFSETS, 0)) for key, each in sorted(damaged.items())]
    return BrokerReport(connections, requests, certificates, scrubs, lost[:DAMAGED_MAX])


def _samples(text: str) -> Iterator[Sample]:
    lines = [line for line in text.splitlines() if line.startswith(SHOWN) and _is_wanted(line)]
    for family in text_string_to_metric_families("\n".join([*lines, ""])):
        yield from family.samples


def _is_wanted(line: str) -> bool:
    """False for a bucket of another bound than that of SLOW, and for requests that wait by design."""
    name, _, rest = line.partition("{")
    if any(f'api="{each}"' in rest for each in WAITING):
        return False
    return not name.endswith("_bucket") or f'le="{SLOW.get(name.removesuffix("_bucket"))}"' in rest
