"""The metrics of a broker that `pybroker top` shows, from the text of its /metrics."""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

_LINE: Final = re.compile(r"(pybroker_\w+?)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE: Final = re.compile(r"\\(.)")
_OF_BROKER: Final = {"pybroker_plane_bytes_in_total": "bytes_in", "pybroker_plane_bytes_out_total": "bytes_out"}
_OF_TOPICS: Final = {"pybroker_topic_bytes_in_total": "bytes_in", "pybroker_topic_bytes_out_total": "bytes_out"}
_REQUESTS: Final = "pybroker_requests_total"
_TIMES: Final = {"pybroker_plane_request_seconds_bucket", "pybroker_request_seconds_bucket"}


class Counts(NamedTuple):
    """Counters of one broker since its start."""

    broker: Mapping[str, float]
    """bytes_in, bytes_out, requests."""
    topics: Mapping[tuple[str, str], float]
    """By the topic, and bytes_in or bytes_out."""
    times: Mapping[tuple[str, str, float], float]
    """Requests that took no longer, by API, histogram (each has its own bounds) and seconds."""


def counts(text: str) -> Counts:
    """Read the counters that are shown. A text that is not ours has none."""
    broker, topics, times = dict[str, float](), dict[tuple[str, str], float](), dict[tuple[str, str, float], float]()
    for name, labels, value in _lines(text):
        if name in _OF_BROKER:
            broker[_OF_BROKER[name]] = value
        elif name == _REQUESTS:
            broker["requests"] = broker.get("requests", 0.0) + value
        elif name in _OF_TOPICS:
            topics[labels.get("topic", ""), _OF_TOPICS[name]] = value
        else:
            times[labels.get("api", ""), name, float(labels.get("le", "inf"))] = value
    return Counts(broker, topics, times)


def _lines(text: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name not in _OF_BROKER and name not in _OF_TOPICS and name != _REQUESTS and name not in _TIMES:
            continue
        if (read := _LINE.fullmatch(line)) is not None:
            labels = {key: _ESCAPE.sub(_unescaped, value) for key, value in _LABEL.findall(read[2] or "")}
            yield name, labels, float(read[3])


def _unescaped(escape: re.Match[str]) -> str:
    return "\n" if escape[1] == "n" else escape[1]
