"""The positions of a consumer, one place for each partition that it reads.

    unknown --committed offset or none--> to be reset --ListOffsets--> known --records returned, seek--> known
                                               ^---- out of range -----'

`position` is what poll() returns next, `fetch_offset` what is asked of the broker next: prefetched records lie between
them. A seek starts another generation, and what was fetched for an older one is dropped.

Each of the two has the leader epoch of the record before it, -1 if unknown. A fetch request carries it, and a leader
whose log diverges from what was read answers where (KIP-320).
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pybroker import errors
from pybroker.client.net.list_offsets import EARLIEST, LATEST
from pybroker.core import log_callback
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition

RESETS: Final = {"earliest": EARLIEST, "latest": LATEST, "none": None}
"""The values of auto_offset_reset."""


@dataclass(slots=True, eq=False)
class Place:
    """One partition that is read."""

    tp: TopicPartition
    position: int = -1
    fetch_offset: int = -1
    epoch: int = -1
    fetch_epoch: int = -1
    generation: int = 0
    paused: bool = False
    reset_to: int | None = None
    """EARLIEST, LATEST or a time in milliseconds, until it is looked up."""
    asking: bool = False
    """An answer that will set the position is under way."""
    not_before_s: float = 0.0
    """The time of the next attempt after a failure."""
    looked_s: float = 0.0
    """When the broker first reported damage here; 0.0 if it has not."""
    high_watermark: int = -1
    last_stable_offset: int = -1
    error: KafkaError | None = None
    """What the next poll() raises."""
    replica: int = -1
    """A closer broker that the leader named (KIP-392)."""
    replica_until_s: float = 0.0
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held by a thread that moves the place, or takes an answer for it."""

    def move(self, offset: int, epoch: int = -1) -> None:
        """Set the position; `epoch` is the leader epoch of the record before it."""
        with self.lock:
            self.position = self.fetch_offset = offset
            self.epoch = self.fetch_epoch = epoch
            self.reset_to, self.error, self.not_before_s, self.looked_s = None, None, 0.0, 0.0
            self.generation += 1

    def reset(self, to: int) -> None:
        """Drop the position, until the one at `to` is looked up."""
        with self.lock:
            self.position = self.fetch_offset = self.epoch = self.fetch_epoch = -1
            self.reset_to, self.error, self.not_before_s, self.looked_s = to, None, 0.0, 0.0
            self.asking = False
            self.generation += 1

    @property
    def nowhere(self) -> bool:
        """True if it has no position and no look-up is under way."""
        return self.position < 0 and self.reset_to is None and self.error is None

    @property
    def fetchable(self) -> bool:
        return self.fetch_offset >= 0 and not self.paused and self.error is None

    def asked(self) -> "PlaceSnapshot":
        """A snapshot to keep with a request to brokers."""
        return PlaceSnapshot(self, self.generation)


class PlaceSnapshot(NamedTuple):
    """A place and its generation at the time of a request."""

    place: Place
    generation: int

    @property
    def stale(self) -> bool:
        """True if the place has moved since: the answer is no longer for its position."""
        return self.place.generation != self.generation


class Positions:
    """The assigned partitions. The dict is replaced and never changed, so that any thread may walk it."""

    def __init__(self, policy: int | None) -> None:
        """`policy` is EARLIEST or LATEST for positions that are missing or out of range; None raises an error."""
        self._policy = policy
        self.places: dict[TopicPartition, Place] = {}
        self.lock = threading.RLock()

    def begin(self, place: Place) -> None:
        """Reset a place without a position by the policy."""
        if self._policy is None:
            words = f"{place.tp} has no position, and auto_offset_reset is none"
            place.error = KafkaError(errors.OFFSET_OUT_OF_RANGE, words)
        else:
            place.reset(self._policy)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Set the assigned partitions; those assigned before keep their places."""
        with self.lock:
            self.places = {tp: self.places.get(tp) or Place(tp) for tp in partitions}

    def get(self, tp: tuple[str, int]) -> Place:
        """The place of a partition. ValueError if it is not assigned."""
        wanted = TopicPartition.of(tp)
        place = self.places.get(wanted)
        if place is None:
            raise ValueError(f"partition {wanted} is not assigned to this consumer")
        return place

    def holds(self, place: Place) -> bool:
        return self.places.get(place.tp) is place


class Bell:
    """An event that callers wait on; `also`, if set, is called at each ring."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.also: Callable[[], object] | None = None

    def ring(self) -> None:
        self._event.set()
        also = self.also
        if also is not None:
            try:
                also()
            except BaseException:  # the program's call, on the client's thread
                log_callback("listen")

    def wait(self, timeout_s: float) -> None:
        """Return at the next ring, or at once if one came since the last wait."""
        self._event.wait(timeout_s)
        self._event.clear()
