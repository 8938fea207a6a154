"""A cluster of real processes: brokers and a real ZooKeeper or etcd, each of which can be killed, frozen and started
again."""

from __future__ import annotations

import signal
import struct
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic

from pybroker.protocol import messages as m
from tests.asking import ask
from tests.brokers import full
from tests.brokers.network import CLIENTS, STORE, Network
from tests.harness import HOST, BrokerProcess, free_port, until
from tests.stores import AnyStore, setting_of
from tests.wire import ATTRIBUTES_AT, BATCH_OVERHEAD, HEAD, TAIL

HEADER_BYTES = 12
"""Bytes of a batch before those that its length counts."""
QUIET = {"log_level": 0}
SETS = {
    "default.replication.factor": 3, "min.insync.replicas": 2, "offsets.topic.num.partitions": 2,
    "offsets.topic.replication.factor": 3, "group.initial.rebalance.delay.ms": 0, "replica.lag.time.max.ms": 3000,
    "zookeeper.session.timeout.ms": 6000, "zookeeper.connection.timeout.ms": 120_000, "num.network.threads": 1,
    "controlled.shutdown.retry.backoff.ms": 500,
}  # fmt: skip


class Planted(BrokerProcess):
    """A broker that may have a planted bug, and whose disk may be full."""

    is_fillable = False

    def __init__(self, data_dir: Path, port: int, sets: Mapping[str, object], bug: str) -> None:
        super().__init__(data_dir, port, sets)
        self.bug = bug

    def command(self) -> list[str]:
        python, _, _, *rest = super().command()
        planted = self.bug or self.is_fillable
        return [python, "-m", "tests.brokers.planted", self.bug, *rest] if planted else super().command()

    def environment(self) -> Mapping[str, str]:
        return {**super().environment(), **({full.VARIABLE: str(self.full)} if self.is_fillable else {})}

    @property
    def full(self) -> Path:
        """The file whose presence makes every write of the broker fail with ENOSPC."""
        return self.data_dir.with_suffix(".full")


