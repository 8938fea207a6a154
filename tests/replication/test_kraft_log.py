"""Topic settings are read from the metadata log that a Kafka in KRaft mode left in the log dir."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from pybroker.replication.disks.kraft_log import DIRECTORY, topic_settings
from tests.wire import batch

A, B, C = (letter * 16 for letter in (b"a", b"b", b"c"))
CONTROL, GZIP = 0x20, 1


def text(value: str | None) -> bytes:
    return b"\0" if value is None else bytes([len(value) + 1]) + value.encode()


def topic(name: str, topic_id: bytes) -> bytes:
    return b"\1\2\0" + text(name) + topic_id + b"\0"


def removal(topic_id: bytes) -> bytes:
    return b"\1\x09\0" + topic_id + b"\0"


def setting(resource: str, name: str, value: str | None, kind: int = 2) -> bytes:
    return b"\1\4\0" + bytes([kind]) + text(resource) + text(name) + text(value) + b"\0"


BROKER = b"\1\x1b\0" + b"a record of another type"


@pytest.fixture
def kafka(tmp_path: Path) -> Path:
    (tmp_path / DIRECTORY).mkdir()
    return tmp_path / DIRECTORY


def write(path: Path, base: int, values: Sequence[bytes], attributes: int = 0) -> None:
    with path.open("ab") as file:
        file.write(batch(values, base_offset=base, attributes=attributes))


def snapshot(path: Path, values: Sequence[bytes]) -> None:
    """Write a snapshot as Kafka does: two control records (header and footer) around the values (KIP-630)."""
    write(path, 0, [b"\0\0\0\0"], CONTROL)
    write(path, 1, values)
    write(path, 1 + len(values), [b"\0\0\0\0"], CONTROL)


def read(kafka: Path) -> dict[bytes, dict[str, str]]:
    return {topic_id: dict(own) for topic_id, own in topic_settings([str(kafka.parent)], 3).items()}


def test_dynamic_defaults_of_the_cluster_and_of_the_broker(kafka: Path) -> None:
    """A topic's own settings precede this broker's dynamic defaults, and those precede the cluster's.

    Otherwise a topic that Kafka compacted would lose its latest values to its own retention.
    """
    defaults = [
        setting("", "log.cleanup.policy", "compact", 4), setting("", "log.retention.ms", "5", 4),
        setting("3", "log.retention.ms", "7", 4), setting("4", "log.retention.ms", "9", 4),
        setting("", "num.io.threads", "2", 4), setting("", "log.roll.hours", "2", 4),
    ]  # fmt: skip
    own = [topic("a", A), topic("b", B), setting("a", "retention.ms", "8"), setting("b", "cleanup.policy", "delete")]
    write(kafka / f"{0:020}.log", 0, [*defaults, *own])
    common = {"cleanup.policy": "compact", "retention.ms": "7", "segment.ms": "7200000"}
    assert read(kafka) == {A: {**common, "retention.ms": "8"}, B: {**common, "cleanup.policy": "delete"}}


def test_what_holds_at_the_end(kafka: Path) -> None:
    """The latest value of each setting counts; removed settings and deleted topics are left out."""
    log = kafka / f"{0:020}.log"
    write(log, 0, [BROKER, topic("a", A), setting("a", "retention.ms", "1"), setting("a", "segment.ms", "7")])
    write(log, 4, [struct.pack(">hhi", 0, 2, 1)], CONTROL)
    write(log, 5, [setting("1", "log.retention.ms", "3", kind=4), setting("a", "retention.ms", "2")])
    write(log, 7, [setting("a", "segment.ms", None), topic("b", B), setting("b", "retention.ms", "5"), removal(B)])
    assert read(kafka) == {A: {"retention.ms": "2"}}
    write(log, 11, [topic("b", C)])
    assert read(kafka) == {A: {"retention.ms": "2"}, C: {}}, "not those of the deleted topic"


def test_a_snapshot_and_what_followed(kafka: Path) -> None:
    """The latest snapshot counts, and records before its end are ignored if their segments still exist."""
    snapshot(kafka / f"{4:020}-{1:010}.checkpoint", [topic("old", A)])
    snapshot(kafka / f"{8:020}-{1:010}.checkpoint", [topic("a", A), setting("a", "retention.ms", "1")])
    write(kafka / f"{6:020}.log", 6, [setting("a", "retention.ms", "0"), setting("a", "retention.ms", "1")])
    write(kafka / f"{6:020}.log", 8, [setting("a", "retention.bytes", "9")])
    write(kafka / f"{9:020}.log", 9, [topic("b", B)])
    assert read(kafka) == {A: {"retention.ms": "1", "retention.bytes": "9"}, B: {}}


def test_zeros_behind_the_last_batch(kafka: Path) -> None:
    """Zeros behind the last batch are no damage, as Kafka preallocates files."""
    log = kafka / f"{0:020}.log"
    write(log, 0, [topic("a", A)])
    log.write_bytes(log.read_bytes() + bytes(9_000))
    assert read(kafka) == {A: {}}


def cut(path: Path, missing: int) -> None:
    path.write_bytes(path.read_bytes()[:-missing])


def two(log: Path) -> bytes:
    """Write two batches to this segment, the second with a setting; return the file before the second."""
    write(log, 0, [topic("a", A)])
    first = log.read_bytes()
    write(log, 1, [setting("a", "retention.ms", "-1")])
    return first


def cut_in_a_batch(log: Path) -> None:
    two(log)
    cut(log, 3)


def cut_between_batches(log: Path) -> None:
    log.write_bytes(two(log))
    write(log.with_name(f"{2:020}.log"), 2, [topic("b", B)])


def a_hole(log: Path) -> None:
    write(log, 0, [topic("a", A)])
    write(log, 50, [setting("a", "retention.ms", "-1")])


def a_length_that_leaps(log: Path) -> None:
    first = two(log)
    write(log, 2, [topic("b", B)])
    data = bytearray(log.read_bytes())
    data[len(first) + 8] = 1
    log.write_bytes(data)


def snapshot_without_its_end(log: Path) -> None:
    path = log.with_name(f"{4:020}-{1:010}.checkpoint")
    write(path, 0, [b"\0\0\0\0"], CONTROL)
    write(path, 1, [topic("a", A)])
    write(log.with_name(f"{4:020}.log"), 4, [BROKER])


def snapshot_cut_in_a_batch(log: Path) -> None:
    path = log.with_name(f"{4:020}-{1:010}.checkpoint")
    snapshot(path, [topic("a", A)])
    cut(path, 1)
    write(log.with_name(f"{4:020}.log"), 4, [BROKER])


def snapshot_alone(log: Path) -> None:
    snapshot(log.with_name(f"{4:020}-{1:010}.checkpoint"), [topic("a", A)])


@pytest.mark.parametrize(
    "damage",
    [
        lambda log: write(log, 0, [b"\2\2\0"]),
        lambda log: write(log, 0, [b"\1\2\0\x7fx"]),
        lambda log: write(log, 0, [b"\1\2\0" + text("t") + b"short"]),
        lambda log: write(log, 0, [b"\1\4\0"]),
        lambda log: write(log, 0, [b"\1\4\0\2" + b"\xff" * 9]),
        lambda log: write(log, 0, [b""]),
        lambda log: write(log, 0, [b"\1\2\0\2\xff" + A]),
        lambda log: write(log, 0, [topic("a", A)], GZIP),
        lambda log: log.write_bytes(b"\xff" * 100),
        lambda log: write(log.with_name(f"{7:020}.log"), 7, [topic("a", A)]),
        cut_in_a_batch,
        cut_between_batches,
        a_hole,
        a_length_that_leaps,
        snapshot_without_its_end,
        snapshot_cut_in_a_batch,
        snapshot_alone,
        os.mkfifo,
    ],
    ids=["frame", "long", "id", "nothing", "varint", "empty", "utf8", "compressed", "noise", "begins late",
         "cut in a batch", "cut between batches", "hole", "length", "no footer", "snapshot cut", "snapshot alone",
         "FIFO"],
)  # fmt: skip
def test_what_cannot_be_read_is_not_used(kafka: Path, caplog: pytest.LogCaptureFixture, damage: object) -> None:
    """A damaged metadata log is not used at all, as outdated settings might delete records; one line is logged."""
    damage(kafka / f"{0:020}.log")  # type: ignore[operator]
    assert read(kafka) == {}
    assert [r.getMessage().split(" directory=")[0] for r in caplog.records] == ["metadata log of Kafka not used"]


def test_no_such_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert topic_settings([str(tmp_path), str(tmp_path / "gone")], 3) == {} and not caplog.records
