"""The consumer group of a stream, with its start and then its progress.

    nothing --start(offsets)--> anchored at the start --progress(offsets)--> the last batch that is done --> ...

A Python source of Spark cannot see the checkpoint, and Spark asks it for its first offset again after a crash before
batch 0 was committed. "latest" would then be another offset, and the records between would be skipped silently. So the
start is committed here first, with a mark, and a start that is found is where the stream begins. Once a batch is done
the mark is removed; later commits only serve tools that watch lag, as Spark's checkpoint has the offsets.
"""

from collections.abc import Container, Mapping
from typing import Final

from pybroker.client.admin import Admin, Committed
from pybroker.client.security.settings import as_settings
from pybroker.client.security.tls import ClientTls
from pybroker.model import TopicPartition
from pybroker.security.login import Account
from pybroker.spark.offsets import Offsets

START_MARK: Final = "pybroker.spark start"


class ProgressGroup:
    """The offsets of one group without members. Each method raises KafkaError with the group in its sentence."""

    def __init__(self, bootstrap: str, group: str, account: Account | None, tls: ClientTls | None) -> None:
        self.admin = Admin(bootstrap, **as_settings(account, tls))
        self.group = group

    def close(self) -> None:
        self.admin.close()

    def anchored(self, topics: Container[str]) -> Offsets | None:
        """Return the committed start of these topics; None if there is none, or the stream has gone on. Other topics
        may be those of another stream with the same group, such as that of an unnamed pipeline."""
        every = self.admin.group_offsets([self.group])[self.group]
        held = {tp: committed for tp, committed in every.items() if tp.topic in topics}
        if not held or any(committed.metadata != START_MARK for committed in held.values()):
            return None
        return {tp: committed.offset for tp, committed in held.items()}

    def start(self, begins: Mapping[TopicPartition, int]) -> None:
        """Commit the stream's start, with the mark."""
        self._commit(begins, START_MARK)

    def progress(self, done: Mapping[TopicPartition, int]) -> None:
        """Commit the stream's progress."""
        self._commit(done, "")

    def _commit(self, offsets: Mapping[TopicPartition, int], mark: str) -> None:
        self.admin.alter_group_offsets(self.group, {tp: Committed(o, metadata=mark) for tp, o in offsets.items()})
