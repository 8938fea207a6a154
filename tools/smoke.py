"""Show that the installed pybroker works: start a broker, write a thousand records with each compression, end the
broker with kill -9, start it again, and read all of them back. It prints one line, or fails.

`make release` runs it with a wheel in an environment of its own, cibuildwheel with each wheel that it builds.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pybroker
from pybroker import Consumer, Producer

RECORDS: Final = 1000
COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
TOPIC: Final = ("smoke", 0)
START_S_MAX: Final = 60.0
CHECKOUT: Final = Path(__file__).resolve().parent.parent


@contextlib.contextmanager
def broker(data: str, end: signal.Signals) -> Iterator[str]:
    """Run a broker, yield its address, and end it with a signal."""
    command = [sys.executable, "-m", "pybroker", "serve", "--data-dir", data, "--port", "0", "--log-level", "warning"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            ready = re.match(r"pybroker ready on (\S+)", line)
            if ready is None:
                sys.exit(f"the broker did not start: {line!r}")
            yield ready[1]
        finally:
            process.send_signal(end)
        code = process.wait(START_S_MAX)
    if code != (0 if end is signal.SIGTERM else -end):
        sys.exit(f"the broker ended with {code} after {end.name}")


def main() -> None:
    place = Path(pybroker.__file__).resolve().parent
    if place.is_relative_to(CHECKOUT):
        sys.exit(f"{place} is not an installed pybroker, but the checkout's")
    wanted = [f"{compression} {number}".encode() for compression in COMPRESSIONS for number in range(RECORDS)]
    with tempfile.TemporaryDirectory() as data:
        with broker(data, signal.SIGKILL) as address:
            for compression in COMPRESSIONS:
                with Producer(bootstrap_servers=address, acks="all", compression_type=compression) as producer:
                    for number in range(RECORDS):
                        producer.send(TOPIC[0], f"{compression} {number}")
        with broker(data, signal.SIGTERM) as address, Consumer(bootstrap_servers=address) as consumer:
            consumer.assign([TOPIC])
            consumer.seek(TOPIC, 0)
            found: list[bytes | None] = []
            while len(found) < len(wanted) and (polled := consumer.poll(timeout_ms=10_000)):
                found += [record.value for record in polled]
    if found != wanted:
        sys.exit(f"{len(found)} records were read, of {len(wanted)}, or others than were written")
    version = ".".join(map(str, sys.version_info[:3]))
    print(f"pybroker {pybroker.__version__} works on Python {version}: {len(found)} records from {place}")


if __name__ == "__main__":
    main()
