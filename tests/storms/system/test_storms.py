"""A broker in a storm serves real clients while connections are reset, disks are slow and processes fork.

This runs for seconds. tools/sanitize.py runs it under the sanitizers for longer, after it has checked that they find a
fault planted in core.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from pybroker.client.admin import Admin
from pybroker.testing import broker as new_broker
from pybroker.testing.certificates import Authority
from tests.harness import HOST, BrokerProcess, Process, free_port
from tests.storms.secured import MECHANISM, PASSWORD, USER
from tests.storms.storm import Storm, TlsStorm

SECONDS = float(os.environ.get("PYBROKER_STORM_SECONDS", "4"))
UNDER_SANITIZERS = {"LD_PRELOAD": ""}
"""Environment of a process that runs without sanitizers."""
SLOW = " ".join(
    f"{point}=sleep:{ms}:0:1000000"
    for point, ms in {
        "segment.sync": 30, "segment.create": 50, "segment.unlink": 50, "index.write": 50, "snapshot.write": 50,
        "snapshot.sync": 50, "checkpoint.write": 100, "checkpoint.sync": 100, "directory.sync": 50,
    }.items()
)  # fmt: skip
SETS = {
    "num.network.threads": 3, "log.retention.check.interval.ms": 200, "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0, "log.flush.offset.checkpoint.interval.ms": 500,
}  # fmt: skip
STORMS = 3
QUOTAS = {"producer_byte_rate": 200_000.0, "consumer_byte_rate": 2_000_000.0, "request_percentage": 50.0}


def listeners(home: Path, port: int) -> dict[str, object]:
    """Settings of a broker with a plaintext listener, a TLS listener, and one with TLS and logins."""
    authority = Authority()
    own = authority.sign("localhost")
    (home / "broker.pem").write_bytes(own.key + own.chain)
    (home / "ca.pem").write_bytes(authority.certificate)
    at = {"OPEN": port, "TLS": free_port(), "USERS": free_port()}
    return {
        "listeners": ",".join(f"{name}://{HOST}:{each}" for name, each in at.items()),
        "listener.security.protocol.map": "OPEN:PLAINTEXT,TLS:SSL,USERS:SASL_SSL",
        "inter.broker.listener.name": "OPEN", "sasl.enabled.mechanisms": MECHANISM,
        "ssl.keystore.type": "PEM", "ssl.keystore.location": home / "broker.pem",
    }  # fmt: skip


def port_of(sets: dict[str, object], name: str) -> int:
    (found,) = (each for each in str(sets["listeners"]).split(",") if each.startswith(f"{name}://"))
    return int(found.rpartition(":")[2])


def prepare(port: int) -> None:
    """Create the user and its quotas."""
    with Admin(f"{HOST}:{port}") as admin:
        admin.set_password(USER, PASSWORD, [MECHANISM])
        admin.alter_quotas((("user", USER),), QUOTAS)


@pytest.mark.parametrize("failpoints", [pytest.param("", id="fast disks"), pytest.param(SLOW, id="slow disks")])
@pytest.mark.timeout(900)
def test_clients_in_a_storm(
    start_broker: Callable[..., BrokerProcess], tmp_path: Path, failpoints: str
) -> None:
    """In a storm every answer to clients holds, also over TLS with quotas; the broker logs no failure and stops."""
    port = free_port()
    sets = SETS | listeners(tmp_path, port)
    broker = start_broker(sets=sets, port=port, failpoints=failpoints)
    storms = [Storm(broker.port, seed) for seed in range(STORMS)]
    storms.append(TlsStorm(port_of(sets, "TLS"), STORMS))
    prepare(port)
    arguments = [port, SECONDS, port_of(sets, "USERS"), tmp_path / "ca.pem"]
    users = Process([sys.executable, "-m", "tests.storms.users", *map(str, arguments)], env=UNDER_SANITIZERS)
    for storm in storms:
        storm.start()
    code = users.wait(800)
    counts = [storm.end() for storm in storms]
    assert code == 0, users.output()
    assert min(counts) > 0
    said = broker.output().replace("TLS handshake failed", "")  # those of the storm
    assert "Traceback" not in said and "failed" not in said, said
    broker.stop()


@pytest.mark.timeout(900)
def test_forks_in_a_storm(tmp_path: Path) -> None:
    """A process with a broker that forks repeatedly during a storm still serves, restarts and ends its broker."""
    with new_broker(data_dir=str(tmp_path), settings={"num.network.threads": 3}) as broker:
        storms = [Storm(broker.port, seed) for seed in range(STORMS)]
        for storm in storms:
            storm.start()
        children: list[int] = []
        ends, stored, restarts = time.monotonic() + SECONDS, 0, 0
        while time.monotonic() < ends:
            pid = os.fork()
            if pid == 0:
                time.sleep(0.3)  # outlives connections and a restart
                os._exit(0)
            children.append(pid)
            stored += len(broker.produce("t", f"{stored}"))
            if stored % 20 == 10:
                broker.restart()
                restarts += 1
        assert sum(storm.end() for storm in storms) > 0
        assert [record.value for record in broker.records("t")] == [f"{n}".encode() for n in range(stored)]
        assert stored > 0
    for pid in children:
        with suppress(ChildProcessError):
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
