"""Fixtures of all tests: a test's own broker, a session's shared broker, topics with unique names."""

from __future__ import annotations

import gc
import logging
import re
import resource
import signal
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from pybroker.development.zookeeper_server import ZooKeeper
from tests import harness
from tests.brokers.kit import Cluster
from tests.brokers.server import ThreeBrokers
from tests.harness import BrokerProcess, Server, free_port
from tests.java import peers
from tests.stores import STORES, AnyStore, alone_on, new_store

settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--target",
        action="append",
        choices=["pybroker", "cluster", "kafka391", "kafka411"],
        help="the broker that the client stories run against: ours, three of ours, or Apache Kafka, which shows what "
        "they should expect (repeatable)",
    )
    parser.addoption(
        "--store",
        choices=STORES,
        help="what clusters, and single brokers too, coordinate in; without it, clusters use ZooKeeper and single "
        "brokers the embedded store. Tests marked `zookeeper` are skipped with etcd",
    )
    parser.addoption("--rewrite", action="store_true", help="write golden files anew from what tests find")


def pytest_configure() -> None:
    """Restore SIGINT, which is ignored in the background of a shell and would stay so in child processes: tests send
    Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the tests that are about ZooKeeper, each with its reason, if the store is etcd."""
    for item in items:
        about = item.get_closest_marker("zookeeper")
        if about is None and "zookeeper" in getattr(item, "fixturenames", ()):
            raise pytest.UsageError(f"{item.nodeid} asks for ZooKeeper itself: give it the mark `zookeeper`, and why")
        if about is not None and config.getoption("store") == "etcd":
            item.add_marker(pytest.mark.skip(reason=f"about ZooKeeper: {about.args[0]}"))


def pytest_collection_finish() -> None:
    """Freeze the thousands of collected tests, so that the garbage collector does not traverse them again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show the output of the test's brokers beside a failure."""
    report = (yield).get_result()
    used = list(getattr(item, "funcargs", {}).values())
    clusters = [each for each in used if isinstance(each, Cluster)]
    used += [broker for cluster in clusters for broker in cluster.brokers.values()]
    if report.failed:
        for server in harness.LIVE:
            if server in used or call.when != "call":
                report.sections.append((f"output of {server.name} on port {server.port}", server.output()))


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Restore the logging configuration, which a command that a test runs in this process changes."""
    logger = logging.getLogger("pybroker")
    level, propagate, handlers = logger.level, logger.propagate, logger.handlers[:]
    yield
    logger.setLevel(level)
    logger.propagate, logger.handlers[:] = propagate, handlers


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Disable the garbage collector: objects go with their last reference."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A unique topic name that contains the test's name."""
    return new_name(request.node.name)


def new_name(hint: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9]+', '-', hint).strip('-')[:60]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def store_kind(request: pytest.FixtureRequest) -> str:
    """The kind of store that `--store` names, or the first of STORES."""
    return request.config.getoption("store") or STORES[0]


@pytest.fixture(scope="session")
def start_store(store_kind: str) -> Callable[..., AnyStore]:
    """A function that starts a store of the kind that `--store` names: `start_store(servers=3, home=...)`."""
    return partial(new_store, store_kind)


@pytest.fixture(scope="session")
def store(start_store: Callable[..., AnyStore]) -> Iterator[AnyStore]:
    """The store of all clusters of a worker, each under its own chroot or prefix."""
    with start_store() as running:
        yield running


@pytest.fixture(scope="session")
def store_of_one(request: pytest.FixtureRequest) -> AnyStore | None:
    """The store of brokers that are alone: none, as they have the embedded one, unless `--store` names another."""
    return request.getfixturevalue("store") if request.config.getoption("store") else None


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeper]:
    """A ZooKeeper for the tests of a worker that are about it, which have the marker `zookeeper`."""
    with ZooKeeper() as running:
        yield running


def on_cluster(config: pytest.Config) -> bool:
    """True if --target cluster gives three brokers to a test that expects one."""
    return "cluster" in (config.getoption("target") or ())


@pytest.fixture
def alone(request: pytest.FixtureRequest) -> bool:
    """True if `start_broker` starts single brokers, and not three."""
    return not on_cluster(request.config)


@pytest.fixture
def start_broker(
    request: pytest.FixtureRequest, alone: bool, store_of_one: AnyStore | None, tmp_path: Path
) -> Iterator[Callable[..., BrokerProcess]]:
    """Start brokers for this test alone: `start_broker(sets={...}, data_dir=..., failpoints=...)`."""
    started: list[BrokerProcess | ThreeBrokers] = []

    def start_three(sets: Mapping[str, object] | None = None) -> ThreeBrokers:
        home = tmp_path / f"cluster-{len(started)}"
        brokers = ThreeBrokers(home, request.getfixturevalue("store"), **(sets or {}))
        started.append(brokers)
        brokers.start()
        return brokers

    def start(
        data_dir: Path | None = None, sets: Mapping[str, object] | None = None, **how: object
    ) -> BrokerProcess:
        data_dir = data_dir or tmp_path / f"broker-{len(started)}"
        how.setdefault("port", free_port())
        broker = BrokerProcess(data_dir, sets={**alone_on(store_of_one, data_dir), **(sets or {})}, **how)  # type: ignore[arg-type]
        started.append(broker)
        broker.start()
        return broker

    yield start if alone else start_three  # type: ignore[misc]
    for broker in started:
        broker.close()


@pytest.fixture
def broker(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker for this test alone, to kill, stop and restart."""
    return start_broker()


PATIENT = {"log.retention.check.interval.ms": 86_400_000}
"""Delays retention, which would delete the records that tests write with timestamps of years ago."""


@pytest.fixture(scope="session")
def shared_cluster(store: AnyStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    """Three brokers for all tests of a session, RF 3 and min.insync.replicas=2."""
    cluster = ThreeBrokers(tmp_path_factory.mktemp("cluster"), store, **PATIENT)
    with cluster:
        yield cluster


@pytest.fixture(scope="session")
def shared_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, store_of_one: AnyStore | None
) -> Iterator[BrokerProcess | ThreeBrokers]:
    """A broker for all tests of a session that need only one: never killed, topics by `topic`."""
    if on_cluster(request.config):
        yield request.getfixturevalue("shared_cluster")
        return
    data_dir = tmp_path_factory.mktemp("shared") / "data"
    broker = BrokerProcess(data_dir, sets={**alone_on(store_of_one, data_dir), **PATIENT})
    with broker:
        yield broker
        broker.stop()  # SIGTERM must end it cleanly after any session


def _peer(name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    try:
        peers.jars(peers.PEERS[name].version)
    except peers.MissingJava as e:
        pytest.skip(str(e))
    with peers.PEERS[name](tmp_path_factory.mktemp(name)) as peer:
        yield peer


@pytest.fixture(scope="session")
def kafka391(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Apache Kafka 3.9.1 in ZooKeeper mode."""
    yield from _peer("kafka391", tmp_path_factory)


@pytest.fixture(scope="session")
def kafka411(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Apache Kafka 4.1.1 in KRaft mode."""
    yield from _peer("kafka411", tmp_path_factory)


@pytest.fixture(params=["pybroker", *peers.each_peer()], scope="module")
def target(request: pytest.FixtureRequest) -> Server:
    """A broker that other tests use as well."""
    server: Server = request.getfixturevalue("shared_broker" if request.param == "pybroker" else request.param)
    return server


@pytest.fixture
def descriptors() -> Iterator[int]:
    """The maximum number of descriptors of this process and its children, raised to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
