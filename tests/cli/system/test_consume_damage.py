"""`pybroker consume` at damage: the command names the damaged range and how to go on, or skips it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Done, run
from tests.harness import BrokerProcess, until
from tests.wire import Wire, batch

COUNT, PER_SEGMENT = 12, 4
SIZE = len(batch([b"00"]))


def change(at: int, data: bytes) -> Callable[[Path], None]:
    """Overwrite bytes in the second batch of a segment."""

    def work(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(SIZE + at)
            file.write(data)

    return work


KINDS = {
    "a record": change(SIZE - 3, b"\xff"),
    "the offset": change(6, b"\x01"),
    "the length, too small": change(8, (60).to_bytes(4, "big")),
    "the length, beyond the file": change(8, (1 << 28).to_bytes(4, "big")),
    "the magic": change(16, b"\0"),
    "the last offset": change(23, b"\0\0\0\x05"),
    "zeros": change(0, bytes(SIZE)),
}


def filled(broker: BrokerProcess, topic: str, partitions: int = 1) -> str:
    """A broker with twelve batches of one record in partition 0, four in each segment; the value is the offset."""
    with Wire(broker.port) as wire:
        config = {"segment.bytes": str(PER_SEGMENT * SIZE)}
        assert wire.create_topic(topic, partitions=partitions, config=config) == 0
    with Wire(broker.port_of(topic)) as wire:
        until("the leader has the partition", lambda: wire.list_offset(topic, -1)[0] == 0)
        for n in range(COUNT):
            assert wire.produce(topic, batch([b"%02d" % n])).base_offset == n
    return topic


def segment(broker: BrokerProcess, topic: str, base: int) -> Path:
    return broker.partition_dir(topic) / f"{base:020}.log"


def consume(broker: BrokerProcess, *arguments: object) -> Done:
    return run("consume", *arguments, "-b", broker.bootstrap)


def numbers(done: Done) -> list[int]:
    return [int(line) for line in done.out.split()]


@pytest.mark.parametrize("base", [4, 8], ids=["sealed", "active"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_batch_is_named_and_skipped(shared_broker: BrokerProcess, topic: str, kind: str, base: int) -> None:
    """A damaged batch ends consume with one sentence, after the records before it, and exit code 1; --skip-damaged
    reads all others, and prints the lost offsets."""
    filled(shared_broker, topic)
    KINDS[kind](segment(shared_broker, topic, base))
    bad = base + 1
    done = consume(shared_broker, topic, "-e")
    assert (done.code, numbers(done)) == (1, list(range(bad))), done.err
    assert re.fullmatch(rf"pybroker: {topic}-0: offset {bad} cannot be read: [^\n]+; --skip-damaged [^\n]+\n", done.err)
    going_on = f"goes on with offset {bad + 1}", "tries the offsets after it, one by one"
    assert any(words in done.err for words in going_on[: 1 if base == 4 else 2])
    done = consume(shared_broker, topic, "-e", "--skip-damaged")
    assert (done.code, numbers(done)) == (0, [n for n in range(COUNT) if n != bad]), done.err
    assert done.err == f"pybroker: {topic}-0: skipped offset {bad}, 1 unreadable\n"


def test_a_range_is_named_once(shared_broker: BrokerProcess, topic: str) -> None:
    """A damaged range is named once: zeros over the end of a sealed segment lose every offset up to the next
    segment."""
    filled(shared_broker, topic)
    change(SIZE, bytes(2 * SIZE))(segment(shared_broker, topic, 4))
    done = consume(shared_broker, topic, "-e")
    words = "offsets 6 to 7 cannot be read: damaged on the broker's disk; --skip-damaged goes on with offset 8"
    assert (done.code, numbers(done), done.err) == (1, list(range(6)), f"pybroker: {topic}-0: {words}\n")
    inside = consume(shared_broker, topic, "-o", 7, "-e")
    assert (inside.code, inside.out) == (1, "") and "offset 7 cannot be read" in inside.err
    done = consume(shared_broker, topic, "-e", "--skip-damaged")
    assert (done.code, numbers(done)) == (0, [*range(6), *range(8, COUNT)])
    assert done.err == f"pybroker: {topic}-0: skipped offsets 6 to 7, 2 unreadable\n"
    assert numbers(consume(shared_broker, topic, "-o", 8, "-e")) == list(range(8, COUNT))
    beyond = consume(shared_broker, topic, "-o", COUNT + 1, "-e", "--skip-damaged")
    assert beyond.code == 1 and f"holds 0 to {COUNT}" in beyond.err


def test_nothing_follows_the_damage(shared_broker: BrokerProcess, topic: str) -> None:
    filled(shared_broker, topic)
    path = segment(shared_broker, topic, 8)
    data = bytearray(path.read_bytes())
    data[-3] ^= 0xFF
    path.write_bytes(data)
    done = consume(shared_broker, topic, "-e")
    assert done.code == 1 and numbers(done) == list(range(COUNT - 1))
    assert "; no readable record follows: --skip-damaged waits for new ones" in done.err
    done = consume(shared_broker, topic, "-e", "--skip-damaged")
    assert done.code == 0 and numbers(done) == list(range(COUNT - 1))


def test_a_group_commits_behind_what_it_skipped(shared_broker: BrokerProcess, topic: str) -> None:
    """A group commits the position behind skipped damage, so that its next member does not meet it. A member that ends
    at damage commits the offset before it."""
    filled(shared_broker, topic, partitions=2)
    KINDS["zeros"](segment(shared_broker, topic, 4))
    how = ("-g", topic, "--from-beginning", "-e")
    assert numbers(consume(shared_broker, topic, *how)) == list(range(5))
    again = consume(shared_broker, topic, *how)
    assert (again.code, again.out) == (1, "") and "offset 5 cannot be read" in again.err
    done = consume(shared_broker, topic, *how, "-n", 2, "--skip-damaged")
    assert numbers(done) == [6, 7]
    last = consume(shared_broker, topic, *how)
    assert (last.code, numbers(last), last.err) == (0, list(range(8, COUNT)), "")


def test_other_partitions_are_read_on(shared_broker: BrokerProcess, topic: str) -> None:
    filled(shared_broker, topic, partitions=2)
    with Wire(shared_broker.port_of(topic, 1)) as wire:
        assert wire.produce(topic, batch([b"77"]), partition=1).base_offset == 0
    KINDS["the magic"](segment(shared_broker, topic, 4))
    done = consume(shared_broker, topic, "-e", "--skip-damaged")
    assert (done.code, sorted(numbers(done))) == (0, [*(n for n in range(COUNT) if n != 5), 77])
    assert done.err == f"pybroker: {topic}-0: skipped offset 5, 1 unreadable\n"