class Cluster:
    """Brokers 1 to `count` under their own chroot of a ZooKeeper, or prefix of an etcd. Each keeps port and data."""

    def __init__(
        self, home: Path, store: AnyStore, count: int = 3, bug: str = "", network: Network | None = None,
        kind: type[Planted] = Planted, **sets: object,
    ) -> None:  # fmt: skip
        """`bug` is a name in tests/brokers/planted.py, used for all brokers. `network` is between brokers and
        the store. `kind` is the class of each broker. A setting may be a function of the broker's id."""
        self.store = store
        self.chroot = f"/{uuid.uuid4().hex}"
        self.absent: set[int] = set()
        """Brokers that are not part of the cluster at present."""
        own = {name.replace("_", "."): value for name, value in sets.items()}
        given = {**SETS, **setting_of(store, self.chroot), **own}
        self.brokers: dict[int, Planted] = {}
        self._fronts: dict[int, int] = {}
        """The ports that clients use, where they reach a broker through the network."""
        for number in range(1, count + 1):
            port = free_port()
            if network is not None and network.has_clients:
                self._fronts[number] = network.way_to(number, port, CLIENTS)
            ways = {} if network is None else self._ways(network, number, port)
            each = {name: value(number) if callable(value) else value for name, value in given.items()}
            sets = {**each, **ways, "broker.id": number}
            self.brokers[number] = kind(home / f"broker-{number}", port, sets, bug)
        if network is not None:
            network.pids = lambda: {n: b.process.pid for n, b in self.brokers.items() if b.process is not None}
        self._admin: AdminClient | None = None

    def _ways(self, network: Network, number: int, port: int) -> dict[str, object]:
        """The settings of a broker that others reach through the network."""
        own = free_port()
        shown = f"PLAINTEXT://{HOST}:{self._fronts.get(number, port)}", f"PEERS://{HOST}:{network.way_to(number, own)}"
        # Ways of its own: where one is shared, the network looks for the process at its end, which takes long on a busy
        # machine, and a broker that reaches no etcd connects many times a second.
        servers = ",".join(
            f"{HOST}:{network.way_to(STORE, server.port, number)}" for server in self.store.servers
        )
        return {
            **setting_of(self.store, self.chroot, servers),
            "listeners": f"PLAINTEXT://{HOST}:{port},PEERS://{HOST}:{own}",
            "advertised.listeners": ",".join(shown),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PEERS:PLAINTEXT",
            "inter.broker.listener.name": "PEERS",
        }

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{self._fronts.get(number, broker.port)}" for number, broker in self.brokers.items())

    @property
    def present(self) -> list[int]:
        return [number for number in self.brokers if number not in self.absent]

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})
        return self._admin

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self, *numbers: int) -> None:
        """Start the brokers that are down, in parallel."""
        down = [self.brokers[n] for n in numbers or self.present if not self.brokers[n].running]
        for broker in down:
            broker.begin()
        for broker in down:
            broker.wait_ready()

    def kill(self, *numbers: int) -> None:
        """Kill brokers, and drop the admin client: its requests on a dead connection wait for librdkafka's timers."""
        for number in numbers:
            self.brokers[number].kill()
        self._admin = None

    def restart(self, *numbers: int) -> None:
        """Start killed brokers again: the dead session holds the id for a session timeout at most."""
        self.start(*numbers)

    def signal(self, number: int, what: signal.Signals) -> None:
        """Send a signal; SIGSTOP has taken effect on every thread when this returns."""
        process = self.brokers[number].process
        assert process is not None
        process.signal(what)
        if what == signal.SIGSTOP:
            tasks = list(Path(f"/proc/{process.pid}/task").glob("*/stat"))
            until("all its threads are stopped", lambda: all(") T " in task.read_text() for task in tasks))

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.close()

    # -- metadata ----------------------------------------------------------------------------------------------------

    def create(self, name: str, partitions: int = 1, replicas: list[list[int]] | None = None, **config: str) -> str:
        how = {"config": {key.replace("_", "."): value for key, value in config.items()}}
        if replicas is None:
            topic = NewTopic(name, partitions, 3, **how)
        else:
            topic = NewTopic(name, len(replicas), replica_assignment=replicas, **how)
        self.admin.create_topics([topic])[name].result(60)
        return name

    def metadata(self, topic: str | None = None, timeout_s: float = 10) -> ClusterMetadata:
        """Metadata from a live broker. One that no controller reaches closes the connection, so others are asked."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return self.admin.list_topics(topic, timeout=max(0.1, deadline - time.monotonic()))
            except KafkaException as problem:
                if problem.args[0].code() != KafkaError._TRANSPORT or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def partition(self, topic: str, index: int = 0) -> tuple[int, list[int]]:
        """(leader, ISR) as some live broker answers."""
        found = self.metadata(topic).topics[topic].partitions.get(index)
        return (-1, []) if found is None else (found.leader, list(found.isrs))

    def told_by(self, number: int, topic: str) -> dict[int, tuple[int, list[int]]]:
        """{partition: (leader, ISR)} as one broker answers; empty if it does not answer."""
        try:
            answer = ask(self.brokers[number].port, "Metadata", 9, topics=[m.MetadataRequest.Topics(name=topic)])
        except (OSError, struct.error):
            return {}
        return {p.partition_index: (p.leader_id, list(p.isr_nodes)) for p in answer.topics[0].partitions}

    def leader(self, topic: str, index: int = 0) -> int:
        return self.partition(topic, index)[0]

    def controller(self, timeout_s: float = 10) -> int:
        return int(self.metadata(timeout_s=timeout_s).controller_id)

    def until_in_sync(self, topic: str, partitions: int = 1, size: int = 3, timeout_s: float = 60) -> None:
        """Wait until a live broker has `size` in-sync replicas; if that is all replicas, until each broker has."""

        def in_sync() -> bool:
            if any(len(self.partition(topic, index)[1]) != size for index in range(partitions)):
                return False
            told = [self.told_by(number, topic) for number in self.brokers] if size == len(self.brokers) else []
            return all(len(each.get(index, (-1, ()))[1]) == size for each in told for index in range(partitions))

        until(f"{size} replicas of {topic} are in sync", in_sync, timeout_s, every_s=0.05)

    # -- data on disk ------------------------------------------------------------------------------------------------

    def log_dirs(self, number: int) -> list[str]:
        broker = self.brokers[number]
        return str(broker.sets.get("log.dirs", broker.data_dir)).split(",")

    def log_bytes(self, number: int, topic: str, index: int = 0) -> bytes:
        """The bytes of a broker's replica, from its first segment to its last."""
        directory = self.brokers[number].partition_dir(topic, index)
        return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))

    def differing(self, topic: str, partitions: Iterable[int] = (0,)) -> list[str]:
        """The partitions whose replicas differ."""
        wrong = []
        for index in partitions:
            replicas = self.metadata(topic).topics[topic].partitions[index].replicas
            logs = {number: self.log_bytes(number, topic, index) for number in replicas}
            if len(set(logs.values())) > 1:
                sizes = {number: len(log) for number, log in logs.items()}
                wrong.append(f"{topic}-{index}: the replicas differ, of {sizes} bytes")
        return wrong

    def batch_of(self, topic: str, index: int, offset: int) -> str:
        """The producer in the header of the batch with this offset, in words; empty if no broker has the batch."""
        for number in self.metadata(topic).topics[topic].partitions[index].replicas:
            log, at = self.log_bytes(number, topic, index), 0
            while len(log) - at >= BATCH_OVERHEAD:
                base, length, epoch, _ = HEAD.unpack_from(log, at)
                _, last, _, _, producer, producer_epoch, sequence, _ = TAIL.unpack_from(log, at + ATTRIBUTES_AT)
                if base <= offset <= base + last:
                    by = f"producer {producer} epoch {producer_epoch} sequence {sequence + offset - base}"
                    return f" (leader epoch {epoch}, {by})"
                at += HEADER_BYTES + length
        return ""
