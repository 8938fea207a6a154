"""Costs of the controller of a large cluster: requests and bytes for each event, at sizes that a test has time for."""

import asyncio
import logging
from collections.abc import Iterator

import pytest

from pybroker.protocol import codec
from tests.simulation.scale import RF, Cost, measure

BROKERS, PARTITIONS = 12, 600


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def tails(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the encoded ends that UpdateMetadata requests share."""
    sizes: list[int] = []
    encode = codec.encode_tail

    def counted(*arguments: object) -> codec.Tail:
        tail = encode(*arguments)  # type: ignore[arg-type]
        sizes.append(len(tail.data))
        return tail

    monkeypatch.setattr(codec, "encode_tail", counted)
    return sizes


def by_event(costs: list[Cost]) -> dict[str, Cost]:
    return {cost.event: cost for cost in costs}


def test_each_broker_gets_one_request_of_a_kind_for_an_event(tails: list[int]) -> None:
    """A failed broker or rack is one LeaderAndIsr and one UpdateMetadata for each live broker, however many partitions
    it led; its return to the ISR, which each leader asks for, is one UpdateMetadata. A new controller sends the live
    brokers first, and asks replicas of partitions without a state what they know. What all get is encoded once."""
    costs = by_event(asyncio.run(measure(BROKERS, PARTITIONS, only="failures")))
    held = 3 * PARTITIONS // BROKERS
    rack = BROKERS // 3
    for event, changed, brokers, metadata, orders in (
        ("a broker fails", held, BROKERS - 1, 1, 1),
        ("it comes back", 0, BROKERS, 1, 1),
        ("its replicas join the ISR", held, BROKERS, 1, 3),
        ("a rack fails", PARTITIONS, BROKERS - rack, 1, 1),
        ("the controller fails", 0, BROKERS, 2, 1),
        ("first start, partitions created", PARTITIONS, BROKERS, 2, 2),
    ):
        cost = costs[event]
        assert cost.changed == changed, event
        assert cost.requests["UpdateMetadata"] == brokers * metadata, (event, cost.requests)
        assert cost.requests["LeaderAndIsr"] <= brokers * orders, (event, cost.requests)
    sent = sum(cost.requests["UpdateMetadata"] for cost in costs.values())
    assert len(tails) < sent / 3, (len(tails), sent)


def test_a_failover_writes_what_changed_and_no_more() -> None:
    """The bytes sent for a failed broker follow from the partitions that it held, not from all of them."""
    few, many = (by_event(asyncio.run(measure(BROKERS, PARTITIONS * times, only="failures"))) for times in (1, 2))
    one, two = few["a broker fails"], many["a broker fails"]
    assert two.changed == 2 * one.changed
    assert two.sent < 2.2 * one.sent


def test_everything_is_reassigned() -> None:
    """However many partitions move, a broker gets one request of a kind for each step; the bytes follow from the
    partitions, and so does the work, which four times the partitions make no ten times as long."""
    few, many = (by_event(asyncio.run(measure(BROKERS, PARTITIONS * times, only="moves"))) for times in (1, 4))
    for cost in few, many:
        begun, moved = cost["all partitions begin to move"], cost["their copies join the ISR"]
        assert begun.requests == {"LeaderAndIsr": BROKERS, "UpdateMetadata": BROKERS}
        assert begun.changed == moved.changed == cost["first start, partitions created"].changed
        assert moved.requests["StopReplica"] == 2 * BROKERS  # to stop, then to delete
        assert moved.requests["UpdateMetadata"] == RF * BROKERS
    one, four = few["their copies join the ISR"], many["their copies join the ISR"]
    assert sum(four.requests.values()) == sum(one.requests.values())
    assert four.sent < 4.4 * one.sent
    assert four.cpu_s < 10 * one.cpu_s
