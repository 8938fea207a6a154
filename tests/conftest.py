"""Fixtures of all tests: a broker of a test's own, one that a session shares, topics that no other test has."""

from __future__ import annotations

import gc
import logging
import re
import resource
import signal
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from pybroker.server.zookeeper_server import ZooKeeper
from tests import harness
from tests.brokers.kit import Cluster
from tests.brokers.server import ThreeBrokers
from tests.harness import BrokerProcess, Server, free_port
from tests.java import peers

settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


LONG = re.compile(
    r"""
    tests/cli/.*\[kafka\d+                                # how Kafka answers our tools
    | tests/clients/.*[-\[]3\.9\.1                          # 4.1.1 does the same
    | tests/clients/system/test_restart\.py::.*((n|a|1)-stop-|-plain\])  # a kill of an idempotent one asks more
    | tests/system/test_packaging\.py::test_(wheel|sdist)_       # all of core is compiled once more
    | ::test_nobody_waits_for_somebody_elses_disk\[[1-3]  # make stalls is all of it
    | ::test_a_team_at_work\[(java-4\.1\.1|java-3\.9\.1-cooperative|confluent-eager|kafka-python-cooperative)
    | tests/groups/system/test_consumers\.py::test_(where|a_static|the_coordinator).*\[java-3\.9\.1
    | ::test_(where_a_group_goes_on|a_static_member_comes_back_without_a_rebalance)\[(java|kafka-python|aiokafka)
    | ::test_a_segment_that_is_missing_is_told_and_left_to_a_person\[(what|the\ end|the\ first)
    | tests/java/system/test_adopt\.py::.*\[(kafka411|kafka391-stop)
    | ::test_(a_topic_s_life\[controllers1|kills_and_stops\[controllers1|while_the_broker_writes)
    | tests/faults/system/test_duplicates\.py::.*(one\ segment-stop|a\ batch-stay|stop_and_kill)\]
    | ::test_a_damaged_index_is_made_anew\[(empty|past\ the\ log|preallocated|torn)-
    | ::test_producers_are_known_without_their_snapshots\[(empty|torn)-
    | ::test_death_while_a_checkpoint_is_written\[.*-[15]\]
    | ::test_at_each_step_of_a_round\[.*-60000\]
    | ::test_frames_of_many_blocks_are_undone\[.*-[56]\]
    | ::test_a_decompression_bomb_is_refused(_while_others_are_served\[.*-[13]|\[.*-keys)\]
    | tests/testing/system/test_docs\.py::test_the_examples_pass\[subprocess\]
    | ::test_fixtures\[(-n2|--pybroker-mode=subprocess)\]
    | tests/spark/system/test_cluster\.py::test_source_and_sink
    | ::test_a_topic_is_made_anew(\[(as\ long|longer)\]|_before_its_batch_is_read)
    | ::test_retention_overtakes_a_(first_batch_that_failed|stopped_job)
    | tests/spark/system/test_object_store\.py::test_a_crash.*\[(delta-after|iceberg-before)
    | tests/spark/system/test_table\.py::test_compaction_merges_by_levels
    | ::test_(small_files_become_one|a_checkpoint_that_was_restored|a_checkpoint_with_another_table|a_stop_between)
    | ::test_(what_is_done_is_known_beside_an_older_checkpoint|rows_that_the_driver_does_not_see)
    | tests/spark/system/test_(iceberg|delta)\.py::test_columns_are_added
    | tests/client/.*\[kafka391                           # 4.1.1 does the same
    | tests/testing/.*\[inprocess-zookeeper               # either half of it is in another mode
    | ::test_every_question_is_answered_as_the_slow_truth_answers_it\[[3-7]
    | ::test_a_stop_does_not_wait_for_it\[is\ killed
    | ::test_a_team_at_work\[aiokafka
    | ::test_a_spark_that_does_not_start\[spark\.archives
    | tests/spark/system/test_object_store\.py::test_a_table_in_a_store\[delta
    | ::test_a_crash_at_any_moment_neither_loses_nor_repeats\[before\ it\ is
    | ::test_(a_checkpoint_without_topic_ids_goes_on|metric_monitoring)
    | tests/clients/.*\[cluster-java                        # our own cluster with other libraries, Java with one broker
    | ::test_a_(password_that_is_changed_under_a_broker|minority_of_it_is_lost|session_ends_while_it_becomes_a_follower)
    | tests/spark/system/test_object_store\.py::test_a_crash.*\[iceberg-after
    | ::test_a_(new_checkpoint_is_another_run|table_that_is_copied_after_a_crash)
    | ::test_a_crash_at_any_moment_neither_loses_nor_repeats\[before\ the\ files
    | ::test_(partition_values_that_no_directory|log_aggregation|all_of_it_again_and_again|one_after_the_other_loses)
    | tests/spark/system/test_(iceberg|delta)\.py::test_times_that_no_calendar_has
    | tests/java/system/test_dump\.py::test_after_a_clean_stop
    | ::test_a_broker_that_is_killed_while_records_come
    | ::test_what_was_acknowledged_holds_after_each_death\[[2-9]
    | ::test_a_decompression_bomb_is_refused\[gzip-plain
    | ::test_(repeats_can_be_dropped|killed_at_work_and_stopped_at_the_end|three_leaders_in_a_row_leave_tails)
    """,
    re.VERBOSE,
)
"""What `make test-all` has no time for: it runs the others of their kind, and `make long` all."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if LONG.search(item.nodeid):
            item.add_marker(pytest.mark.long)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--target",
        action="append",
        choices=["pybroker", "cluster", "kafka391", "kafka411"],
        help="the broker that the client stories run against: ours, three of ours, or Apache Kafka, which shows what "
        "they should expect (repeatable)",
    )


def pytest_configure() -> None:
    """In the background of a shell SIGINT is ignored, and what the tests start would inherit that: Ctrl-C for all."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """A worker holds thousands of tests: the collector need not look at them again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show what the test's brokers said beside a failure."""
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
    """A command that a test runs in this process says where records of pybroker go, and from which level on."""
    logger = logging.getLogger("pybroker")
    level, propagate, handlers = logger.level, logger.propagate, logger.handlers[:]
    yield
    logger.setLevel(level)
    logger.propagate, logger.handlers[:] = propagate, handlers


