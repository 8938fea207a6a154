"""Backups and restores as processes: interrupted by Ctrl-C, killed, and against a real object store."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from pybroker.client.admin import Admin
from pybroker.testing import BrokerHandle, Record
from tests.cli.conftest import run, start
from tests.harness import HOST, Process, free_port, until

READY_S = 60.0
KEY, SECRET, REGION = "an-id", "a-secret", "us-east-1"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerHandle]:
    """A broker with a topic of 8 partitions, 4 MB in each."""
    with BrokerHandle(settings={"log.retention.check.interval.ms": 86_400_000}) as handle:
        handle.create_topic("orders", 8)
        for partition in range(8):
            for _ in range(8):
                handle.produce("orders", *(Record(os.urandom(100_000), partition=partition) for _ in range(5)))
        yield handle


def log_of(broker: BrokerHandle, partition: int) -> bytes:
    (directory,) = Path(broker.data_dir).rglob(f"orders-{partition}")
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def is_whole(broker: BrokerHandle, home: Path) -> bool:
    """True if the backup is the log, in all partitions."""
    return all(
        b"".join(path.read_bytes() for path in sorted((home / f"orders-{p}").glob("*.log"))) == log_of(broker, p)
        for p in range(8)
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_a_backup_that_ends_early(broker: BrokerHandle, tmp_path: Path, number: signal.Signals) -> None:
    """A backup that is interrupted or killed leaves a valid one, or none; the next run completes it."""
    home = tmp_path / "backup"
    with broker.faults.delay("Fetch", 0.2, times=None):
        running = start("backup", "orders", "--to", home, "-b", broker.bootstrap_servers, "--no-log-dirs")
        until("the first files", lambda: list(home.rglob("*.log*")) or running.poll() is not None)
        running.send_signal(number)
        _, err = running.communicate(timeout=READY_S)
    assert running.returncode == {signal.SIGINT: 130}.get(number, -number)
    assert b"Traceback" not in err
    if (home / "manifest.json").exists():
        assert run("backup", "verify", home).code == 0
    done = run("backup", "orders", "--to", home, "-b", broker.bootstrap_servers)
    assert done.code == 0, done.err
    assert is_whole(broker, home)
    assert "is sound: " in run("backup", "verify", home).out


def test_a_restore_that_is_interrupted(broker: BrokerHandle, tmp_path: Path) -> None:
    """Ctrl-C ends a restore, and the topic that it had created is gone."""
    home = tmp_path / "backup"
    assert run("backup", "orders", "--to", home, "-b", broker.bootstrap_servers).code == 0
    with broker.faults.delay("Produce", 0.5, times=None), Admin(broker.bootstrap_servers) as admin:
        running = start("restore", home, "--as", "again", "-b", broker.bootstrap_servers)
        until("the topic", lambda: admin.exists("again") or running.poll() is not None)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=READY_S)
        assert running.returncode == 130 and b"Traceback" not in err, err
        assert not admin.exists("again")
    assert run("restore", home, "--as", "again", "-b", broker.bootstrap_servers).code == 0
    assert [r.value for r in broker.records("again", partition=3)] == [
        r.value for r in broker.records("orders", partition=3)
    ]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """An S3 server in a process of its own, with a bucket."""
    port = free_port()
    server = Process([sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)])
    server.wait_line("Running on", READY_S)
    yield f"{HOST}:{port}"
    server.kill()


def test_an_object_store(
    broker: BrokerHandle, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup in S3 is continued, verified and restored; one that has lost an object is damaged."""
    store = fs.S3FileSystem(
        access_key=KEY, secret_key=SECRET, region=REGION, endpoint_override=endpoint, scheme="http",
        allow_bucket_creation=True,
    )  # fmt: skip
    store.create_dir("backups")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    where = f"s3://backups/one?endpoint_override={endpoint}&scheme=http&region={REGION}"
    broker.create_topic("small", 2)
    broker.produce("small", b"a", b"b", partition=1)
    address = ("-b", broker.bootstrap_servers)
    assert run("backup", "small", "orders", "--to", where, *address).code == 0
    broker.produce("small", b"c", partition=1)
    again = run("backup", "small", "--to", where, "--json", *address)
    assert again.code == 0 and 0 < again.json["new_bytes"]["small"] < 100, again.err
    assert "is sound" in run("backup", "verify", where).out
    assert run("restore", where, "--topics", "small", "--as", "small-again", *address).code == 0
    assert [r.value for r in broker.records("small-again", partition=1)] == [b"a", b"b", b"c"]
    found = store.get_file_info(fs.FileSelector("backups/one", recursive=True))
    names = {each.path.removeprefix("backups/one/") for each in found if each.type == fs.FileType.File}
    assert {name for name in names if name.startswith(("small", "manifest"))} == {
        "manifest.json", "small-1/00000000000000000000.log", "small-1/00000000000000000002.log",
    }  # fmt: skip
    store.delete_file("backups/one/orders-4/00000000000000000000.log")
    assert "orders-4/00000000000000000000.log is missing" in run("backup", "verify", where).err
