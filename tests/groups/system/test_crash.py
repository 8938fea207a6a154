"""kill -9 under committing clients, and Apache Kafka's own tool that reads the log of groups."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from pybroker.client.net.connection import BrokerConnection
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from tests.groups.members import subscription
from tests.harness import HOST, BrokerProcess, until
from tests.java import peers

FEW = {"offsets.topic.num.partitions": 3, "group.initial.rebalance.delay.ms": 0}
GROUPS = 9


def create(connection: BrokerConnection, topic: str, partitions: int) -> None:
    kind = m.CreateTopicsRequest.Topics
    asked = [kind(name=topic, num_partitions=partitions, replication_factor=1)]
    [answer] = connection.request(m.CreateTopicsRequest(topics=asked, timeout_ms=5000)).topics
    assert answer.error_code == 0


def commit(connection: BrokerConnection, group: str, topic: str, offset: int, **member: Any) -> int:
    kind = m.OffsetCommitRequest.Topics
    partition = kind.Partitions(partition_index=0, committed_offset=offset)
    request = m.OffsetCommitRequest(group_id=group, topics=[kind(name=topic, partitions=[partition])], **member)
    return int(connection.request(request).topics[0].partitions[0].error_code)


def committed(connection: BrokerConnection, group: str) -> int:
    asked = m.OffsetFetchRequest(groups=[m.OffsetFetchRequest.Groups(group_id=group, topics=None)])
    [found] = connection.request(asked).groups
    assert found.error_code == 0
    return int(found.topics[0].partitions[0].committed_offset)


def find(connection: BrokerConnection, *groups: str) -> None:
    answer = connection.request(m.FindCoordinatorRequest(key_type=0, coordinator_keys=list(groups)))
    assert [c.error_code for c in answer.coordinators] == [0] * len(groups)


def loaded(connection: BrokerConnection) -> bool:
    return connection.request(m.ListGroupsRequest()).error_code == 0


def join_alone(connection: BrokerConnection, group: str) -> dict[str, Any]:
    """Become the only member of a group; return the fields that its commits and heartbeats carry."""
    join = m.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[m.JoinGroupRequest.Protocols(name="range", metadata=subscription("t"))],
    )
    join.member_id = connection.request(join).member_id
    joined = connection.request(join)
    assert joined.error_code == 0
    share = m.SyncGroupRequest.Assignments(member_id=joined.member_id, assignment=b"mine")
    sync = m.SyncGroupRequest(
        group_id=group, generation_id=joined.generation_id, member_id=joined.member_id, assignments=[share]
    )
    assert connection.request(sync).error_code == 0
    return {"member_id": joined.member_id, "generation_id": joined.generation_id}


def test_no_commit_that_was_acknowledged_is_lost(start_broker: Callable[..., BrokerProcess]) -> None:
    """After many kills between commits each group has its last acknowledged offset, or one unanswered commit more, and
    its member continues in its generation."""
    broker = start_broker(sets=FEW)
    groups = [f"g{n}" for n in range(GROUPS)]
    with BrokerConnection(HOST, broker.port) as connection:
        create(connection, "t", 1)
        find(connection, *groups)
        members = {group: join_alone(connection, group) for group in groups}
    told = dict.fromkeys(groups, -1)
    for life in range(3):
        with BrokerConnection(HOST, broker.port) as connection:
            until("the groups are loaded", lambda c=connection: loaded(c))
            for group in groups:
                if told[group] >= 0:
                    assert committed(connection, group) == told[group]
                who = members[group]
                beat = m.HeartbeatRequest(group_id=group, **who)
                assert connection.request(beat).error_code == 0
                for step in range(20):
                    offset = life * 1000 + step
                    epoch = {"generation_id_or_member_epoch": who["generation_id"], "member_id": who["member_id"]}
                    assert commit(connection, group, "t", offset, **epoch) == 0
                    told[group] = offset
            broker.kill()
        broker.restart()


def armed(start_broker: Callable[..., BrokerProcess], failpoint: str) -> BrokerProcess:
    """A broker with group g at offset 100 that dies at this failpoint."""
    broker = start_broker(sets=FEW)
    with BrokerConnection(HOST, broker.port) as connection:
        create(connection, "t", 1)
        find(connection, "g")
        assert commit(connection, "g", "t", 100) == 0
    broker.stop()
    broker.failpoints = failpoint
    broker.restart()
    return broker


def come_back(broker: BrokerProcess) -> None:
    """Wait until the broker has died, disarm its failpoint, and restart it."""
    broker.wait_end()
    broker.failpoints = ""
    broker.restart()


@pytest.mark.parametrize(
    ("failpoint", "made"), [("append.before=kill:0:2", 0), ("segment.write=kill:30:2", 0), ("append.after=kill:0:2", 1)]
)
def test_a_commit_without_an_answer_was_made_whole_or_not_at_all(
    start_broker: Callable[..., BrokerProcess], failpoint: str, made: int
) -> None:
    """The broker dies before, during and after the write of a commit: the last complete commit counts."""
    broker = armed(start_broker, failpoint)
    reached = 100
    with BrokerConnection(HOST, broker.port) as connection:
        until("the groups are loaded", lambda: loaded(connection))
        with pytest.raises(KafkaError):
            for offset in range(101, 200):
                commit(connection, "g", "t", offset)
                reached = offset
    come_back(broker)
    with BrokerConnection(HOST, broker.port) as connection:
        until("the groups are loaded", lambda: loaded(connection))
        assert committed(connection, "g") == reached + made


def empty_it(connection: BrokerConnection) -> None:
    kind = m.OffsetDeleteRequest.Topics
    topic = kind(name="t", partitions=[kind.Partitions(partition_index=0)])
    connection.request(m.OffsetDeleteRequest(group_id="g", topics=[topic]))


def delete_it(connection: BrokerConnection) -> None:
    connection.request(m.DeleteGroupsRequest(groups_names=["g"]))


def join_it(connection: BrokerConnection) -> None:
    join_alone(connection, "g")


def stands(connection: BrokerConnection) -> tuple[str, list[bytes], int | None]:
    """The state of group g, its members' assignments and its offset."""
    [group] = connection.request(m.DescribeGroupsRequest(groups=["g"])).groups
    asked = m.OffsetFetchRequest(groups=[m.OffsetFetchRequest.Groups(group_id="g", topics=None)])
    [found] = connection.request(asked).groups
    offsets = [p.committed_offset for topic in found.topics for p in topic.partitions]
    return group.group_state, [bytes(x.member_assignment) for x in group.members], offsets[0] if offsets else None


