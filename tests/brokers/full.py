"""A full disk under a broker of tests/brokers/planted.py, made full and freed again by a file while it runs.

    no file: writes pass ──the file appears──> ENOSPC from every write of the log dirs ──the file goes──> writes pass

Core's failpoints do it, so neither root nor a mount is needed. Reads, flushes, renames and removals pass, as they do on
a disk that is full.
"""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path

from pybroker import core
from pybroker.replication import failpoints

VARIABLE = "PYBROKER_TEST_FULL"
"""Names the file in the environment of a broker."""
POINTS = (
    "segment.create", "segment.reserve", "segment.write", "clean.write", "index.write", "snapshot.write", "epoch.write",
    "metadata.write", "checkpoint.write", "partition.create", "disk.reserve",
)  # fmt: skip
"""Every call that needs space."""
LOOK_S = 0.01
FOREVER = 2**31 - 1


def obey(path: Path) -> None:
    """Let the file `path` say whether the disk of the broker that this process becomes is full."""
    arm = failpoints.arm

    def armed(broker: core.Broker) -> None:
        arm(broker)
        is_full = look(broker, path, False)  # before its first file call
        threading.Thread(target=watch, args=(broker, path, is_full), name="disk", daemon=True).start()

    failpoints.arm = armed


def watch(broker: core.Broker, path: Path, is_full: bool) -> None:
    while True:
        time.sleep(LOOK_S)
        is_full = look(broker, path, is_full)


def look(broker: core.Broker, path: Path, was_full: bool) -> bool:
    """True if the disk is full now."""
    is_full = path.exists()
    if is_full and not was_full:
        for point in POINTS:
            broker.arm(point, "errno", errno.ENOSPC, times=FOREVER)
    elif was_full and not is_full:
        broker.disarm()
    return is_full
