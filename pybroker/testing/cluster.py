"""Several brokers that are one cluster: killed, frozen, cut off and started again, one by one.

    cluster() ──with──> running ──stop, kill──> down ──start──> running
                           ├────── pause ──> frozen ──resume──> running
                           └────── cut_off ──> isolated ──heal──> running

The brokers run on one thread of the test's process, with a store in memory, a real ZooKeeper or a real etcd, or in
processes of their own with one of these two. Each keeps its address and its data until the cluster is closed.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeVar, cast

from pybroker import fork_safety
from pybroker.testing import cluster_records, records
from pybroker.testing.faults import Faults
from pybroker.testing.handle import DEFAULTS, LIVE, MODES, Mode
from pybroker.testing.lifecycle import HOST, BrokerFailed, as_text
from pybroker.testing.members import STORES, ClusterMembers, StoreKind
from pybroker.testing.network import STORE
from pybroker.testing.records import CLIENT_ID, TIMEOUT_S, Content, Record, StoredRecord
from pybroker.testing.secured_handle import Secured
from pybroker.testing.security import Sasl, Security
from pybroker.testing.tracebacks import hidden

if TYPE_CHECKING:
    from pybroker.client.admin import Admin
    from pybroker.client.net.connection import BrokerConnection
    from pybroker.development.etcd_server import Etcd
    from pybroker.development.zookeeper_server import ZooKeeper

T = TypeVar("T")
BROKERS: Final = 3
ASK_S_MAX: Final = 5.0
"""Seconds to wait for one broker's answer before asking another."""
TOLD_S_MAX: Final = 5.0
"""Seconds after a start in which a broker may not know a topic yet: it serves before the controller has sent it all
metadata."""
POLL_S: Final = 0.01
COUNTS: Final = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
}
"""Upper limits; the values never exceed the number of brokers."""
CLUSTER_DEFAULTS: Final[Mapping[str, str]] = {
    **DEFAULTS,
    "controlled.shutdown.retry.backoff.ms": "100",
    "num.network.threads": "1",
    "replica.lag.time.max.ms": "3000",
    "zookeeper.connection.timeout.ms": "30000",
    "zookeeper.session.timeout.ms": "3000",
}
"""Settings suited to a test's cluster; `settings` override them."""