@pytest.mark.parametrize(
    ("decide", "decided"),
    [
        pytest.param(join_it, ("Stable", [b"mine"], 100), id="sync"),
        pytest.param(empty_it, ("Dead", [], None), id="offset-delete"),
        pytest.param(delete_it, ("Dead", [], None), id="delete"),
    ],
)
@pytest.mark.parametrize(("failpoint", "made"), [("segment.write=kill:30", False), ("append.after=kill", True)])
def test_what_is_decided_of_a_group_is_stored_whole_or_not_at_all(
    start_broker: Callable[..., BrokerProcess], decide: Callable[[BrokerConnection], None], decided: object,
    failpoint: str, made: bool,
) -> None:  # fmt: skip
    """The broker dies while it writes an assignment or a deletion of an offset or a group, and right after it."""
    broker = armed(start_broker, failpoint)
    with BrokerConnection(HOST, broker.port) as connection:
        until("the groups are loaded", lambda: loaded(connection))
        with pytest.raises(KafkaError):
            decide(connection)
    come_back(broker)
    with BrokerConnection(HOST, broker.port) as connection:
        until("the groups are loaded", lambda: loaded(connection))
        assert stands(connection) == (decided if made else ("Empty", [], 100))


@pytest.mark.java
def test_kafka_reads_the_log_of_groups(start_broker: Callable[..., BrokerProcess]) -> None:
    """kafka.tools.DumpLogSegments --offsets-decoder shows the group, its member and its offset."""
    try:
        tool = peers.java("3.9.1", "kafka.tools.DumpLogSegments", "--offsets-decoder", "--files")
    except peers.MissingJava as missing:
        pytest.skip(str(missing))
    broker = start_broker(sets=FEW | {"offsets.topic.num.partitions": 1})
    with BrokerConnection(HOST, broker.port) as connection:
        create(connection, "t", 1)
        find(connection, "g")
        who = join_alone(connection, "g")
        epoch = {"generation_id_or_member_epoch": who["generation_id"], "member_id": who["member_id"]}
        assert commit(connection, "g", "t", 42, **epoch) == 0
    broker.stop()
    [log] = broker.partition_dir("__consumer_offsets").glob("*.log")
    done = subprocess.run([*tool, str(log)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    said = done.stdout.replace("\\", "")
    assert re.search(r'"group":\s*"g"', said), said
    assert who["member_id"] in said and '"generation":1' in said.replace(" ", "")
    assert re.search(r'"topic":"t","partition":0', said.replace(" ", "")) and '"offset":42' in said.replace(" ", "")
