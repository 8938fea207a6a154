"""A full disk under a broker of tests/brokers/planted.py, filled and freed by a file while it runs.

    no file: writes succeed ──the file appears──> each write to a log dir gets ENOSPC ──it is removed──> writes succeed

Core's failpoints cause the errors, so neither root nor a mount is needed. Reads, flushes, renames and removals succeed,
as on a full disk.
"""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path

from pybroker import core
from pybroker.replication import failpoints

VARIABLE = "PYBROKER_TEST_FULL"
"""The broker's environment variable with the path of the file."""
POINTS = (
    "segment.create", "segment.reserve", "segment.write", "clean.write", "index.write", "snapshot.write", "epoch.write",
    "metadata.write", "checkpoint.write", "partition.create", "disk.reserve",
)  # fmt: skip
"""Every call that needs space."""
LOOK_S = 0.01
FOREVER = 2**31 - 1


def obey(path: Path) -> None:
    """Let the file `path` decide whether the disk of the broker in this process is full."""
    arm = failpoints.arm

    def armed(broker: core.LogManager) -> None:
        arm(broker)
        is_full = look(broker, path, False)  # before the first file call
        threading.Thread(target=watch, args=(broker, path, is_full), name="disk", daemon=True).start()

    failpoints.arm = armed


def watch(broker: core.LogManager, path: Path, is_full: bool) -> None:
    while True:
        time.sleep(LOOK_S)
        is_full = look(broker, path, is_full)


def look(broker: core.LogManager, path: Path, was_full: bool) -> bool:
    """True if the disk is full now."""
    is_full = path.exists()
    if is_full and not was_full:
        for point in POINTS:
            broker.arm(point, "errno", errno.ENOSPC, times=FOREVER)
    elif was_full and not is_full:
        broker.disarm()
    return is_full
