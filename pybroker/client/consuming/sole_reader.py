"""Subscriptions without a group: one consumer reads all partitions of its topics, and partitions that are added."""

from __future__ import annotations

import re
from collections.abc import Collection

from pybroker.client.consuming.group import RebalanceListener, subscribed_topics
from pybroker.client.consuming.positions import Positions
from pybroker.client.net.list_offsets import EARLIEST
from pybroker.client.net.network import NetworkClient
from pybroker.client.settings import Settings
from pybroker.model import TopicPartition


class SoleReader:
    """The subscription of a consumer without group_id, with the methods of `GroupMembership`."""

    due_s = float("inf")

    def __init__(self, network: NetworkClient, settings: Settings, positions: Positions) -> None:
        self.active = False
        self.topics: frozenset[str] = frozenset()
        self._network = network
        self._hide_internal: bool = settings.exclude_internal_topics
        self._positions = positions
        self._explicit: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self._listener = RebalanceListener()
        self._view_version = -1
        self._seen: frozenset[str] = frozenset()
        """Topics whose first partitions were assigned."""

    def subscribe(
        self, topics: Collection[str], pattern: re.Pattern[str] | None, listener: RebalanceListener | None
    ) -> None:
        self._network.want(topics)
        self._explicit, self._pattern = frozenset(topics), pattern
        self._listener = listener or RebalanceListener()
        self._network.want_pattern(pattern)
        self._view_version = -1
        self.topics = self._explicit
        self.active = True

    def leave(self, reason: str, deadline_s: float) -> None:
        """Give up all partitions."""
        if not self.active:
            return
        gone = sorted(self._positions.places)
        self.active, self.topics, self._seen = False, frozenset(), frozenset()
        try:
            if gone:
                self._listener.on_partitions_revoked(gone)
        finally:
            self._positions.assign([])

    def advance(self, now_s: float) -> None:
        """Assign the partitions that metadata shows, if it has changed."""
        view = self._network.view
        if not self.active or view.version == self._view_version:
            return
        self._view_version = view.version
        self.topics = subscribed_topics(view, self._explicit, self._pattern, hide_internal=self._hide_internal)
        before = set(self._positions.places)
        wanted = {tp for tp in before if tp.topic in self.topics}  # a topic may be missing from metadata for a moment
        for topic in self.topics & view.topics.keys():
            wanted.update(TopicPartition(topic, p.partition) for p in view.topics[topic].partitions)
        gone, new = sorted(before - wanted), sorted(wanted - before)
        if gone:
            self._listener.on_partitions_revoked(gone)
        if gone or new:
            self._positions.assign(sorted(wanted))
        for tp in new:
            if tp.topic in self._seen:  # a partition added to a known topic: all its records are new
                self._positions.get(tp).reset(EARLIEST)
        self._seen |= {tp.topic for tp in new}
        if new:
            self._listener.on_partitions_assigned(new)
