"""`pybroker backup`: byte for byte what the cluster has, continued by the next run, and never a damaged whole."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import pybroker
from pybroker.backup import targets
from pybroker.backup.manifest import Manifest, load
from pybroker.client.admin import Admin, Committed
from pybroker.testing import BrokerHandle, Record
from tests.backup import kit
from tests.backup.kit import says
from tests.cli.conftest import Done, run
from tests.rows import with_each

Command = Callable[..., Done]
SMALL = {"segment.bytes": 4096}


def fill(broker: BrokerHandle, topic: str, count: int, partition: int = 0) -> None:
    for first in range(0, count, 10):
        broker.produce(topic, *(Record(b"v" * 100 + b"%d" % n, partition=partition) for n in range(first, first + 10)))


def log_of(broker: BrokerHandle, topic: str, partition: int = 0) -> bytes:
    """The bytes of a partition's log."""
    (directory,) = Path(broker.data_dir).rglob(f"{topic}-{partition}")
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def copy_of(home: Path, topic: str, partition: int = 0) -> bytes:
    """The bytes of a partition's files in a backup."""
    return b"".join(path.read_bytes() for path in sorted((home / f"{topic}-{partition}").glob("*.log")))


@with_each("how", [(), ("--copy",), ("--no-log-dirs",)])
def test_a_backup_is_the_log(
    backup_broker: BrokerHandle, pybroker_: Command, tmp_path_factory: pytest.TempPathFactory, how: tuple[str, ...]
) -> None:
    """Links, copies and what comes through the broker are the same bytes, which our readers of logs read; the next
    run adds what is new."""
    topic, home = f"orders-{'-'.join(how) or 'links'}", tmp_path_factory.mktemp("home") / "backup"
    backup_broker.create_topic(topic, 2, SMALL)
    for partition in (0, 1):
        fill(backup_broker, topic, 100, partition)
    told = says(pybroker_("backup", topic, "--to", home, "--json", *how)).json
    assert (told["linked_bytes"] > 0) == (how == ())
    assert copy_of(home, topic) == log_of(backup_broker, topic)
    fill(backup_broker, topic, 100)
    again = says(pybroker_("backup", topic, "--to", home, "--json", *how)).json
    assert 0 < again["new_bytes"][topic] < told["new_bytes"][topic]
    for partition in (0, 1):
        assert copy_of(home, topic, partition) == log_of(backup_broker, topic, partition)
    assert says(pybroker_("backup", topic, "--to", home, "--json", *how)).json["new_bytes"] == {topic: 0}
    says(run("backup", "verify", home))
    table = pybroker.read_topic(topic, log_dir=home)
    assert table.num_rows == 300
    says(run("dump", *sorted((home / f"{topic}-0").glob("*.log"))))


def test_configs_and_offsets_of_groups(
    backup_broker: BrokerHandle, pybroker_: Command, tmp_path: Path, topic: str
) -> None:
    """The manifest has the topic's own configs, and the offsets of its groups; other topics stay in it."""
    backup_broker.create_topic(topic, 1, {"retention.ms": 77_000_000_000})
    fill(backup_broker, topic, 10)
    with Admin(backup_broker.bootstrap_servers) as admin:
        admin.alter_group_offsets(f"group of {topic}", {(topic, 0): Committed(7, metadata="here")})
    other = backup_broker.create_topic(f"{topic}-other")
    says(pybroker_("backup", other, "--to", tmp_path))
    says(pybroker_("backup", topic, "--to", tmp_path))
    manifest = json.loads((tmp_path / "manifest.json").read_bytes())
    assert [each["name"] for each in manifest["topics"]] == [topic, other]
    assert manifest["topics"][0]["configs"] == {"retention.ms": "77000000000"}
    (offset,) = manifest["groups"][f"group of {topic}"]
    assert (offset["offset"], offset["metadata"]) == (7, "here")


def test_a_topic_that_is_not_there(pybroker_: Command, tmp_path: Path) -> None:
    """A name or a pattern without a topic is refused, before anything is written."""
    assert "no topic nothing-*" in pybroker_("backup", "nothing-*", "--to", tmp_path / "backup").sentence
    assert not (tmp_path / "backup" / "manifest.json").exists()


