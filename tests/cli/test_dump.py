"""`pybroker dump`: the contents of log directory files and their damage, ours and Apache Kafka's."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from pybroker.cli.files import batches
from pybroker.core import crc32c
from pybroker.model import CODECS
from pybroker.protocol.records import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, build_batch
from tests.cli.conftest import Done, run
from tests.harness import Server

TIME_MS = 1_700_000_000_123
RECORDS = [
    (TIME_MS, b"key", b"value", [("h", b"1"), ("none", None)]),
    (TIME_MS + 1, None, b"\xff\x00", []),
    (TIME_MS + 2, b"", None, []),
]
LOG = "00000000000000000005.log"


def lines(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.out.splitlines()]


def damages(done: Done) -> list[tuple[int, str]]:
    """The (position, reason) of each damage that was printed."""
    told = [line.partition(" is damaged at byte ")[2].partition(": ") for line in done.err.splitlines()]
    return [(int(position), reason) for position, _, reason in told]


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """A segment of five batches, one of each codec, with three records each, from offset 5."""
    path = tmp_path / LOG
    batches = (
        build_batch(
            RECORDS, base_offset=5 + 3 * codec, attributes=codec, producer_id=7, producer_epoch=1, base_sequence=0
        )
        for codec in range(len(CODECS))
    )
    path.write_bytes(b"".join(batches))
    return path


def test_a_segment_batch_by_batch(segment: Path) -> None:
    """dump prints a segment as one line a batch for people, and one object a batch for programs."""
    out = run("dump", segment).out.splitlines()
    assert out[0].split()[:5] == ["POSITION", "FIRST", "LAST", "RECORDS", "BYTES"]
    assert [line.split()[5] for line in out[1:]] == list(CODECS)
    assert out[1].split()[:4] == ["0", "5", "7", "3"] and "2023-11-14T22:13:20.125Z" in out[1] and "7/1/0" in out[1]
    objects = lines(run("dump", segment, "--json"))
    assert [o["base_offset"] for o in objects] == [5, 8, 11, 14, 17] and objects[0]["position"] == 0
    assert all(o["count"] == 3 and o["kind"] == "log" and "records" not in o for o in objects)


def test_records_are_decompressed(segment: Path) -> None:
    """--records prints every record of every codec; JSON has bytes that are not text in base64."""
    for offset, batch in zip(range(5, 20, 3), lines(run("dump", segment, "--records", "--json")), strict=True):
        assert batch["records"] == [
            {
                "offset": offset,
                "timestamp": TIME_MS,
                "key": "key",
                "value": "value",
                "headers": [["h", "1"], ["none", None]],
            },
            {"offset": offset + 1, "timestamp": TIME_MS + 1, "key": None, "value": {"base64": "/wA="}, "headers": []},
            {"offset": offset + 2, "timestamp": TIME_MS + 2, "key": "", "value": None, "headers": []},
        ]
    shown = run("dump", segment, "--records").out.splitlines()
    assert shown[2] == "    offset 5  2023-11-14T22:13:20.123Z  'key' = 'value'  h: '1'  none: null"
    assert shown[3] == "    offset 6  2023-11-14T22:13:20.124Z  null = ff00"


def test_flags_and_markers(tmp_path: Path) -> None:
    """Transactions, control batches and LogAppendTime are shown; timestamps out of a calendar's range stay numbers."""
    marker = [(TIME_MS, struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 3), [])]
    batches = [
        build_batch([(2**60, None, b"x" * 1000, [])], attributes=TRANSACTIONAL | LOG_APPEND_TIME, producer_id=1),
        build_batch(marker, base_offset=1, attributes=TRANSACTIONAL | CONTROL, producer_id=1),
    ]
    (tmp_path / LOG).write_bytes(b"".join(batches))
    shown = run("dump", tmp_path / LOG, "--records").out.splitlines()
    assert shown[1].endswith("transactional LogAppendTime") and str(2**60) in shown[1]
    assert shown[2].endswith("null = '" + "x" * 80 + "'... (1000 bytes)")
    assert shown[3].endswith("transactional control")
    assert shown[4].endswith("COMMIT of coordinator epoch 3")


def test_every_flipped_byte_is_found(segment: Path) -> None:
    """Every flipped bit in the last batch is found as damage at the batch's position, except in its offset and leader
    epoch."""
    whole = segment.read_bytes()
    last = lines(run("dump", segment, "--json"))[-1]["position"]
    unchecked = set(range(last, last + 8)) | set(range(last + 12, last + 16))  # the offset and the leader's epoch
    for at in range(last, len(whole)):
        segment.write_bytes(whole[:at] + bytes([whole[at] ^ 0x80]) + whole[at + 1 :])
        done = run("dump", segment, "--records")
        assert at in unchecked or (done.code == 1 and damages(done)[0][0] == last), at


