"""Apache Kafka's Java clients as a process that takes commands: the Python end of Driver.java."""

from __future__ import annotations

import fcntl
import functools
import itertools
import json
import os
import subprocess
import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tests.harness import ROOT, die_with_parent
from tests.java import peers

SOURCE = Path(__file__).with_name("Driver.java")


class DriverError(Exception):
    """The Java client refused; `code` is Kafka's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@functools.cache
def compiled(version: str, source: Path = SOURCE) -> Path:
    """The directory with the class of a source file for this version's jars, compiled if the source is newer."""
    target = peers.CACHE / f"{source.stem.lower()}-{version}"
    libs = peers.jars(version)
    with (peers.CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = target / f"{source.stem}.class"
        if not built.exists() or built.stat().st_mtime < source.stat().st_mtime:
            with tempfile.TemporaryDirectory(dir=peers.CACHE) as scratch:
                javac = ["javac", "-Xlint:unchecked,rawtypes", "-Werror", "-proc:none"]
                command = [*javac, "-cp", f"{libs}/*", "-d", scratch, str(source)]
                done = subprocess.run(command, capture_output=True, text=True)
                assert done.returncode == 0, done.stderr
                target.mkdir(exist_ok=True)
                for made in Path(scratch).iterdir():
                    os.replace(made, target / made.name)
    return target


class Driver:
    """One JVM for a test session; many clients live in it, each under a handle."""

    def __init__(self, version: str) -> None:
        command = peers.java(version, "Driver", classpath=[compiled(version)])
        self.version = version
        self._log = peers.CACHE / f"driver-{version}-{os.getpid()}.log"
        with self._log.open("wb") as log:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self._waiting: dict[int, Future[Any]] = {}
        self._ids = itertools.count()
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name=f"java client {version}", daemon=True)
        self._reader.start()

    def call(self, handle: str, op: str, **arguments: object) -> Future[Any]:
        """Send the command; the future has its answer or DriverError."""
        future: Future[Any] = Future()
        command = {"handle": handle, "op": op, **arguments}
        assert self._popen.stdin is not None
        with self._lock:
            number = next(self._ids)
            self._waiting[number] = future
            self._popen.stdin.write(json.dumps({"id": number, **command}).encode() + b"\n")
            self._popen.stdin.flush()
        return future

    def _read(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as answers:
            for line in answers:
                answer = json.loads(line)
                with self._lock:
                    future = self._waiting.pop(answer["id"])
                if "code" in answer:
                    future.set_exception(DriverError(answer["code"], answer["message"]))
                else:
                    future.set_result(answer["result"])
        with self._lock:
            for future in self._waiting.values():
                future.set_exception(DriverError(-1000, f"the JVM ended:\n{self.output()}"))

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        self._popen.wait(30)
        self._reader.join()
        self._log.unlink(missing_ok=True)
