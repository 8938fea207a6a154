"""The fetchers of one broker: for each leader one of its replicas, and one of those that a reassignment adds.

A replica that is being added copies all of a log, from the leader's disk. It has a connection of its own, so that the
replicas that acks=all waits for are not in the same requests. It is closed when nothing is left to copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from pybroker.model import TopicPartition
from pybroker.replication.replica import Replica

if TYPE_CHECKING:
    from pybroker.replication.fetcher import Fetcher


class Fetchers:
    """`make` makes and starts a fetcher for a leader."""

    def __init__(self, make: Callable[[int], Fetcher]) -> None:
        self._make = make
        self._fetchers: dict[tuple[int, bool], Fetcher] = {}
        self._follows: dict[TopicPartition, tuple[int, bool]] = {}
        """The leader of each followed partition, and True if its replica is being added."""
        self._closing: set[asyncio.Task[None]] = set()

    def follow(self, replica: Replica, leader: int, leader_epoch: int, *, added: bool = False) -> None:
        """Copy a partition from a leader; `added`: it is being added, and not in sync."""
        which = leader, added
        if which not in self._fetchers:
            self._fetchers[which] = self._make(leader)
        self._fetchers[which].follow(replica, leader_epoch)
        self._follows[replica.key] = which

    def leave(self, key: TopicPartition) -> None:
        """Stop copying a partition, if it is copied."""
        which = self._follows.pop(key, None)
        fetcher = None if which is None else self._fetchers.get(which)
        if which is None or fetcher is None:
            return
        fetcher.leave(key)
        if which[1] and not len(fetcher):
            del self._fetchers[which]
            task = asyncio.get_running_loop().create_task(fetcher.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def leader(self, key: TopicPartition) -> int | None:
        """The leader that a partition is copied from; None if it is not copied."""
        which = self._follows.get(key)
        return None if which is None else which[0]

    def look(self) -> None:
        """Suspect the leaders that closed their connections."""
        for fetcher in self._fetchers.values():
            fetcher.look()

    def registered(self) -> None:
        """Note that this broker has another epoch."""
        for fetcher in self._fetchers.values():
            fetcher.registered()

    async def close(self) -> None:
        fetchers, self._fetchers = self._fetchers, {}
        await asyncio.gather(*(fetcher.close() for fetcher in fetchers.values()), *self._closing)
