"""Bad spots of this broker's logs: found by a start, by a read or by scrubbing, said once, written down, passed by.

    found ──> one line in the log ──> damage-checkpoint ──> marked again at each start, while it still is bad
                                                       └──> its segment is gone, or was put right: forgotten

Everything here waits for the disk.
"""

import logging
import os
from collections.abc import Iterable
from typing import Protocol

from pybroker import core
from pybroker.config import TopicConfig
from pybroker.errors import CORRUPT_MESSAGE
from pybroker.logs import event
from pybroker.model import TopicPartition
from pybroker.replication.checkpoints import CLEANED, Spot
from pybroker.replication.logdirs import LogDir

log = logging.getLogger(__name__)

LINES_MAX = 20
"""Of the spots that are found at once in a log; the others are counted."""
CHECK_BYTES_MAX = 64 << 20


class Scrubbed:
    """What scrubbing did since the start: bytes that were checked, and when the last pass over each log dir began."""

    def __init__(self) -> None:
        self.bytes = 0
        self.last_pass_s: dict[str, float] = {}


class Replica(Protocol):
    """What is asked of a replica here."""

    key: TopicPartition
    config: TopicConfig
    log: core.Partition | None
    directory: LogDir | None
    copied: bool

    def partition(self) -> core.Partition:
        """Raises KAFKA_STORAGE_ERROR."""


def segment_file(directory: str, base: int) -> str:
    return os.path.join(directory, f"{base:020}.log")


def remember(replica: Replica) -> None:
    """Have reads of a log that was just opened pass by what earlier lives found, and say what this start found."""
    assert replica.log is not None and replica.directory is not None
    for spot in replica.directory.damage.get(replica.key, ()):
        if is_still_bad(segment_file(replica.log.directory, spot.base), spot):
            core.mark_damaged(replica.log, *spot)
    note(replica)


def is_still_bad(path: str, spot: Spot) -> bool:
    """False where a segment is gone or another one, was cut, or holds a sound batch there: somebody put it right.

    A segment is another one where no batch with the offset behind the spot begins at its end. Raises OSError."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(spot.end)
            if size < spot.end or (size > spot.end and int.from_bytes(file.read(8), "big") != spot.next):
                return False
            file.seek(spot.position)
            header = core.check_batch(file.read(min(spot.end - spot.position, CHECK_BYTES_MAX)))
    except FileNotFoundError:
        return False
    except core.LogError:
        return True
    return not spot.first <= header.base_offset <= header.last_offset < spot.next


def note(replica: Replica) -> frozenset[Spot]:
    """Write down what is known to be bad in a log now, and say what is new of it; what is new."""
    assert replica.log is not None and replica.directory is not None
    spots = frozenset(Spot(*found) for found in core.bad_spots(replica.log))
    new = spots - replica.directory.damage.get(replica.key, frozenset())
    try:
        replica.directory.record_damage(replica.key, spots)
    except OSError as problem:  # a full disk: it is found again
        event(log, logging.ERROR, "damage not recorded", partition=replica.key, reason=problem)
    say(replica, sorted(new))
    return new


def say(replica: Replica, spots: Iterable[Spot]) -> None:
    """One line for each spot: where it is, and which offsets are lost."""
    assert replica.log is not None
    more = 0
    for number, spot in enumerate(spots):
        if number >= LINES_MAX:
            more += 1
            continue
        event(
            log,
            logging.ERROR,
            "damaged batches skipped",
            partition=replica.key,
            file=segment_file(replica.log.directory, spot.base),
            position=spot.position,
            bytes=spot.end - spot.position,
            offsets_lost=f"{spot.first}..{spot.next - 1}",
        )
    if more:
        event(log, logging.ERROR, "more damaged batches skipped", partition=replica.key, places=more)


def look(replica: Replica, base: int) -> None:
    """Check the whole segment with this base offset, and pass by what is bad in it. Raises OSError, core.LogError."""
    partition = replica.partition()
    log_end = partition.log_end_offset  # first: what is appended from now on lies behind it, and is no damage
    following = [begin for begin, *_ in partition.segments() if begin > base]
    scan_of(replica, base, min(following, default=-1), log_end).step()
    note(replica)


def scan_of(replica: Replica, base: int, next_base: int, log_end: int = -1) -> core.SegmentScan:
    """The check of a segment; the next one begins with `next_base`. Of the last that is -1, and the log had reached
    `log_end` before. Raises OSError."""
    assert replica.directory is not None
    compacted = "compact" in replica.config["cleanup.policy"] or replica.key in replica.directory.recorded[CLEANED]
    strict = not (compacted or replica.copied)
    partition = replica.partition()
    path = segment_file(partition.directory, base)
    if next_base < 0:
        return core.SegmentScan(path, partition=partition, strict=strict, log_end=log_end)
    scan = core.SegmentScan(path, partition=partition, strict=strict, next_base=next_base)
    if any(begin == next_base for begin, *_ in partition.segments()):
        return scan
    # What lay behind was cut off or merged meanwhile: the batches of the file that was opened may go further.
    return core.SegmentScan(path, partition=partition, strict=strict, log_end=next_base)


def pass_by(replica: Replica, offset: int) -> int:
    """The offset behind the bad spot that a read of `offset` met. Raises LogError where there is none, OSError."""
    partition = replica.partition()
    look(replica, max((base for base, *_ in partition.segments() if base <= offset), default=0))
    beyond = readable_from(replica, offset)
    if beyond > offset:
        return beyond
    raise core.LogError(CORRUPT_MESSAGE, f"{replica.key}: the batch with offset {offset} cannot be read")


def readable_from(replica: Replica, offset: int) -> int:
    """The offset behind the known bad spot that holds `offset`; `offset` itself where none is known."""
    if replica.log is None:
        return offset
    spots = core.bad_spots(replica.log)
    return next((beyond for _, _, _, first, beyond in spots if first <= offset < beyond), offset)
