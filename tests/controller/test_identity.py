"""The ids of cluster and broker in settings, log dirs and store must agree."""

from __future__ import annotations

import pytest

from pybroker import errors
from pybroker.coordination.store import NodeExists
from pybroker.errors import KafkaError
from pybroker.metadata import identity, nodes
from pybroker.metadata.lone_broker import loading
from pybroker.metadata.planning import NewTopic
from tests.controller.stage import Stage


async def settle(stage: Stage, configured: int = -1, known: str | None = None, **recorded: object) -> tuple[str, int]:
    cluster, broker = recorded.get("cluster"), recorded.get("broker")
    in_use = bool(recorded.get("in_use"))
    who = await identity.settle(stage.session, configured, known, cluster, broker, stage.random, in_use=in_use)  # type: ignore[arg-type]
    return tuple(who)


async def test_a_new_broker_gets_an_id_and_a_cluster(stage: Stage) -> None:
    """Generated broker ids are above those that operators use, each once; the cluster id is generated and recorded."""
    (cluster, first), (other, second) = await settle(stage), await settle(stage)
    assert second == first + 1 and first > identity.GENERATED_ABOVE and cluster != other
    assert await identity.cluster_id(stage.session) is None
    await identity.record_cluster_id(stage.session, cluster)
    assert await identity.cluster_id(stage.session) == cluster
    with pytest.raises(NodeExists):
        await identity.record_cluster_id(stage.session, other)


async def test_what_is_configured_or_recorded_holds(stage: Stage) -> None:
    assert await settle(stage, 7, "c") == ("c", 7)
    assert await settle(stage, -1, "c", cluster="c", broker=8) == ("c", 8)
    assert await settle(stage, 8, None, cluster="old", broker=8) == ("old", 8)


@pytest.mark.parametrize(
    ("configured", "known", "recorded", "code"),
    [
        (-1, "c", {"cluster": "d", "broker": 1}, errors.INCONSISTENT_CLUSTER_ID),
        (7, "c", {"cluster": "c", "broker": 8}, errors.INVALID_CONFIG),
        (-1, None, {"in_use": True}, errors.INVALID_CONFIG),
    ],
)
async def test_what_contradicts_itself_is_refused(
    stage: Stage, configured: int, known: str | None, recorded: dict[str, object], code: int
) -> None:
    with pytest.raises(KafkaError) as told:
        await settle(stage, configured, known, **recorded)
    assert told.value.code == code


async def test_the_store_says_whose_it_is(stage: Stage) -> None:
    """The broker id comes from the recorded log dirs, or else from the replicas, if all are of one broker."""
    assert await identity.stored_broker(stage.session) is None
    await stage.topics.create(NewTopic("t", assignment={0: [2], 1: [2]}))
    assert await identity.stored_broker(stage.session) == 2 and (await settle(stage))[1] == 2
    await stage.topics.create(NewTopic("u", assignment={0: [3]}))
    assert await identity.stored_broker(stage.session) is None, "its topics are of several brokers"
    await loading.record_log_dirs(stage.session, stage.context.fence, 3, {"d": "/d"})
    assert await identity.stored_broker(stage.session) == 3
    with pytest.raises(KafkaError):
        await settle(stage, 2)


# -- joining a cluster -----------------------------------------------------------------------------------------------


async def join(stage: Stage, configured: int = -1, cluster: str = "", broker: int = -1, **how: bool) -> tuple[str, int]:
    recorded = identity.Identity(cluster, broker)
    in_use, forced = how.get("in_use", False), how.get("forced", False)
    return tuple(
        await identity.join(stage.session, configured, recorded, stage.random, in_use=in_use, forced=forced)
    )


async def test_brokers_agree_on_one_cluster(stage: Stage) -> None:
    """The first broker records the cluster id; broker ids are generated, each once."""
    cluster, first = await join(stage)
    assert await identity.cluster_id(stage.session) == cluster
    assert await join(stage) == (cluster, first + 1)
    assert await join(stage, 7) == (cluster, 7)
    assert await join(stage, -1, cluster, 8, in_use=True) == (cluster, 8)


@pytest.mark.parametrize(
    ("configured", "cluster", "broker", "how", "code", "says"),
    [
        (-1, "other", 8, {}, errors.INCONSISTENT_CLUSTER_ID, "belong to cluster other"),
        (7, "", 8, {}, errors.INVALID_CONFIG, "broker.id is 7, but the log directories belong to broker 8"),
        (-1, "", -1, {"in_use": True}, errors.INVALID_CONFIG, "set broker.id"),
        (1, "", -1, {}, errors.INVALID_CONFIG, "broker 1 has partitions in this cluster, but its log directories are"),
    ],
)
async def test_who_may_not_join(
    stage: Stage, configured: int, cluster: str, broker: int, how: dict[str, bool], code: int, says: str
) -> None:
    """A broker of another cluster, with two ids or none is refused; one that lost its data may be forced."""
    await stage.topics.create(NewTopic("t", assignment={0: [1]}))
    await join(stage)
    with pytest.raises(KafkaError, match=says) as told:
        await join(stage, configured, cluster, broker, **how)
    assert told.value.code == code
    if configured == 1:
        assert (await join(stage, 1, forced=True))[1] == 1


async def test_a_store_that_lost_its_data_is_no_cluster(stage: Stage) -> None:
    """A broker that was in a cluster does not create it again, as no store has the topics of its log dirs."""
    with pytest.raises(KafkaError, match="knows of no cluster") as told:
        await join(stage, -1, "lost", 8)
    assert told.value.code == errors.INCONSISTENT_CLUSTER_ID
    assert await identity.cluster_id(stage.session) is None
    cluster, _ = await join(stage)
    await identity.check_cluster(stage.session, cluster)
    with pytest.raises(KafkaError, match=f"knows of cluster {cluster}"):
        await identity.check_cluster(stage.session, "other")


async def test_a_new_id_is_nobody_s(stage: Stage) -> None:
    """A generated id skips registered brokers, and those that hold partitions and are down."""
    cluster, first = await join(stage)
    await stage.session.create(nodes.broker(first + 1), b"{}", ephemeral=True)
    await stage.session.create(nodes.topic("t"), nodes.dump_assignment(b"t" * 16, [(first + 3,)]))
    assert await join(stage) == (cluster, first + 2)
    assert await join(stage) == (cluster, first + 4)
