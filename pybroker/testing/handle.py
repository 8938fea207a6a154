"""The handle of a test's broker: start, stop, kill, and the requests a test makes of it.

    broker() ──with──> running ──stop, kill──> down ──start, restart──> running ──end of with──> closed

The broker keeps its data and its port from life to life. While it is down the handle holds the port, so that no other
process gets the port, and no client that keeps reconnecting connects to its own socket there.
"""

import asyncio
import atexit
import contextlib
import os
import time
import weakref
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Literal, Protocol, get_args

from pybroker import fork_safety
from pybroker.testing import records
from pybroker.testing.datadir import DataDir
from pybroker.testing.faults import Faults
from pybroker.testing.inprocess import InProcess
from pybroker.testing.lifecycle import HOST, BrokerPlan, InheritedBroker, Life, as_text, hold_port
from pybroker.testing.process import Subprocess
from pybroker.testing.records import Content, Record, StoredRecord
from pybroker.testing.secured_handle import Secured
from pybroker.testing.security import Sasl, Security
from pybroker.testing.tracebacks import hidden

if TYPE_CHECKING:
    from pybroker.client.net.connection import BrokerConnection

Mode = Literal["inprocess", "subprocess"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
DEFAULTS: Final[Mapping[str, str]] = {
    "auto.create.topics.enable": "true",
    "default.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "log.segment.bytes": str(64 << 20),
    "log.segment.delete.delay.ms": "0",
    "num.io.threads": "2",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.segment.bytes": str(4 << 20),
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.segment.bytes": str(4 << 20),
}
"""Settings suited to a test: no rebalance delay, little memory. `settings` override them."""


class Forgotten(Protocol):
    """A broker or cluster that the test may forget to close."""

    def discard(self) -> None:
        """Remove processes and files as the interpreter exits; the threads end with the interpreter."""


LIVE: Final["weakref.WeakSet[Forgotten]"] = weakref.WeakSet()
"""The brokers and clusters of this process that are not closed."""


class BrokerHandle(Secured):
    """One broker, started when it is made.

    `settings` are broker settings by Kafka's names. `data_dir` is kept when the handle is closed; without it the data
    is removed. With `sasl` clients log in: True, a mechanism, or {"mechanism": ..., "users": {name:
    password}}; with `acls` they may do only what `allow` grants. With `tls` clients' connections are
    encrypted; the certificate is made at run time. Raises BrokerFailed, ValueError.
    """

    @hidden
    def __init__(
        self,
        *,
        mode: Mode = "inprocess",
        settings: Mapping[str, object] | None = None,
        data_dir: str | None = None,
        sasl: Sasl | None = None,
        acls: bool = False,
        tls: bool = False,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}; it can be one of {', '.join(MODES)}")
        self.mode: Mode = mode
        self.host = HOST
        given = {name: as_text(value) for name, value in (settings or {}).items()}
        self._security = Security.of(sasl, acls, tls, given)
        self._held = [hold_port() for _ in range(1 if self._security is None else 2)]
        self.port: int = self._held[0].getsockname()[1]
        self._own_port: int = self._held[-1].getsockname()[1]  # the listener of the kit, without login
        if self._security is not None:
            given = self._security.settings(self.port, self._own_port, given)
        self._directory = DataDir(data_dir)
        self.data_dir = self._directory.path
        plan = BrokerPlan(self._directory.log_dir, self.port, {**DEFAULTS, **given})
        remove = None if self._directory.kept else self.data_dir
        inprocess = mode == "inprocess"
        self._life: Life = InProcess(plan) if inprocess else Subprocess(plan, self._directory.log_file, remove)
        self.faults = Faults(lambda command: self._life.ask(command))
        LIVE.add(self)
        fork_safety.tell(self)
        try:
            self.start()
            self._make_users()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        state = "running" if self.running else "not running"
        return f"<BrokerHandle {self.bootstrap_servers}: {state}, {self.mode}, data in {self.data_dir}>"

    def __enter__(self) -> "BrokerHandle":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- life ------------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._life.running

    @property
    def bootstrap_servers(self) -> str:
        """The broker's host:port, the same in all of its lives."""
        return f"{self.host}:{self.port}"

    @hidden
    def start(self) -> None:
        """Start the broker after stop() or kill(). Raises BrokerFailed."""
        if not self.running:
            self._life.start()

    @hidden
    def stop(self) -> None:
        """Stop the broker cleanly: it answers its clients and flushes its logs. Raises BrokerFailed."""
        self._life.stop()

    @hidden
    def kill(self) -> None:
        """Kill the broker as `kill -9` does: connections are cut, nothing is flushed. Acknowledged records survive."""
        self._life.kill()

    @hidden
    def restart(self) -> None:
        """Stop the broker cleanly if it runs, and start it. Raises BrokerFailed."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Remove threads, processes and files; calling it again does nothing."""
        try:
            self._life.kill()
        finally:
            self._release_ports()
            self._directory.remove()
            LIVE.discard(self)

    def forked(self) -> None:
        """Mark the broker as the parent's, in a forked child. The child's clients may use it; nothing here ends it."""
        self._life = InheritedBroker(os.getppid())
        self._release_ports()
        self._directory.forked()

    def _release_ports(self) -> None:
        for held in self._held:
            held.close()

    def discard(self) -> None:
        """Remove processes and files as the interpreter exits; the threads end with the interpreter."""
        self._life.discard()
        self._directory.remove()

    def output(self) -> str:
        """The end of the log of a broker in its own process; a broker in this process logs to `logging`."""
        return self._life.output()

    # -- topics and records ----------------------------------------------------------------------------------------

    @hidden
    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, object] | None = None) -> str:
        """Create a topic; return its name. KafkaError if the topic exists."""
        with self._connect() as connection:
            texts = {key: as_text(value) for key, value in (config or {}).items()}
            records.create_topic(connection, name, partitions, texts)
        return name

    @hidden
    def produce(
        self, topic: str, *what: Record | Content, key: Content = None, partition: int = 0
    ) -> list[StoredRecord]:
        """Append records, and return them with their offsets once they are acknowledged.

        A bare value gets `key` and `partition`. A missing topic is created. Raises KafkaError, and what
        `pybroker.Producer.send` raises for an invalid record."""
        made = [item if isinstance(item, Record) else Record(item, key, partition=partition) for item in what]
        with self._connect() as connection:
            return records.produce(connection, topic, made)

    @hidden
    def records(
        self, topic: str, *, partition: int | None = None, count: int = 0, timeout_s: float = records.TIMEOUT_S
    ) -> list[StoredRecord]:
        """Return the topic's records, by partition and offset; wait until there are `count`.

        Raises KafkaError if there is no such topic and `count` is 0; TimeoutError, which names the records found."""
        from pybroker.errors import UNKNOWN_TOPIC_OR_PARTITION, KafkaError

        deadline = time.monotonic() + timeout_s
        found: list[StoredRecord] = []
        with self._connect() as connection:
            while True:
                try:
                    found = records.read(connection, topic, partition)
                except KafkaError as problem:
                    if not count or problem.code != UNKNOWN_TOPIC_OR_PARTITION:
                        raise
                if len(found) >= count:
                    return found
                if time.monotonic() > deadline:
                    there = records.shown(found) if found else records.topics(connection)
                    words = f"{topic} has {len(found)} of {count} records after {timeout_s:g} s: {there}"
                    raise TimeoutError(words)
                time.sleep(records.POLL_S)

    def _connect(self) -> "BrokerConnection":
        return records.connect(self._own_port)

    def _connect_all(self) -> "list[BrokerConnection]":
        return [self._connect()]


