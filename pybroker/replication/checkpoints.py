"""Kafka's small text files of a log dir, as text in and values out.

offset checkpoint (recovery-point-, log-start-, replication-, cleaner-offset-checkpoint):
    0                        version
    2                        how many lines follow
    topic partition offset   one a line
meta.properties: `version=0`, `cluster.id=...`, `broker.id=N`; KRaft writes `version=1` and `node.id`; a Java
    properties file, of which Kafka uses nothing but `key=value` and comments.
leader-epoch-checkpoint, of each partition: `0`, how many lines follow, and `epoch start_offset`, both ascending.
partition.metadata: `version: 0`, `topic_id: <22 characters, url-safe base64>`.
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
META = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

Offsets = dict[TopicPartition, int]


class Malformed(ValueError):
    """A file does not hold what it should; the text says what is wrong with which line."""


class Meta(NamedTuple):
    """Whose a log dir is."""

    cluster_id: str | None
    broker_id: int | None


def read_offsets(text: str) -> Offsets:
    """The offsets of a checkpoint file. Raises Malformed, also where the file is cut."""
    lines = text.split("\n")
    if lines[0] != "0":
        raise Malformed(f"its version is {lines[0]!r}, not 0")
    offsets: Offsets = {}
    for number, line in enumerate(lines[2:], 3):
        words = line.split(" ")
        if line == "" and number == len(lines):
            break
        if len(words) != 3 or not words[1].isdecimal() or not words[2].removeprefix("-").isdecimal():
            raise Malformed(f"line {number} is {line!r}, not a topic, a partition and an offset")
        offsets[TopicPartition(words[0], int(words[1]))] = int(words[2])
    if lines[1:2] != [str(len(offsets))]:
        raise Malformed(f"it has {len(offsets)} entries and says {lines[1:2]}")
    return offsets


def write_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())]
    return "\n".join(["0", str(len(lines)), *lines, ""])


def read_meta(text: str) -> Meta:
    """Whose log dir it is. Raises Malformed if the version is unknown or the id is no number."""
    pairs = [line.split("=", 1) for line in text.splitlines() if "=" in line and line[0] not in "#!"]
    values = {key.strip(): value.strip() for key, value in pairs}
    version = values.get("version")
    if version not in ("0", "1"):
        raise Malformed(f"its version is {version!r}, not 0 or 1")
    broker_id = values.get("node.id" if version == "1" else "broker.id")
    if broker_id is not None and not broker_id.isdecimal():
        raise Malformed(f"its broker id is {broker_id!r}, not a number")
    return Meta(values.get("cluster.id"), None if broker_id is None else int(broker_id))


def write_meta(meta: Meta) -> str:
    written = time.strftime("#%a %b %d %H:%M:%S UTC %Y", time.gmtime())
    return f"#\n{written}\ncluster.id={meta.cluster_id}\nversion=0\nbroker.id={meta.broker_id}\n"


def read_topic_id(text: str) -> bytes | None:
    """The topic id in a partition.metadata file; None if it holds none. Raises Malformed."""
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
    """The last epoch in a leader-epoch-checkpoint; -1 if it has none. Raises Malformed."""
    lines = text.split()
    if len(lines) % 2 or lines[:1] != ["0"] or not all(word.isdecimal() for word in lines):
        raise Malformed("it is not a list of epochs and offsets")
    return int(lines[-2]) if len(lines) > 2 else -1


def write_clean_shutdown(broker_epoch: int) -> str:
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
