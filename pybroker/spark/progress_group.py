"""The consumer group that stands for a stream: where it began, then how far it has come.

    nothing --start(offsets)--> anchored at the start --progress(offsets)--> the last batch that is done --> ...

A Python source of Spark sees no checkpoint, and Spark asks it for its first offset again after a crash before batch 0
was committed. "latest" would then be another offset, and the records between would be skipped in silence. So the start
is committed here first, marked as such; a start that is found is where the stream begins. Once a batch is done the mark
is gone, and what is committed is only for those who watch lag: Spark's checkpoint has the offsets that count.
"""

from collections.abc import Container, Mapping
from typing import Final

from pybroker.client.admin import Admin, Committed
from pybroker.client.security import as_settings
from pybroker.client.tls import ClientTls
from pybroker.model import TopicPartition
from pybroker.security.login import Account
from pybroker.spark.offsets import Offsets

START_MARK: Final = "pybroker.spark start"


class ProgressGroup:
    """The offsets of one group without members. Each call raises KafkaError with the group in its sentence."""

    def __init__(self, bootstrap: str, group: str, account: Account | None, tls: ClientTls | None) -> None:
        self.admin = Admin(bootstrap, **as_settings(account, tls))
        self.group = group

    def close(self) -> None:
        self.admin.close()

    def anchored(self, topics: Container[str]) -> Offsets | None:
        """The start that was committed; None where there is none, or where the stream has gone on from it. Of these
        topics: streams of others may have the same group, as pipelines have that nobody has given a name."""
        every = self.admin.group_offsets([self.group])[self.group]
        held = {tp: committed for tp, committed in every.items() if tp.topic in topics}
        if not held or any(committed.metadata != START_MARK for committed in held.values()):
            return None
        return {tp: committed.offset for tp, committed in held.items()}

    def start(self, begins: Mapping[TopicPartition, int]) -> None:
        """Commit where the stream begins, marked."""
        self._commit(begins, START_MARK)

    def progress(self, done: Mapping[TopicPartition, int]) -> None:
        """Commit how far the stream has come."""
        self._commit(done, "")

    def _commit(self, offsets: Mapping[TopicPartition, int], mark: str) -> None:
        self.admin.alter_group_offsets(self.group, {tp: Committed(o, metadata=mark) for tp, o in offsets.items()})
