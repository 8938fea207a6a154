"""Cached authorizations: the plane serves authorized clients itself until ACLs change."""

from __future__ import annotations

from pybroker import errors
from pybroker.security.acls import Permission
from tests.server.cast import DENIED, READ, TOPIC, WRITE, Cast
from tests.server.live import batch, fetch_fields


def executed(cast: Cast, api: str) -> tuple[int, int]:
    """(requests that the plane executed, requests that it left to Python)."""
    assert cast.live.broker is not None and cast.live.broker.replicas is not None
    stats = [each[api] for each in cast.live.broker.replicas.plane_stats()]
    return sum(each["requests"] for each in stats), sum(each["declined"] for each in stats)


async def test_who_was_judged_once_is_served_by_the_plane_until_rules_change(cast: Cast) -> None:
    await cast.give((TOPIC, "t", READ), (TOPIC, "t", WRITE))
    for _ in range(2):
        before = executed(cast, "Produce"), executed(cast, "Fetch")
        for _ in range(10):
            assert (await cast.ann.produce("t", batch(b"x"))).error_code == 0
            assert (await cast.ann.fetch("t", 0)).error_code == 0
        after = executed(cast, "Produce"), executed(cast, "Fetch")
        gained = [(now[0] - then[0], now[1] - then[1]) for then, now in zip(before, after, strict=True)]
        assert gained == [(9, 1), (9, 1)]
        await cast.give((TOPIC, "other", READ))
    await cast.give((TOPIC, "t", WRITE), permission=Permission.DENY)
    assert (await cast.ann.produce("t", batch(b"x"))).error_code == DENIED
    assert (await cast.ann.fetch("t", 0)).error_code == 0


async def test_a_right_to_read_is_none_to_write(cast: Cast) -> None:
    await cast.give((TOPIC, "t", READ))
    for _ in range(3):
        assert (await cast.ann.fetch("t", 0)).error_code == 0
        assert (await cast.ann.produce("t", batch(b"x"))).error_code == DENIED
    await cast.root.create("u")
    assert (await cast.ann.fetch("u", 0)).error_code == DENIED


async def test_a_right_is_nobody_elses(cast: Cast) -> None:
    await cast.give((TOPIC, "t", READ))
    assert (await cast.ann.fetch("t", 0)).error_code == 0
    assert (await cast.ann.fetch("t", 0)).error_code == 0
    bob = await cast.login("bob")
    assert (await bob.fetch("t", 0)).error_code == DENIED


async def test_what_waits_in_the_plane_is_judged_again_before_it_is_answered(cast: Cast) -> None:
    await cast.give((TOPIC, "t", READ))
    assert (await cast.ann.fetch("t", 0)).error_code == 0
    before = executed(cast, "Fetch")
    cast.ann.send("Fetch", 12, **fetch_fields("t", 1, max_wait_ms=10_000))
    await cast.live.one_waits()
    assert executed(cast, "Fetch")[1] == before[1], "the fetch waits in the plane"
    await cast.take()
    assert (await cast.root.produce("t", batch(b"later"))).error_code == 0
    _, answer = await cast.ann.receive("Fetch", 12)
    [part] = answer.responses[0].partitions
    assert part.error_code == DENIED and not part.records


async def test_no_session_and_no_replica_in_the_plane(cast: Cast) -> None:
    await cast.give((TOPIC, "t", READ))
    for _ in range(2):
        fields = fetch_fields("t", 0)
        answer = await cast.ann.call("Fetch", 12, session_epoch=0, **fields)
        assert (answer.error_code, answer.session_id) == (0, 0)
        answer = await cast.ann.call("Fetch", 12, replica_id=1, **fields)
        assert answer.responses[0].partitions[0].error_code == DENIED
        session = await cast.root.call("Fetch", 12, session_epoch=0, **fields)
        assert session.session_id != 0
        stolen = await cast.ann.call("Fetch", 12, topics=[], session_id=session.session_id, session_epoch=1)
        assert stolen.error_code == errors.FETCH_SESSION_ID_NOT_FOUND and stolen.responses == []


async def test_a_topic_of_the_same_name_is_another(cast: Cast) -> None:
    """A cached authorization is for one topic, and ends with it."""
    await cast.give((TOPIC, "t", WRITE))
    for _ in range(2):
        assert (await cast.ann.produce("t", batch(b"x"))).error_code == 0
    await cast.root.call("DeleteTopics", 5, topic_names=["t"], timeout_ms=5000)
    await cast.root.create("t")
    before = executed(cast, "Produce")
    assert (await cast.ann.produce("t", batch(b"x"))).error_code == 0
    assert executed(cast, "Produce")[1] == before[1] + 1
