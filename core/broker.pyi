"""A broker's partitions."""

from collections.abc import Mapping

from pybroker.core.log_dirs import LogDirs
from pybroker.core.partition_handle import Partition

class Broker(LogDirs):
    """One broker's context: its partitions, and the flusher of each log dir. No state is shared between two of them."""

    def open(
        self,
        log_dir: str,
        topic: str,
        partition: int,
        *,
        topic_id: bytes,
        config: Mapping[str, int],
        recovery_point: int = 0,
        log_start_offset: int = 0,
        high_watermark: int = -1,
        clean: bool = False,
        epoch_max: int = -1,
        compacted: bool = False,
        written: int = 0,
        given_up: bool = False,
    ) -> Partition:
        """Open or create log_dir/topic-partition; recovers what lies past the recovery point unless `clean`.

        written: records up to here were in files that cannot be gone: a log that ends before, without a tail that was
        cut, lost files. given_up: what is missing at its start or end does not come back, use what is there.
        epoch_max: no batch can carry a larger leader epoch (-1: unknown); one that does is cut off with its tail.
        compacted: gaps between offsets are no damage, as they are none where cleanup.policy has compact.

        config: Kafka topic config names to integers (segment.bytes, segment.ms, segment.jitter.ms, segment.index.bytes,
        index.interval.bytes, retention.ms, retention.bytes, max.message.bytes, message.timestamp.type (0 CreateTime,
        1 LogAppendTime), file.delete.delay.ms, producer.id.expiration.ms, flush.messages, cleanup.policy (1 delete | 2
        compact)).
        Raises LogError 56 (a segment missing in the middle), 103 (partition.metadata has another id), MissingFiles (56;
        one missing at the start or end), OSError."""
    def get(self, topic: str, partition: int) -> Partition | None: ...
    def partitions(self) -> list[Partition]: ...
    def delete(self, partition: Partition) -> None:
        """Unpublish, wait for readers to leave, rename the directory to -delete, unlink it in the background."""
    def unread(self, log_dir: str) -> list[tuple[Partition, int]]:
        """(partition, errno) of each whose reads began to fail since the last call. The plane leaves their fetches to
        Python, which reads before it answers."""
    def lost_file(self, log_dir: str) -> Partition | None:
        """A partition of a log dir that grew since the last call, and whose active file was removed beneath it: the log
        dir is offline then. None if there is none."""
    def set_lease(self, until_ms: int) -> None:
        """Set until when, in ms since the host was started, this broker may act as leader alone; 0 means for ever.

        Once the lease has lapsed, the plane leaves to Python a Produce with acks 0 or 1, and a consumer's Fetch that is
        out of range. 1 means that the broker is no member of its cluster: the plane leaves every Produce to Python, and
        a waiting acks=all gets NOT_LEADER_OR_FOLLOWER once its partition looks again (Partition.tell_all)."""
    @property
    def lease_lapsed(self) -> bool: ...
    @property
    def lease_lost(self) -> bool: ...
    def take_suspects(self) -> list[tuple[Partition, int]]:
        """Where reads met what is no batch since the last call: a partition, and the base offset of the segment. A scan
        of it (SegmentScan) lets reads pass by what is bad."""
    def close_idle_files(self) -> int:
        """Close the files of sealed segments that nobody read from since the last call; how many were. Slices that are
        held stay readable, and the next read opens a segment again."""
    def close(self, *, clean: bool = True) -> None:
        """Stop the flusher; clean: flush every partition and write its snapshot and indexes first."""
