"""The log dirs of a broker."""

from typing import Literal

from pybroker.core.base.counters import Histogram

class LogDirs:
    """The log dirs of one broker: the flusher of each, what failed in them, descriptors, failpoints. No state is shared
    between two brokers."""

    def __init__(self, *, write_behind_bytes: int = 8 << 20, flush_idle_ms: int = 200, open_files_max: int = 0) -> None:
        """open_files_max: descriptors that segments have at most, 0 for no limit. Where few are left, segments that
        nobody used for a while are closed, active ones too; who needs one again opens it, and waits for a descriptor,
        but not on a reactor. Rolls and starts may go beyond it for a moment."""
    @property
    def open_files(self) -> int:
        """Descriptors that segments have now."""
    @property
    def open_files_max(self) -> int:
        """What __init__ was given."""
    def log_dir_error(self, log_dir: str) -> int:
        """The errno for which a log dir is offline: nothing is written there any more; 0 while it is in use."""
    def fail_log_dir(self, log_dir: str) -> None:
        """Take a log dir offline."""
    def take_lack(self, log_dir: str) -> int:
        """Return and clear the errno of the last call in a log dir that found no space (ENOSPC, EDQUOT) or no right
        (EACCES, EPERM); 0 if there was none since the last call of this."""
    def refuse_appends(self, log_dir: str, error: int) -> None:
        """Refuse all appends to a log dir with this errno; 0 accepts them again. Reads and deletions go on."""
    def set_aside(self, path: str, n: int) -> None:
        """Reserve `n` bytes of the disk in a file, if its file system can; passes the failpoint disk.reserve. Raises
        OSError, after deleting the file."""
    def read_errors(self, log_dir: str) -> int:
        """How many reads of a log dir, and sends of what lies in it, the disk failed since the broker was made."""
    def write_atomic(self, path: str, data: bytes) -> None:
        """Like the function, passing the failpoints checkpoint.write, checkpoint.sync and checkpoint.rename. Where the
        disk failed, the log dir that the file lies in is offline."""
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
        """Make a failpoint fire at its next pass but `after`, `times` times: fail with errno `value`, write `value`
        bytes and then fail with EIO (short), write `value` bytes and die by SIGKILL (kill), or sleep `value` ms.
        Only at paths that have `under` in them, where it is given."""
    @property
    def sleeping(self) -> int:
        """File calls that sleep in a failpoint just now."""
    def disarm(self) -> None: ...
    def sync_times(self) -> Histogram:
        """How long each flush of a file took."""
    def stop_cleaning(self) -> None:
        """Rounds of compaction end where they are (`clean` gives None), and no new one begins."""
