"""The logs of these tests lie in memory where the system has a file system there: thousands of them come and go."""

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
    """A log dir with one partition, not opened yet."""
    made = Home(tmp_path)
    yield made
    if made.broker is not None:
        made.crash()
