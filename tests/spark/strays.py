"""The processes that a campaign leaves behind: of JVMs that start Pythons that start others, killed at any moment."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

MARK: Final = "PYBROKER_CHAOS"
"""In the environment of every process of a campaign."""
STRAY_S_MAX: Final = 30.0


@contextmanager
def marked(home: Path) -> Iterator[None]:
    """No process that is started in here outlives it."""
    os.environ[MARK] = str(home)
    try:
        yield
    finally:
        del os.environ[MARK]
        until = time.monotonic() + STRAY_S_MAX
        while strays(home) and time.monotonic() < until:
            time.sleep(0.1)
        for pid in strays(home):
            with suppress(ProcessLookupError):
                print(f"left behind: {pid} {Path(f'/proc/{pid}/cmdline').read_bytes()[:300]!r}")
                os.kill(pid, signal.SIGKILL)


def strays(home: Path) -> list[int]:
    """The processes that have the mark of a campaign."""
    wanted, found = f"{MARK}={home}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (process / "environ").read_bytes().split(b"\0") and int(process.name) != os.getpid():
                found.append(int(process.name))
    return sorted(found)
