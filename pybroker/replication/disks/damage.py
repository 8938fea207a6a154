"""Bad spots of this broker's logs: found by a start, a read or scrubbing; logged once, recorded, and skipped by reads.

    found ──> one line in the log ──> damage-checkpoint ──> marked again at each start, while it still is bad
                                                       └──> its segment is gone, or was repaired: forgotten

All functions here block on the disk.
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
from pybroker.replication.disks.checkpoints import CLEANED, Spot
from pybroker.replication.disks.logdirs import LogDir

log = logging.getLogger(__name__)

LINES_MAX = 20
"""At most this many new spots of a log are logged at once; the others are counted."""
CHECK_BYTES_MAX = 64 << 20


class Scrubbed:
    """Metrics of scrubbing since the start: bytes checked, and when the last pass over each log dir began."""

    def __init__(self) -> None:
        self.bytes = 0
        self.last_pass_s: dict[str, float] = {}


class DamagedReplica(Protocol):
    """The parts of a replica that this module uses."""

    key: TopicPartition
    config: TopicConfig
    log: core.Partition | None
    directory: LogDir | None
    copied: bool

    def partition(self) -> core.Partition:
        """Return the open log. Raises KAFKA_STORAGE_ERROR."""


def segment_file(directory: str, base: int) -> str:
    return os.path.join(directory, f"{base:020}.log")


def remember(replica: DamagedReplica) -> None:
    """Mark the recorded bad spots in a log that was just opened, and log those that this start found."""
    assert replica.log is not None and replica.directory is not None
    for spot in replica.directory.damage.get(replica.key, ()):
        if is_still_bad(segment_file(replica.log.directory, spot.base), spot):
            core.mark_damaged(replica.log, *spot)
    note(replica)


def is_still_bad(path: str, spot: Spot) -> bool:
    """False if the segment is gone, was replaced or truncated, or holds a sound batch at the spot. Raises OSError.

    A segment was replaced if no batch with the offset `spot.next` begins at the spot's end."""
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


def note(replica: DamagedReplica) -> frozenset[Spot]:
    """Record the known bad spots of a log, and log the new ones. Return the new ones."""
    assert replica.log is not None and replica.directory is not None
    spots = frozenset(Spot(*found) for found in core.bad_spots(replica.log))
    new = spots - replica.directory.damage.get(replica.key, frozenset())
    try:
        replica.directory.record_damage(replica.key, spots)
    except OSError as problem:  # a full disk: the spot will be found again
        event(log, logging.ERROR, "damage not recorded", partition=replica.key, reason=problem)
    say(replica, sorted(new))
    return new


def say(replica: DamagedReplica, spots: Iterable[Spot]) -> None:
    """Log one line for each spot: where it is, and which offsets are lost."""
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


def look(replica: DamagedReplica, base: int) -> None:
    """Check the whole segment with this base offset, and mark its bad spots. Raises OSError, core.LogError."""
    partition = replica.partition()
    log_end = partition.log_end_offset  # before the scan: later appends must not count as damage
    following = [begin for begin, *_ in partition.segments() if begin > base]
    scan_of(replica, base, min(following, default=-1), log_end).step()
    note(replica)


def scan_of(replica: DamagedReplica, base: int, next_base: int, log_end: int = -1) -> core.SegmentScan:
    """Return a scan of a segment. `next_base`: the base offset of the next segment; -1 for the last one, with the
    `log_end` from before. Raises OSError."""
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
    # The next segment was truncated or merged meanwhile: the batches of the opened file may go further.
    return core.SegmentScan(path, partition=partition, strict=strict, log_end=next_base)


def pass_by(replica: DamagedReplica, offset: int) -> int:
    """Return the offset after the bad spot that a read of `offset` met. Raises LogError if there is none, OSError."""
    partition = replica.partition()
    look(replica, max((base for base, *_ in partition.segments() if base <= offset), default=0))
    beyond = readable_from(replica, offset)
    if beyond > offset:
        return beyond
    raise core.LogError(CORRUPT_MESSAGE, f"{replica.key}: the batch with offset {offset} cannot be read")


def readable_from(replica: DamagedReplica, offset: int) -> int:
    """The offset after the known bad spot that holds `offset`; `offset` itself if there is none."""
    if replica.log is None:
        return offset
    spots = core.bad_spots(replica.log)
    return next((beyond for _, _, _, first, beyond in spots if first <= offset < beyond), offset)
