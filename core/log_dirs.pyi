"""The log dirs of a broker."""

from typing import Literal

from pybroker.core.base.counters import Histogram

class LogDirs:
    """The log dirs of one broker: flushers, disk errors, open files, failpoints. Brokers in one process share no
    state."""

    def __init__(self, *, write_behind_bytes: int = 8 << 20, flush_idle_ms: int = 200, open_files_max: int = 0) -> None:
        """open_files_max: the limit of descriptors open for segments, 0 for none. When few are left, segments that were
        not used for a while are closed, active ones too. The next use opens a segment again; threads other than
        reactors wait for a descriptor. Rolls and starts may exceed the limit for a moment."""
    @property
    def open_files(self) -> int:
        """Descriptors open for segments."""
    @property
    def open_files_max(self) -> int:
        """The argument of __init__."""
    def log_dir_error(self, log_dir: str) -> int:
        """The errno that took a log dir offline, where nothing is written any more; 0 while it is in use."""
    def fail_log_dir(self, log_dir: str) -> None:
        """Take a log dir offline."""
    def take_lack(self, log_dir: str) -> int:
        """Return and clear the errno of the last call in a log dir that failed for lack of space (ENOSPC, EDQUOT) or
        permission (EACCES, EPERM); 0 if there was none since the last call of this method."""
    def refuse_appends(self, log_dir: str, error: int) -> None:
        """Refuse all appends to a log dir with this errno; 0 accepts them again. Reads and deletions go on."""
    def set_aside(self, path: str, n: int) -> None:
        """Reserve `n` bytes of disk space in a file, if its file system can; passes the failpoint disk.reserve. Raises
        OSError, after deleting the file."""
    def read_errors(self, log_dir: str) -> int:
        """The number of reads and sends from a log dir that the disk failed since the broker was created."""
    def write_atomic(self, path: str, data: bytes) -> None:
        """Like the function of this name, but passes the failpoints checkpoint.write, checkpoint.sync and
        checkpoint.rename. If the disk fails, the file's log dir goes offline."""
    def arm(
        self,
        point: str,
        action: Literal["errno", "short", "kill", "sleep"],
        value: int = 0,
        *,
        after: int = 0,
        times: int = 1,
        under: str = "",
    ) -> None:
        """Arm a failpoint: let `after` calls pass, then fire `times` times: fail with errno `value`, write `value`
        bytes and then fail with EIO (short), write `value` bytes and die by SIGKILL (kill), or sleep `value` ms.
        `under`: only for paths that contain it."""
    @property
    def sleeping(self) -> int:
        """File calls now sleeping in a failpoint."""
    def disarm(self) -> None: ...
    def sync_times(self) -> Histogram:
        """The durations of fsyncs."""
    def append_times(self) -> Histogram:
        """The durations of appends to a log, with their checks under its append mutex."""
    def cold_reads(self) -> tuple[Histogram, int]:
        """The durations of reads of records that were not in the page cache, and the bytes that these covered."""
    def stop_cleaning(self) -> None:
        """Abort running rounds of compaction (`clean` returns None), and start no new one."""