@pytest.fixture
def uncollected() -> Iterator[None]:
    """The garbage collector does not run: what goes, goes with its last reference."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses, and that tells which test it is of."""
    return new_name(request.node.name)


def new_name(hint: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9]+', '-', hint).strip('-')[:60]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeper]:
    """One for all clusters of a worker, each in a corner of its own."""
    with ZooKeeper() as running:
        yield running


def on_cluster(config: pytest.Config) -> bool:
    """By --target cluster three brokers stand where a test expects one."""
    return "cluster" in (config.getoption("target") or ())


@pytest.fixture
def alone(request: pytest.FixtureRequest) -> bool:
    """The brokers that `start_broker` starts are one each, and not three."""
    return not on_cluster(request.config)


@pytest.fixture
def start_broker(request: pytest.FixtureRequest, alone: bool, tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Start brokers of this test's own: `start_broker(sets={...}, data_dir=..., failpoints=...)`."""
    started: list[BrokerProcess | ThreeBrokers] = []

    def start_three(sets: Mapping[str, object] | None = None) -> ThreeBrokers:
        home = tmp_path / f"cluster-{len(started)}"
        brokers = ThreeBrokers(home, request.getfixturevalue("zookeeper"), **(sets or {}))
        started.append(brokers)
        brokers.start()
        return brokers

    def start(**how: object) -> BrokerProcess:
        how.setdefault("data_dir", tmp_path / f"broker-{len(started)}")
        how.setdefault("port", free_port())
        broker = BrokerProcess(**how)  # type: ignore[arg-type]
        started.append(broker)
        broker.start()
        return broker

    yield start if alone else start_three  # type: ignore[misc]
    for broker in started:
        broker.close()


@pytest.fixture
def broker(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker of this test's own, to kill, stop and restart."""
    return start_broker()


PATIENT = {"log.retention.check.interval.ms": 86_400_000}
"""The first look at retention would take the records of tests that write them with times of years ago."""


@pytest.fixture(scope="session")
def shared_cluster(zookeeper: ZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    """Three brokers for all tests of a session, RF 3 and min.insync.replicas=2."""
    cluster = ThreeBrokers(tmp_path_factory.mktemp("cluster"), zookeeper, **PATIENT)
    with cluster:
        yield cluster


@pytest.fixture(scope="session")
def shared_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess | ThreeBrokers]:
    """One broker for all tests of a session that only need one: never killed, topics by `topic`."""
    if on_cluster(request.config):
        yield request.getfixturevalue("shared_cluster")
        return
    broker = BrokerProcess(tmp_path_factory.mktemp("shared") / "data", sets=PATIENT)
    with broker:
        yield broker
        broker.stop()  # whatever the session did to it, SIGTERM ends it cleanly


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


@pytest.fixture(
    params=["pybroker", *(pytest.param(name, marks=marks) for name, marks in peers.SHARED.items())],
    scope="module",
)
def target(request: pytest.FixtureRequest) -> Server:
    """A broker that other tests use as well."""
    server: Server = request.getfixturevalue("shared_broker" if request.param == "pybroker" else request.param)
    return server


@pytest.fixture
def descriptors() -> Iterator[int]:
    """How many this process and its children may have, which is as many as they may allow themselves."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
