"""The move of a partition to another log dir."""

from pybroker.core.partition_handle import Partition

class FutureLog:
    """The copy of a partition in another log dir, which is to take its place (KIP-113). The partition goes on: it is
    appended to, read, compacted and truncated meanwhile. One thread at a time uses a copy; `progress` is for any."""

    def __init__(self, partition: Partition, directory: str) -> None:
        """Begin a copy in `directory`, which is created if it is missing. Raises OSError, ValueError, and
        LogError(INCONSISTENT_TOPIC_ID) if it is another topic's."""
    @property
    def directory(self) -> str: ...
    @property
    def switched(self) -> bool:
        """True once the copy is the log."""
    def copy(self, most: int) -> int:
        """Copy at most `most` bytes. Return how many were copied, n, or -1 - n if nothing is left to do. 0: a step
        without records, or the log is being changed just now. Waits for both disks. Raises OSError."""
    def settle(self) -> bool:
        """Make a copy durable that lacks nothing, with leader epochs, producer snapshots and a mark. False if it lacks
        something by now. Raises OSError."""
    def switch(self, log_start_offset: int, left: str) -> bool:
        """Have the settled copy take the log's place, which makes `partition.directory` the new one; the old directory
        is renamed to `left` and removed after file.delete.delay.ms. False if the log has changed too much since, is
        being compacted, or does not start at `log_start_offset`. Appends wait meanwhile. Raises LogError, OSError; the
        log is as it was then."""
    @property
    def progress(self) -> tuple[int, int]:
        """(bytes copied, offsets that the copy lacked), as of the last step; the latter is exact only at the ends of
        segments."""
    @property
    def held_us(self) -> int:
        """Microseconds for which appends waited for the last call of switch."""
