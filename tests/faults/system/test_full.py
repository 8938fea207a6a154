"""A disk that is nearly full, with the file system that most have: what there is of it is for whoever needs it."""

from __future__ import annotations

import os

from tests.core.logs import NOW, Home, batch_of
from tests.faults.system.test_unreadable import Disk, disk

__all__ = ["disk"]

BATCH_BYTES = 1 << 20


def test_a_log_takes_no_more_of_a_nearly_full_disk_than_it_needs(disk: Disk) -> None:
    """It asks for as much again as is written, which ext4 gives in part before it says that there is not so much."""
    home = Home(disk.path, {"segment.bytes": 1 << 30})
    partition = home.open()
    for _ in range(96):
        partition.append(batch_of(BATCH_BYTES), now_ms=NOW)
    found = os.statvfs(disk.path)
    assert found.f_bavail * found.f_frsize >= 8 * BATCH_BYTES
    home.stop()
