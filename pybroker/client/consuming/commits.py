"""A consumer's commits, on demand and in the background, and the committed offsets that it begins from."""

import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from functools import partial

from pybroker.client.consuming import committed_offsets
from pybroker.client.consuming.committed_offsets import (
    LOST_MEMBERSHIP,
    MOVED_ON,
    Fetched,
    Offsets,
)
from pybroker.client.consuming.positions import Place, PlaceSnapshot, Positions
from pybroker.client.net.find_coordinator import CoordinatorClient
from pybroker.client.net.group_offsets import ConsumerGroupMetadata, OffsetAndMetadata
from pybroker.client.net.network import NetworkClient
from pybroker.client.net.promise import Promise
from pybroker.client.settings import Settings
from pybroker.errors import KafkaError
from pybroker.logs import unfailing
from pybroker.model import TopicPartition

_log = unfailing(__name__)


class OffsetCommits:
    """Commits for a group. Methods are for the consumer's thread; `identity` returns the member to commit as.

    `begun` is called on the loop's thread when places got positions, or errors."""

    def __init__(
        self,
        network: NetworkClient,
        coordinator: CoordinatorClient,
        settings: Settings,
        positions: Positions,
        begun: Callable[[], object],
    ) -> None:
        self.identity: Callable[[], ConsumerGroupMetadata] = lambda: ConsumerGroupMetadata()
        self.lost: Callable[[KafkaError, ConsumerGroupMetadata], object] = lambda error, identity: None
        """Called when a commit shows that this consumer is no longer a member."""
        self._network = network
        self._coordinator = coordinator
        self._positions = positions
        self._begun = begun
        self._auto_s = settings.auto_commit_interval_ms / 1000 if settings.enable_auto_commit else None
        self._due_s = 0.0
        self._done: dict[TopicPartition, int] = {}
        """The last committed offsets: a background commit leaves out partitions that did not move since."""

    # -- committing ----------------------------------------------------------------------------------------------------

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions, as offsets to commit: each is behind the last record that was returned or yielded."""
        places = self._positions.places.values()
        return {p.tp: OffsetAndMetadata(p.position, leader_epoch=p.epoch) for p in places if p.position >= 0}

    def commit_async(self, offsets: Offsets) -> Future[None]:
        """Commit once; a future of None, or of KafkaError."""
        promise: Promise[None] = Promise("commit")
        if not offsets:
            promise.settle(None, None)
            return promise

        def done(error: KafkaError | None) -> None:
            if error is None:
                self._done.update({tp: at.offset for tp, at in offsets.items()})
            elif error.code in MOVED_ON:
                self.lost(error, identity)
            promise.settle(None, error)

        try:
            identity = self.identity()
        except KafkaError as outside:
            promise.settle(None, outside)
            return promise
        self._network.loop.call_surely(
            partial(committed_offsets.commit, self._coordinator, identity, dict(offsets), done)
        )
        return promise

    def commit(self, offsets: Offsets, deadline_s: float) -> None:
        """Commit, and retry what is retriable. KafkaError: a code of MOVED_ON, or REQUEST_TIMED_OUT."""
        self._network.retried(lambda: self.commit_async(offsets), "offsets could not be committed", deadline_s)

    def tick(self, now_s: float) -> None:
        """Commit in the background what was consumed since the last commit, if the interval is over."""
        if self._auto_s is None or now_s < self._due_s:
            return
        first, self._due_s = not self._due_s, now_s + self._auto_s
        offsets = {tp: at for tp, at in self.consumed().items() if self._done.get(tp) != at.offset}
        if offsets and not first:
            self.commit_async(offsets).add_done_callback(_note)

    def before_leaving(self, partitions: Collection[TopicPartition], deadline_s: float) -> None:
        """Commit partitions that are given up, if commits are automatic. A failure is logged."""
        if self._auto_s is None:
            return
        offsets = {tp: at for tp, at in self.consumed().items() if tp in partitions and self._done.get(tp) != at.offset}
        try:
            self.commit(offsets, deadline_s)
        except KafkaError as error:
            _log.warning("offsets of %d partitions were not committed: %s", len(offsets), error)

    # -- beginning where the group stood -------------------------------------------------------------------------------

    def find(self, partitions: Collection[TopicPartition]) -> Future[Fetched]:
        """A future of the group's committed offsets; one request, no retry."""
        promise: Promise[Fetched] = Promise()
        self._network.loop.call_surely(
            partial(committed_offsets.fetch, self._coordinator, list(partitions), promise.settle)
        )
        return promise

    def look_up(self, now_s: float) -> None:
        """Look up the committed offsets of places without a position."""
        lost = [
            place
            for place in self._positions.places.values()
            if place.nowhere and not place.asking and place.not_before_s <= now_s
        ]
        if not lost:
            return
        for place in lost:
            place.asking = True
        done = partial(self._found, [place.asked() for place in lost])
        self._network.loop.call_soon(
            partial(committed_offsets.fetch, self._coordinator, [place.tp for place in lost], done)
        )

    def _found(self, asked: Iterable[PlaceSnapshot], found: Fetched, error: KafkaError | None) -> None:
        for each in asked:
            with each.place.lock:
                if not each.stale:
                    self._found_of(each.place, found.get(each.place.tp), error)
        self._begun()

    def _found_of(self, place: Place, at: OffsetAndMetadata | None, error: KafkaError | None) -> None:
        place.asking = False
        if error is not None and (error.retriable or error.code in LOST_MEMBERSHIP):
            place.not_before_s = time.monotonic() + self._network.pauses.first_s
        elif error is not None:
            place.error = error
        elif at is not None:
            place.move(at.offset, at.leader_epoch)
            self._done[place.tp] = at.offset
        else:
            self._positions.begin(place)


def _note(future: Future[None]) -> None:
    error = future.exception()
    if error is not None:
        _log.warning("offsets were not committed in the background: %s", error)
