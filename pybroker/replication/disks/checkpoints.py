"""Parsers and writers of Kafka's small text files in a log dir.

offset checkpoint (recovery-point-, log-start-, replication-, cleaner-offset-checkpoint):
    0                        version
    2                        the number of lines that follow
    topic partition offset   one per line
meta.properties: `version=0`, `cluster.id=...`, `broker.id=N`, `directory.id=<22 characters>` (KIP-858); KRaft writes
    `version=1` and `node.id`. A Java properties file, of which Kafka uses only `key=value` and comments. Not Kafka's:
    `coordination.directory.id`, the id of the log dir that holds the coordination store. Kafka ignores it.
leader-epoch-checkpoint, of each partition: `0`, the number of lines that follow, and `epoch start_offset`, both
    ascending.
partition.metadata: `version: 0`, `topic_id: <22 characters, url-safe base64>`.
damage-checkpoint, not Kafka's: `0`, the number of lines that follow, and for each known bad spot of a log
    `topic partition base position end first next`: the segment, the bytes in its file, and the offsets that they held.
scrub-checkpoint, not Kafka's: `0`, when the last whole pass over the log dir began, in ms since the epoch, and the
    number of segments and partitions that it could not check, if any.
.kafka_cleanshutdown: `{"version":0,"brokerEpoch":N}`, before Kafka 3.7 an empty file.
"""

import base64
import binascii
import json
import time
from collections.abc import Mapping
from typing import NamedTuple

from pybroker.model import TopicPartition

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANED = "cleaner-offset-checkpoint"
OFFSET_FILES = (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, CLEANED)
META = "meta.properties"
DAMAGE = "damage-checkpoint"
SCRUBBED = "scrub-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

Offsets = dict[TopicPartition, int]
_DIGITS_MAX = 19
_INT32_MAX = (1 << 31) - 1
_INT64_MAX = (1 << 63) - 1


SHOWN_MAX = 100
"""An error message shows at most this many characters of a file."""


class Malformed(ValueError):
    """A file has an invalid format; the text names the line and what is wrong."""


class Spot(NamedTuple):
    """A range of a segment's file that holds no sound batch, and the offsets that were in it."""

    base: int  # the segment's base offset
    position: int
    end: int
    first: int
    next: int  # the first offset after the range


Damage = dict[TopicPartition, frozenset[Spot]]


class Pass(NamedTuple):
    """A pass of scrubbing over a log dir."""

    began_ms: int  # 0: a pass was requested
    unchecked: int = 0  # partitions that are offline, and segments that could not be read


class Meta(NamedTuple):
    """The identity of a log dir: its cluster, its broker and its directory id."""

    cluster_id: str | None
    broker_id: int | None
    directory_id: str | None = None
    coordination_id: str | None = None  # the log dir that holds the coordination store; "zookeeper" in a cluster


def _number(word: str, most: int) -> int | None:
    """The number in a word of ASCII digits; None for any other word, or a number above `most`."""
    if not (word.isascii() and word.isdecimal() and len(word) <= _DIGITS_MAX):
        return None
    number = int(word)
    return number if number <= most else None


def read_offsets(text: str) -> Offsets:
    """Return the offsets of a checkpoint file. Raises Malformed, also if the file is cut.

    Kafka creates the file empty, and leaves it empty until there is an offset."""
    if not text:
        return {}
    lines = text.split("\n")
    if lines[0] != "0":
        raise Malformed(f"its version is {lines[0][:SHOWN_MAX]!r}, not 0")
    offsets: Offsets = {}
    for number, line in enumerate(lines[2:], 3):
        words = line.split(" ")
        if line == "" and number == len(lines):
            break
        partition = _number(words[1], _INT32_MAX) if len(words) == 3 else None
        offset = _number(words[2], _INT64_MAX) if partition is not None else None
        if partition is None or offset is None:
            raise Malformed(f"line {number} is {line[:SHOWN_MAX]!r}, not a topic, a partition and an offset")
        offsets[TopicPartition(words[0], partition)] = offset
    if lines[1:2] != [str(len(offsets))]:
        raise Malformed(f"it has {len(offsets)} entries, but its second line is {str(lines[1:2])[:SHOWN_MAX]}")
    return offsets


def write_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())]
    return "\n".join(["0", str(len(lines)), *lines, ""])


