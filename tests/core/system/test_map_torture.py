"""Readers that map a log's files stay right while the broker truncates, removes and compacts them and is killed."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pybroker
from pybroker.client.columns.segments import read_index
from pybroker.core import LogError
from tests.core.map_torture import key_of, value_of
from tests.harness import ROOT, settle, until

SECONDS = float(os.environ.get("PYBROKER_TORTURE_S", 8))
READERS = 2
EXPECTED = {2, 43, 56, 87}
"""Errors that a reader may get from a file that changes under it: a batch is damaged or cut, or the file was cut. In a
file that was cut and rewritten, no batch may begin where the next one began."""


class Reader:
    """Read the log from random offsets, again and again, and check each record."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.chance = random.Random(seed)
        self.wrong: list[str] = []
        self.seen: Counter[str] = Counter()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def has_read(self, rows: int) -> bool:
        return self.seen["rows"] >= rows

    def run(self) -> None:
        while not self.ended.is_set():
            try:
                self.read()
            except LogError as error:
                self.seen[f"LogError {error.code}"] += 1
                if error.code not in EXPECTED:
                    self.wrong.append(str(error))
            except FileNotFoundError:
                self.seen["no file"] += 1
            except Exception as error:
                self.wrong.append(repr(error))

    def read(self) -> None:
        bases = sorted(int(path.stem) for path in self.directory.glob("*.log") if path.stem.isdigit())
        start = self.chance.choice(bases or [0]) + self.chance.randrange(50)
        rows = self.chance.choice([7, 300, 1 << 16])
        last = start - 1
        for batch in pybroker.read_log(self.directory, start_offset=start, batch_rows=rows):
            offsets = batch.column("offset").to_pylist()
            values, keys = batch.column("value").to_pylist(), batch.column("key").to_pylist()
            if values != [value_of(offset) for offset in offsets] or keys != [key_of(offset) for offset in offsets]:
                self.wrong.append(f"rows at {offsets[0]}")
            if offsets != sorted(set(offsets)) or offsets[0] <= last:
                self.wrong.append(f"order at {offsets[0]}, after {last}")
            last = offsets[-1]
            self.seen["rows"] += len(offsets)
        for path in self.directory.glob("*.index"):
            with contextlib.suppress(FileNotFoundError):
                read_index(path)["position"].sum()


def test_readers_beside_a_broker_that_is_killed_again_and_again(tmp_path: Path) -> None:
    """No reader crashes or sees a row that the log never had; each restarted broker goes on with the log."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    readers = [Reader(directory, seed) for seed in range(READERS)]
    lives, deadline, chance = 0, time.monotonic() + SECONDS, random.Random(5)
    for reader in readers:
        reader.thread.start()
    try:
        while time.monotonic() < deadline or lives < 3:
            command = [sys.executable, "-m", "tests.core.map_torture", str(tmp_path), str(lives)]
            with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as victim:
                assert victim.stdout is not None and victim.stderr is not None
                told = victim.stdout.readline()
                if not told:
                    raise AssertionError(victim.stderr.read().decode())
                time.sleep(chance.uniform(0.1, 1.0))  # stop at a random point
                assert victim.poll() is None, victim.stderr.read().decode()
                victim.kill()
            lives += 1
            if lives % 3 == 0:  # map the files while no broker writes them
                for path in directory.glob("*.log"):
                    settle(path)
                for reader in readers:
                    until("a reader goes on", partial(reader.has_read, reader.seen["rows"] + 1))
    finally:
        for reader in readers:
            reader.ended.set()
        for reader in readers:
            reader.thread.join()
    assert not [wrong for reader in readers for wrong in reader.wrong][:3]
    assert all(reader.seen["rows"] > 1000 for reader in readers)
    print(lives, [dict(reader.seen) for reader in readers])
