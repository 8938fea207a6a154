"""Members of groups that are real clients: they share a topic, join, leave, crash and return, while the broker dies.

Each member is a process. Every story runs for every client, with the kinds of rebalance that the client knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import confluent_kafka as ck
import pytest

from pybroker.client.net.connection import BrokerConnection
from pybroker.protocol import messages as m
from tests.groups.members import SESSION_MS
from tests.groups.team import PATIENCE_S, Team
from tests.harness import HOST, BrokerProcess, until
from tests.marks import long

TOPIC, PARTITIONS = "work", 6
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    "offsets.topic.num.partitions": 3,
    "offsets.retention.check.interval.ms": 100,
    "num.partitions": PARTITIONS,
}
JAVA = [pytest.mark.java]
OLDER, NEWER = long("java-3.9.1", marks=JAVA), pytest.param("java-4.1.1", marks=JAVA)
ONE_OF_ALL = [
    "confluent", long("kafka-python"), long("aiokafka"), OLDER, long("java-4.1.1", marks=JAVA),
]  # fmt: skip
"""The parameters of tests that `make test-all` runs with one library, and `make long` with the others."""
EAGER, COOPERATIVE = "eager", "cooperative"
TEAMS = [
    long("confluent", EAGER), ("confluent", COOPERATIVE),
    ("kafka-python", EAGER), long("kafka-python", COOPERATIVE),
    long("aiokafka", EAGER), long("aiokafka", COOPERATIVE),
    pytest.param("java-3.9.1", EAGER, marks=JAVA), long("java-3.9.1", COOPERATIVE, marks=JAVA),
    long("java-4.1.1", EAGER, marks=JAVA), long("java-4.1.1", COOPERATIVE, marks=JAVA),
]  # fmt: skip

Start = Callable[..., BrokerProcess]


@pytest.fixture(params=["confluent", "kafka-python", "aiokafka", OLDER, NEWER])
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def team(client: str, start_broker: Start) -> Iterator[Team]:
    """A team without members, on its own broker."""
    broker = start_broker(sets=SETTINGS)
    broker.coordinator_port("team")  # so that the cluster variant kills the coordinator
    made = Team(client, broker)
    yield made
    made.close()


def produce(bootstrap: str, first: int, count: int, partitions: int = PARTITIONS) -> None:
    """Produce records whose value is their offset."""
    producer = ck.Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for offset in range(first, first + count):
        for partition in range(partitions):
            producer.produce(TOPIC, b"%d" % offset, partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def records(first: int, count: int) -> set[tuple[int, int]]:
    return {(partition, offset) for partition in range(PARTITIONS) for offset in range(first, first + count)}


@pytest.mark.parametrize(("client", "way"), TEAMS, indirect=["client"])
def test_a_team_at_work(team: Team, way: str) -> None:
    """Two members share, others join, one leaves, one crashes, and the broker is killed and restarted: all records are
    read, and committed ones only once."""
    cooperative = way == COOPERATIVE
    if cooperative and team.client == "aiokafka":
        pytest.skip("aiokafka rebalances eagerly only")
    broker = team.broker
    produce(broker.bootstrap, 0, 50)
    for _ in range(2):
        team.hire(cooperative=cooperative)
    team.share(PARTITIONS)
    team.until("all is read", lambda: team.seen().keys() == records(0, 50))
    for _ in range(1 if team.client.startswith("java") else 3):
        team.hire(cooperative=cooperative, commit="async")
    team.share(PARTITIONS)
    team.here.pop(0).leave()
    team.share(PARTITIONS)
    team.here.pop().kill()
    team.hire(cooperative=cooperative)
    team.share(PARTITIONS)
    team.until("all is committed", lambda: team.kept() == dict.fromkeys(range(PARTITIONS), 50))
    before = team.seen()
    broker.kill()
    broker.restart()
    produce(broker.bootstrap, 50, 50)
    team.until("the rest is read", lambda: team.seen().keys() == records(0, 100))
    assert {record: team.seen()[record] for record in before} == before, "committed records were read again"
    team.share(PARTITIONS)


@pytest.mark.parametrize("alone", [False], ids=["cluster"])
def test_the_coordinator_dies(team: Team) -> None:
    """In a cluster another broker takes over the group and its offsets at once, and no record is read twice."""
    broker = team.broker
    produce(broker.bootstrap, 0, 20)
    for _ in range(2):
        team.hire()
    team.share(PARTITIONS)
    team.until("all is committed", lambda: team.kept() == dict.fromkeys(range(PARTITIONS), 20))
    broker.kill()
    produce(broker.bootstrap, 20, 20)
    team.until("the rest is committed", lambda: team.kept() == dict.fromkeys(range(PARTITIONS), 40))
    assert set(team.seen().values()) == {1} and team.seen().keys() == records(0, 40)
    team.share(PARTITIONS)


@pytest.mark.parametrize("client", ONE_OF_ALL, indirect=True)
def test_a_static_member_comes_back_without_a_rebalance(team: Team) -> None:
    """With group.instance.id a killed member's replacement gets the same partitions, the other member keeps its own,
    and the broker logs no rebalance."""
    broker = team.broker
    produce(broker.bootstrap, 0, 10)
    for name in ("first", "second"):
        team.hire(instance=name, session_ms=SESSION_MS * 3)
    team.share(PARTITIONS)
    team.until("all is committed", lambda: team.kept() == dict.fromkeys(range(PARTITIONS), 10))
    counted, gone = broker.count(" rebalance "), team.here.pop()
    held = gone.assigned
    gone.kill()
    team.hire(instance=gone.options.instance, session_ms=SESSION_MS * 3)
    team.share(PARTITIONS)
    assert team.here[-1].assigned == held
    produce(broker.bootstrap, 10, 10)
    team.until("the rest is read", lambda: team.seen().keys() == records(0, 20))
    assert broker.count(" rebalance ") == counted


@pytest.mark.parametrize("client", ONE_OF_ALL, indirect=True)
def test_where_a_group_goes_on(team: Team) -> None:
    """A group continues at its committed offset, sync or async: after a clean restart, after `kill -9`, after a reset.
    It starts at the beginning once its offsets have expired."""
    broker = team.broker
    produce(broker.bootstrap, 0, 20, partitions=1)

    def reads(count: int, commit: str = "sync") -> list[int]:
        team.hire(limit=count, commit=commit)
        team.until("it has read that and left", lambda: not team.here[-1].running)
        gone = team.here.pop()
        gone.end()
        return [value for _, value in gone.read]

    assert reads(6) == list(range(6))
    broker.stop()
    broker.restart()
    assert reads(6, commit="async") == list(range(6, 12))
    broker.kill()
    broker.restart()
    assert reads(6) == list(range(12, 18))
    commit(broker.coordinator_port("team"), 8, offset=3)
    assert reads(2) == [3, 4]
    commit(broker.coordinator_port("team"), 4, offset=15, retention_time_ms=1)
    until("the offset has expired", lambda: committed(broker.coordinator_port("team")) == -1, PATIENCE_S)
    assert reads(2) == [0, 1]


def commit(port: int, version: int, offset: int, **more: int) -> None:
    """Commit an offset as an operator does, once the group has no members."""
    kind = m.OffsetCommitRequest.Topics
    topics = [kind(name=TOPIC, partitions=[kind.Partitions(partition_index=0, committed_offset=offset)])]
    request = m.OffsetCommitRequest(group_id="team", topics=topics, **more)
    with BrokerConnection(HOST, port) as connection:
        until(
            "the group takes it",
            lambda: connection.request(request, version_max=version).topics[0].partitions[0].error_code == 0,
            PATIENCE_S,
        )


def committed(port: int) -> int:
    kind = m.OffsetFetchRequest.Groups
    asked = kind(group_id="team", topics=[kind.Topics(name=TOPIC, partition_indexes=[0])])
    with BrokerConnection(HOST, port) as connection:
        [group] = connection.request(m.OffsetFetchRequest(groups=[asked])).groups
    return int(group.topics[0].partitions[0].committed_offset)


# -- the newer protocol -----------------------------------------------------------------------------------------------


@pytest.mark.java
@pytest.mark.parametrize("client", [NEWER], indirect=True)
def test_a_java_consumer_of_the_newer_protocol_is_told(team: Team) -> None:
    """With group.protocol=consumer (KIP-848) Java's client reports that the broker does not support it.

    librdkafka reports nothing: it looks for a coordinator again and again."""
    worker = team.hire(protocol="consumer")
    worker.says(r"^failed UnsupportedVersionException .*")
