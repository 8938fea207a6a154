"""The time from a broker's start to its first acknowledged record; and the memory of an idle broker.

A topic is created if there is none, and one record is produced with acks=all and acknowledged, over a bare
socket. It is compared with a Python interpreter that starts and does nothing.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from bench.figures import Body, Rounds, show
from bench.payloads import MIB
from tests.harness import BrokerProcess, Server, free_port
from tests.wire import Wire, batch

ROUNDS = 6
PARTITIONS = 1_000
EMPTY_S_MAX = 0.5
PARTITIONS_S_MAX = 2.0
IDLE_S = 1.0
IDLE_BYTES_MAX = 80 * MIB
RECORD = batch([b"x" * 100])


def start(broker: BrokerProcess, topic: str, *, create: bool) -> None:
    """Start a broker and wait until one record is acknowledged."""
    broker.start()
    with Wire(broker.port) as wire:
        if create:
            assert wire.create_topic(topic) == 0
        answer = wire.produce(topic, RECORD)
        assert answer.error == 0, f"produce answered {answer.error}:\n{broker.output()}"


@contextmanager
def interpreter() -> Iterator[Body]:
    def body() -> None:
        subprocess.run([sys.executable, "-c", "pass"], check=True)

    yield body


def test_start_empty(benchmark: Any, log_dir: Path) -> None:
    """A new broker acknowledges its first record half a second after its process began."""
    number = count()

    @contextmanager
    def first_ack() -> Iterator[Body]:
        broker = BrokerProcess(log_dir / f"empty-{next(number)}", free_port())
        yield lambda: start(broker, "first", create=True)
        broker.stop()
        broker.close()

    report("empty", Rounds({"interpreter": interpreter, "start": first_ack}).run(benchmark, ROUNDS), EMPTY_S_MAX)


@pytest.fixture(scope="module")
def filled(shared_log_dir: Path) -> Iterator[BrokerProcess]:
    """A broker with one record in each of 1,000 partitions, stopped cleanly."""
    broker = BrokerProcess(shared_log_dir / "data", free_port())
    broker.start()
    with Wire(broker.port) as wire:
        assert wire.create_topic("many", PARTITIONS) == 0
        for partition in range(PARTITIONS):
            assert wire.produce("many", RECORD, partition).error == 0
    broker.stop()
    yield broker
    broker.close()


def test_start_with_partitions(benchmark: Any, filled: BrokerProcess) -> None:
    """A broker that was stopped cleanly with 1,000 partitions is back within two seconds."""

    @contextmanager
    def first_ack() -> Iterator[Body]:
        yield lambda: start(filled, "many", create=False)
        filled.stop()

    rounds = Rounds({"interpreter": interpreter, "start": first_ack}).run(benchmark, ROUNDS)
    report(f"{PARTITIONS:,} partitions, clean stop", rounds, PARTITIONS_S_MAX)


def test_idle_memory(benchmark: Any, log_dir: Path, filled: BrokerProcess) -> None:
    """An idle broker is small, and stays so with 1,000 partitions."""
    with BrokerProcess(log_dir / "data", free_port()) as empty:
        empty_bytes = benchmark.pedantic(resident_idle, args=(empty,), rounds=1)
    with filled:
        filled_bytes = resident_idle(filled)
    show(
        "idle memory",
        f"empty; {PARTITIONS:,} partitions",
        f"{empty_bytes / MIB:.0f} MiB; {filled_bytes / MIB:.0f} MiB",
        f"{resident_of_interpreter() / MIB:.0f} MiB of a Python that does nothing",
        f"<= {IDLE_BYTES_MAX // MIB} MiB",
        max(empty_bytes, filled_bytes) <= IDLE_BYTES_MAX,
    )


def resident(pid: int) -> int:
    """Return VmRSS in bytes (proc(5))."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))


def resident_idle(broker: Server) -> int:
    time.sleep(IDLE_S)
    assert broker.process is not None
    return resident(broker.process.pid)


def resident_of_interpreter() -> int:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        time.sleep(IDLE_S / 4)
        assert process.stdin is not None
        found = resident(process.pid)
        process.stdin.close()
        process.kill()
    return found


def report(payload: str, rounds: Rounds, s_max: float) -> None:
    ours, bare = rounds["start"].wall_best_s, rounds["interpreter"].wall_best_s
    show(
        "start to first ack",
        payload,
        f"{ours:.3f} s",
        f"{bare:.3f} s of a Python that does nothing",
        f"<= {s_max} s",
        ours <= s_max,
    )
