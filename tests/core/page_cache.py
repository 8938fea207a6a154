"""Measure how much of a file is in the page cache, and evict a file from it."""

import ctypes
import os
import resource
import time
from pathlib import Path

import pytest

CACHESTAT = 451  # since Linux 6.5, on every architecture; glibc has no name for it
FORGET_SECONDS = 5


def cached_bytes(path: Path) -> int:
    """The bytes of a file that are in the page cache; skip the test if the kernel cannot report it."""
    return _cachestat(path)[0]


def unwritten_bytes(path: Path) -> int:
    """The bytes of a file that are not written to disk yet; skip the test if the kernel cannot report it."""
    return _cachestat(path)[1]


def _cachestat(path: Path) -> tuple[int, int]:
    span, found = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    with path.open("rb") as file:
        if ctypes.CDLL(None, use_errno=True).syscall(CACHESTAT, file.fileno(), span, found, 0) != 0:
            pytest.skip(f"cachestat(2): {os.strerror(ctypes.get_errno())}")
    return found[0] * resource.getpagesize(), found[1] * resource.getpagesize()


def chill(*paths: Path) -> None:
    """Evict files from the page cache once they are on disk; skip the test if their pages stay.
    The kernel keeps a page while another thread of it holds the page."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            deadline = time.monotonic() + FORGET_SECONDS
            while cached_bytes(path):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                if time.monotonic() > deadline:
                    pytest.skip("this file system keeps its pages")
