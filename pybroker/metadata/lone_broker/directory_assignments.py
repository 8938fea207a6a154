"""The log dir of each partition of a lone broker, as recorded in the store (KIP-858's assignments to directories).

A partition that is not in its recorded log dir is offline: created again it would be empty, and acknowledged records
would be lost silently. So the log dir is recorded when the log is created, before the partition has a leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pybroker.coordination.commit import commit, read
from pybroker.coordination.store import BadVersion, NoNode, Op, Session, Set, StoreError
from pybroker.metadata import nodes
from pybroker.metadata.controllership import unwritable

OPS_PER_WRITE = 500
Key = tuple[bytes, int]
"""A topic's id, and the number of a partition."""
Placed = tuple[str, bytes, int, str]
"""A topic's name and id, the number of a partition, and the directory.id of the log dir that it lies in."""


class DirectoryAssignments:
    """The recorded log dirs, and the leader epochs in which this broker has led the partitions as the only replica."""

    def __init__(self, session: Callable[[], Session], known: Mapping[Key, str], epochs: Mapping[Key, int]) -> None:
        self._session = session
        self._known = dict(known)
        self._epochs = epochs

    def directory(self, topic_id: bytes, partition: int) -> str | None:
        """The recorded directory.id of a partition; None if there is none."""
        return self._known.get((topic_id, partition))

    def sole_epoch(self, topic_id: bytes, partition: int) -> int:
        """The latest leader epoch of a partition at this broker's start; 0 for a partition created since."""
        return self._epochs.get((topic_id, partition), 0)

    async def record(self, placed: Iterable[Placed]) -> None:
        """Record the log dirs of these partitions, where they differ. Raises KafkaError if the store cannot write."""
        news: dict[tuple[str, bytes], dict[int, str]] = {}
        for name, topic_id, index, directory in placed:
            if self.directory(topic_id, index) != directory:
                news.setdefault((name, topic_id), {})[index] = directory
        while news:
            ops: list[Op] = []
            for name, topic_id in list(news):
                try:
                    data, stat = await read(self._session(), nodes.topic(name))
                except NoNode:  # it was deleted meanwhile
                    del news[name, topic_id]
                    continue
                ops.append(Set(nodes.topic(name), nodes.with_directories(data, news[name, topic_id]), stat.version))
            try:
                for first in range(0, len(ops), OPS_PER_WRITE):
                    await commit(self._session(), ops[first : first + OPS_PER_WRITE])
            except (BadVersion, NoNode):  # the topic has grown, or was deleted
                continue
            except StoreError as problem:
                raise unwritable(problem) from problem
            for (_, topic_id), directories in news.items():
                self._known.update({(topic_id, index): directory for index, directory in directories.items()})
            break
