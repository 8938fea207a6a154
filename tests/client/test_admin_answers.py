"""Admin with a broker whose answers are invalid, or whose coordinator moves: errors, and retries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pybroker import Consumer, errors
from pybroker.client.admin import Admin, Alteration, Committed, ConfigOperation, ConfigResource, ResourceType
from pybroker.client.net.metadata import Node, PartitionInfo, TopicInfo
from pybroker.client.net.network import ClusterView
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from tests.client.fake_broker import Answers, FakeBroker


@pytest.fixture
def fake() -> Iterator[Callable[..., tuple[FakeBroker, Admin]]]:
    """Start a fake broker with these answers; return it and an Admin that is connected to it."""
    started: list[tuple[FakeBroker, Admin]] = []

    def start(answers: Answers, **versions: int) -> tuple[FakeBroker, Admin]:
        broker = FakeBroker(answers, versions)
        broker._answers.setdefault("FindCoordinator", broker.coordinator)
        started.append((broker, Admin(f"127.0.0.1:{broker.port}")))
        return started[-1]

    yield start
    for broker, admin in started:
        admin.close()
        broker.close()


NOTHING: Answers = {
    name: (lambda response: lambda _: getattr(m, response)())(f"{name}Response")
    for name in (
        *("CreateTopics", "DescribeConfigs", "IncrementalAlterConfigs", "ListOffsets", "DeleteRecords"),
        *("DescribeGroups", "DeleteGroups", "OffsetFetch", "OffsetCommit", "DescribeLogDirs", "ListGroups"),
    )
}
TOPIC = ConfigResource(ResourceType.TOPIC, "t")


@pytest.mark.parametrize(
    "ask",
    [
        lambda admin: admin.create_topic("t"),
        lambda admin: admin.configs(TOPIC),
        lambda admin: admin.alter_configs(TOPIC, [Alteration("a", ConfigOperation.SET, "1")]),
        lambda admin: admin.describe_groups(["g"]),
        lambda admin: admin.group_offsets(["g"]),
        lambda admin: admin.delete_group("g"),
    ],
)
def test_an_answer_that_leaves_out_what_was_asked_for(
    fake: Callable[..., tuple[FakeBroker, Admin]], ask: Callable[[Admin], Any]
) -> None:
    """An answer that omits a requested resource is an error with a sentence and a code."""
    _, admin = fake(NOTHING)
    with pytest.raises(KafkaError, match="answered with 0 results") as caught:
        ask(admin)
    assert caught.value.code == errors.UNKNOWN_SERVER_ERROR


def test_lists_may_be_empty(fake: Callable[..., tuple[FakeBroker, Admin]]) -> None:
    """An empty list is a valid answer if there may be no items."""
    _, admin = fake(NOTHING)
    assert admin.groups() == [] and admin.log_dirs() == []
    assert admin.delete_records({TopicPartition("t", 0): 0}) == {}
    assert admin.offsets(admin.topics(["t"]), -1) == {TopicPartition("t", 0): None}


@pytest.mark.parametrize("version", [0, 3, 4, 6])
def test_a_coordinator_that_moves_and_loads(fake: Callable[..., tuple[FakeBroker, Admin]], version: int) -> None:
    """A coordinator that moves and loads is looked up and asked until it answers: one group at a time with old brokers,
    several with newer ones."""
    asked: list[str] = []

    def find(request: Any) -> Any:
        asked.append("find")
        if asked.count("find") == 1:
            code = errors.COORDINATOR_NOT_AVAILABLE
            kind = m.FindCoordinatorResponse.Coordinators
            failed = [
                kind(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=None)
                for key in request.coordinator_keys
            ]
            return m.FindCoordinatorResponse(error_code=code, node_id=-1, host="", port=-1, coordinators=failed)
        return broker.coordinator(request)

    def describe(request: Any) -> Any:
        asked.append("describe")
        codes = [errors.NOT_COORDINATOR, errors.COORDINATOR_LOAD_IN_PROGRESS]
        turn = asked.count("describe")
        code = codes[turn - 1] if turn <= len(codes) else errors.NONE
        kind = m.DescribeGroupsResponse.Groups
        return m.DescribeGroupsResponse(
            groups=[kind(group_id=g, error_code=code, group_state="Empty") for g in request.groups]
        )

    broker, admin = fake(
        {"FindCoordinator": find, "DescribeGroups": describe}, FindCoordinator=version, DescribeGroups=5
    )
    assert [(g.id, g.state) for g in admin.describe_groups(["b", "a"])] == [("b", "Empty"), ("a", "Empty")]
    assert asked.count("describe") == 3


def test_a_coordinator_that_never_comes(fake: Callable[..., tuple[FakeBroker, Admin]]) -> None:
    """A coordinator that never comes is an error at the caller's timeout, with the broker's reason."""

    def nobody(request: Any) -> Any:
        kind = m.FindCoordinatorResponse.Coordinators
        code = errors.COORDINATOR_NOT_AVAILABLE
        return m.FindCoordinatorResponse(
            coordinators=[
                kind(key=key, host="", error_code=code, error_message=None) for key in request.coordinator_keys
            ]
        )

    _, admin = fake({"FindCoordinator": nobody})
    admin.timeout_s = 0.3  # for all attempts together; a single answer may still take its full time
    for ask in (
        lambda: admin.describe_groups(["g"]),
        lambda: admin.alter_group_offsets("g", {TopicPartition("t", 0): Committed(1)}),
    ):
        with pytest.raises(KafkaError, match="group g: there is no coordinator yet") as caught:
            ask()
        assert caught.value.code == errors.COORDINATOR_NOT_AVAILABLE


def test_any_address_will_do(fake: Callable[..., tuple[FakeBroker, Admin]]) -> None:
    """Any address will do, in a list or between commas; dead ones are skipped, and an invalid one is refused."""
    broker, _ = fake(NOTHING)
    for addresses in (f"127.0.0.1:1,127.0.0.1:{broker.port}", ["127.0.0.1:1", f"127.0.0.1:{broker.port}"]):
        with Admin(addresses) as admin:
            assert admin.describe_cluster().id == "fake"
    with pytest.raises(KafkaError, match="'nowhere:x' is no broker address"):
        Admin(["nowhere:x"])


def test_a_list_waits_for_a_broker_that_loads(fake: Callable[..., tuple[FakeBroker, Admin]]) -> None:
    """A list of groups waits for a broker that is loading groups, and omits none."""
    asked: list[int] = []

    def answer(_: Any) -> Any:
        asked.append(1)
        if len(asked) < 3:
            return m.ListGroupsResponse(error_code=errors.COORDINATOR_LOAD_IN_PROGRESS)
        return m.ListGroupsResponse(groups=[m.ListGroupsResponse.Groups(group_id="g", group_state="Stable")])

    _, admin = fake({"ListGroups": answer})
    assert [group.id for group in admin.groups()] == ["g"]


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\0\0", b"\x7f\xff", b"\0\0\x7f\xff\xff\xff", b"\0\0\0\0\0\x01\xff\xff" * 3]
)
def test_a_member_s_bytes_are_its_own(fake: Callable[..., tuple[FakeBroker, Admin]], data: bytes) -> None:
    """A member's assignment that cannot be parsed shows no partitions, and fails no call."""

    def describe(_: Any) -> Any:
        kind = m.DescribeGroupsResponse.Groups
        member = kind.Members(
            member_id="m", client_id="c", client_host="/h", member_metadata=b"", member_assignment=data
        )
        group = kind(
            group_id="g", group_state="Stable", protocol_type="consumer", protocol_data="range", members=[member]
        )
        return m.DescribeGroupsResponse(groups=[group])

    _, admin = fake({"DescribeGroups": describe})
    (described,) = admin.describe_groups(["g"])
    assert described.members[0].assignment == ()


