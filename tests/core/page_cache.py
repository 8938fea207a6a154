"""What the page cache has of a file, and how to have it forget."""

import ctypes
import os
import resource
import time
from pathlib import Path

import pytest

CACHESTAT = 451  # since Linux 6.5, on every architecture; glibc has no name for it
FORGET_SECONDS = 5


def cached_bytes(path: Path) -> int:
    """What the page cache has of a file; skips the test where the kernel does not tell."""
    return _cachestat(path)[0]


def unwritten_bytes(path: Path) -> int:
    """What of a file the disk was not given yet; skips the test where the kernel does not tell."""
    return _cachestat(path)[1]


def _cachestat(path: Path) -> tuple[int, int]:
    span, found = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    with path.open("rb") as file:
        if ctypes.CDLL(None, use_errno=True).syscall(CACHESTAT, file.fileno(), span, found, 0) != 0:
            pytest.skip(f"cachestat(2): {os.strerror(ctypes.get_errno())}")
    return found[0] * resource.getpagesize(), found[1] * resource.getpagesize()


def chill(*paths: Path) -> None:
    """Have the kernel forget files, once they are on disk, which it does not while another thread of it holds a page;
    skips the test where it never does."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            deadline = time.monotonic() + FORGET_SECONDS
            while cached_bytes(path):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                if time.monotonic() > deadline:
                    pytest.skip("this file system keeps its pages")
