"""The rules of `pybroker metrics --alerts` in a real Prometheus: each fires at its fault, and none without one.

The rules are hurried: they wait for nothing, look at seconds instead of minutes, and take ten records for many. What is
measured is what brokers serve; nothing else is changed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from urllib.request import ProxyHandler, build_opener

import confluent_kafka as ck
import pytest

import pybroker.testing
from pybroker.cli.metrics.alerts import ALERTS, rules
from pybroker.cli.metrics.dashboards import BOARDS
from pybroker.coordination.store import Create, Delete
from pybroker.replication.scrub import checkpoint_of
from pybroker.server.broker import Broker
from pybroker.testing import ClusterHandle
from pybroker.testing.certificates import Authority
from tests.harness import HOST, BrokerProcess, Process, free_port, until

PROMTOOL, PROMETHEUS = shutil.which("promtool"), shutil.which("prometheus")
pytestmark = [
    pytest.mark.skipif(not (PROMTOOL and PROMETHEUS), reason="no prometheus and promtool on PATH (Debian: prometheus)"),
    pytest.mark.xdist_group("alerts"),
]
SCRAPED_S = 2
WINDOW_S = 20
FIRES_S_MAX = 300
SLOW_MS = 3000
SETTLED_S = float(os.environ.get("PYBROKER_TEST_HEALTHY_S", "30"))
"""How long a healthy cluster is watched, with the rules as they are written."""
FEW_RECORDS = 10
DISK_BYTES = 64 << 20
RESERVED_BYTES = 60 << 20
Fault = Callable[["Watched"], None]


def hurried(text: str) -> str:
    """The rules with short waits and windows, for which ten records are many."""
    text = re.sub(r"for: \d+[smh]", "for: 0s", text)
    return re.sub(r"\[\d+m\]", f"[{WINDOW_S}s]", text).replace("> 100000", f"> {FEW_RECORDS}")


class Prometheus:
    """A Prometheus that scrapes these ports, by their current list."""

    def __init__(self, home: Path, text: str, scraped_s: int = SCRAPED_S) -> None:
        home.mkdir()
        self._ports = home / "targets.json"
        self.watch([])
        (home / "rules.yml").write_text(text)
        job = {"job_name": "pybroker", "file_sd_configs": [{"files": [str(self._ports)], "refresh_interval": "1s"}]}
        every = {"scrape_interval": f"{scraped_s}s", "scrape_timeout": f"{scraped_s}s"}
        config = {"global": {**every, "evaluation_interval": f"{scraped_s}s"}, "scrape_configs": [job]}
        (home / "prometheus.yml").write_text(json.dumps({**config, "rule_files": ["rules.yml"]}))
        self.port = free_port()
        self._process = Process([
            str(PROMETHEUS), f"--config.file={home / 'prometheus.yml'}", f"--storage.tsdb.path={home / 'data'}",
            f"--web.listen-address={HOST}:{self.port}", "--log.level=warn",
        ])  # fmt: skip
        until("it answers", lambda: self._answers("/-/ready"))

    def _answers(self, path: str) -> str:
        where = f"http://{HOST}:{self.port}{path}"
        with suppress(OSError), build_opener(ProxyHandler({})).open(where, timeout=10) as got:
            return str(got.read().decode())
        return ""

    def watch(self, ports: list[int]) -> None:
        """Scrape these ports from now on."""
        new = self._ports.with_suffix(".new")
        new.write_text(json.dumps([{"targets": [f"{HOST}:{port}" for port in ports]}]))
        new.rename(self._ports)

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        found = json.loads(self._answers("/api/v1/alerts") or '{"data": {"alerts": []}}')["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in found if alert["state"] == "firing"}

    def up(self) -> int:
        """The number of ports that answered the last scrape."""
        found = json.loads(self._answers("/api/v1/query?query=sum(up)"))["data"]["result"]
        return int(found[0]["value"][1]) if found else 0

    def close(self) -> None:
        self._process.kill()


class Watched:
    """A cluster of three brokers, and the Prometheus that scrapes them."""

    def __init__(self, home: Path, cluster: ClusterHandle) -> None:
        self.home = home
        self.cluster = cluster
        self.prometheus = Prometheus(home / "prometheus", hurried(rules()))
        self.after = ExitStack()
        self.ports: dict[int, int] = {}
        self.watch()

    def broker(self, number: int) -> Broker:
        broker: Broker = self.cluster._members.lives[number]._injector.broker
        return broker

    def watch(self, *more: int) -> None:
        """Scrape the brokers at their present ports; a dead one keeps its last port."""
        self.ports |= {number: self.broker(number).metrics_port for number in self.cluster.running}
        self.prometheus.watch([*self.ports.values(), *more])

    def until_fires(self, name: str) -> None:
        until(f"{name} fires", lambda: name in self.prometheus.firing(), timeout_s=FIRES_S_MAX, every_s=0.2)

    def until_calm(self) -> None:
        """Wait until all brokers are scraped, and no alert fires."""
        until("all are scraped", lambda: self.prometheus.up() == len(self.ports), timeout_s=FIRES_S_MAX, every_s=0.2)
        until("no alert fires", lambda: not self.prometheus.firing(), timeout_s=FIRES_S_MAX, every_s=0.2)

    def topic(self, name: str, **config: object) -> str:
        made = self.cluster.create_topic(name, **config)
        self.cluster.wait_in_sync(made)
        return made


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    settings = {
        "metrics.listener": f"{HOST}:0", "log.flush.interval.messages": 1, "unclean.leader.election.enable": True,
    }  # fmt: skip
    with pybroker.testing.cluster(settings=settings) as cluster:
        made = Watched(tmp_path, cluster)
        try:
            cluster.wait_in_sync()
            made.until_calm()
            yield made
        finally:
            made.after.close()
            made.prometheus.close()


# -- the faults --------------------------------------------------------------------------------------------------------

def broker_dies(on: Watched) -> None:
    on.cluster.kill(next(n for n in on.cluster.running if n != on.cluster.controller))


def take(on: Watched, path: str, data: bytes = b"") -> None:
    """Have another session own an ephemeral node, with this data or as it is."""
    together = on.cluster._members._together

    async def change() -> None:
        session = await together._store.session(40_000)
        before, _ = await session.get(path)
        await session.multi([Delete(path), Create(path, data or before, ephemeral=True)])

    together._thread.do(change())


def its_node_is_taken(on: Watched) -> None:
    take(on, "/brokers/ids/3")


def stranger_is_controller(on: Watched) -> None:
    take(on, "/controller", b'{"version":1,"brokerid":99,"timestamp":"0"}')


def another_cluster_is_scraped(on: Watched) -> None:
    port = free_port()
    on.after.enter_context(BrokerProcess(on.home / "lone", free_port(), sets={"metrics.listener": f"{HOST}:{port}"}))
    on.watch(port)


def last_replica_dies(on: Watched) -> None:
    holder = next(number for number in on.cluster.running if number != on.cluster.controller)
    with on.cluster._admin(60) as admin:
        admin.create_topic("t", replica_assignments={0: [holder]})
    on.cluster.kill(holder)


def follower_is_missing(on: Watched) -> None:
    topic = on.topic("t", min_insync_replicas=3)
    on.cluster.kill(next(n for n in on.cluster.running if n != on.cluster.leader(topic)))


def follower_is_cut_off(on: Watched) -> None:
    topic = on.topic("t")
    leader = on.cluster.leader(topic)
    on.cluster.cut_off(next(n for n in on.cluster.running if n not in (leader, on.cluster.controller)), leader)
    on.cluster.produce(topic, b"a")


def out_of_sync_replica_leads(on: Watched) -> None:
    """The last broker in sync dies, and one that is not comes back, while the controller lives."""
    controller = on.cluster.controller
    first, second = (number for number in on.cluster.brokers if number != controller)
    with on.cluster._admin(60) as admin:
        admin.create_topic("t", replica_assignments={0: [first, second]})
    until("both are in sync", lambda: len(on.cluster.in_sync("t")) == 2)
    on.cluster.kill(second)
    until("one has left", lambda: on.cluster.in_sync("t") == [first])
    on.cluster.kill(first)
    on.cluster.start(second)
    on.watch()


def store_is_away(on: Watched) -> None:
    on.cluster.cut_off(3, "store")


def session_expires(on: Watched) -> None:
    on.cluster.cut_off(3, "store")
    member = on.broker(3)._place._membership
    until("it knows", lambda: not member.connected)
    until("others miss it", lambda: 3 not in on.broker(1).metadata.image.brokers)
    on.cluster.heal()


def disk_fails(on: Watched) -> None:
    topic = on.topic("t", min_insync_replicas=1)
    leader = on.cluster.leader(topic)
    on.broker(leader).replicas._core.arm("segment.sync", "errno", errno.EIO)
    on.cluster.produce(topic, b"a")


def disk_is_nearly_full(on: Watched) -> None:
    """A lone broker on a small file system of its own."""
    disk, port = on.home / "disk", free_port()
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    on.after.callback(subprocess.run, ["umount", "-l", str(disk)], check=True)
    with (disk / "other").open("wb") as other:
        os.posix_fallocate(other.fileno(), 0, RESERVED_BYTES)
    on.after.enter_context(BrokerProcess(disk / "data", free_port(), sets={"metrics.listener": f"{HOST}:{port}"}))
    on.watch(port)


def disk_is_full(on: Watched) -> None:
    topic = on.topic("t", min_insync_replicas=1)
    leader = on.cluster.leader(topic)
    on.after.enter_context(on.cluster.faults(leader).full_disk())
    on.cluster.produce(topic, b"a")


def segment_is_damaged(on: Watched) -> None:
    """A sealed segment has other bytes than were written; a scrub finds that."""
    topic = on.topic("t", segment_bytes=4096)
    for _ in range(5):
        on.cluster.produce(topic, b"x" * 3000)
    broker = on.broker(on.cluster.leader(topic))
    first = Path(broker.log_dirs[0].path) / f"{topic}-0" / f"{0:020}.log"
    with first.open("r+b") as file:
        file.seek(100)
        file.write(b"damaged")
    Path(checkpoint_of(broker.log_dirs[0].path)).write_text("0\n0\n")  # as `pybroker scrub` does


def disk_is_slow(on: Watched) -> None:
    topic = on.topic("t", min_insync_replicas=1)
    on.broker(on.cluster.leader(topic)).replicas._core.arm("segment.write", "sleep", SLOW_MS)
    on.cluster.produce(topic, b"a")


def group_falls_behind(on: Watched) -> None:
    topic = on.topic("t")
    settings = {"bootstrap.servers": on.cluster.bootstrap_servers, "group.id": "g"}
    consumer = ck.Consumer(settings)
    on.after.callback(consumer.close)
    consumer.commit(offsets=[ck.TopicPartition(topic, 0, 0)], asynchronous=False)
    ended = time.monotonic() + 2 * WINDOW_S
    while "GroupFallsBehind" not in on.prometheus.firing() and time.monotonic() < ended:
        on.cluster.produce(topic, *[b"a"] * FEW_RECORDS)


def certificate_ends_soon(on: Watched) -> None:
    signed, store = Authority().sign("broker", days=1), on.home / "broker.pem"
    port, clients = free_port(), free_port()
    store.write_bytes(signed.key + signed.chain)
    sets = {
        "metrics.listener": f"{HOST}:{port}", "listeners": f"PLAINTEXT://{HOST}:{clients},SSL://{HOST}:0",
        "ssl.keystore.type": "PEM", "ssl.keystore.location": store,
    }  # fmt: skip
    on.after.enter_context(BrokerProcess(on.home / "lone", clients, sets=sets))
    on.watch(port)


FAULTS: dict[str, Fault] = {
    "BrokerDown": broker_dies,
    "BrokerFenced": its_node_is_taken,
    "NoController": stranger_is_controller,
    "TwoControllers": another_cluster_is_scraped,
    "OfflinePartitions": last_replica_dies,
    "UnderMinIsr": follower_is_missing,
    "UnderReplicated": broker_dies,
    "IsrShrinks": follower_is_cut_off,
    "UncleanElection": out_of_sync_replica_leads,
    "SessionLost": store_is_away,
    "SessionExpired": session_expires,
    "LogDirOffline": disk_fails,
    "DiskNearlyFull": disk_is_nearly_full,
    "DiskFull": disk_is_full,
    "DamagedSegments": segment_is_damaged,
    "SlowProduce": disk_is_slow,
    "SlowDisk": disk_is_slow,
    "GroupFallsBehind": group_falls_behind,
    "CertificateExpires": certificate_ends_soon,
}


@pytest.mark.parametrize("alert", FAULTS)
def test_an_alert_fires_at_its_fault(alert: str, watched: Watched) -> None:
    FAULTS[alert](watched)
    watched.until_fires(alert)


def test_every_alert_has_a_fault() -> None:
    assert [alert.name for alert in ALERTS] == list(FAULTS)


@pytest.mark.timeout(SETTLED_S + 2 * FIRES_S_MAX)
def test_a_healthy_cluster_is_calm(tmp_path: Path) -> None:
    """With the rules as they are, no alert fires or is about to while clients write and read."""
    with pybroker.testing.cluster(settings={"metrics.listener": f"{HOST}:0"}) as cluster, load(cluster) as written:
        ports = [cluster._members.lives[number]._injector.broker.metrics_port for number in cluster.running]
        prometheus = Prometheus(tmp_path / "prometheus", rules(), scraped_s=5)
        prometheus.watch(ports)
        until("all are scraped", lambda: prometheus.up() == len(ports), timeout_s=FIRES_S_MAX, every_s=0.2)
        ended, seen = time.monotonic() + SETTLED_S, set[str]()
        while time.monotonic() < ended:
            seen |= prometheus.firing()
            time.sleep(1)  # the period of the checks, not a wait for something
        prometheus.close()
        assert not seen
        assert written() > 0


@contextmanager
def load(cluster: ClusterHandle) -> Iterator[Callable[[], int]]:
    """A producer and a consumer group; yields what returns the number of records that were read."""
    read = 0
    topic = cluster.create_topic("load", partitions=3)
    cluster.wait_in_sync(topic)
    settings = {"bootstrap.servers": cluster.bootstrap_servers}
    producer = ck.Producer({**settings, "acks": "all"})
    consumer = ck.Consumer({**settings, "group.id": "load", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])

    def go_on() -> int:
        return read

    ended = Event()

    def work() -> None:
        nonlocal read
        while not ended.wait(0.05):
            producer.produce(topic, b"x" * 100)
            producer.poll(0)
            read += sum(message.error() is None for message in consumer.consume(100, 0.01))

    worker = Thread(target=work)
    worker.start()
    try:
        yield go_on
    finally:
        ended.set()
        worker.join()
        producer.flush(10)
        consumer.close()


def test_promtool_takes_every_expression(tmp_path: Path) -> None:
    """Rules and boards parse; variables of Grafana stand for what a viewer chooses."""
    (tmp_path / "rules.yml").write_text(rules())
    expressions = [line for board in BOARDS.values() for _, _, lines in board.panels for line, _ in lines]
    known = [re.sub(r"\$__rate_interval", "5m", re.sub(r"\$(broker|topic|group)", "x", e)) for e in expressions]
    recorded = [{"record": f"panel_{at}", "expr": expression} for at, expression in enumerate(known)]
    (tmp_path / "boards.yml").write_text(json.dumps({"groups": [{"name": "boards", "rules": recorded}]}))
    for name, count in (("rules.yml", len(ALERTS)), ("boards.yml", len(known))):
        done = subprocess.run([str(PROMTOOL), "check", "rules", name], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0 and f"{count} rules found" in done.stdout, done