class AsyncBroker:
    """A broker for a test that must not block its event loop: calls to the broker are awaited.

    `handle` is the BrokerHandle; clients' configurations and faults are the handle's.
    """

    def __init__(self, handle: BrokerHandle) -> None:
        self.handle = handle
        self.faults = handle.faults
        self.bootstrap_servers = handle.bootstrap_servers
        self.confluent_config = handle.confluent_config
        self.kafka_python_config = handle.kafka_python_config
        self.aiokafka_config = handle.aiokafka_config
        self.pybroker_config = handle.pybroker_config
        self.java_config = handle.java_config
        self.users = handle.users
        self.ca_file = handle.ca_file

    @hidden
    async def start(self) -> None:
        """Start the broker after stop() or kill(). Raises BrokerFailed."""
        await asyncio.to_thread(self.handle.start)

    @hidden
    async def stop(self) -> None:
        """Stop the broker cleanly: it answers its clients and flushes its logs. Raises BrokerFailed."""
        await asyncio.to_thread(self.handle.stop)

    @hidden
    async def kill(self) -> None:
        """Kill the broker as `kill -9` does."""
        await asyncio.to_thread(self.handle.kill)

    @hidden
    async def restart(self) -> None:
        """Stop the broker cleanly if it runs, and start it. Raises BrokerFailed."""
        await asyncio.to_thread(self.handle.restart)

    @hidden
    async def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, object] | None = None) -> str:
        """Create a topic; return its name. KafkaError if the topic exists."""
        return await asyncio.to_thread(self.handle.create_topic, name, partitions, config)

    @hidden
    async def allow(self, user: str, *operations: str, prefixed: bool = False, **about: str | Iterable[str]) -> None:
        """Grant a user operations, with ACLs."""
        await asyncio.to_thread(self.handle.allow, user, *operations, prefixed=prefixed, **about)

    @hidden
    async def deny(self, user: str, *operations: str, prefixed: bool = False, **about: str | Iterable[str]) -> None:
        """Deny a user operations, with ACLs."""
        await asyncio.to_thread(self.handle.deny, user, *operations, prefixed=prefixed, **about)

    @hidden
    async def produce(
        self, topic: str, *what: Record | Content, key: Content = None, partition: int = 0
    ) -> list[StoredRecord]:
        """Append records, and return them with their offsets once they are acknowledged."""
        return await asyncio.to_thread(self.handle.produce, topic, *what, key=key, partition=partition)

    @hidden
    async def records(
        self, topic: str, *, partition: int | None = None, count: int = 0, timeout_s: float = records.TIMEOUT_S
    ) -> list[StoredRecord]:
        """Return the topic's records, by partition and offset; wait until there are `count`."""
        return await asyncio.to_thread(
            self.handle.records, topic, partition=partition, count=count, timeout_s=timeout_s
        )


