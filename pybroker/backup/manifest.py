"""The manifest of a backup: what is in it, file by file. It is the last file that a backup writes.

    DIR/manifest.json                        one JSON object, with a CRC over everything else in it
    DIR/orders-0/00000000000000000000.log    record batches as in a broker's log, named by their first offset
    DIR/anew-2/orders-1/...                  the same of a partition that was copied anew, by a later run

A file that the manifest does not name belongs to a run that did not end, and is not part of the backup. Nothing in a
manifest is trusted: names must be those of their topic, numbers must fit together, and sizes are compared with the
files before they are read.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Final, NoReturn, TypeVar

from pybroker.core import crc32c
from pybroker.decisions.topics import PARTITIONS_MAX, check_name
from pybroker.errors import CORRUPT_MESSAGE, KafkaError

NAME: Final = "manifest.json"
FORMAT: Final = "pybroker backup"
VERSION: Final = 1
BYTES_MAX: Final = 1 << 30
"""The largest manifest that is read."""
_OFFSET_MAX: Final = (1 << 63) - 1
_GROUP_CHARACTERS_MAX: Final = 1 << 15
_ID_BYTES: Final = 16
_ANEW: Final = re.compile(r"(?:anew-[1-9][0-9]{0,8}/)?")

T = TypeVar("T")
Json = Mapping[str, object]


def damaged(why: str) -> KafkaError:
    """The error for a backup that cannot be used."""
    return KafkaError(CORRUPT_MESSAGE, why)


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A file of record batches: its first and last offset, its size, and the CRC-32C of all of it."""

    base_offset: int
    last_offset: int
    size: int
    crc32c: int

    @property
    def name(self) -> str:
        return f"{self.base_offset:020}.log"


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The last batch of a backup of a partition, by which the next run recognizes the log that it belongs to."""

    base_offset: int
    leader_epoch: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """A transaction that was aborted: the records of its producer from the first offset to the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction without a marker where the backup ends."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class PartitionBackup:
    """The backup of a partition: records from `start_offset` to before `end_offset`.

    missing: ranges [from, to) in between that were deleted by the cluster before a run could copy them."""

    partition: int
    directory: str
    start_offset: int
    end_offset: int
    taken_ms: int
    last_batch: LastBatch | None = None
    files: tuple[SegmentFile, ...] = ()
    missing: tuple[tuple[int, int], ...] = ()
    aborted: tuple[AbortedTransaction, ...] = ()
    open: tuple[OpenTransaction, ...] = ()

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class TopicBackup:
    """A topic: its id in 32 hexadecimal digits, its own configs, and its partitions, ascending."""

    name: str
    topic_id: str
    replication_factor: int
    configs: Mapping[str, str]
    partitions: tuple[PartitionBackup, ...]

    @property
    def size(self) -> int:
        return sum(partition.size for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """The committed offset of a group in a partition."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A backup. `complete` is False if the last run was interrupted: partitions may then end at different moments, and
    `groups` are those of the last run that was not."""

    cluster_id: str
    taken_ms: int
    complete: bool
    topics: tuple[TopicBackup, ...]
    groups: Mapping[str, tuple[GroupOffset, ...]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(topic.size for topic in self.topics)

    def topic(self, name: str) -> TopicBackup | None:
        return next((topic for topic in self.topics if topic.name == name), None)

    def dump(self) -> bytes:
        """Return the manifest as it is written."""
        body = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return json.dumps({**body, "crc32c": _crc(body)}, indent=1).encode()


def _crc(body: Json) -> int:
    return crc32c(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


# -- reading -----------------------------------------------------------------------------------------------------------


def load(data: bytes, where: str) -> Manifest:
    """Read a manifest. KafkaError(CORRUPT_MESSAGE) names what is wrong with it; `where` is its place, for a person."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise damaged(f"{where} is no manifest of a backup: it is not JSON") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise damaged(f"{where} is no manifest of a backup: its format is not {FORMAT!r}")
    if body.get("version") != VERSION:
        raise damaged(f"{where} has version {body.get('version')!r}, and this pybroker reads version {VERSION}")
    written = body.pop("crc32c", None)
    counted = _crc(body)
    if written != counted:
        raise damaged(f"{where} is damaged: CRC {written!r} is written in it, {counted} is right")
    try:
        return _manifest(_Reader(body, where))
    except _Unsound as problem:
        raise damaged(f"{where}: {problem}") from problem


class _Unsound(Exception):
    """A member of the manifest that is missing, of another type, or that does not fit the others."""


class _Reader:
    """A JSON object whose members are read by type; `place` is where it is in the manifest."""

    def __init__(self, found: object, place: str) -> None:
        self.place = place
        if not isinstance(found, dict):
            self.refuse("an object is expected")
        self._found = found

    def refuse(self, why: str) -> NoReturn:
        raise _Unsound(f"{self.place}: {why}")

    def whole(self, name: str, least: int, most: int = _OFFSET_MAX) -> int:
        value = self._found.get(name)
        if type(value) is not int or not least <= value <= most:
            self.refuse(f"{name} is {value!r}, a whole number from {least} to {most} is expected")
        return value

    def text(self, name: str, characters_max: int = _GROUP_CHARACTERS_MAX) -> str:
        value = self._found.get(name)
        if not isinstance(value, str) or len(value) > characters_max:
            self.refuse(f"{name} is no text, or too long")
        return value

    def flag(self, name: str) -> bool:
        value = self._found.get(name)
        if not isinstance(value, bool):
            self.refuse(f"{name} is {value!r}, true or false is expected")
        return value

    def each(self, name: str, read: "Callable[[_Reader], T]") -> tuple[T, ...]:
        return tuple(read(_Reader(item, f"{name} {at}")) for at, item in enumerate(self.items(name)))

    def items(self, name: str) -> list[object]:
        value = self._found.get(name)
        if not isinstance(value, list):
            self.refuse(f"{name} is no list")
        return value

    def members(self, name: str) -> dict[str, object]:
        value = self._found.get(name)
        if not isinstance(value, dict):
            self.refuse(f"{name} is no object")
        return value

    def optional(self, name: str, read: "Callable[[_Reader], T]") -> T | None:
        value = self._found.get(name)
        return None if value is None else read(_Reader(value, name))


def _manifest(found: _Reader) -> Manifest:
    topics = found.each("topics", _topic)
    names = [topic.name for topic in topics]
    if len(set(names)) < len(names):
        found.refuse("a topic is in it twice")
    groups = found.members("groups")
    offsets = {name: _Reader({name: of}, f"group {name[:80]!r}").each(name, _offset) for name, of in groups.items()}
    return Manifest(found.text("cluster_id"), found.whole("taken_ms", 0), found.flag("complete"), topics, offsets)


def _topic(found: _Reader) -> TopicBackup:
    name = found.text("name")
    try:
        check_name(name)
    except KafkaError as problem:
        found.refuse(problem.message)
    found.place = f"topic {name}"
    members = found.members("configs")
    configs = {key: value for key, value in members.items() if isinstance(value, str)}
    if len(configs) < len(members):
        found.refuse("a config is no text")
    topic_id = found.text("topic_id")
    if not re.fullmatch(rf"[0-9a-f]{{{2 * _ID_BYTES}}}", topic_id):
        found.refuse("topic_id is not 32 hexadecimal digits")
    partitions = found.each("partitions", lambda each: _partition(name, each))
    if [p.partition for p in partitions] != list(range(len(partitions))) or not 0 < len(partitions) <= PARTITIONS_MAX:
        found.refuse(f"its partitions are not 0, 1, 2 and so on, at most {PARTITIONS_MAX}")
    return TopicBackup(name, topic_id, found.whole("replication_factor", 1, 32767), configs, partitions)


def _partition(topic: str, found: _Reader) -> PartitionBackup:
    number = found.whole("partition", 0, PARTITIONS_MAX)
    found.place = f"partition {topic}-{number}"
    directory = found.text("directory")
    if not re.fullmatch(rf"{_ANEW.pattern}{re.escape(f'{topic}-{number}')}", directory):
        found.refuse(f"its directory {directory[:80]!r} is not {topic}-{number}, nor that in anew-1 or the like")
    made = PartitionBackup(
        number, directory, found.whole("start_offset", 0), found.whole("end_offset", 0), found.whole("taken_ms", 0),
        found.optional("last_batch", _last_batch), found.each("files", _file),
        tuple(map(_range, found.items("missing"))), found.each("aborted", _aborted), found.each("open", _open),
    )  # fmt: skip
    reached = -1
    for file in made.files:
        if not reached < file.base_offset <= file.last_offset < made.end_offset:
            found.refuse(f"the offsets of {file.name} do not fit the other files and the end at {made.end_offset}")
        reached = file.last_offset
    if made.start_offset > made.end_offset:
        found.refuse(f"it starts at {made.start_offset}, after its end at {made.end_offset}")
    return made


def _file(found: _Reader) -> SegmentFile:
    whole = found.whole
    return SegmentFile(whole("base_offset", 0), whole("last_offset", 0), whole("size", 1), whole("crc32c", 0))


def _last_batch(found: _Reader) -> LastBatch:
    return LastBatch(found.whole("base_offset", 0), found.whole("leader_epoch", -1), found.whole("crc32c", 0))


def _range(found: object) -> tuple[int, int]:
    if isinstance(found, list) and len(found) == 2 and all(type(each) is int for each in found):
        return found[0], found[1]
    raise _Unsound("missing is not a list of pairs of offsets")


def _aborted(found: _Reader) -> AbortedTransaction:
    whole = found.whole
    return AbortedTransaction(whole("producer_id", 0), whole("first_offset", 0), whole("last_offset", 0))


def _open(found: _Reader) -> OpenTransaction:
    return OpenTransaction(found.whole("producer_id", 0), found.whole("first_offset", 0))


def _offset(found: _Reader) -> GroupOffset:
    return GroupOffset(
        found.text("topic"), found.whole("partition", 0), found.whole("offset", 0), found.whole("leader_epoch", -1),
        found.text("metadata"),
    )  # fmt: skip


def topic_id_text(topic_id: bytes) -> str:
    """Return a topic id as Kafka's tools print it."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
