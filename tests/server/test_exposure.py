"""Access to the data by other users: through file modes, and through the address of a listener."""

from __future__ import annotations

import logging
import os
import re
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.harness import BrokerProcess
from tests.server.live import Live, batch


@pytest.fixture
def any_mode() -> Iterator[None]:
    """Set a umask that permits every mode."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(directory: Path) -> dict[str, str]:
    """{path: mode} of a directory and everything in it."""
    found = {}
    for path in (directory, *directory.rglob("*")):
        with suppress(FileNotFoundError):  # a checkpoint has a temporary name for a moment
            found[str(path)] = oct(stat.S_IMODE(path.stat().st_mode))
    return found


def assert_owners_alone(directory: Path) -> None:
    for path, mode in modes(directory).items():
        assert mode == ("0o700" if os.path.isdir(path) else "0o600"), path


@pytest.mark.usefixtures("any_mode")
async def test_data_is_its_owners_alone(tmp_path: Path) -> None:
    """Directories are 0700 and files 0600 at every moment of a broker's life, even with umask 0."""
    log_dirs = [tmp_path / "made" / "one", tmp_path / "two"]
    live = Live(tmp_path, [f"log.dirs={','.join(map(str, log_dirs))}", "log.cleaner.backoff.ms=10"])
    await live.start()
    wire = await live.connect()
    await wire.create("t", 4, segment_bytes="1024", flush_messages="1")
    await wire.create("compacted", 2, cleanup_policy="compact", segment_bytes="1024", min_cleanable_dirty_ratio="0")
    for name in ("t", "compacted"):
        for partition in range(2):
            for _ in range(5):
                await wire.produce(name, batch(b"x" * 500), partition=partition)
    for log_dir in log_dirs:
        assert_owners_alone(log_dir)
    await live.stop()
    for log_dir in log_dirs:
        assert_owners_alone(log_dir)
    names = {re.sub("[0-9]", "", Path(path).name) for log_dir in log_dirs for path in modes(log_dir)}
    assert {".log", ".index", ".timeindex", ".snapshot", ".lock", "meta.properties", "coordination.sqlite",
            "full-disk-reserve", "partition.metadata", "leader-epoch-checkpoint", ".kafka_cleanshutdown",
            "recovery-point-offset-checkpoint", "replication-offset-checkpoint"} <= names  # fmt: skip


@pytest.mark.usefixtures("any_mode")
def test_the_store_and_its_journal_too(start_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    """`pybroker serve` in its own process, killed, so that SQLite's journal is left to be checked."""
    broker = start_broker(data_dir=tmp_path / "data")
    broker.kill()
    assert (tmp_path / "data" / "coordination.sqlite-wal").exists()
    assert_owners_alone(tmp_path / "data")


async def test_an_older_directory_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A log dir whose records other users can read gets one WARNING at each start, with the command that fixes it."""
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    live = Live(data)
    await live.start()
    assert (await (await live.connect()).create("t")).error_code == 0
    await live.stop()
    assert "other users" not in caplog.text  # others can list the directory, and read nothing in it

    (data / "t-0").chmod(0o755)
    await live.start()
    await live.stop()
    assert f'other users can read the data directory={data} remedy="chmod -R go= {data}"' in caplog.text
    caplog.clear()
    data.chmod(0o700)
    await live.start()
    await live.stop()
    assert "other users" not in caplog.text


@pytest.mark.parametrize(
    ("host", "told"),
    [("", "every interface"), ("0.0.0.0", "every interface"), ("0", "every interface"), ("127.9.9.9", None)],
)
async def test_a_listener_that_others_reach_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, host: str, told: str | None
) -> None:
    """A listener that other machines can reach without a password gets one WARNING at the start; loopback gets none. A
    listener on every interface is advertised with the machine's host name."""
    live = Live(tmp_path, [f"listeners=PLAINTEXT://{host}:0"])
    assert (await live.start()).host == (socket.gethostname() if told else host)
    await live.stop()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    if told is None:
        assert warnings == []
    else:
        (warning,) = warnings
        assert warning.startswith(f'listener without authentication listener=PLAINTEXT address="{told}" port=')
        assert 'reason="anyone who can connect to it can read, write and delete every topic"' in warning
