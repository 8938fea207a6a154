"""Scripted operations ("stories") on a log, run in a child process that a failpoint may kill.

A story is a list of steps, each a name and its arguments. The test process keeps one helper process, which forks a
child for every story. The child reports the result of each step as soon as the step is done; a reported append counts
as acknowledged.
"""

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, NamedTuple

from pybroker.core import LogManager, build_batch
from tests.core.logs import NOW, Home, batch_of
from tests.core.slow_clean import one_round

ROOT = Path(__file__).resolve().parents[2]
PRODUCER = 11
SIZE = 100

Step = tuple[Any, ...]


def sent(i: int, size: int = SIZE) -> bytes:
    """The i-th batch of a story: one record of an idempotent producer."""
    return batch_of(size, at=NOW + i, producer=(PRODUCER, 0, i), fill=bytes([i % 251]))


class Teller:
    """Performs the steps of a story."""

    def __init__(self, path: Path, config: dict[str, int]) -> None:
        self.home = Home(path, config)
        self.broker = LogManager(flush_idle_ms=1)
        self.count = 0
        self.first_dirty = 0

    def open(self, recovery_point: int = 0, log_start: int = 0, clean: bool = False) -> int:
        self.home.recovery_point, self.home.log_start, self.home.clean = recovery_point, log_start, clean
        partition = self.home.open_in(self.broker)
        partition.become_leader(max(0, partition.leader_epoch), 0)
        self.count = partition.log_end_offset
        return partition.log_end_offset

    def append(self, size: int = SIZE) -> int:
        went = self.home.partition.append(sent(self.count, size), now_ms=NOW)
        self.count += 1
        return went.base_offset

    def arm(self, point: str, action: str, value: int = 0, after: int = 0, times: int = 1) -> None:
        self.broker.arm(point, action, value, after=after, times=times)  # type: ignore[arg-type]

    def lead(self, epoch: int) -> None:
        self.home.partition.become_leader(epoch, 0)

    def roll(self) -> None:
        self.home.partition.roll()

    def flush(self) -> int:
        return self.home.partition.flush()

    def truncate(self, offset: int) -> int:
        self.home.partition.truncate(offset)
        self.count = self.home.partition.log_end_offset
        return self.count

    def announce_truncation(self, offset: int) -> int:
        return offset

    def delete_records(self, offset: int) -> int:
        return self.home.partition.set_log_start(offset)

    def put(self, key: int, value: int) -> tuple[int, int, int]:
        """Append one record of the idempotent producer with this key; a value below 0 writes a tombstone."""
        record = (NOW + self.count, b"key-%d" % key, None if value < 0 else b"%d" % value, [])
        data = build_batch([record], producer_id=PRODUCER, producer_epoch=0, base_sequence=self.count)
        self.count += 1
        return key, value, self.home.partition.append(data, now_ms=NOW).base_offset

    def clean(self) -> int:
        done = one_round(self.home.partition, self.first_dirty, now_ms=NOW)
        assert done is not None
        self.first_dirty = done.first_dirty
        return done.first_dirty

    def retain(self, retention_bytes: int = -1) -> int:
        self.home.partition.configure({**self.home.config, "retention.bytes": retention_bytes, "retention.ms": -1})
        return self.home.partition.enforce_retention(NOW)

    def checkpoint(self) -> tuple[int, int]:
        """Write a broker's checkpoints in its order: leader epochs before the recovery point that depends on them."""
        self.home.checkpoint()
        content = f"{self.home.recovery_point} {self.home.log_start}".encode()
        self.broker.write_atomic(str(self.home.path / "checkpoint"), content)
        return self.home.recovery_point, self.home.log_start

    def delete(self) -> None:
        self.broker.delete(self.home.partition)

    def stop(self) -> None:
        self.broker.close()


class Told(NamedTuple):
    """The end of a story: the signal that killed the child (0: none), and (step, result) of every finished step."""

    signal: int
    said: list[tuple[str, Any]]

    def all(self, step: str) -> list[Any]:
        return [result for name, result in self.said if name == step]

    def last(self, step: str, otherwise: Any = None) -> Any:
        return (self.all(step) or [otherwise])[-1]


class Stage:
    """The helper process that runs stories."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.core.crash"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, path: Path, config: dict[str, int], *steps: Step) -> Told:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([str(path), config, steps]) + "\n")
        self.process.stdin.flush()
        status, lines = json.loads(self.process.stdout.readline())
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "\n".join(lines)
        return Told(os.WTERMSIG(status), [tuple(json.loads(line)) for line in lines])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def tell(path: Path, config: dict[str, int], steps: list[Step], pipe: int) -> None:
    """Perform the steps in the child and report the result of each."""
    try:
        teller = Teller(path, config)
        for name, *args in steps:
            os.write(pipe, json.dumps([name, getattr(teller, name)(*args)]).encode() + b"\n")
        os._exit(0)
    except BaseException:
        os.write(pipe, traceback.format_exc().encode())
        os._exit(1)


def serve() -> None:
    """Run the helper's loop: read one story a line, write its end as one line."""
    for line in sys.stdin:
        path, config, steps = json.loads(line)
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(ours)
            tell(Path(path), config, steps, theirs)
        os.close(theirs)
        with open(ours) as pipe:
            lines = pipe.read().splitlines()
        print(json.dumps([os.waitpid(child, 0)[1], lines]), flush=True)


if __name__ == "__main__":
    serve()
