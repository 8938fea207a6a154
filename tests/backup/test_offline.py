"""`pybroker restore --log-dir`: records at their offsets, in the log dir of a stopped broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.backup import offline
from pybroker.client.admin import EARLIEST, LATEST, Admin
from pybroker.core import iter_batches
from pybroker.testing import BrokerHandle
from tests.backup import kit
from tests.backup.kit import ABORT, COMMIT, GroupOffset, batch, gapped, marker, says
from tests.cli.conftest import Done, run


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerHandle]:
    """A broker to stop and to start."""
    with BrokerHandle(
        data_dir=str(tmp_path / "data"), settings={"log.retention.check.interval.ms": 86_400_000}
    ) as handle:
        yield handle


def log_dir(broker: BrokerHandle) -> Path:
    (meta,) = Path(broker.data_dir).rglob("meta.properties")
    return meta.parent


def ends(broker: BrokerHandle, topic: str) -> list[tuple[int | None, int | None]]:
    with Admin(broker.bootstrap_servers) as admin:
        found = admin.topics([topic])
        first, last = admin.offsets(found, EARLIEST), admin.offsets(found, LATEST)
    return [(first[tp], last[tp]) for tp in sorted(first)]


def restore(broker: BrokerHandle, home: Path, *how: object) -> Done:
    """Restore with all steps that docs/backup.md has, and return what the step into the log dir says."""
    address = ("-b", broker.bootstrap_servers)
    says(run("restore", home, "--only", "topics", *how, *address))
    broker.stop()
    done = says(run("restore", home, "--log-dir", log_dir(broker), *how))
    broker.start()
    says(run("restore", home, "--only", "groups", *how, *address))
    return done


def test_records_are_at_their_offsets(broker: BrokerHandle, tmp_path: Path) -> None:
    """Records keep offsets, times and gaps; what was not committed is left out; the log can be written on, and is as it
    was after another start."""
    log = [
        batch(10, b"gone", b"a", b"b", epoch=7), batch(13, b"no", producer_id=1, epoch=7),
        batch(14, b"c", producer_id=2, epoch=8), marker(15, 1, ABORT), marker(16, 2, COMMIT),
        gapped(17, 6, {1: b"d", 4: b"e"}), batch(1 << 40, b"f", epoch=9), batch((1 << 40) + 5, b"open", producer_id=1),
    ]  # fmt: skip
    home = tmp_path / "backup"
    stood = {3: 11, 12: 12, 1 << 40: 1 << 40, 1 << 50: (1 << 40) + 1}
    kit.write(
        home, "orders", kit.partition(home, "orders", 0, log[:4], log[4:], start=11), kit.partition(home, "orders", 1),
        groups={f"at {at}": [GroupOffset("orders", 0, at)] for at in stood}, configs={"retention.ms": "-1"},
    )  # fmt: skip
    assert "Restored 2 partitions" in restore(broker, home).out
    expected = [(11, b"a"), (12, b"b"), (14, b"c"), (18, b"d"), (21, b"e"), (1 << 40, b"f")]
    for _ in range(2):
        found = broker.records("orders", partition=0)
        assert [(r.offset, r.value) for r in found if r.offset >= 11] == expected
        assert {r.timestamp_ms for r in found} == {kit.TIME_MS}
        assert ends(broker, "orders") == [(11, (1 << 40) + 1), (0, 0)]
        broker.restart()
    with Admin(broker.bootstrap_servers) as admin:
        for at, now in stood.items():
            (offset,) = admin.group_offsets([f"at {at}"])[f"at {at}"].values()
            assert offset.offset == now
    (stored,) = broker.produce("orders", b"next")
    assert stored.offset == (1 << 40) + 1
    assert not list(log_dir(broker).glob("orders-*-*"))
    broker.stop()
    assert "nothing is wrong" in says(run("doctor", log_dir(broker))).out


def test_batches_are_the_same_bytes(broker: BrokerHandle, tmp_path: Path) -> None:
    """Batches differ in the leader epoch only, or in the producer too; a backup of the restored topic is the log."""
    home = tmp_path / "backup"
    log = [batch(5, b"a" * 100, b"b"), batch(7, b"c", epoch=4), batch(8, b"d", producer_id=77, epoch=4)]
    log.append(marker(9, 77, COMMIT))
    kit.write(home, "orders", kit.partition(home, "orders", 0, log))
    restore(broker, home, "--as", "again")
    says(run("backup", "again", "--to", tmp_path / "two", "-b", broker.bootstrap_servers))
    (path,) = (tmp_path / "two" / "again-0").iterdir()
    data = path.read_bytes()
    assert data == (log_dir(broker) / "again-0" / f"{5:020}.log").read_bytes()
    first, second, third = (data[position : position + header.size] for position, header in iter_batches(data))
    assert [first[:12] + first[16:], second[:12] + second[16:]] == [each[:12] + each[16:] for each in log[:2]]
    assert [header.producer_id for _, header in iter_batches(third)] == [-1]


def test_what_is_refused_changes_nothing(broker: BrokerHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log dir in use, topics that are not there or hold records, and damage are one sentence; the log dir stays as it
    was."""
    home = tmp_path / "backup"
    backup = kit.partition(home, "orders", 0, [batch(0, b"a"), batch(1, b"b")])
    kit.write(home, "orders", backup)
    there = log_dir(broker)
    into = ("restore", home, "--log-dir", there)
    assert "a broker is using" in run(*into).sentence
    broker.create_topic("full")
    broker.produce("full", b"x")
    broker.stop()
    assert "none of the topics has a partition" in run(*into).sentence
    assert "holds records" in run(*into, "--as", "full").sentence
    assert "is no log dir" in run("restore", home, "--log-dir", tmp_path).sentence
    assert run("restore", home, "--log-dir", there, "--only", "topics").code == 2
    broker.start()
    says(run("restore", home, "--only", "topics", "-b", broker.bootstrap_servers))
    broker.stop()
    before = sorted(str(path) for path in there.rglob("*"))
    path = home / backup.directory / backup.files[0].name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"!")
    assert "CRC" in run(*into).sentence
    path.write_bytes(whole)
    with monkeypatch.context() as patched:
        patched.setattr(offline, "_forget", lambda *_: (_ for _ in ()).throw(OSError(28, "no space left on device")))
        assert "no space left" in run(*into).sentence
    assert sorted(str(path) for path in there.rglob("*")) == before
    assert says(run(*into, "--json")).json["partitions"] == ["orders-0"]
    broker.start()
    assert [r.value for r in broker.records("orders")] == [b"a", b"b"]
    json.loads((home / "manifest.json").read_bytes())


def test_segments_are_split(broker: BrokerHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment ends before it is too large, and holds no offset beyond what its index can have."""
    home = tmp_path / "backup"
    log = [batch(0, b"a"), batch(1, b"b"), batch(1 << 33, b"c"), batch((1 << 33) + 1, b"d")]
    kit.write(home, "orders", kit.partition(home, "orders", 0, log))
    monkeypatch.setattr(offline, "_SEGMENT_BYTES", len(log[0]) + len(log[1]))
    restore(broker, home)
    bases = sorted(int(path.stem) for path in (log_dir(broker) / "orders-0").glob("*.log"))
    assert bases == [0, 1 << 33]
    assert [r.offset for r in broker.records("orders")] == [0, 1, 1 << 33, (1 << 33) + 1]