def read_damage(text: str) -> Damage:
    """Return the bad spots in a damage-checkpoint. Raises Malformed, also if the file is cut."""
    first, *lines = text.split("\n")
    if first != "0" or lines[-1:] != [""] or lines[0] != str(len(lines) - 2):
        raise Malformed("it is not version 0, or is cut")
    found: dict[TopicPartition, set[Spot]] = {}
    for line in lines[1:-1]:
        topic, *words = line.split(" ")
        numbers = [number for word in words if (number := _number(word, _INT64_MAX)) is not None]
        if len(numbers) != 6 or len(words) != 6:
            raise Malformed(f"{line[:SHOWN_MAX]!r} is not a topic and six numbers")
        spot = Spot(*numbers[1:])
        if not (spot.position < spot.end and spot.base <= spot.first <= spot.next <= spot.base + _INT32_MAX + 1):
            raise Malformed(f"{line[:SHOWN_MAX]!r} is not a valid range in a segment")
        found.setdefault(TopicPartition(topic, numbers[0]), set()).add(spot)
    return {key: frozenset(spots) for key, spots in found.items()}


def write_damage(damage: Damage) -> str:
    known = [(key, spot) for key in sorted(damage) for spot in sorted(damage[key])]
    lines = [f"{key.topic} {key.partition} {' '.join(map(str, spot))}" for key, spot in known]
    return "\n".join(["0", str(len(lines)), *lines, ""])


def read_scrubbed(text: str) -> Pass:
    """Return the last pass of scrubbing. Raises Malformed."""
    words = text.split()
    numbers = [_number(word, _INT64_MAX) for word in words]
    if words[:1] != ["0"] or len(words) not in (2, 3) or None in numbers:
        raise Malformed("it is not version 0, a time, and a number of unchecked segments and partitions")
    return Pass(*(number for number in numbers[1:] if number is not None))


def write_scrubbed(done: Pass) -> str:
    return "\n".join(["0", str(done.began_ms), *([str(done.unchecked)] if done.unchecked else []), ""])


def read_meta(text: str) -> Meta:
    """Return the log dir's identity. Raises Malformed if the version is unknown or the broker id is no number."""
    values = _properties(text)
    version = values.get("version")
    if version not in ("0", "1"):
        raise Malformed(f"its version is {version if version is None else version[:SHOWN_MAX]!r}, not 0 or 1")
    told = values.get("node.id" if version == "1" else "broker.id")
    broker_id = None if told is None else _number(told, _INT32_MAX)
    if told is not None and broker_id is None:
        raise Malformed(f"its broker id is {told[:SHOWN_MAX]!r}, not a 32-bit number")
    return Meta(
        values.get("cluster.id"), broker_id, values.get("directory.id"), values.get("coordination.directory.id")
    )


def _properties(text: str) -> dict[str, str]:
    pairs = [line.split("=", 1) for line in text.splitlines() if "=" in line and line[0] not in "#!"]
    return {key.strip(): value.strip() for key, value in pairs}


def write_meta(meta: Meta, before: str = "") -> str:
    """Return the text of a meta.properties file; other properties of the file `before`, and its version, are kept."""
    values = _properties(before)
    values |= {"version": values.get("version", "0"), "cluster.id": str(meta.cluster_id)}
    values["node.id" if values["version"] == "1" else "broker.id"] = str(meta.broker_id)
    if meta.directory_id is not None:
        values["directory.id"] = meta.directory_id
    values.pop("coordination.directory.id", None)  # `meta` decides whether there is one
    if meta.coordination_id is not None:
        values["coordination.directory.id"] = meta.coordination_id
    written = time.strftime("#%a %b %d %H:%M:%S UTC %Y", time.gmtime())
    return "".join(f"{line}\n" for line in ["#", written, *(f"{key}={value}" for key, value in values.items())])


def read_topic_id(text: str) -> bytes | None:
    """Return the topic id in a partition.metadata file; None if it holds none. Raises Malformed."""
    values = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    if values.get("version") != "0" or "topic_id" not in values:
        raise Malformed("it has no version 0 and topic_id")
    try:
        found = base64.urlsafe_b64decode(values["topic_id"] + "==")
    except (ValueError, binascii.Error):
        found = b""
    if len(found) != 16:
        raise Malformed(f"its topic id is {values['topic_id']!r}")
    return found if any(found) else None


def read_latest_epoch(text: str) -> int:
    """Return the last epoch in a leader-epoch-checkpoint; -1 if it has none. Raises Malformed.

    Kafka leaves the file empty until there is an epoch."""
    if not text:
        return -1
    words = text.split()
    if len(words) % 2 or words[:1] != ["0"] or any(_number(word, _INT64_MAX) is None for word in words):
        raise Malformed("it is not a list of epochs and offsets")
    epoch = _number(words[-2], _INT32_MAX) if len(words) > 2 else -1
    if epoch is None:
        raise Malformed(f"its last epoch is {words[-2]}, not a 32-bit number")
    return epoch


def read_first_offset(text: str) -> int:
    """Return the first start offset in a leader-epoch-checkpoint; 0 if it has no epoch. Raises Malformed."""
    read_latest_epoch(text)
    words = text.split()
    return int(words[3]) if len(words) > 3 else 0


def write_clean_shutdown(broker_epoch: int) -> str:
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
