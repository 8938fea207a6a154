"""The lag of groups over time: samples that the console takes, and keeps while it runs.

    every 15 s, for each login that is watched: groups -> committed offsets, ends of their partitions -> LagHistory

A sample that fails leaves a gap. What is kept is bounded: groups, samples of each, and logins that are watched.
"""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from pybroker.client.admin import LATEST, Admin, Committed
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition

if TYPE_CHECKING:
    from pybroker.console.clients import ViewerClients

SAMPLE_S: Final = 15.0
SAMPLES_MAX: Final = 480
"""Samples of a group: two hours."""
GROUPS_MAX: Final = 200
LOGINS_MAX: Final = 20


class LagSample(NamedTuple):
    """The lag of a group at a time, in ms since the epoch."""

    at_ms: int
    lag: int


class LagHistory:
    """The lags of groups that one login saw. Threads may use it at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: OrderedDict[str, deque[LagSample]] = OrderedDict()

    def add(self, at_ms: int, lags: Mapping[str, int]) -> None:
        """Add a sample of these groups; the groups that were sampled least recently give way."""
        with self._lock:
            for group, lag in lags.items():
                self._of.setdefault(group, deque(maxlen=SAMPLES_MAX)).append(LagSample(at_ms, lag))
                self._of.move_to_end(group)
            while len(self._of) > GROUPS_MAX:
                self._of.popitem(last=False)

    def of(self, group: str) -> list[LagSample]:
        """Return the samples of a group, oldest first."""
        with self._lock:
            return list(self._of.get(group, ()))

    def furthest_behind(self, most: int) -> list[tuple[str, LagSample, int]]:
        """Return the groups with a lag in the newest sample, largest first: each with its last sample and the growth of
        its lag since the first."""
        with self._lock:
            newest = max((samples[-1].at_ms for samples in self._of.values()), default=0)
            behind = [
                (group, samples[-1], samples[-1].lag - samples[0].lag)
                for group, samples in self._of.items()
                if samples[-1].lag and samples[-1].at_ms == newest
            ]
        return sorted(behind, key=lambda each: -each[1].lag)[:most]


def group_lags(admin: Admin, groups: Iterable[str]) -> dict[str, int]:
    """Return the lag of each group, over the partitions for which it has committed. Raises KafkaError."""
    wanted = list(groups)
    committed: dict[str, dict[TopicPartition, Committed]] = admin.group_offsets(wanted) if wanted else {}
    ends = partition_ends(admin, {tp.topic for offsets in committed.values() for tp in offsets})
    return {
        group: sum(max(0, (ends.get(tp) or 0) - at.offset) for tp, at in offsets.items())
        for group, offsets in committed.items()
    }


def partition_ends(admin: Admin, topics: set[str]) -> dict[TopicPartition, int | None]:
    """Return the end of each partition of topics; None for one whose leader does not answer."""
    return admin.offsets(admin.cluster.metadata(sorted(topics)), LATEST) if topics else {}


class LagSampler:
    """Samples the lags of the groups that the watched logins see, on a thread of its own."""

    def __init__(self, interval_s: float = SAMPLE_S, now_s: Callable[[], float] = time.time) -> None:
        self._interval_s = interval_s
        self._now_s = now_s
        self._lock = threading.Lock()
        self._watched: deque[ViewerClients] = deque(maxlen=LOGINS_MAX)
        self._thread: threading.Thread | None = None

    def watch(self, clients: "ViewerClients") -> None:
        """Sample for a login until it is closed, or until LOGINS_MAX others came after it."""
        with self._lock:
            self._watched.append(clients)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lags", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                for clients in [each for each in self._watched if each.is_closed]:
                    self._watched.remove(clients)
                watched = list(self._watched)
            for clients in watched:
                sample(clients, round(self._now_s() * 1000))
            time.sleep(self._interval_s)


def sample(clients: "ViewerClients", at_ms: int) -> None:
    """Take one sample for a login; none if the cluster does not answer it."""
    try:
        with clients.admin() as admin:
            groups = sorted(group.id for group in admin.groups())[:GROUPS_MAX]
            clients.lags.add(at_ms, group_lags(admin, groups))
    except KafkaError:
        return
