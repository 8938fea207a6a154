"""Logs of these tests lie in a memory file system if there is one, as thousands of logs are created and removed."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.logs import Home
from tests.core.stage import Stage

MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pybroker-", dir=MEMORY if MEMORY.is_dir() else None) as path:
        yield Path(path)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A log dir with one partition that is not open yet."""
    made = Home(tmp_path)
    yield made
    if made.broker is not None:
        made.crash()
