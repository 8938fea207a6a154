"""Run three brokers and a ZooKeeper ensemble, or with `--etcd` an etcd cluster, on this machine: `make cluster`, `make
cluster ETCD=1`. Ctrl-C ends them."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from pybroker.development.etcd_server import Etcd
from pybroker.development.zookeeper_server import ZooKeeper
from pybroker.errors import StartError

PORT = 9092
METRICS_PORT = 9404
BROKERS = 3
SETS = ("default.replication.factor=3", "min.insync.replicas=2", "num.partitions=3")
HELP = """
Three brokers: {bootstrap}
{store:14} {connect}

  pybroker topics create orders -b {bootstrap}
  pybroker cluster -b {bootstrap}
  pybroker topics describe orders --changes -b {bootstrap}
  kill -9 {pid}          # broker 1; start it again with
  {again}

Ctrl-C ends all of it.
"""


def serve(home: Path, number: int, connect: str) -> list[str]:
    sets = [f"--set={each}" for each in (*SETS, f"broker.id={number}")]
    store = ["--etcd" if "://" in connect else "--zookeeper", connect]
    where = ["--data-dir", str(home / f"broker-{number}"), *store, "--port", str(PORT + number - 1)]
    where += ["--metrics-port", str(METRICS_PORT + number - 1)]
    return [sys.executable, "-m", "pybroker", "serve", *where, *sets]


def main() -> int:
    home = Path(tempfile.mkdtemp(prefix="pybroker-cluster-"))
    ended = threading.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: ended.set())
    brokers: list[subprocess.Popen[str]] = []
    try:
        with Etcd(3) if "--etcd" in sys.argv[1:] else ZooKeeper(3) as store:
            connect = store.url if isinstance(store, Etcd) else store.connect
            for number in range(1, BROKERS + 1):
                command = serve(home, number, connect)
                brokers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0))
            for broker in brokers:
                assert broker.stdout is not None
                if "ready" not in broker.stdout.readline():
                    return 1  # it has printed why
            bootstrap = ",".join(f"127.0.0.1:{PORT + number}" for number in range(BROKERS))
            again = " ".join(serve(home, 1, connect))
            name = "etcd:" if isinstance(store, Etcd) else "ZooKeeper:"
            told = {"bootstrap": bootstrap, "store": name, "connect": connect, "pid": brokers[0].pid, "again": again}
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
