"""Several brokers that are one cluster: killed, frozen, cut off and started again, one by one.

    cluster() ──with──> running ──stop, kill──> down ──start──> running
                           ├────── pause ──> frozen ──resume──> running
                           └────── cut_off ──> not heard ──heal──> running

Its brokers run on a thread of the test, with a store in memory or a real ZooKeeper, or in processes of their own with a
ZooKeeper. Each keeps its address and its data for as long as the cluster is used.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from pybroker import forks
from pybroker.testing import records, replicated
from pybroker.testing.faults import Faults
from pybroker.testing.frames import hidden
from pybroker.testing.handle import DEFAULTS, LIVE, MODES, Mode
from pybroker.testing.life import HOST, BrokerFailed, as_text
from pybroker.testing.members import STORES, Members, StoreKind
from pybroker.testing.network import STORE
from pybroker.testing.records import CLIENT_ID, TIMEOUT_S, Content, Record, StoredRecord
from pybroker.testing.secured import Secured
from pybroker.testing.security import Sasl, Security

if TYPE_CHECKING:
    from pybroker.client.admin import Admin
    from pybroker.client.connection import Connection
    from pybroker.server.zookeeper_server import ZooKeeper

T = TypeVar("T")
BROKERS: Final = 3
ASK_S_MAX: Final = 5.0
"""So long is a broker asked who leads, before another one is."""
TOLD_S_MAX: Final = 5.0
"""So long after a start may a broker not know of a topic yet: it serves before the controller has told it of all."""
POLL_S: Final = 0.01
COUNTS: Final = {"default.replication.factor": 3, "min.insync.replicas": 2, "offsets.topic.replication.factor": 3}
"""At most; they are never more than there are brokers."""
CLUSTER_DEFAULTS: Final[Mapping[str, str]] = {
    **DEFAULTS,
    "controlled.shutdown.retry.backoff.ms": "100",
    "num.network.threads": "1",
    "replica.lag.time.max.ms": "3000",
    "zookeeper.connection.timeout.ms": "30000",
    "zookeeper.session.timeout.ms": "3000",
}
"""What a test expects of a cluster; `settings` win over it."""


class ClusterHandle(Secured):
    """A cluster, started when it is made; brokers are numbered from 1, as their ids are. Raises BrokerFailed."""

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
        """`settings` are those of each broker, by Kafka's names. Without a `store`, brokers in the process of the test
        have one in memory; those in processes of their own always have a ZooKeeper. `sasl`, `acls` and `tls` are
        BrokerHandle's: brokers log in at each other, too, and what they say is encrypted."""
        if brokers < 1:
            raise ValueError(f"a cluster has at least one broker, not {brokers}")
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}; it can be one of {', '.join(MODES)}")
        self.mode: Mode = mode
        self.store: StoreKind = store or ("memory" if mode == "inprocess" else "zookeeper")
        if self.store not in STORES:
            raise ValueError(f"store is {store!r}; it can be one of {', '.join(STORES)}")
        if mode == "subprocess" and self.store == "memory":
            raise ValueError("processes of their own share no memory: mode='subprocess' is with store='zookeeper'")
        few = {name: str(min(count, brokers)) for name, count in COUNTS.items()}
        given = {name: as_text(value) for name, value in (settings or {}).items()}
        self._security = Security.of(sasl, acls, tls, given)
        self._members = Members(brokers, mode, self.store, {**CLUSTER_DEFAULTS, **few, **given}, self._security)
        self._paused: set[int] = set()
        self._cuts: dict[int, set[int]] = {}
        self._told_s = 0.0
        LIVE.add(self)
        forks.tell(self)
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
        """The numbers of all of them."""
        return list(self._members.ports)

    @property
    def running(self) -> Sequence[int]:
        """The numbers of those that run; one that is paused or cut off does."""
        return [number for number, life in self._members.lives.items() if life.running]

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all, for clients."""
        return ",".join(f"{HOST}:{port}" for port in self._members.ports.values())

    @property
    def zookeeper(self) -> "ZooKeeper | None":
        """The real one, which can be killed, paused and started itself; None with a store in memory."""
        return self._members.zookeeper

    @hidden
    def start(self, *numbers: int) -> None:
        """Start those that are down, of these or all. Raises BrokerFailed."""
        self._members.start([n for n in self._chosen(numbers) if n not in self.running])
        self._told_s = time.monotonic() + TOLD_S_MAX

    @hidden
    def stop(self, *numbers: int) -> None:
        """End them cleanly, of these or all: what they lead goes to others first. Raises BrokerFailed."""
        for number in self._chosen(numbers):
            if number in self._paused:
                raise BrokerFailed(f"broker {number} is paused, and stops only when it goes on: resume or kill it")
            self._members.lives[number].stop()

    @hidden
    def kill(self, *numbers: int) -> None:
        """End them, of these or all, as `kill -9` does."""
        for number in self._chosen(numbers):
            self._members.kill(number)
            self._paused.discard(number)

    @hidden
    def restart(self, *numbers: int) -> None:
        """Stop these, or all, cleanly if they run, and start them. Raises BrokerFailed."""
        self.stop(*numbers)
        self.start(*numbers)

    @hidden
    def pause(self, *numbers: int) -> None:
        """Freeze the processes of these, or of all that run, as SIGSTOP does: connections stay, nothing is answered."""
        for number in self._processes(numbers):
            self._members.process(number).pause()
            self._paused.add(number)

    @hidden
    def resume(self, *numbers: int) -> None:
        """Have those go on that are paused, of these or all."""
        for number in self._processes(numbers) & self._paused:
            self._members.process(number).resume()
            self._paused.discard(number)

    def _processes(self, numbers: Sequence[int]) -> set[int]:
        """Raises ValueError where brokers have none, BrokerFailed for one that does not run."""
        if self.mode != "subprocess":
            raise ValueError(
                "a broker in the process of the test cannot be frozen: pause it with mode='subprocess', or cut it off"
            )
        running = set(self.running)
        if down := set(numbers) - running:
            raise BrokerFailed(f"broker {min(down)} does not run")
        return set(self._chosen(numbers)) & running

    def close(self) -> None:
        """The end of its use: threads, processes and files go; calling it again does nothing."""
        try:
            self._members.close()
        finally:
            LIVE.discard(self)

    def forked(self) -> None:
        """In a forked child: the cluster is the parent's. The child's clients reach it; nothing here ends it."""
        self._members.forked()

    def discard(self) -> None:
        """The interpreter ends, and its threads with it: leave nothing else."""
        self._members.discard()

    def output(self, number: int) -> str:
        """The end of what a broker in a process of its own logged; in this process it goes to `logging`."""
        return self._members.lives[number].output()

    def faults(self, number: int) -> Faults:
        """The faults of one broker, as those of a lone one. Others ask it under their number as `client_id`."""
        self._chosen([number])
        return Faults(lambda command: self._members.lives[number].ask(command))

    # -- the network -----------------------------------------------------------------------------------------------

    @hidden
    def cut_off(self, number: int, *others: int | Literal["store"]) -> None:
        """Cut the network between a broker and these others, "store" among them; with none, between it and all of them.

        What is sent waits, no connection ends and nobody is refused. Clients reach it as before."""
        ends = {STORE if each == "store" else self._chosen([each])[0] for each in others}
        (number,) = self._chosen([number])
        ends = (ends or {STORE, *self.brokers}) - {number}
        self._members.network.cut_off(number, *ends)
        self._cuts.setdefault(number, set()).update(ends)
        self._members.cut_store([n for n, cut in self._cuts.items() if STORE in cut])

    @hidden
    def heal(self, *numbers: int) -> None:
        """Undo the cuts of these brokers, or all; what was sent meanwhile comes, late."""
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
        """Create a topic with the cluster's replication factor; its name. `segment_bytes=1` is segment.bytes."""
        texts = {key: as_text(value) for key, value in (config or {}).items()}
        texts |= {key.replace("_", "."): as_text(value) for key, value in named.items()}
        with self._admin(TIMEOUT_S) as admin:
            admin.create_topic(name, partitions=partitions, configs=texts)
        self._told_s = time.monotonic() + TOLD_S_MAX
        return name

    @property
    @hidden
    def controller(self) -> int:
        """The number of the broker that is the controller; -1 for nobody."""
        return self._ask(lambda admin: admin.describe_cluster().controller)

    @hidden
    def leader(self, topic: str, partition: int = 0) -> int:
        """Who leads a partition; -1 for nobody."""
        return int(self._ask(lambda admin: admin.topics([topic])[0].partitions[partition].leader))

    @hidden
    def in_sync(self, topic: str, partition: int = 0) -> Sequence[int]:
        """The in-sync replicas of a partition."""
        return sorted(self._ask(lambda admin: admin.topics([topic])[0].partitions[partition].isr))

    @hidden
    def wait_in_sync(self, topic: str | None = None, timeout_s: float = 30.0) -> None:
        """Return when each partition of a topic, or of all, has a leader, and its in-sync replicas are those whose
        brokers run, and are neither paused nor cut off; each of them says so. Raises TimeoutError."""
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
        """Append records once each, whoever leads meanwhile; they are returned with their offsets once all in-sync
        replicas have them. As BrokerHandle.produce."""
        made = [item if isinstance(item, Record) else Record(item, key, partition=partition) for item in what]
        return replicated.produce(self._addresses(self._heard()), topic, made)

    @hidden
    def records(
        self, topic: str, *, partition: int | None = None, count: int = 0, timeout_s: float = TIMEOUT_S
    ) -> list[StoredRecord]:
        """Every record of the topic that is committed, by partition and offset; waits until there are `count`. As
        BrokerHandle.records."""
        heard = self._addresses(self._heard())
        return self._told(lambda: replicated.read(heard, topic, partition, count, timeout_s))

    # -- who is asked ----------------------------------------------------------------------------------------------

    def _chosen(self, numbers: Sequence[int]) -> Sequence[int]:
        """These, or all. Raises ValueError."""
        for number in numbers:
            if number not in self._members.ports:
                raise ValueError(f"there is no broker {number!r}: they are {', '.join(map(str, self.brokers))}")
        return numbers or self.brokers

    def _addresses(self, numbers: Sequence[int]) -> str:
        """Where the kit asks these, without a login."""
        return ",".join(f"{HOST}:{self._members.own_ports[number]}" for number in numbers)

    def _connect_all(self) -> "list[Connection]":
        return [records.connect(self._members.own_ports[number]) for number in self._heard()]

    def _heard(self) -> Sequence[int]:
        """Those that know what is so: they run, and are neither paused nor cut off; in a forked child, all. Raises
        BrokerFailed where none runs."""
        running = self.brokers if self._members.inherited else self.running
        if not running:
            raise BrokerFailed("no broker of the cluster runs: start() begins those that are down")
        silent = self._paused | self._cuts.keys()
        return [number for number in running if number not in silent] or running

    def _make_groups(self) -> None:
        """Have the topic of consumer groups made while all brokers are there: it is made when the first group is looked
        for, and needs as many brokers as it has replicas."""
        from pybroker.errors import KafkaError

        with contextlib.suppress(KafkaError):  # of settings with which it cannot be made: groups are told then
            self._ask(lambda admin: admin.group_offsets([CLIENT_ID]))

    def _admin(self, timeout_s: float, brokers: Sequence[int] = ()) -> "Admin":
        from pybroker.client.admin import Admin

        return Admin(self._addresses(brokers or self._heard()), timeout_s=timeout_s)

    def _ask(self, ask: "Callable[[Admin], T]", brokers: Sequence[int] = ()) -> T:
        """Ask one of these brokers, or whichever, what may be asked twice."""
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
        """Call again while a broker may not know of a topic yet: it was started a moment ago, or the topic was made."""
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
    """A cluster for the length of a `with`; the arguments are ClusterHandle's."""
    __tracebackhide__ = True
    return ClusterHandle(brokers, mode=mode, store=store, settings=settings, sasl=sasl, acls=acls, tls=tls)
