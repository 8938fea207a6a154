"""Apache Kafka itself, from its published jars: the peer that a Kafka-compatible broker is compared with.

3.9.1 runs in ZooKeeper mode (its ZooKeeper is a process beside it that outlives the broker's restarts), 4.1.1 in KRaft
mode with the controller in the same process. Maven fetches the jars once into build/peers.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.harness import HOST, ROOT, Process, Server, free_port, until
from tests.wire import Wire

CACHE = ROOT / "build" / "peers"
VERSIONS = ("3.9.1", "4.1.1")
MAVEN_S_MAX = 300
BROKER, TOOLS = "kafka_2.13", "kafka-tools"
"""Maven's artifacts of the broker, and of Kafka's tools outside it."""
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Djava.awt.headless=true")
SMALL = ("-Xmx256m", *QUICK_START)
SERVER = (
    "-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true",
)  # fmt: skip
"""The options with which Kafka's own scripts start a broker, for benchmarks."""
SIMPLE_LOGGER = "-Dorg.slf4j.simpleLogger."
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>pybroker.tests</groupId><artifactId>peer</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""


class MissingJava(Exception):
    """Java, its compiler, Maven or the jars are missing; the sentence is the reason of a skip."""


@functools.cache
def jars(version: str, artifact: str = BROKER) -> Path:
    """The directory with Apache Kafka's jars, fetched if missing; MissingJava gives the reason if that fails."""
    for tool in ("java", "javac", "mvn"):
        if not shutil.which(tool):
            raise MissingJava(f"no {tool} on PATH")
    libs = CACHE / f"{artifact.removesuffix('_2.13')}-{version}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # pytest-xdist's workers start at the same time
        if not libs.exists():
            _fetch(version, artifact, libs)
    return libs


