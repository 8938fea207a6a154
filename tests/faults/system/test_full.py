"""A nearly full ext4 disk is left to other users: a log takes only what it needs."""

from __future__ import annotations

import os

from tests.core.logs import NOW, Home, batch_of
from tests.faults.system.test_unreadable import Disk, disk

__all__ = ["disk"]

BATCH_BYTES = 1 << 20


def test_a_log_takes_no_more_of_a_nearly_full_disk_than_it_needs(disk: Disk) -> None:
    """A log leaves a nearly full disk free space, though ext4 reserves some of a request before it reports ENOSPC."""
    home = Home(disk.path, {"segment.bytes": 1 << 30})
    partition = home.open()
    for _ in range(96):
        partition.append(batch_of(BATCH_BYTES), now_ms=NOW)
    found = os.statvfs(disk.path)
    assert found.f_bavail * found.f_frsize >= 8 * BATCH_BYTES
    home.stop()
