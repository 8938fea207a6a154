"""The native plane answers for partitions that other brokers lead, without Python (KIP-951)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pybroker.protocol import codec
from pybroker.protocol import messages as m
from tests.core.stage import FETCH, PRODUCE, STUCK_MS, TOPIC_ID, Client, Stage, batch

NOT_LEADER_OR_FOLLOWER = 6
NODES: list[tuple[int, str, int, str | None]] = [
    (7, "seven.example", 9092, None),
    (8, "eight.example", 9093, "r1"),
    (9, "h" * 255, 1, ""),
]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path, partitions=4)
    made.plane.set_nodes([(0, *node) for node in NODES])
    yield made
    made.close()


def leaders(parts: list[Any]) -> list[tuple[int, int, int] | tuple[int, None, None]]:
    """(error code, leader, leader epoch) of each partition in an answer."""
    known = [(p.error_code, p.current_leader) for p in parts]
    return [(code, leader and leader.leader_id, leader and leader.leader_epoch) for code, leader in known]


def endpoints(answer: Any) -> list[tuple[int, str, int, str | None]]:
    return [(n.node_id, n.host, n.port, n.rack) for n in answer.node_endpoints]


def produce(client: Client, version: int, partitions: int) -> Any:
    kind = m.ProduceRequest.TopicData
    parts = [kind.PartitionData(index=i, records=batch(b"x")) for i in range(partitions)]
    topics = [kind(name="t", topic_id=TOPIC_ID, partition_data=parts)]
    request = m.ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics)
    client.send(codec.encode_request(PRODUCE, version, 1, "c", request))
    client.stage.step()
    return client.receive(PRODUCE, version)[1]


@pytest.mark.parametrize("version", [9, 10, 12, 13])
def test_a_produce_is_appended_where_it_is_led_and_else_told_who_leads(stage: Stage, version: int) -> None:
    """A Produce names each other partition's leader once in its answer, in the order of partitions, without Python."""
    first, second, third, _ = stage.partitions
    second.become_follower(8, 3, 1)
    third.become_follower(8, 5, 1)
    answer = produce(Client(stage), version, 3)
    parts = answer.responses[0].partition_responses
    if version >= 10:
        assert leaders(parts) == [(0, None, None), (6, 8, 3), (6, 8, 5)]
        assert endpoints(answer) == NODES[1:2]
    assert [p.error_code for p in parts] == [0, 6, 6]
    assert [(p.base_offset, p.error_message) for p in parts] == [(0, None), (-1, None), (-1, None)]
    assert [p.log_end_offset for p in (first, second, third)] == [1, 0, 0]
    assert stage.plane.take() == []


@pytest.mark.parametrize("version", [11, 12, 15, 16, 17])
def test_a_fetch_of_what_is_led_elsewhere_is_told_who_leads(stage: Stage, version: int) -> None:
    """A Fetch is answered at once with the leaders of other partitions, beside the records of those led here."""
    first, second, third, fourth = stage.partitions
    first.append(batch(b"x"), now_ms=1)
    second.become_follower(9, 3, 1)
    third.become_offline(4, 1)
    fourth.become_offline(0, 0, leader=7)
    client = Client(stage)
    client.fetch_in((0, -1), {0: 0, 1: 0, 2: 0, 3: 0}, version=version, max_wait_ms=STUCK_MS)
    stage.step()
    answer = client.receive(FETCH, version)[1]
    parts = answer.responses[0].partitions
    assert [p.error_code for p in parts] == [0, 6, 6, 6]
    assert len(parts[0].records) > 0
    assert [(p.high_watermark, p.log_start_offset) for p in parts[1:]] == [(-1, -1)] * 3
    if version >= 12:
        assert leaders(parts) == [(0, None, None), (6, 9, 3), (6, -1, 4), (6, 7, 0)]
    if version >= 16:
        assert endpoints(answer) == [NODES[2], NODES[0]]
    assert stage.plane.take() == []


def test_a_parked_fetch_is_answered_when_the_partition_is_led_no_more(stage: Stage) -> None:
    client = Client(stage)
    client.fetch(0, version=16, max_wait_ms=STUCK_MS)
    stage.step()
    assert client.quiet()
    stage.log.become_follower(7, 1, 1)
    stage.step()
    answer = client.receive(FETCH, 16)[1]
    assert leaders(answer.responses[0].partitions) == [(6, 7, 1)]
    assert endpoints(answer) == NODES[:1]


def test_acks_0_to_a_follower_ends_the_connection(stage: Stage) -> None:
    """A Produce with acks=0 to a follower closes the connection, as it has no answer that could name the leader."""
    stage.log.become_follower(7, 1, 1)
    client = Client(stage)
    client.produce(batch(b"x"), acks=0)
    stage.step()
    assert client.sock.recv(1) == b""
    assert stage.log.log_end_offset == 0


def test_a_leader_that_nobody_described_is_named_without_an_address(stage: Stage) -> None:
    """A leader that is not in the table of nodes is named without an address.

    A newer table counts at once, and a table with a host name that is too long is refused.
    """
    stage.log.become_follower(5, 1, 1)
    client = Client(stage)
    assert endpoints(produce(client, 12, 1)) == []
    with pytest.raises(ValueError, match="more than 255"):
        stage.plane.set_nodes([(0, 5, "h" * 256, 9092, None)])
    assert endpoints(produce(client, 12, 1)) == []
    stage.plane.set_nodes([(1, 5, "elsewhere", 9092, None), (0, 5, "five", 9092, None)])
    assert endpoints(produce(client, 12, 1)) == [(5, "five", 9092, None)]


def test_an_answer_names_32_leaders_at_most(tmp_path: Path) -> None:
    """An answer has at most 32 node addresses; further leaders are named by id alone."""
    stage = Stage(tmp_path, partitions=33)
    stage.plane.set_nodes([(0, 100 + i, "h", 1, None) for i in range(33)])
    for i, partition in enumerate(stage.partitions):
        partition.become_follower(100 + i, 1, 1)
    client = Client(stage)
    assert [n[0] for n in endpoints(produce(client, 12, 32))] == list(range(100, 132))
    answer = produce(client, 12, 33)
    assert [n[0] for n in endpoints(answer)] == list(range(100, 132))
    assert [leader for _, leader, _ in leaders(answer.responses[0].partition_responses)] == list(range(100, 133))
    stage.close()
