"""A Python for Spark's workers that has imported their modules: a worker is a fork of it, and runs at once.

    Spark ──starts──> sh, client.py ──argv, environment, directory, standard files──> server ──forks──> supervisor
                           │                                                                                │ forks
                           └── is killed, or ends with the worker's status <── stops, or reports <──────  worker

Spark waits ten seconds for a worker to start, even on a busy machine, and a fresh worker needs two seconds of CPU time
for its imports. Arguments other than `-m module` go to the real Python.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MODULES = (
    "pyspark.worker", "pyspark.daemon", "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read", "pyspark.sql.worker.write_into_data_source",
    "pyspark.sql.worker.commit_data_source_write", "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.python_streaming_sink_runner", "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.pandas.serializers", "pandas", "pyarrow",
)  # fmt: skip
STOP_S = 2.0
LENGTH_BYTES = 4

CLIENT = """
import marshal, os, socket, sys
if sys.argv[2:3] != ["-m"]:
    os.execv({python!r}, [{python!r}, *sys.argv[2:]])
server = socket.socket(socket.AF_UNIX)
server.connect(sys.argv[1])
asked = marshal.dumps((sys.argv[3:], dict(os.environ), os.getcwd()))
socket.send_fds(server, [len(asked).to_bytes({length}, "big")], [0, 1, 2])
server.sendall(asked)
status = server.recv(1)
os._exit(status[0] if status else 1)
"""


@contextlib.contextmanager
def warm_python(home: Path) -> Iterator[Path]:
    """The path of a Python that starts workers at once; its files are in `home`."""
    path = home / "python.socket"
    client, python = home / "client.py", home / "python"
    client.write_text(CLIENT.format(python=sys.executable, length=LENGTH_BYTES))
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{client}" "{path}" "$@"\n')
    python.chmod(0o700)
    begin = [sys.executable, "-c", "from tests.spark.warm_python import serve; serve()"]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(128)  # a worker that connects earlier waits
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        with subprocess.Popen(begin, stdin=listener, env=environment, start_new_session=True) as server:
            try:
                yield python
            finally:
                server.kill()


def serve() -> None:
    """Fork a supervisor for each client of the listener that is standard input."""
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(fileno=0)
    while True:
        client, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            supervise(client)
        client.close()


def supervise(client: socket.socket) -> None:
    """Fork the worker, report how it ends, and stop the worker if its client is killed."""
    length, files, _, _ = socket.recv_fds(client, LENGTH_BYTES, 3)
    left, data = int.from_bytes(length, "big"), b""
    while left > len(data) and (more := client.recv(left - len(data))):
        data += more
    worker = os.fork()
    if worker == 0:
        client.close()
        become(*marshal.loads(data), files)
    ended = os.pidfd_open(worker)
    readable, _, _ = select.select([client, ended], [], [])
    for number in (signal.SIGTERM, signal.SIGKILL):
        if ended not in readable:
            os.kill(worker, number)
            readable, _, _ = select.select([ended], [], [], STOP_S)
    _, status = os.waitpid(worker, 0)
    with contextlib.suppress(OSError):
        client.send(bytes([os.waitstatus_to_exitcode(status) & 0xFF]))
    os._exit(0)


def become(arguments: list[str], environment: dict[str, str], directory: str, files: list[int]) -> None:
    """Run a module as `python -m` does, with the client's standard files, environment and directory."""
    status = 0
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        Path("/proc/self/comm").write_text(arguments[0])  # of which the kernel keeps 15 characters
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(directory)
        named = environment.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [place for place in named if place and place not in sys.path]
        sys.argv = ["", *arguments[1:]]
        sys.modules.pop(arguments[0], None)
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status & 0xFF)