def test_a_topic_that_was_created_again(
    backup_broker: BrokerHandle, pybroker_: Command, tmp_path: Path, topic: str
) -> None:
    """A topic of the same name and another id is refused, and its earlier copy stays; with --anew it is replaced."""
    backup_broker.create_topic(topic, 1)
    fill(backup_broker, topic, 20)
    says(pybroker_("backup", topic, "--to", tmp_path))
    before = copy_of(tmp_path, topic)
    with Admin(backup_broker.bootstrap_servers) as admin:
        admin.delete_topic(topic)
    backup_broker.create_topic(topic, 1)
    fill(backup_broker, topic, 30)
    refused = pybroker_("backup", topic, "--to", tmp_path)
    assert refused.code == 1 and "was created again since" in refused.err and "--anew" in refused.err
    assert copy_of(tmp_path, topic) == before
    assert json.loads((tmp_path / "manifest.json").read_bytes())["complete"] is False
    says(run("backup", "verify", tmp_path))
    replaced = says(pybroker_("backup", topic, "--to", tmp_path, "--anew"))
    assert "was copied anew" in replaced.err
    assert copy_of(tmp_path / "anew-1", topic) == log_of(backup_broker, topic)
    assert not (tmp_path / f"{topic}-0").exists()
    says(pybroker_("backup", topic, "--to", tmp_path))


def test_a_log_that_was_truncated(backup_broker: BrokerHandle, pybroker_: Command, tmp_path: Path, topic: str) -> None:
    """A log that ends before the backup, or has another batch where the backup ends, is not continued."""
    backup_broker.create_topic(topic, 1)
    fill(backup_broker, topic, 30)
    says(pybroker_("backup", topic, "--to", tmp_path))
    of_first, path = kit.of_first_partition, tmp_path / "manifest.json"
    whole = path.read_bytes()

    def refused(change: Callable[[Manifest], Manifest]) -> str:
        """The sentence for a backup to which something else happened."""
        path.write_bytes(whole)
        kit.rewrite(tmp_path, change)
        done = pybroker_("backup", topic, "--to", tmp_path)
        assert done.code == 1 and done.err.count("\n") == 1
        return done.err

    last = load(whole, "here").topics[0].partitions[0].last_batch
    assert last is not None
    words = "truncated, as by an unclean election; "
    assert words + "the batch there has CRC" in refused(lambda m: of_first(m, last_batch=replace(last, crc32c=1)))
    assert "the log ends at 30, the backup at 31" in refused(lambda m: of_first(m, end_offset=31))


def test_a_compacted_topic(
    backup_broker: BrokerHandle, pybroker_: Command, tmp_path: Path, topic: str
) -> None:
    """A compacted topic is continued while tombstones are there, and copied anew once they may be gone."""
    backup_broker.create_topic(topic, 1, {"cleanup.policy": "compact", "delete.retention.ms": 3_600_000})
    backup_broker.produce(topic, b"1", b"2", key=b"k")
    says(pybroker_("backup", topic, "--to", tmp_path))
    backup_broker.produce(topic, b"3", key=b"k")
    says(pybroker_("backup", topic, "--to", tmp_path))
    assert copy_of(tmp_path, topic) == log_of(backup_broker, topic)
    kit.rewrite(tmp_path, lambda m: kit.of_first_partition(m, taken_ms=m.taken_ms - 3_600_001))
    assert says(pybroker_("backup", topic, "--to", tmp_path)).err == "", "nothing is new"
    kit.rewrite(tmp_path, lambda m: kit.of_first_partition(m, taken_ms=m.taken_ms - 3_600_001))
    backup_broker.produce(topic, None, key=b"k")
    assert "a tombstone may be gone" in says(pybroker_("backup", topic, "--to", tmp_path)).err
    assert copy_of(tmp_path / "anew-1", topic) == log_of(backup_broker, topic)
    backup_broker.produce(topic, b"4", key=b"k")
    assert says(pybroker_("backup", topic, "--to", tmp_path)).err == ""
    assert copy_of(tmp_path / "anew-1", topic) == log_of(backup_broker, topic)
    says(run("backup", "verify", tmp_path))


