"""`pybroker doctor` reports the faults of a log dir, and repairs it so that the next start serves the rest."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pybroker.replication import scrub
from tests.cli.conftest import run
from tests.harness import ROOT, BrokerProcess, free_port
from tests.marks import long_for
from tests.wire import Wire, batch

COUNT = 12
PAGE = (ROOT / "docs" / "cli.md").read_text()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A stopped broker, with a topic of twelve batches of one size, four in each segment."""
    made = BrokerProcess(tmp_path / "data", free_port())
    made.start()
    with Wire(made.port) as w:
        size = len(batch([b"%030d" % 0]))
        assert w.create_topic("t", config={"segment.bytes": str(4 * size)}) == 0
        for n in range(COUNT):
            assert w.produce("t", batch([b"%030d" % n])).base_offset == n
    made.stop()
    yield made
    made.close()


def segment(broker: BrokerProcess, base: int, kind: str = "log") -> Path:
    return broker.data_dir / "t-0" / f"{base:020}.{kind}"


def change(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def change_text(path: Path, before: bytes, after: bytes) -> None:
    data = path.read_bytes()
    assert before in data and len(before) == len(after)
    path.write_bytes(data.replace(before, after))


def swap(broker: BrokerProcess, size: int | None = None) -> None:
    """Leave the files of a compaction that merged the first two segments, and was killed before the swap."""
    whole = segment(broker, 0).read_bytes() + segment(broker, 4).read_bytes()
    segment(broker, 0, "log.swap").write_bytes(whole[:size])


def compact(broker: BrokerProcess) -> None:
    """Mark the log as compacted, so that its offsets may have gaps."""
    (broker.data_dir / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 8\n")


SIZE = len(batch([b"%030d" % 0]))
TROUBLES: dict[str, tuple[Callable[[BrokerProcess], object], str, int]] = {
    "a torn tail": (lambda b: os.truncate(segment(b, 8), 3 * SIZE + 50), "50 bytes at position", 11),
    "a bad batch": (lambda b: change(segment(b, 4), SIZE + 70, b"\xff"), "offsets 5..5 are lost", 12),
    "a wrong offset": (lambda b: change(segment(b, 4), SIZE + 7, b"\7"), "offsets 5..5 are lost", 12),
    "a last offset": (lambda b: change(segment(b, 4), 3 * SIZE + 7, b"\x09"), "offsets 7..7 are lost", 12),
    "a last offset too low": (lambda b: change(segment(b, 4), 3 * SIZE + 7, b"\5"), "offsets 7..7 are lost", 12),
    "a last offset, in a log with gaps": (
        lambda b: (compact(b), change(segment(b, 4), 3 * SIZE + 7, b"\x09")),
        "offsets 7..7 are lost",
        12,
    ),
    "an offset beyond all": (lambda b: change(segment(b, 8), SIZE + 5, b"\7"), "offsets 9..9 are lost", 12),
    "leader epochs": (lambda b: (b.data_dir / "t-0/leader-epoch-checkpoint").write_bytes(b"\xff"), "cannot be", 12),
    "an empty store": (lambda b: (b.data_dir / "coordination.sqlite").write_bytes(b""), "store is empty", 12),
    "a node": (
        lambda b: change_text(b.data_dir / "coordination.sqlite", b'"partitions":{', b'"partitionz":{'),
        "store is damaged: it has no 'partitions'",
        12,
    ),
    "an empty swap": (lambda b: segment(b, 4, "log.swap").write_bytes(b""), "interrupted compaction, and is empty", 12),
    "an index": (lambda b: segment(b, 4, "index").write_bytes(b"\xff" * 9), "index is damaged", 12),
    "a checkpoint": (lambda b: (b.data_dir / "recovery-point-offset-checkpoint").write_bytes(b"\xff"), "cannot be", 12),
    "meta.properties": (lambda b: (b.data_dir / "meta.properties").write_bytes(b"\xff"), "cannot be used", 12),
    "the store": (lambda b: change(b.data_dir / "coordination.sqlite", 0, b"\xff" * 99), "store is damaged", 12),
    "a left file": (lambda b: segment(b, 0, "log.deleted").write_bytes(b"x"), "left from an interrupted deletion", 12),
    "a compaction": (swap, "has the remaining records of 0..7", 12),
    "a torn swap": (lambda b: swap(b, 3 * SIZE + 9), f"is damaged at position {3 * SIZE}", 12),
    "an undecided swap": (lambda b: segment(b, 4, "index.swap").write_bytes(b"x"), "before its commit", 12),
    "a cleaned file": (lambda b: (swap(b), segment(b, 0, "index.cleaned").write_bytes(b"x")), "before its commit", 12),
    "all segments": (lambda b: [segment(b, n).unlink() for n in (0, 4, 8)], "is 12, but its log ends at 0", 0),
    "the end": (lambda b: segment(b, 8).unlink(), "is 12, but its log ends at 8", 8),
}


@pytest.mark.parametrize("name", TROUBLES)
def test_what_is_wrong_is_said_and_mended(broker: BrokerProcess, name: str) -> None:
    """doctor without --fix reports faults and changes nothing. After --fix it reports none, and a broker serves the
    rest."""
    spoil, said, end = TROUBLES[name]
    spoil(broker)
    before = {path: path.read_bytes() for path in broker.data_dir.rglob("*") if path.is_file()}
    looked = run("doctor", str(broker.data_dir))
    assert looked.code == 1 and said in looked.out and "to do: " in looked.out
    assert {path: path.read_bytes() for path in broker.data_dir.rglob("*") if path.is_file()} == before
    mended = run("doctor", str(broker.data_dir), "--fix")
    assert mended.code == 1 and said in mended.out and "done: " in mended.out
    again = run("doctor", str(broker.data_dir))
    assert (again.code, again.out) == (0, f"{broker.data_dir}: nothing is wrong.\n")
    broker.restart()
    with Wire(broker.port) as w:
        assert w.list_offset("t", -1) == (0, -1, end)
        assert w.produce("t", batch([b"next"])).base_offset == end
        errors = {"a bad batch": 2, "a wrong offset": 2, "all segments": 1}
        assert w.fetch("t", 5, max_wait_ms=0).error == errors.get(name, 0)
        if end == 12:
            assert [w.fetch("t", offset, max_wait_ms=0).error for offset in (0, 4, 6, 8, 10)] == [0] * 5
            assert w.fetch("t", 7, max_wait_ms=0).error == (2 if name.startswith("a last offset") else 0)


GONE: dict[str, tuple[Callable[[BrokerProcess], object], str]] = {
    "the first segment": (lambda b: segment(b, 0).unlink(), "the first segment is missing: the log began at 0, its"),
    "the middle": (lambda b: segment(b, 4).unlink(), "it ends at offset 4, and the next segment begins at 8"),
    "what is in the middle": (lambda b: segment(b, 4).write_bytes(b""), "it ends at offset 4, and the next segment"),
    "the end of the middle": (lambda b: os.truncate(segment(b, 4), 2 * SIZE), "it ends at offset 6, and the next"),
}


@pytest.mark.parametrize("name", long_for(GONE, "the first segment", "what is in the middle", "the end of the middle"))
def test_a_segment_that_is_missing_is_told_and_left_to_a_person(broker: BrokerProcess, name: str) -> None:
    """A missing segment is reported and not repaired: a start leaves the partition offline, and serves it again once
    the segment is back."""
    spoil, said = GONE[name]
    before = {path: path.read_bytes() for path in (broker.data_dir / "t-0").iterdir()}
    spoil(broker)
    for _ in range(2):
        told = run("doctor", broker.data_dir, "--fix")
        assert told.code == 1 and said in told.out and "to do: restore " in told.out and "done: " not in told.out
    broker.restart()
    with Wire(broker.port) as w:
        assert w.fetch("t", 0, max_wait_ms=0).error == 56
    scrubbed = run("scrub", broker.data_dir)
    assert scrubbed.code == 1 and "1 partitions or segments could not be checked" in scrubbed.sentence
    broker.stop()
    for path, data in before.items():
        path.write_bytes(data)
    assert run("doctor", broker.data_dir).code == 0
    broker.restart()
    with Wire(broker.port) as w:
        assert w.fetch("t", 5, max_wait_ms=0).error == 0


def test_a_store_that_cannot_be_read_is_not_taken_for_a_damaged_one(broker: BrokerProcess) -> None:
    (broker.data_dir / "coordination.sqlite-wal").mkdir()
    told = run("doctor", broker.data_dir, "--fix")
    assert told.code == 1 and "store cannot be read: unable to open database file" in told.out
    assert "done: " not in told.out and (broker.data_dir / "coordination.sqlite").exists()


def test_what_was_kept_of_a_file_is_not_replaced(broker: BrokerProcess) -> None:
    for size in (50, 20):
        os.truncate(segment(broker, 8), 3 * SIZE)
        with segment(broker, 8).open("ab") as file:
            file.write(b"x" * size)
        assert run("doctor", broker.data_dir, "--fix").code == 1
    kept = sorted(path.stat().st_size for path in (broker.data_dir / "t-0").glob("*.damaged"))
    assert kept == [20, 50]


def test_odd_names(broker: BrokerProcess) -> None:
    """doctor accepts a log dir that is given twice, and a file name with an offset above the largest."""
    (broker.data_dir / "t-0" / f"{'9' * 20}.log").write_bytes(b"")
    (broker.data_dir / "t-0" / f"{'9' * 20}.log.swap").write_bytes(b"")
    done = run("doctor", broker.data_dir, f"{broker.data_dir}/../{broker.data_dir.name}")
    assert (done.code, done.out) == (0, f"{broker.data_dir}/../{broker.data_dir.name}: nothing is wrong.\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes files that are not its own")
def test_what_root_writes_the_brokers_user_can_read(broker: BrokerProcess) -> None:
    for path in (broker.data_dir, *broker.data_dir.rglob("*")):
        os.chown(path, 65534, 65534)
    (broker.data_dir / ".lock").unlink()
    change(segment(broker, 4), SIZE + 70, b"\xff")
    os.truncate(segment(broker, 8), 3 * SIZE + 50)
    (broker.data_dir / "meta.properties").unlink()
    assert run("doctor", broker.data_dir, "--fix").code == 1
    roots = [path for path in broker.data_dir.rglob("*") if path.stat().st_uid == 0]
    assert roots == []


def test_the_page(broker: BrokerProcess) -> None:
    """docs/cli.md's commands for a log dir find no fault in a healthy one."""
    lines = [line for block in re.findall(r"^```shell\n(.*?)^```$", PAGE, re.M | re.S) for line in block.splitlines()]
    assert lines
    for line in lines:
        _, name, *arguments = line.replace("/var/lib/pybroker", str(broker.data_dir)).split()
        if (name == "scrub") != broker.running:
            (broker.restart if name == "scrub" else broker.stop)()
        done = run(name, *arguments)
        assert done.code == 0, (line, done.out, done.err)


@pytest.mark.parametrize("left", [[], ["notes.txt"]])
def test_a_directory_that_is_no_log_dir(tmp_path: Path, left: list[str]) -> None:
    """A directory that is no log dir may be mistyped or an unmounted disk: doctor says so, and writes nothing there."""
    for name in left:
        (tmp_path / name).touch()
    done = run("doctor", tmp_path)
    assert done.code == 2 and done.sentence == (
        f"{tmp_path} is not a log dir: it holds no meta.properties, no coordination.sqlite and no partition"
    )
    assert os.listdir(tmp_path) == left


def test_a_missing_meta_properties_is_written_anew(broker: BrokerProcess, tmp_path: Path) -> None:
    """A missing meta.properties is restored from the store or another log dir; if neither has the broker's id, a person
    must give it."""
    meta = broker.data_dir / "meta.properties"
    values = [line for line in meta.read_text().splitlines() if not line.startswith("#")]
    meta.unlink()
    done = run("doctor", broker.data_dir, "--fix")
    assert done.code == 1 and f"{meta}: it is missing\n    done: rewrite it: broker " in done.out
    assert [line for line in meta.read_text().splitlines() if not line.startswith("#")] == values
    other = tmp_path / "other"
    shutil.copytree(broker.data_dir / "t-0", other / "u-0")
    alone = run("doctor", other)
    assert alone.code == 1 and "no other file here names the broker" in alone.out
    both = run("doctor", broker.data_dir, other, "--fix")
    assert f"{other / 'meta.properties'}: it is missing\n    done: " in both.out
    told = [line for line in (other / "meta.properties").read_text().splitlines() if not line.startswith("#")]
    assert told == [value for value in values if not value.startswith("directory.id=")]  # it never had one


def test_the_store_is_held_against_the_log_dirs(broker: BrokerProcess, tmp_path: Path) -> None:
    """doctor reports partitions that only the store or only a log dir has, and what the next start will do."""
    (broker.data_dir / "t-0").rename(tmp_path / "t-0")
    unknown = broker.data_dir / "u-0"
    shutil.copytree(tmp_path / "t-0", unknown)
    metadata = (unknown / "partition.metadata").read_text()
    (unknown / "partition.metadata").unlink()
    told = [(line["file"], line["trouble"]) for line in run("doctor", broker.data_dir, "--json").json_lines]
    nobody = "the coordination store does not know it, and it has no topic id"
    missing = (str(broker.data_dir / "t-0"), "the coordination store knows it, and it is missing")
    ahead = [(file, what) for file, what in told if "but its log ends at" in what]
    assert [item for item in told if item not in ahead] == [(str(unknown), nobody), missing]
    (unknown / "partition.metadata").write_text(metadata[:-4] + "AAAA")
    said = run("doctor", broker.data_dir).out
    assert f"{unknown}: the coordination store does not know it\n    to do: the next start takes it over" in said
    assert "pybroker serve --give-up t-0" in said
    shutil.rmtree(unknown)
    (broker.data_dir / "t-1").mkdir()
    shutil.copy(tmp_path / "t-0" / "partition.metadata", broker.data_dir / "t-1")
    assert f"{broker.data_dir / 't-1'}: the coordination store does not know it\n" in run("doctor", broker.data_dir).out
    (broker.data_dir / "t-1").rename(broker.data_dir / "t-0")
    (broker.data_dir / "t-0" / "partition.metadata").write_text(metadata[:-4] + "AAAA")
    assert "it belongs to an earlier topic of the same name" in run("doctor", broker.data_dir).out


def test_a_compaction_is_finished_as_a_start_does_it(broker: BrokerProcess, tmp_path: Path) -> None:
    """doctor finishes a compaction as a broker's start does: the same files are left."""
    swap(broker)
    shutil.copytree(broker.data_dir, tmp_path / "copy")
    assert run("doctor", str(tmp_path / "copy"), "--fix").code == 1
    broker.restart()
    broker.stop()
    by_start, by_doctor = (
        {path.name: path.stat().st_size for path in top.glob("t-0/*.log*")}
        for top in (broker.data_dir, tmp_path / "copy")
    )
    assert by_doctor == by_start == {segment(broker, 0).name: 8 * SIZE, segment(broker, 8).name: 4 * SIZE}


def test_a_whole_log_dir_has_nothing_wrong(broker: BrokerProcess) -> None:
    done = run("doctor", str(broker.data_dir))
    assert (done.code, done.out) == (0, f"{broker.data_dir}: nothing is wrong.\n")


def test_an_empty_file_bounds_no_batch(broker: BrokerProcess) -> None:
    """An empty segment file, which a roll left before a power failure, bounds no batch: appends went on past its name,
    and a start removes the file."""
    compact(broker)
    segment(broker, 10).touch()
    done = run("doctor", str(broker.data_dir))
    assert (done.code, done.out) == (0, f"{broker.data_dir}: nothing is wrong.\n")
    broker.restart()
    with Wire(broker.port) as w:
        assert [batch.base_offset for batch in w.fetch_all("t")] == list(range(COUNT))


def test_a_log_dir_that_a_broker_uses_is_left_alone(broker: BrokerProcess) -> None:
    broker.restart()
    done = run("doctor", str(broker.data_dir), "--fix")
    assert done.code == 1 and f"a broker is using {broker.data_dir}" in done.err
    assert run("doctor", str(broker.data_dir / "nowhere")).code == 2


def test_a_running_broker_checks_its_sealed_segments_when_it_is_asked(broker: BrokerProcess) -> None:
    """scrub makes a running broker check its sealed segments, and finds what was damaged since the last check."""
    broker.restart()
    whole = run("scrub", broker.data_dir)
    assert (whole.code, whole.out) == (0, f"{broker.data_dir}: nothing is damaged in sealed segments.\n")
    change(segment(broker, 4), SIZE + 70, b"\xff")
    damaged = run("scrub", broker.data_dir)
    assert (damaged.code, damaged.out.splitlines()) == (
        1,
        [
            f"{segment(broker, 4)}: {SIZE} bytes at position {SIZE} are not a valid batch",
            "    the offsets 5..5 of t-0 are lost",
        ],
    )
    with Wire(broker.port) as w:
        assert [w.fetch("t", offset, max_wait_ms=0).error for offset in (4, 5, 6)] == [0, 2, 0]
    told = run("scrub", broker.data_dir, "--json")
    assert told.code == 1 and told.json_lines == [
        {
            "file": str(segment(broker, 4)),
            "topic": "t",
            "partition": 0,
            "position": SIZE,
            "bytes": SIZE,
            "first_offset": 5,
            "last_offset": 5,
        }
    ]


def test_damage_that_is_not_told_is_not_taken_for_none(broker: BrokerProcess) -> None:
    """A damage-checkpoint that cannot be read is reported in one sentence, and does not keep a broker from starting."""
    for text in (b"\xff", b"0\n1\nt 0 4 98 0 5 6\n", b"0\n1\nt 0 4 0 98 100 3\n"):
        (broker.data_dir / "damage-checkpoint").write_bytes(text)
        broker.restart()
        with Wire(broker.port) as w:
            assert [batch.base_offset for batch in w.fetch_all("t")] == list(range(COUNT))
        assert "damage-checkpoint cannot be used: " in run("scrub", broker.data_dir).sentence
        broker.stop()


def test_a_request_that_a_pass_overwrites_is_made_again(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """scrub repeats a request that the end of a pass overwrote: that pass may have missed the damage."""
    broker.restart()
    asked = []

    def overwritten(directory: Path) -> int:
        asked.append(ask(directory))
        if len(asked) == 1:
            (directory / "scrub-checkpoint").write_text(f"0\n{asked[0] - 1}\n")
        return asked[-1]

    ask = scrub.ask
    monkeypatch.setattr(scrub, "ask", overwritten)
    change(segment(broker, 4), SIZE + 70, b"\xff")
    assert run("scrub", broker.data_dir).code == 1
    assert len(asked) == 2


def test_a_log_dir_that_no_broker_uses_is_not_scrubbed(broker: BrokerProcess, tmp_path: Path) -> None:
    for directory in (broker.data_dir, tmp_path):
        said = run("scrub", directory).sentence
        assert said == f"no broker uses {directory}: pybroker doctor {directory} examines it"
    assert not (tmp_path / ".lock").exists()
    assert run("scrub", tmp_path / "nowhere").code == 2


def test_who_does_not_wait_leaves_a_request(broker: BrokerProcess) -> None:
    broker.restart()
    change(segment(broker, 4), SIZE + 70, b"\xff")
    done = run("scrub", broker.data_dir, "--no-wait")
    assert (done.code, done.out) == (0, "")
    assert broker.process is not None
    broker.process.wait_line("log dir scrubbed .*damaged=1", 90)


def test_a_broker_that_ends_during_the_check(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.restart()
    ask = scrub.ask

    def last(directory: Path) -> int:
        asked_ms = ask(directory)
        assert broker.process is not None
        broker.process.kill()
        (directory / "scrub-checkpoint").write_text("0\n0\n")
        return asked_ms

    monkeypatch.setattr(scrub, "ask", last)
    said = run("scrub", broker.data_dir).sentence
    assert said == f"the broker that uses {broker.data_dir} ended: it checks the directory after its next start"


def test_a_start_does_not_put_an_empty_file_in_the_place_of_a_segment(broker: BrokerProcess) -> None:
    segment(broker, 4, "log.swap").write_bytes(b"")
    broker.restart()
    with Wire(broker.port) as w:
        assert [batch.base_offset for batch in w.fetch_all("t")] == list(range(COUNT))
    assert not segment(broker, 4, "log.swap").exists()