def _fetch(version: str, artifact: str, libs: Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        (Path(scratch) / "pom.xml").write_text(POM.format(version=version, artifact=artifact))
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=libs"]
        try:
            done = subprocess.run(
                command, cwd=scratch, capture_output=True, text=True, timeout=MAVEN_S_MAX, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            raise MissingJava(f"Maven did not fetch Kafka {version} within {MAVEN_S_MAX} s") from None
        if done.returncode:
            said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            raise MissingJava(f"Maven could not fetch Kafka {version}: {said[0] if said else 'no output'}")
        os.replace(Path(scratch) / "libs", libs)


def java(
    version: str,
    main: str,
    *arguments: str,
    classpath: Iterable[Path] = (),
    info: Iterable[str] = (),
    jvm: Iterable[str] = SMALL,
) -> list[str]:
    """The command that runs a main class with Kafka's jars; `info` names the loggers that log at INFO."""
    loggers = [f"{SIMPLE_LOGGER}defaultLogLevel=warn", *(f"{SIMPLE_LOGGER}log.{name}=info" for name in info)]
    path = ":".join([*map(str, classpath), f"{jars(version)}/*"])
    return ["java", *jvm, *loggers, "-cp", path, main, *arguments]


class ApacheKafka(Server):
    """One broker of Apache Kafka on `data_dir`, with broker id 1; `sets` are lines of its server.properties."""

    stop_codes = (0, 143)  # the JVM ends with 128 + SIGTERM after its shutdown hooks
    version = ""
    jvm: Sequence[str] = SMALL
    common: Mapping[str, object] = {
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "log.cleaner.dedupe.buffer.size": 8 << 20,
        "controlled.shutdown.enable": "false",
        "log.initial.task.delay.ms": 86_400_000,  # or retention deletes, after 30 s, the tests' old records
        "num.network.threads": 2,
        "num.io.threads": 2,
    }

    def __init__(self, data_dir: Path, sets: Mapping[str, object] | None = None) -> None:
        super().__init__(data_dir, free_port())
        self.name = f"Apache Kafka {self.version}"
        self.sets = dict(sets or {})
        self.properties = data_dir / "server.properties"
        self.log_dir = data_dir / "log"
        self._topics: set[str] = set()
        data_dir.mkdir(parents=True, exist_ok=True)

    def write_properties(self, mode: Mapping[str, object]) -> None:
        lines = {"log.dirs": self.log_dir, **self.common, **mode, **self.sets}
        self.properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    def start(self) -> Server:
        super().start()
        until("the broker's metadata is complete", self._serves)
        return self

    def _serves(self) -> bool:
        """True if its metadata has itself and its topics: Kafka reports its start earlier, and clients would fail."""
        with Wire(self.port) as wire:
            brokers, leaders = wire.metadata()
        led = {topic for topic, partitions in leaders.items() if set(partitions) == {1}}
        return brokers == [1] and led >= self._topics

    def kill(self) -> None:
        self._remember_topics()
        super().kill()

    def stop(self) -> None:
        self._remember_topics()
        super().stop()

    def _remember_topics(self) -> None:
        with Wire(self.port) as wire:
            self._topics = set(wire.metadata()[1])

    def command(self) -> list[str]:
        ready = ("kafka.server.KafkaServer", "kafka.server.KafkaRaftServer")
        return java(self.version, "kafka.Kafka", str(self.properties), info=ready, jvm=self.jvm)


class Kafka391(ApacheKafka):
    version = "3.9.1"
    ready_line = r"\[KafkaServer id=1\] started"
    tick_ms = 200
    session_ms = 20 * tick_ms  # ZooKeeper's longest session timeout: under load a session is silent for seconds

    def __init__(self, data_dir: Path, sets: Mapping[str, object] | None = None) -> None:
        super().__init__(data_dir, sets)
        self.zookeeper: Process | None = None
        self.zookeeper_port = free_port()

    def start(self) -> Server:
        if self.zookeeper is None:
            self._start_zookeeper()
            self.write_properties(
                {
                    "broker.id": 1,
                    "listeners": f"PLAINTEXT://{HOST}:{self.port}",
                    "zookeeper.connect": f"{HOST}:{self.zookeeper_port}",
                    "zookeeper.session.timeout.ms": self.session_ms,
                }
            )
        else:
            self._wait_for_the_dead_session()
        return super().start()

    restart = start

    def _start_zookeeper(self) -> None:
        config = self.data_dir / "zookeeper.properties"
        config.write_text(
            f"dataDir={self.data_dir / 'zookeeper'}\nclientPort={self.zookeeper_port}\nclientPortAddress={HOST}\n"
            f"tickTime={self.tick_ms}\nadmin.enableServer=false\n"
        )
        main, ready = (
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            "org.apache.zookeeper.server.NIOServerCnxnFactory",
        )
        self.zookeeper = Process(java(self.version, main, str(config), info=[ready]))
        self.zookeeper.wait_line("binding to port", 90)

    def _wait_for_the_dead_session(self) -> None:
        """Wait until the killed process's znode is gone: Kafka does not start before that."""
        client = KazooClient(f"{HOST}:{self.zookeeper_port}")
        client.start()
        try:
            until("the killed broker's session is gone", lambda: not client.exists("/brokers/ids/1"))
        finally:
            client.stop()
            client.close()

    def close(self) -> None:
        super().close()
        if self.zookeeper is not None:
            self.zookeeper.kill()


class Kafka411(ApacheKafka):
    version = "4.1.1"
    ready_line = r"Kafka Server started"
    cluster_id = "pybroker-tests-cluster"

    def start(self) -> Server:
        if not self.properties.exists():
            controller = free_port()
            self.write_properties(
                {
                    "process.roles": "broker,controller",
                    "node.id": 1,
                    "controller.quorum.voters": f"1@{HOST}:{controller}",
                    "listeners": f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{controller}",
                    "controller.listener.names": "CONTROLLER",
                    "inter.broker.listener.name": "PLAINTEXT",
                    "broker.session.timeout.ms": 1500,  # how long a restart waits for the killed process
                    "broker.heartbeat.interval.ms": 500,
                }
            )
            config = ["-t", self.cluster_id, "-c", str(self.properties)]
            done = Process(java(self.version, "kafka.tools.StorageTool", "format", *config))
            assert done.wait(60) == 0, done.output()
        return super().start()

    restart = start


PEERS: dict[str, type[ApacheKafka]] = {"kafka391": Kafka391, "kafka411": Kafka411}
SHARED = {name: [pytest.mark.java, pytest.mark.xdist_group(name)] for name in PEERS}
"""The marks of a test that uses the session's peer: all of these run in one pytest-xdist worker, which starts it."""


def each_peer(*, long: Collection[str] = ()) -> list[Any]:
    """A parameter for each peer of the session; the peers of `long` make a test long."""
    return [
        pytest.param(name, marks=[*marks, pytest.mark.long] if name in long else marks)
        for name, marks in SHARED.items()
    ]