def test_records_deleted_in_between(
    backup_broker: BrokerHandle, pybroker_: Command, tmp_path: Path, topic: str
) -> None:
    """Records that retention deleted between two runs are missing from the backup, which says so; records deleted
    before the first run are not."""
    backup_broker.create_topic(topic, 1)
    fill(backup_broker, topic, 40)
    with Admin(backup_broker.bootstrap_servers) as admin:
        admin.delete_records({(topic, 0): 10})
        says(pybroker_("backup", topic, "--to", tmp_path))
        fill(backup_broker, topic, 40)
        admin.delete_records({(topic, 0): 60})
    done = says(pybroker_("backup", topic, "--to", tmp_path))
    assert "the records from 40 to 59 were deleted by retention" in done.err
    (told,) = says(run("backup", "verify", tmp_path, "--json")).json["topics"]
    assert told["partitions"][0] | {"directory": ""} == {
        "partition": 0, "directory": "", "earliest": 10, "latest": 80, "missing": [[40, 60]],
    }  # fmt: skip


def test_a_full_target_leaves_the_earlier_state(
    backup_broker: BrokerHandle, pybroker_: Command, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that fails, as the target is full, leaves a backup that is whole; the next one goes on from it."""
    backup_broker.create_topic(topic, 1)
    fill(backup_broker, topic, 20)
    says(pybroker_("backup", topic, "--to", tmp_path))
    fill(backup_broker, topic, 20)

    class Full(targets._NewFile):
        def write(self, data: memoryview) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(targets, "_NewFile", Full)
        assert "no space left" in pybroker_("backup", topic, "--to", tmp_path).sentence
    says(run("backup", "verify", tmp_path))
    assert not list(tmp_path.rglob("*.tmp"))
    says(pybroker_("backup", topic, "--to", tmp_path))
    assert copy_of(tmp_path, topic) == log_of(backup_broker, topic)


def test_one_run_at_a_time_and_one_cluster(
    backup_broker: BrokerHandle, pybroker_: Command, tmp_path: Path, topic: str
) -> None:
    """A second run to a directory is refused while one is running, and so is the backup of another cluster."""
    backup_broker.create_topic(topic, 1)
    target = targets.open_target(str(tmp_path), write=True)
    assert "another backup" in pybroker_("backup", topic, "--to", tmp_path).sentence
    target.close()
    says(pybroker_("backup", topic, "--to", tmp_path))
    with BrokerHandle() as other:
        other.create_topic(topic, 1)
        refused = run("backup", topic, "--to", tmp_path, "-b", other.bootstrap_servers)
        assert "is a backup of cluster" in refused.sentence


def test_leftovers_of_a_run_that_died(
    backup_broker: BrokerHandle, pybroker_: Command, tmp_path: Path, topic: str
) -> None:
    """Files that no manifest names are removed by the next run, and files of other kinds are left alone."""
    backup_broker.create_topic(topic, 1)
    fill(backup_broker, topic, 20)
    directory = tmp_path / f"{topic}-0"
    directory.mkdir()
    for name in ("00000000000000000003.log", "00000000000000000000.log.tmp", "notes.txt"):
        (directory / name).write_bytes(b"x")
    says(pybroker_("backup", topic, "--to", tmp_path))
    assert sorted(path.name for path in directory.iterdir()) == ["00000000000000000000.log", "notes.txt"]
    assert copy_of(tmp_path, topic) == log_of(backup_broker, topic)


def test_an_object_store_by_its_address(
    backup_broker: BrokerHandle, pybroker_: Command, tmp_path: Path, topic: str
) -> None:
    """Any address of a file system that pyarrow knows is a target too, with the same files."""
    backup_broker.create_topic(topic, 1, SMALL)
    fill(backup_broker, topic, 100)
    where = f"file://{tmp_path}/backup"
    says(pybroker_("backup", topic, "--to", where))
    fill(backup_broker, topic, 10)
    says(pybroker_("backup", topic, "--to", where))
    assert copy_of(tmp_path / "backup", topic) == log_of(backup_broker, topic)
    says(run("backup", "verify", where))
    assert "no address of an object store" in run("backup", "verify", "nothing://here").sentence
    assert "names no place in its object store" in run("backup", "verify", "s3://").sentence


def test_an_error_of_the_object_store(tmp_path: Path) -> None:
    """pyarrow's errors that are no OSError are one too: here of a path that it does not take."""
    target = targets.ObjectTarget(f"file://{tmp_path}")
    with pytest.raises(OSError, match="NUL"):
        target.size("a\0b")
