"""Run three brokers and a ZooKeeper ensemble on this machine, to try a cluster: `make cluster`. Ctrl-C ends them."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from pybroker.development.zookeeper_server import ZooKeeper
from pybroker.errors import StartError

PORT = 9092
METRICS_PORT = 9404
BROKERS = 3
SETS = ("default.replication.factor=3", "min.insync.replicas=2", "num.partitions=3")
HELP = """
Three brokers: {bootstrap}
ZooKeeper:     {connect}

  pybroker topics create orders -b {bootstrap}
  pybroker cluster -b {bootstrap}
  pybroker topics describe orders --changes -b {bootstrap}
  kill -9 {pid}          # broker 1; start it again with
  {again}

Ctrl-C ends all of it.
"""


def serve(home: Path, number: int, connect: str) -> list[str]:
    sets = [f"--set={each}" for each in (*SETS, f"broker.id={number}")]
    where = ["--data-dir", str(home / f"broker-{number}"), "--zookeeper", connect, "--port", str(PORT + number - 1)]
    where += ["--metrics-port", str(METRICS_PORT + number - 1)]
    return [sys.executable, "-m", "pybroker", "serve", *where, *sets]


def main() -> int:
    home = Path(tempfile.mkdtemp(prefix="pybroker-cluster-"))
    ended = threading.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: ended.set())
    brokers: list[subprocess.Popen[str]] = []
    try:
        with ZooKeeper(3) as zookeeper:
            for number in range(1, BROKERS + 1):
                command = serve(home, number, zookeeper.connect)
                brokers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0))
            for broker in brokers:
                assert broker.stdout is not None
                if "ready" not in broker.stdout.readline():
                    return 1  # it has printed why
            bootstrap = ",".join(f"127.0.0.1:{PORT + number}" for number in range(BROKERS))
            again = " ".join(serve(home, 1, zookeeper.connect))
            told = {"bootstrap": bootstrap, "connect": zookeeper.connect, "pid": brokers[0].pid, "again": again}
            print(HELP.format(**told), flush=True)
            ended.wait()
            for broker in brokers:
                broker.terminate()
            for broker in brokers:
                broker.wait(30)
        return 0
    except StartError as problem:
        print(f"cluster: {problem}", file=sys.stderr)
        return 1
    finally:
        for broker in brokers:
            broker.kill()
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