def test_every_cut_is_found(segment: Path) -> None:
    """Every cut segment is found: dump gives the position at which the incomplete last batch begins."""
    whole = segment.read_bytes()
    last = lines(run("dump", segment, "--json"))[-1]["position"]
    for size in range(last + 1, len(whole)):
        segment.write_bytes(whole[:size])
        done = run("dump", segment)
        assert done.code == 1 and [position for position, _ in damages(done)] == [last], size
        assert len(done.out.splitlines()) == 1 + 4


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (bytes(100), "zeros where a batch should begin"),
        (b"\xff" * 100, "magic 255 where 2 is expected"),
        (
            struct.pack(">qiib", 20, 2**31 - 1, 0, 2) + bytes(60),
            "the batch's length is 2147483659 bytes, but 77 are left",
        ),
        (struct.pack(">qiib", 20, -1, 0, 2) + bytes(60), "the batch's length is 11 bytes"),
        (build_batch(RECORDS, base_offset=3), "offset 3 comes after offset 19"),
    ],
)
def test_tails_that_are_no_batches(segment: Path, tail: bytes, reason: str) -> None:
    """A tail that is no batch, as a crash or a disk leaves it, is reported with its position and the reason."""
    size = segment.stat().st_size
    segment.write_bytes(segment.read_bytes() + tail)
    done = run("dump", segment)
    assert done.code == 1 and len(damages(done)) == 1
    assert damages(done)[0][0] == size and reason in damages(done)[0][1]


def test_the_walk_goes_on_after_a_bad_crc(segment: Path) -> None:
    """dump goes on after a bad CRC: one damaged batch does not hide those after it."""
    data = bytearray(segment.read_bytes())
    data[70] ^= 1
    segment.write_bytes(data)
    done = run("dump", segment, "--json")
    assert done.code == 1 and len([o for o in lines(done) if "damage" not in o]) == 5
    assert damages(done)[0][0] == 0 and "CRC" in damages(done)[0][1]


def test_batches_larger_than_the_window(tmp_path: Path) -> None:
    """A batch larger than dump's read window is read whole."""
    value = bytes(3 << 20)
    batches = [
        build_batch([(0, None, v, [])], base_offset=i) for i, v in enumerate((b"a", value, b"b", value, b"c"), 100)
    ]
    (tmp_path / LOG).write_bytes(b"".join(batches))
    done = run("dump", tmp_path / LOG, "--json")
    assert done.code == 0 and [o["size"] for o in lines(done)] == [len(b) for b in batches]


INDEXES = {
    "00000000000000000100.index": (
        ">ii",
        [(5, 0), (9, 4000)],
        [{"offset": 105, "position": 0}, {"offset": 109, "position": 4000}],
    ),
    "00000000000000000100.timeindex": (
        ">qi",
        [(7, 5), (8, 9)],
        [{"timestamp": 7, "offset": 105}, {"timestamp": 8, "offset": 109}],
    ),
}


@pytest.mark.parametrize("name", INDEXES)
def test_indexes(tmp_path: Path, name: str) -> None:
    """Index offsets are shown absolute; zeros that Kafka preallocates in a live index are no entry; entries that do not
    ascend are damage."""
    layout, entries, told = INDEXES[name]
    path = tmp_path / name
    packed = [struct.pack(layout, *entry) for entry in entries]
    for tail in (b"", bytes(1000 * len(packed[0]))):
        path.write_bytes(b"".join(packed) + tail)
        done = run("dump", path, "--json")
        assert done.code == 0
        assert [{k: v for k, v in o.items() if k not in ("file", "kind")} for o in lines(done)] == told
    assert run("dump", path).out.splitlines()[1] == "  ".join(f"{k} {v}" for k, v in told[1].items())
    size = len(packed[0])
    for content, position in (
        (packed[1] + packed[0], size),
        (packed[0] + packed[0], size),
        (packed[0] + packed[1] + b"\0\0\0", 2 * size),
        (packed[0] + bytes(size) + packed[1], size),
        (struct.pack(layout, 1, -1), 0),
    ):
        path.write_bytes(content)
        done = run("dump", path)
        assert done.code == 1 and damages(done)[0][0] == position, content
    path.write_bytes(bytes(size * 10))
    assert run("dump", path).out == "(empty)\n"


def test_snapshots(tmp_path: Path) -> None:
    """A snapshot's producers are shown; another version, CRC or count is damage."""
    path = tmp_path / "00000000000000000009.snapshot"
    entry = struct.pack(">qhiqiqiq", 4000, 1, 9, 8, 2, TIME_MS, -1, -1)
    covered = struct.pack(">i", 1) + entry
    path.write_bytes(struct.pack(">hI", 1, crc32c(covered)) + covered)
    (told,) = lines(run("dump", path, "--json"))
    assert (told["producer_id"], told["producer_epoch"], told["last_sequence"], told["last_offset"]) == (4000, 1, 9, 8)
    whole = path.read_bytes()
    for content in (b"", whole[:9], b"\0\2" + whole[2:], whole[:-1], whole + b"x", whole[:20] + b"\1" + whole[21:]):
        path.write_bytes(content)
        assert run("dump", path).code == 1, content