def broker(
    *,
    mode: Mode = "inprocess",
    settings: Mapping[str, object] | None = None,
    data_dir: str | None = None,
    sasl: Sasl | None = None,
    acls: bool = False,
    tls: bool = False,
) -> BrokerHandle:
    """Return a broker to use in a `with`; the arguments are BrokerHandle's."""
    __tracebackhide__ = True
    return BrokerHandle(mode=mode, settings=settings, data_dir=data_dir, sasl=sasl, acls=acls, tls=tls)


@contextlib.asynccontextmanager
async def async_broker(
    *,
    mode: Mode = "inprocess",
    settings: Mapping[str, object] | None = None,
    data_dir: str | None = None,
    sasl: Sasl | None = None,
    acls: bool = False,
    tls: bool = False,
) -> AsyncIterator[AsyncBroker]:
    """Return a broker to use in an `async with`; a thread starts and ends the broker."""
    __tracebackhide__ = True
    handle = await asyncio.to_thread(
        lambda: BrokerHandle(mode=mode, settings=settings, data_dir=data_dir, sasl=sasl, acls=acls, tls=tls)
    )
    try:
        yield AsyncBroker(handle)
    finally:
        await asyncio.to_thread(handle.close)


@atexit.register
def _discard_all() -> None:
    """Remove the processes and files of brokers that the test forgot to close."""
    for handle in list(LIVE):
        handle.discard()