class ClusterHandle(Secured):
    """A cluster, started when it is made; broker ids are 1 to n. Raises BrokerFailed."""

    @hidden
    def __init__(
        self,
        brokers: int = BROKERS,
        *,
        mode: Mode = "inprocess",
        store: StoreKind | None = None,
        settings: Mapping[str, object] | None = None,
        sasl: Sasl | None = None,
        acls: bool = False,
        tls: bool = False,
    ) -> None:
        """`settings` apply to each broker. The default `store` is in memory for brokers in the test's process, and a
        ZooKeeper for brokers in processes of their own. `sasl`, `acls` and `tls` are as for BrokerHandle; the brokers
        also log in to each other and encrypt what they send."""
        if brokers < 1:
            raise ValueError(f"a cluster has at least one broker, not {brokers}")
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}; it can be one of {', '.join(MODES)}")
        self.mode: Mode = mode
        self.store: StoreKind = store or ("memory" if mode == "inprocess" else "zookeeper")
        if self.store not in STORES:
            raise ValueError(f"store is {store!r}; it can be one of {', '.join(STORES)}")
        if mode == "subprocess" and self.store == "memory":
            why = "processes cannot share a store in memory"
            raise ValueError(f"mode='subprocess' needs store='zookeeper' or 'etcd': {why}")
        few = {name: str(min(count, brokers)) for name, count in COUNTS.items()}
        given = {name: as_text(value) for name, value in (settings or {}).items()}
        self._security = Security.of(sasl, acls, tls, given)
        self._members = ClusterMembers(brokers, mode, self.store, {**CLUSTER_DEFAULTS, **few, **given}, self._security)
        self._paused: set[int] = set()
        self._cuts: dict[int, set[int]] = {}
        self._told_s = 0.0
        LIVE.add(self)
        fork_safety.tell(self)
        try:
            self.start()
            self._told_s = 0.0  # there is no topic yet
            self._make_groups()
            self._make_users()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "ClusterHandle":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- life ------------------------------------------------------------------------------------------------------

    @property
    def brokers(self) -> Sequence[int]:
        """The ids of all brokers."""
        return list(self._members.ports)

    @property
    def running(self) -> Sequence[int]:
        """The ids of the brokers that run, including those paused or cut off."""
        return [number for number, life in self._members.lives.items() if life.running]

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, for clients."""
        return ",".join(f"{HOST}:{port}" for port in self._members.ports.values())

    @property
    def zookeeper(self) -> "ZooKeeper | None":
        """The ZooKeeper, which the test can kill, pause and start; None with another store."""
        return cast("ZooKeeper", self._members.server) if self.store == "zookeeper" else None

    @property
    def etcd(self) -> "Etcd | None":
        """The etcd, which the test can kill, pause and start; None with another store."""
        return cast("Etcd", self._members.server) if self.store == "etcd" else None

    @hidden
    def start(self, *numbers: int) -> None:
        """Start these brokers, or all that are down. Raises BrokerFailed."""
        self._members.start([n for n in self._chosen(numbers) if n not in self.running])
        self._told_s = time.monotonic() + TOLD_S_MAX

    @hidden
    def stop(self, *numbers: int) -> None:
        """Stop these brokers, or all, cleanly: each hands over its leadership first. Raises BrokerFailed."""
        for number in self._chosen(numbers):
            if number in self._paused:
                raise BrokerFailed(f"broker {number} is paused and cannot stop cleanly: resume or kill it")
            self._members.lives[number].stop()

    @hidden
    def kill(self, *numbers: int) -> None:
        """Kill these brokers, or all, as `kill -9` does."""
        for number in self._chosen(numbers):
            self._members.kill(number)
            self._paused.discard(number)

    @hidden
    def restart(self, *numbers: int) -> None:
        """Stop these brokers, or all, cleanly if they run, and start them. Raises BrokerFailed."""
        self.stop(*numbers)
        self.start(*numbers)

    @hidden
    def pause(self, *numbers: int) -> None:
        """Freeze the processes of these brokers, or of all that run, with SIGSTOP: connections stay open, nothing is
        answered."""
        for number in self._processes(numbers):
            self._members.process(number).pause()
            self._paused.add(number)

    @hidden
    def resume(self, *numbers: int) -> None:
        """Resume these brokers, or all that are paused."""
        for number in self._processes(numbers) & self._paused:
            self._members.process(number).resume()
            self._paused.discard(number)

    def _processes(self, numbers: Sequence[int]) -> set[int]:
        """Check that these brokers have processes. Raises ValueError if not, BrokerFailed if one does not run."""
        if self.mode != "subprocess":
            raise ValueError(
                "a broker in the process of the test cannot be frozen: pause it with mode='subprocess', or cut it off"
            )
        running = set(self.running)
        if down := set(numbers) - running:
            raise BrokerFailed(f"broker {min(down)} does not run")
        return set(self._chosen(numbers)) & running

    def close(self) -> None:
        """Remove threads, processes and files; calling it again does nothing."""
        try:
            self._members.close()
        finally:
            LIVE.discard(self)

    def forked(self) -> None:
        """Mark the cluster as the parent's, in a forked child. The child's clients may use it; nothing here ends it."""
        self._members.forked()

    def discard(self) -> None:
        """Remove processes and files as the interpreter exits; the threads end with the interpreter."""
        self._members.discard()

    def output(self, number: int) -> str:
        """The end of the log of a broker in its own process; brokers in this process log to `logging`."""
        return self._members.lives[number].output()

    def faults(self, number: int) -> Faults:
        """The faults of one broker. The other brokers send it requests with their id as `client_id`."""
        self._chosen([number])
        return Faults(lambda command: self._members.lives[number].ask(command))

    # -- the network -----------------------------------------------------------------------------------------------

    @hidden
    def cut_off(self, number: int, *others: int | Literal["store"]) -> None:
        """Cut the network between a broker and these others ("store" is the store); without others, between it and all.

        What is sent waits; no connection ends and none is refused. Clients reach the broker as before."""
        ends = {STORE if each == "store" else self._chosen([each])[0] for each in others}
        (number,) = self._chosen([number])
        ends = (ends or {STORE, *self.brokers}) - {number}
        self._members.network.cut_off(number, *ends)
        self._cuts.setdefault(number, set()).update(ends)
        self._members.cut_store([n for n, cut in self._cuts.items() if STORE in cut])

    @hidden
    def heal(self, *numbers: int) -> None:
        """Undo the cuts of these brokers, or all cuts; what was sent meanwhile arrives late."""
        chosen = set(self._chosen(numbers))
        for number, others in list(self._cuts.items()):
            for other in others if number in chosen else others & chosen:
                self._members.network.heal(number, other)
                self._cuts[number] = self._cuts[number] - {other}
        self._cuts = {number: others for number, others in self._cuts.items() if others}
        self._members.cut_store([n for n, cut in self._cuts.items() if STORE in cut])

    # -- topics ----------------------------------------------------------------------------------------------------

    @hidden
    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, object] | None = None, **named: object
    ) -> str:
        """Create a topic with the cluster's replication factor; return its name. `segment_bytes=1` is segment.bytes."""
        texts = {key: as_text(value) for key, value in (config or {}).items()}
        texts |= {key.replace("_", "."): as_text(value) for key, value in named.items()}
        with self._admin(TIMEOUT_S) as admin:
            admin.create_topic(name, partitions=partitions, configs=texts)
        self._told_s = time.monotonic() + TOLD_S_MAX
        return name

    @property
    @hidden
    def controller(self) -> int:
        """The id of the broker that is the controller; -1 if there is none."""
        return self._ask(lambda admin: admin.describe_cluster().controller)

    @hidden
    def leader(self, topic: str, partition: int = 0) -> int:
        """The id of the broker that leads a partition; -1 if there is none."""
        return int(self._ask(lambda admin: admin.topics([topic])[0].partitions[partition].leader))

    @hidden
    def in_sync(self, topic: str, partition: int = 0) -> Sequence[int]:
        """The in-sync replicas of a partition."""
        return sorted(self._ask(lambda admin: admin.topics([topic])[0].partitions[partition].isr))

    @hidden
    def wait_in_sync(self, topic: str | None = None, timeout_s: float = 30.0) -> None:
        """Return when each partition of a topic, or of all topics, has a leader, and its in-sync replicas are the
        brokers that run and are neither paused nor cut off; each of those brokers reports so. Raises TimeoutError."""
        deadline_s = time.monotonic() + timeout_s
        left = list(self._heard())
        heard = set(left)
        while left:
            topics = self._ask(lambda admin: admin.topics(None if topic is None else [topic]), left[:1])
            late = [
                f"{t.name}-{p.partition}: leader {p.leader}, in sync {sorted(p.isr)} of {sorted(p.replicas)}"
                for t in topics
                for p in t.partitions
                if p.leader not in heard or set(p.replicas) & heard != set(p.isr)
            ]
            if not late:
                left.pop(0)
                continue
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"not in sync after {timeout_s:g} s, as broker {left[0]} has it: {'; '.join(late)}")
            time.sleep(POLL_S)

    # -- records ---------------------------------------------------------------------------------------------------

    @hidden
    def produce(
        self, topic: str, *what: Record | Content, key: Content = None, partition: int = 0
    ) -> list[StoredRecord]:
        """Append records exactly once, also across a change of leader; return them with their offsets once all in-sync
        replicas have them. See BrokerHandle.produce."""
        made = [item if isinstance(item, Record) else Record(item, key, partition=partition) for item in what]
        return cluster_records.produce(self._addresses(self._heard()), topic, made)

    @hidden
    def records(
        self, topic: str, *, partition: int | None = None, count: int = 0, timeout_s: float = TIMEOUT_S
    ) -> list[StoredRecord]:
        """Return the topic's committed records, by partition and offset; wait until there are `count`. See
        BrokerHandle.records."""
        heard = self._addresses(self._heard())
        return self._told(lambda: cluster_records.read(heard, topic, partition, count, timeout_s))

    # -- the brokers to ask ------------------------------------------------------------------------------------------

    def _chosen(self, numbers: Sequence[int]) -> Sequence[int]:
        """These broker ids, or all. Raises ValueError."""
        for number in numbers:
            if number not in self._members.ports:
                raise ValueError(f"there is no broker {number!r}: its brokers are {', '.join(map(str, self.brokers))}")
        return numbers or self.brokers

    def _addresses(self, numbers: Sequence[int]) -> str:
        """The addresses of these brokers' listeners without login, for the kit."""
        return ",".join(f"{HOST}:{self._members.own_ports[number]}" for number in numbers)

    def _connect_all(self) -> "list[BrokerConnection]":
        return [records.connect(self._members.own_ports[number]) for number in self._heard()]

    def _heard(self) -> Sequence[int]:
        """The brokers that run and are neither paused nor cut off; in a forked child, all. Raises BrokerFailed if none
        runs."""
        running = self.brokers if self._members.inherited else self.running
        if not running:
            raise BrokerFailed("no broker of the cluster runs: call start()")
        silent = self._paused | self._cuts.keys()
        return [number for number in running if number not in silent] or running

    def _make_groups(self) -> None:
        """Create the topic of consumer groups while all brokers run: the first lookup of a group creates it, and that
        needs as many brokers as it has replicas."""
        from pybroker.errors import KafkaError

        with contextlib.suppress(KafkaError):  # these settings do not allow the topic: a group's lookup reports it
            self._ask(lambda admin: admin.group_offsets([CLIENT_ID]))

    def _admin(self, timeout_s: float, brokers: Sequence[int] = ()) -> "Admin":
        from pybroker.client.admin import Admin

        return Admin(self._addresses(brokers or self._heard()), timeout_s=timeout_s)

    def _ask(self, ask: "Callable[[Admin], T]", brokers: Sequence[int] = ()) -> T:
        """Send an idempotent request to one of these brokers, or to any broker."""
        from pybroker.errors import NETWORK_EXCEPTION, REQUEST_TIMED_OUT, KafkaError

        def once() -> T:
            with self._admin(ASK_S_MAX, brokers) as admin:
                return ask(admin)

        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return self._told(once)
            except KafkaError as problem:
                if problem.code not in (NETWORK_EXCEPTION, REQUEST_TIMED_OUT) or time.monotonic() > deadline_s:
                    raise

    def _told(self, call: "Callable[[], T]") -> T:
        """Call again while a broker may not know a topic yet, because the broker has just started or the topic is
        new."""
        from pybroker.errors import UNKNOWN_TOPIC_OR_PARTITION, KafkaError

        while True:
            try:
                return call()
            except KafkaError as problem:
                if problem.code != UNKNOWN_TOPIC_OR_PARTITION or time.monotonic() > self._told_s:
                    raise
            time.sleep(POLL_S)


def cluster(
    brokers: int = BROKERS,
    *,
    mode: Mode = "inprocess",
    store: StoreKind | None = None,
    settings: Mapping[str, object] | None = None,
    sasl: Sasl | None = None,
    acls: bool = False,
    tls: bool = False,
) -> ClusterHandle:
    """Return a cluster to use in a `with`; the arguments are ClusterHandle's."""
    __tracebackhide__ = True
    return ClusterHandle(brokers, mode=mode, store=store, settings=settings, sasl=sasl, acls=acls, tls=tls)
