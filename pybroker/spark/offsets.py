"""Offsets in the JSON of Spark's checkpoints and options, `{"topic":{"0":123}}`, and the bounds of reads.

In an option's JSON -2 is the earliest offset of a partition and -1 its latest; in a checkpoint there are only offsets,
each the next one to read. A checkpoint also has the ids of the topics, under a name that no topic can have:
`"@topicIds":{"topic":"AAAAAAAAQACAAAAAAAAAAQ"}`. A topic that is deleted and created again gets another id. The end of
the first batch also has the batch's start, `"@begins":{"topic":{"0":0}}`: Spark keeps only where batches end, and asks
for the first offset again when it runs that batch again.
"""

import json
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

from pybroker.client.net.list_offsets import EARLIEST, LATEST
from pybroker.errors import INVALID_CONFIG, KafkaError
from pybroker.model import TopicPartition
from pybroker.spark.untyped import Document, Told

Offsets = dict[TopicPartition, int]
TopicIds = dict[str, str]
"""Topic ids by name, as text; only of topics whose id the cluster reported."""

TOPIC_IDS: Final = "@topicIds"
BEGINS: Final = "@begins"

OFFSET_MAX: Final = (1 << 63) - 1


class OffsetBound(NamedTuple):
    """The start or end of a read.

    `each` has partitions with their own bounds: offsets (EARLIEST and LATEST among them), or timestamps in
    milliseconds. `common` is the bound of all others; None if every partition must be named.
    """

    kind: Literal["offsets", "timestamps"]
    common: int | None
    each: Mapping[TopicPartition, int]

    def of(self, tp: TopicPartition) -> int | None:
        return self.each.get(tp, self.common)

    def says(self, special: int) -> bool:
        """True if some partition begins or ends at EARLIEST, or LATEST."""
        return self.kind == "offsets" and (self.common == special or special in self.each.values())


AT_EARLIEST: Final = OffsetBound("offsets", EARLIEST, {})
AT_LATEST: Final = OffsetBound("offsets", LATEST, {})


def to_json(offsets: Mapping[TopicPartition, int], ids: Mapping[str, str] | None = None) -> dict[str, Document]:
    """Return the JSON for a checkpoint: topics by name, partitions by number, so that equal offsets are equal text."""
    document: dict[str, Document] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        document.setdefault(topic, {})[str(partition)] = offset
    if known := {topic: ids[topic] for topic in document if ids and topic in ids}:
        document[TOPIC_IDS] = known
    return document


def from_json(document: Mapping[str, Told]) -> Offsets:
    """Parse the JSON of `to_json`, or of Spark's own connector. Raises KafkaError for anything else in a checkpoint."""
    return _offsets(document, "the offsets in the checkpoint", lowest=0)


def ids_from_json(document: Mapping[str, Told]) -> TopicIds:
    """Return the ids given to `to_json`; empty in a checkpoint of Spark's own connector."""
    return {topic: str(told) for topic, told in document.get(TOPIC_IDS, {}).items()}


def begins_from_json(document: Mapping[str, Told]) -> Offsets | None:
    """Return the start of the batch that ends at this document; None if the end of the batch before it is the start."""
    return from_json(document[BEGINS]) if BEGINS in document else None


def id_text(topic_id: bytes) -> str | None:
    """Return an id as Kafka writes it; None for the zero id of an old broker."""
    return urlsafe_b64encode(topic_id).decode().rstrip("=") if any(topic_id) else None


def parse_bound(text: str, option: str) -> OffsetBound:
    """Parse `earliest`, `latest` or JSON of offsets. Raises KafkaError with the option's name."""
    word = text.strip().lower()
    if word == "earliest":
        return AT_EARLIEST
    if word == "latest":
        return AT_LATEST
    return OffsetBound("offsets", None, _offsets(_document(text, option), option, lowest=EARLIEST))


def parse_timestamps(text: str, option: str) -> OffsetBound:
    """Parse JSON of milliseconds since the epoch. Raises KafkaError with the option's name."""
    return OffsetBound("timestamps", None, _offsets(_document(text, option), option, lowest=0))


def parse_timestamp(text: str, option: str) -> OffsetBound:
    """Parse one time in milliseconds since the epoch, for all partitions. Raises KafkaError with the option's name."""
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdigit()) or int(stripped) > OFFSET_MAX:
        raise _wrong(option, text, "milliseconds since the epoch")
    return OffsetBound("timestamps", int(stripped), {})


def parse_partitions(text: str, option: str) -> frozenset[TopicPartition]:
    """Parse `{"topic":[0,1]}`. Raises KafkaError with the option's name."""
    found: set[TopicPartition] = set()
    for topic, partitions in _document(text, option).items():
        if not isinstance(partitions, list) or not all(_is_int(p) and p >= 0 for p in partitions):
            raise _wrong(option, text, '{"topic":[0,1]}')
        found.update(TopicPartition(topic, partition) for partition in partitions)
    if not found:
        raise _wrong(option, text, "at least one partition")
    return frozenset(found)


def missing(bound: OffsetBound, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return the partitions for which the bound has no value, but needs one."""
    return sorted(tp for tp in partitions if bound.of(tp) is None)


def names(partitions: Iterable[TopicPartition], limit: int = 5) -> str:
    """Return partition names for a sentence, with a limit on their number."""
    shown = [str(tp) for tp in partitions]
    more = f" and {len(shown) - limit} more" if len(shown) > limit else ""
    return ", ".join(shown[:limit]) + more


def _document(text: str, option: str) -> Document:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise _wrong(option, text, f"JSON by topic ({error})") from error
    if not isinstance(document, dict):
        raise _wrong(option, text, "JSON by topic")
    return document


def _offsets(document: Told, option: str, lowest: int) -> Offsets:
    found: Offsets = {}
    for topic, partitions in document.items():
        if topic in (TOPIC_IDS, BEGINS):
            continue
        if not isinstance(partitions, Mapping):
            raise _wrong(option, json.dumps(document), '{"topic":{"0":123}}')
        for partition, value in partitions.items():
            known = str(partition).isascii() and str(partition).isdigit()
            if not known or not _is_int(value) or not lowest <= value <= OFFSET_MAX:
                raise _wrong(option, f"{topic}-{partition}: {value}", f"a number from {lowest} on, by partition")
            found[TopicPartition(topic, int(partition))] = value
    return found


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _wrong(option: str, given: str, expected: str) -> KafkaError:
    return KafkaError(INVALID_CONFIG, f"{option} is {given[:200]!r}; it must be {expected}")
