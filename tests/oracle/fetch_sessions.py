"""Incremental fetch sessions (KIP-227): the broker remembers what a client fetches, and the client names changes only.

    (id 0, epoch -1)   one full fetch without a session; with another id: that session ends first
    (id 0, epoch 0)    a full fetch that asks for a session: the answer has its id, or 0 if there is no room
    (id, epoch n >= 1) the next fetch of a session: partitions added or changed, and forgotten ones

An incremental answer leaves out partitions without changes. Partitions that brought records move to the end, so that
each gets its turn when an answer is full. No I/O and no clock: `now` is in seconds, ids come from the caller's `draw`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from pybroker import errors
from pybroker.errors import KafkaError

NO_SESSION = 0
FIRST_EPOCH = 0
NO_EPOCH = -1
EPOCH_MAX = (1 << 31) - 1
IDLE_SECONDS = 120.0
"""A session unused for this long gives way to another, and an older session to a larger one."""

Topic = str | bytes
"""A topic by its name, or from Fetch v13 on by its id."""


class Key(NamedTuple):
    topic: Topic
    partition: int


class News(NamedTuple):
    """The fields of a partition's result that decide whether an answer includes it."""

    has_records: bool
    error_code: int
    high_watermark: int
    log_start_offset: int
    diverges: bool = False


@dataclass(slots=True)
class Wanted:
    """A partition of a fetch, and the offsets last sent to the client."""

    fetch_offset: int
    max_bytes: int
    leader_epoch: int
    last_fetched_epoch: int
    told_high_watermark: int = -1
    told_log_start: int = -1
    log_start: int = -1
    """A follower's own log start; -1 for a consumer."""

    def update(self, other: "Wanted") -> None:
        self.fetch_offset = other.fetch_offset
        self.max_bytes = other.max_bytes
        self.leader_epoch = other.leader_epoch
        self.last_fetched_epoch = other.last_fetched_epoch
        self.log_start = other.log_start

    def note(self, news: News) -> bool:
        """Record the result; return True if an incremental answer must include it."""
        tell = news.has_records or news.error_code != errors.NONE or news.diverges
        if news.high_watermark != self.told_high_watermark or news.log_start_offset != self.told_log_start:
            tell = True
        # After an error the next answer includes the partition again, so that the client sees that the error is over.
        self.told_high_watermark = -1 if news.error_code != errors.NONE else news.high_watermark
        self.told_log_start = news.log_start_offset
        return tell


class Session:
    """One client's partitions, in the order in which they are answered."""

    __slots__ = ("begun", "by_id", "epoch", "id", "used", "wanted")

    def __init__(self, session_id: int, by_id: bool, wanted: dict[Key, Wanted], now: float) -> None:
        self.id = session_id
        self.by_id = by_id
        self.wanted = wanted
        self.epoch = 1  # expected epoch of the next request
        self.begun = self.used = now


class Fetch:
    """One request: the partitions to read, in order, and the results to include in the answer."""

    def __init__(self, wanted: dict[Key, Wanted], session: Session | None, incremental: bool) -> None:
        self.wanted = wanted
        self.session_id = session.id if session else NO_SESSION
        self.incremental = incremental

    def want(self, named: Iterable[tuple[Key, Wanted]]) -> None:
        """Add partitions to the session, or change their fetch parameters."""
        for key, wanted in named:
            known = self.wanted.setdefault(key, wanted)
            if known is not wanted:
                known.update(wanted)

    def forget(self, keys: Iterable[Key]) -> None:
        """Remove partitions from the session; an unknown one is no error."""
        for key in keys:
            self.wanted.pop(key, None)

    def told(self, results: Iterable[tuple[Key, News]]) -> list[Key]:
        """The partitions that the answer must include, in order."""
        tell = []
        for key, news in results:
            wanted = self.wanted.get(key)
            if wanted is None:  # forgotten by a later request of the session
                continue
            if wanted.note(news) or not self.incremental:
                tell.append(key)
            if self.incremental and news.has_records:
                self.wanted[key] = self.wanted.pop(key)
        return tell


class Sessions:
    """The fetch sessions of a broker, at most `slots` of them."""

    def __init__(self, slots: int, draw: Callable[[], int]) -> None:
        """`draw` returns a random session id of 31 bits."""
        self._slots = slots
        self._draw = draw
        self._sessions: dict[int, Session] = {}  # the longest unused first

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self, session_id: int, epoch: int, by_id: bool, named: dict[Key, Wanted], forgotten: Iterable[Key], now: float
    ) -> Fetch:
        """Begin the fetch of a request and apply its changes. Raise FETCH_SESSION_ID_NOT_FOUND,
        INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_TOPIC_ID_ERROR."""
        fetch = self.find(session_id, epoch, by_id, named, now)
        if fetch.incremental:
            fetch.want(named.items())
            fetch.forget(forgotten)
            self.settle(fetch)
        return fetch

    def find(self, session_id: int, epoch: int, by_id: bool, named: dict[Key, Wanted], now: float) -> Fetch:
        """Return what a request fetches; raise like `begin`. If it is incremental, the caller applies its changes, in
        any number of steps, and then calls `settle`."""
        if epoch in (FIRST_EPOCH, NO_EPOCH):
            self._sessions.pop(session_id, None)
            session = None if epoch == NO_EPOCH or not named else self._create(by_id, named, now)
            return Fetch(named, session, incremental=False)
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(errors.FETCH_SESSION_ID_NOT_FOUND, f"there is no fetch session {session_id}")
        if epoch != session.epoch:
            raise KafkaError(
                errors.INVALID_FETCH_SESSION_EPOCH, f"the session's next epoch is {session.epoch}, not {epoch}"
            )
        if by_id != session.by_id:
            raise KafkaError(errors.FETCH_SESSION_TOPIC_ID_ERROR, "the session mixes topic names and topic ids")
        del self._sessions[session_id]
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        session.used = now
        self._sessions[session_id] = session
        return Fetch(session.wanted, session, incremental=True)

    def settle(self, fetch: Fetch) -> None:
        """End the session of an incremental fetch if it has no partition left."""
        if not fetch.wanted:
            self.end(fetch.session_id)
            fetch.session_id, fetch.incremental = NO_SESSION, False

    def end(self, session_id: int) -> None:
        """Remove a session; an unknown one is no error."""
        self._sessions.pop(session_id, None)

    def _create(self, by_id: bool, named: dict[Key, Wanted], now: float) -> Session | None:
        """Create a session if there is room, which an idle session gives, or an old one smaller than the new."""
        if len(self._sessions) >= self._slots:
            victim = next(iter(self._sessions.values()), None)
            if victim is not None and now - victim.used <= IDLE_SECONDS:
                old = [session for session in self._sessions.values() if now - session.begun > IDLE_SECONDS]
                victim = min(old, key=lambda session: len(session.wanted), default=None)
                if victim is not None and len(victim.wanted) >= len(named):
                    victim = None
            if victim is None:
                return None
            del self._sessions[victim.id]
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._draw()
        session = self._sessions[session_id] = Session(session_id, by_id, named, now)
        return session
