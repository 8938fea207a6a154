"""kafka.tools.DumpLogSegments of Apache Kafka 3.9.1, which checks our files, and its output in a form to compare."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.java import peers

VERSION = "3.9.1"
SUFFIXES = (".log", ".index", ".timeindex", ".snapshot")
COMPLAINTS = (
    "mismatch",
    "non-consecutive",
    "out of order",
    "illegal",
    "isvalid: false",
    "invalid bytes",
    "exception",
    "could not",
    "corrupt",
    "unknown file type",
)
_BATCH = re.compile(
    r"^baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (-?\d+) .*?producerId: (-?\d+) "
    r".*compresscodec: (\w+) .*isvalid: (\w+)"
)
_RECORD = re.compile(r"^\| offset: (\d+) \w+: (-?\d+) .*?headerKeys: \[(.*?)\](?: key: (.*?))?(?: payload: (.*))?$")


class Batch(NamedTuple):
    base_offset: int
    last_offset: int
    count: int
    base_sequence: int
    producer_id: int
    codec: str
    valid: bool


class Record(NamedTuple):
    offset: int
    timestamp_ms: int
    header_names: tuple[str, ...]
    key: str | None
    payload: str | None


class Dump(NamedTuple):
    """The tool's output, and its batches and records of the .log files, in order."""

    text: str
    batches: list[Batch]
    records: list[Record]

    @property
    def complaints(self) -> list[str]:
        return [line for line in self.text.splitlines() if any(word in line.lower() for word in COMPLAINTS)]


def files(directory: Path) -> list[Path]:
    """The files of a partition that the tool can read, oldest segment first."""
    return sorted(p for p in directory.iterdir() if p.suffix in SUFFIXES)


def dump(paths: Iterable[Path], *flags: str) -> Dump:
    """Run the tool once over all files; its exit code and its stderr count as complaints."""
    listed = ",".join(map(str, paths))
    program, *arguments = peers.java(VERSION, "kafka.tools.DumpLogSegments", "--files", listed, *flags)
    with tempfile.NamedTemporaryFile("w") as told:  # many segments' names are too long for a command line
        told.write("\n".join(arguments))
        told.flush()
        done = subprocess.run([program, f"@{told.name}"], capture_output=True, text=True, timeout=120)
    failed = f"\nException: exit code {done.returncode}" if done.returncode else ""
    text = done.stdout + done.stderr + failed
    batches, records = [], []
    for line in text.splitlines():
        if batch := _BATCH.match(line):
            base, last, count, sequence, producer = map(int, batch.groups()[:5])
            batches.append(Batch(base, last, count, sequence, producer, batch[6], batch[7] == "true"))
        elif record := _RECORD.match(line):
            names = tuple(filter(None, record[3].split(",")))
            records.append(Record(int(record[1]), int(record[2]), names, record[4], record[5]))
    return Dump(text, batches, records)


def everything(directory: Path, *, live: bool = False) -> Dump:
    """Dump all files of a partition with every check and record; live: without snapshots, as old ones are deleted."""
    paths = [p for p in files(directory) if not (live and p.suffix == ".snapshot")]
    return dump(paths, "--deep-iteration", "--print-data-log")
