"""The manifest of a backup: what is written is read, and nothing in it is trusted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pybroker.backup.manifest import _crc, load
from pybroker.errors import KafkaError
from tests.backup import kit
from tests.backup.kit import batch
from tests.cli.conftest import run
from tests.rows import with_each

Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A backup of a topic with two partitions, and of a group."""
    home = tmp_path / "backup"
    first = kit.partition(home, "orders", 0, [batch(0, b"a"), batch(1, b"b", b"c")], [batch(3, b"d")])
    groups = {"billing": [kit.GroupOffset("orders", 0, 2)]}
    kit.write(home, "orders", first, kit.partition(home, "orders", 1, [batch(7, b"x")]), groups=groups)
    return home


def test_what_is_written_is_read(home: Path) -> None:
    data = (home / "manifest.json").read_bytes()
    manifest = load(data, "here")
    assert manifest.dump() == data
    assert [p.end_offset for p in manifest.topics[0].partitions] == [4, 8]
    assert manifest.groups["billing"][0].offset == 2


def changed(home: Path, change: Change) -> bytes:
    """The manifest after a change that has the right CRC."""
    body = json.loads((home / "manifest.json").read_bytes())
    body.pop("crc32c")
    change(body)
    return json.dumps({**body, "crc32c": _crc(body)}).encode()


def of_file(body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = body["topics"][0]["partitions"][0]["files"][0]
    return found


def of_partition(body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = body["topics"][0]["partitions"][0]
    return found


HOSTILE: dict[str, tuple[Change, str]] = {
    "a directory above": (lambda b: of_partition(b).update(directory="../orders-0"), "directory"),
    "an absolute directory": (lambda b: of_partition(b).update(directory="/etc"), "directory"),
    "the directory of another": (lambda b: of_partition(b).update(directory="orders-1"), "directory"),
    "a run that is none": (lambda b: of_partition(b).update(directory="anew-0/orders-0"), "directory"),
    "a line end in it": (lambda b: of_partition(b).update(directory="orders-0\n"), "directory"),
    "a topic above": (lambda b: b["topics"][0].update(name="../../etc/passwd"), "topic's name"),
    "a topic of dots": (lambda b: b["topics"][0].update(name=".."), "topic's name"),
    "a topic twice": (lambda b: b["topics"].append(b["topics"][0]), "twice"),
    "no partition": (lambda b: b["topics"][0].update(partitions=[]), "partitions"),
    "a partition left out": (lambda b: b["topics"][0]["partitions"].pop(0), "partitions"),
    "a size below 1": (lambda b: of_file(b).update(size=0), "size"),
    "a size beyond 64 bits": (lambda b: of_file(b).update(size=1 << 63), "size"),
    "a size that is true": (lambda b: of_file(b).update(size=True), "size"),
    "a size in words": (lambda b: of_file(b).update(size="12"), "size"),
    "offsets that go back": (lambda b: of_file(b).update(last_offset=3), "do not fit"),
    "offsets beyond the end": (lambda b: of_partition(b).update(end_offset=3), "do not fit"),
    "a negative offset": (lambda b: of_file(b).update(base_offset=-1), "base_offset"),
    "a start after the end": (lambda b: of_partition(b).update(start_offset=5), "after its end"),
    "no files": (lambda b: of_partition(b).pop("files"), "files"),
    "an id that is none": (lambda b: b["topics"][0].update(topic_id="../x"), "topic_id"),
    "configs of numbers": (lambda b: b["topics"][0].update(configs={"a": 1}), "config"),
    "a list for a topic": (lambda b: b.update(topics=[[]]), "object"),
    "groups in a list": (lambda b: b.update(groups=[]), "groups"),
    "another version": (lambda b: b.update(version=2), "version"),
    "another format": (lambda b: b.update(format="x"), "format"),
}


@with_each("change, words", HOSTILE.values(), ids=list(HOSTILE))
def test_a_hostile_manifest_is_refused(home: Path, change: Change, words: str) -> None:
    """Each lie is refused with a sentence about it, by `load` and by the command."""
    data = changed(home, change)
    with pytest.raises(KafkaError) as refused:
        load(data, "the manifest")
    assert words in refused.value.message and refused.value.message.startswith("the manifest")


def test_the_command_refuses_in_one_sentence(home: Path) -> None:
    (home / "manifest.json").write_bytes(changed(home, HOSTILE["a directory above"][0]))
    assert "'../orders-0' is not orders-0" in run("backup", "verify", home).sentence


@with_each(
    "data, words",
    [
        (b"", "not JSON"), (b"[" * 100_000, "not JSON"), (b"\xff\xfe", "not JSON"), (b"[]", "format"),
        (b'{"format": "pybroker backup"}', "version"),
    ],
)  # fmt: skip
def test_what_is_no_manifest_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(KafkaError, match=words):
        load(data, "here")


def test_every_flipped_bit_is_found(home: Path) -> None:
    """A manifest with any byte changed is refused, or says the same."""
    data = (home / "manifest.json").read_bytes()
    whole = load(data, "here")
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        try:
            assert load(flipped, "here") == whole, at
        except KafkaError:
            continue
