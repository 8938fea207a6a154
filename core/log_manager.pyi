"""A broker's partitions."""

from collections.abc import Mapping

from pybroker.core.log_dirs import LogDirs
from pybroker.core.partition_handle import Partition

class LogManager(LogDirs):
    """One broker's context: its partitions, and the flusher of each log dir. Brokers in one process share no state."""

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
        """Open or create log_dir/topic-partition; records past the recovery point are checked unless `clean`.

        written: records below it were in files that cannot be lost; a log that ends before it, without a tail that was
        cut, lost files. given_up: missing records at the start or end will not come back, use what is there. epoch_max:
        the largest leader epoch that a batch can have (-1: unknown); a batch with a larger one is cut off with all
        after it. compacted: gaps between offsets are no damage; the same holds if cleanup.policy has compact.

        config: Kafka topic config names to integers (segment.bytes, segment.ms, segment.jitter.ms, segment.index.bytes,
        index.interval.bytes, retention.ms, retention.bytes, max.message.bytes, message.timestamp.type (0 CreateTime, 1
        LogAppendTime), file.delete.delay.ms, producer.id.expiration.ms, flush.messages, cleanup.policy (1 delete | 2
        compact)). Raises LogError(KAFKA_STORAGE_ERROR) if a segment is missing in the middle,
        LogError(INCONSISTENT_TOPIC_ID) if partition.metadata has another id, MissingFiles if one is missing at the
        start or end, OSError."""
    def get(self, topic: str, partition: int) -> Partition | None: ...
    def partitions(self) -> list[Partition]: ...
    def delete(self, partition: Partition) -> None:
        """Unpublish, wait for readers to leave, rename the directory to -delete, unlink it in the background."""
    def unread(self, log_dir: str) -> list[tuple[Partition, int]]:
        """(partition, errno) of each partition whose reads began to fail since the last call. The plane leaves its
        fetches to Python, which reads the records before it answers."""
    def lost_file(self, log_dir: str) -> Partition | None:
        """A partition of a log dir that was appended to since the last call, and whose active file was deleted: the log
        dir is then offline. None if there is none."""
    def set_lease(self, until_ms: int) -> None:
        """Set until when, in ms since the host was started, this broker may act as leader alone; 0 means for ever.

        After the lease has lapsed, the plane leaves to Python a Produce with acks 0 or 1, and a consumer's Fetch that
        is out of range. 1 means that the broker is not a member of its cluster: the plane leaves every Produce to
        Python, and a waiting acks=all gets NOT_LEADER_OR_FOLLOWER once its partition is checked again
        (Partition.tell_all)."""
    @property
    def lease_lapsed(self) -> bool: ...
    @property
    def lease_lost(self) -> bool: ...
    def take_suspects(self) -> list[tuple[Partition, int]]:
        """(partition, base offset of the segment) where reads met an invalid batch since the last call. A SegmentScan
        of the segment lets reads skip the damaged range."""
    def close_idle_files(self) -> int:
        """Close the files of sealed segments that were not read since the last call; the number of files closed. Slices
        stay readable, and the next read opens a segment again."""
    def close(self, *, clean: bool = True) -> None:
        """Stop the flushers; clean: first flush every partition and write its snapshot and indexes."""
