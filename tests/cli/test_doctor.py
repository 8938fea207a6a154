"""`pybroker doctor`: what is wrong in a log dir is said, and mended so that the next start serves what is left."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import run
from tests.harness import BrokerProcess, free_port
from tests.wire import Wire, batch

COUNT = 12


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Stopped, with a topic of twelve batches of one size, of which four are a segment."""
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


SIZE = len(batch([b"%030d" % 0]))
TROUBLES: dict[str, tuple[Callable[[BrokerProcess], object], str, int]] = {
    "a torn tail": (lambda b: os.truncate(segment(b, 8), 3 * SIZE + 50), "50 bytes at position", 11),
    "a bad batch": (lambda b: change(segment(b, 4), SIZE + 70, b"\xff"), "offsets 5..5 are lost", 12),
    "an index": (lambda b: segment(b, 4, "index").write_bytes(b"\xff" * 9), "index is damaged", 12),
    "a checkpoint": (lambda b: (b.data_dir / "recovery-point-offset-checkpoint").write_bytes(b"\xff"), "cannot be", 12),
    "meta.properties": (lambda b: (b.data_dir / "meta.properties").write_bytes(b"\xff"), "cannot be used", 12),
    "the store": (lambda b: change(b.data_dir / "coordination.sqlite", 0, b"\xff" * 99), "store is damaged", 12),
    "a left file": (lambda b: segment(b, 0, "log.deleted").write_bytes(b"x"), "left from a deletion", 12),
    "the end": (lambda b: segment(b, 8).unlink(), "is said to reach 12, and ends at 8", 8),
}


@pytest.mark.parametrize("name", TROUBLES)
def test_what_is_wrong_is_said_and_mended(broker: BrokerProcess, name: str) -> None:
    """Without --fix nothing changes. With it the next look finds nothing, and a broker serves what is left."""
    spoil, said, end = TROUBLES[name]
    spoil(broker)
    before = {path: path.read_bytes() for path in broker.data_dir.rglob("*") if path.is_file()}
    looked = run("doctor", str(broker.data_dir))
    assert looked.code == 1 and said in looked.out and "to do: " in looked.out
    assert {path: path.read_bytes() for path in broker.data_dir.rglob("*") if path.is_file()} == before
    mended = run("doctor", str(broker.data_dir), "--fix")
    assert mended.code == 1 and said in mended.out and "done: " in mended.out
    again = run("doctor", str(broker.data_dir))
    assert (again.code, again.out) == (0, f"{broker.data_dir}: nothing is wrong.\n") or name == "meta.properties"
    broker.restart()
    with Wire(broker.port) as w:
        assert w.list_offset("t", -1) == (0, -1, end)
        assert w.produce("t", batch([b"next"])).base_offset == end
        assert w.fetch("t", 5, max_wait_ms=0).error == (2 if name == "a bad batch" else 0)


def test_a_whole_log_dir_has_nothing_wrong(broker: BrokerProcess) -> None:
    done = run("doctor", str(broker.data_dir))
    assert (done.code, done.out) == (0, f"{broker.data_dir}: nothing is wrong.\n")


def test_a_log_dir_that_a_broker_uses_is_left_alone(broker: BrokerProcess) -> None:
    broker.restart()
    done = run("doctor", str(broker.data_dir), "--fix")
    assert done.code == 1 and f"a broker is using {broker.data_dir}" in done.err
    assert run("doctor", str(broker.data_dir / "nowhere")).code == 2