def test_checkpoints(tmp_path: Path) -> None:
    """Both kinds of checkpoint are shown, and a truncated one is damage."""
    epochs = tmp_path / "leader-epoch-checkpoint"
    epochs.write_text("0\n2\n0 0\n3 17\n")
    assert run("dump", epochs).out == "epoch 0  start_offset 0\nepoch 3  start_offset 17\n"
    offsets = tmp_path / "recovery-point-offset-checkpoint"
    offsets.write_text("0\n1\nmy-topic 3 42\n")
    assert run("dump", offsets).out == "topic my-topic  partition 3  offset 42\n"
    for content in ("", "1\n0\n", "0\n", "0\n2\n0 0\n", "0\n1\n0 0\n1 1\n", "0\n1\n0\n", "0\nx\n", "0\n1\na b\n"):
        epochs.write_text(content)
        assert run("dump", epochs).code == 1, content
    for content in ("0\n²\n", "0\n1\n--5 3\n", "0\n1\n- 3\n", "9" * 9999, "0\n" + "9" * 9999, "0\n1\n0 " + "9" * 9999):
        epochs.write_text(content)
        done = run("dump", epochs)
        assert done.code == 1 and "is damaged at byte" in done.err and len(done.err) < 500, content[:20]


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["people", "json"])
def test_a_batch_of_many_records_takes_no_more_memory_than_it_is(
    tmp_path: Path, form: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory stays bounded for a batch of many records: a few kilobytes of gzip may be a million records, which are
    printed as they are decoded."""
    count = 40_000
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(build_batch([(1000, None, b"", ())] * count, attributes=1))
    alive, most = [0], [0]

    class Counted(dict[str, Any]):
        def __init__(self, *what: Any, **more: Any) -> None:
            super().__init__(*what, **more)
            alive[0] += 1
            most[0] = max(most[0], alive[0])

        def __del__(self) -> None:
            alive[0] -= 1

    whole = batches._record
    monkeypatch.setattr(batches, "_record", lambda record, batch: Counted(whole(record, batch)))
    done = run("dump", path, "--records", *form)
    assert done.code == 0 and most[0] < 10
    assert len(lines(done)[0]["records"] if form else done.out.splitlines()) == count + (0 if form else 2)


@pytest.mark.parametrize("number", ["²", "--5", "-", "९", "9" * 5000, "1_0", "+1"])
def test_checkpoints_with_what_is_no_number(tmp_path: Path, number: str) -> None:
    """A checkpoint field that is not a number is damage, in one sentence, in any place."""
    path = tmp_path / "recovery-point-offset-checkpoint"
    for text in (f"{number}\n0\n", f"0\n{number}\n", f"0\n1\nt {number} 0\n", f"0\n1\nt 0 {number}\n"):
        path.write_text(text)
        done = run("dump", path)
        assert done.code == 1 and "is damaged at byte" in done.err and "Traceback" not in done.err


def test_several_files(segment: Path, tmp_path: Path) -> None:
    """Each of several files has its name as heading; if one cannot be shown, dump prints none."""
    other = tmp_path / "leader-epoch-checkpoint"
    other.write_text("0\n0\n")
    assert run("dump", segment, other).out.endswith(f"{other}:\n(empty)\n")
    refused = run("dump", segment, tmp_path / "notes.txt")
    assert refused.code == 2 and "notes.txt: the name does not say what kind of file it is" in refused.sentence
    missing = run("dump", tmp_path / "1.log")
    assert missing.code == 1 and missing.sentence == f"{tmp_path / '1.log'}: no such file or directory"


@pytest.fixture
def directory(target: Server, topics: Callable[..., Done], topic: str) -> Path:
    """A partition's directory on a running broker, with a batch of each codec."""
    topics("create", topic, "-p", 1)
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": target.bootstrap, "compression.type": codec, "linger.ms": 100})
        for number in range(50):
            producer.produce(topic, f"{codec} {number}".encode(), key=b"k", headers={"n": str(number).encode()})
        assert producer.flush(20) == 0
    return target.partition_dir(topic)


def test_a_live_directory(directory: Path) -> None:
    """A running broker's partition directory is whole: every file, and the records that were sent."""
    shown = [path for path in sorted(directory.iterdir()) if path.suffix != ".metadata"]
    assert run("dump", *shown).code == 0
    (log,) = directory.glob("*.log")
    records = [record for batch in lines(run("dump", log, "--records", "--json")) for record in batch["records"]]
    assert [r["value"] for r in records] == [f"{codec} {number}" for codec in CODECS for number in range(50)]
    assert [r["offset"] for r in records] == list(range(50 * len(CODECS)))
    assert [r["headers"] for r in records[:50]] == [[["n", str(number)]] for number in range(50)]