def test_a_throttle_without_end_ends_with_the_request_s_time(fake: Callable[..., tuple[FakeBroker, Admin]]) -> None:
    """A throttle without end ends at the request's timeout: a broker may ask for weeks of silence (KIP-219), and
    waiting requests keep their own timeout."""

    def metadata(request: Any) -> Any:
        answer = broker._metadata(request)
        answer.throttle_time_ms = (1 << 31) - 1
        return answer

    def offsets(request: Any) -> Any:
        kind = m.ListOffsetsResponse.Topics
        return m.ListOffsetsResponse(topics=[kind(name="t", partitions=[kind.Partitions(partition_index=0, offset=7)])])

    broker, _ = fake({"Metadata": metadata, "ListOffsets": offsets})
    with Consumer(bootstrap_servers=f"127.0.0.1:{broker.port}", request_timeout_ms=500) as consumer:
        assert consumer.end_offsets([("t", 0)]) == {TopicPartition("t", 0): 7}


def test_partitions_that_no_topic_has_are_led_by_nobody() -> None:
    """Partitions that no topic has are led by no broker: an assignment may name any number, and one below 0 must not
    index from the end."""
    partition = PartitionInfo(0, 1, 5, (1,), (1,), 0)
    topic = TopicInfo("t", bytes(16), False, (partition,), 0)
    view = ClusterView(nodes={1: Node(1, "h", 9092, None)}, topics={"t": topic})
    assert (view.leader("t", 0), view.leader_epoch("t", 0)) == (1, 5)
    for index in (-(1 << 31), -2, -1, 1, (1 << 31) - 1):
        assert (view.leader("t", index), view.leader_epoch("t", index)) == (-1, -1)
