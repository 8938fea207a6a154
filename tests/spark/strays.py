"""The processes that a campaign may leave behind: JVMs start Pythons that start others, and any of them is killed at
any moment."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

MARK: Final = "PYBROKER_CHAOS"
"""An environment variable of every process of a campaign."""
STRAY_S_MAX: Final = 30.0


@contextmanager
def marked(home: Path) -> Iterator[None]:
    """Kill, on exit, every process that was started inside this block."""
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
    """The processes that carry a campaign's mark."""
    wanted, found = f"{MARK}={home}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (process / "environ").read_bytes().split(b"\0") and int(process.name) != os.getpid():
                found.append(int(process.name))
    return sorted(found)
