"""Late and false peers: a frozen leader, a frozen controller, expired sessions, stale requests."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pybroker import errors
from pybroker.protocol import messages as m
from tests.asking import ask
from tests.brokers.editor import editing, replace
from tests.brokers.kit import Cluster
from tests.brokers.network import STORE, Network
from tests.brokers.witness import ALONE, Witness
from tests.harness import BrokerProcess, Ended, until
from tests.stores import AnyStore, setting_of
from tests.wire import Wire, batch

pytestmark = [pytest.mark.java]
IMPATIENT: dict[str, object] = {"socket_timeout_ms": 300, "topic_metadata_refresh_interval_ms": 100}
"""The settings of a client that does not wait long for a silent broker."""
SILENT_S_MAX = 15.0
"""From a leader's last sign of life to the next acknowledgement, with a session of 2 s: 2.6 s on an idle machine, and
less than 30 s, for which clients wait for an answer, on a busy one."""


def test_a_frozen_leader_is_replaced_after_its_session(start_cluster: Callable[..., Cluster]) -> None:
    """The leader's process stops, and its connections stay: an idempotent producer continues elsewhere after little
    more than the session. When the leader wakes, it first refuses waiting requests with acks=1 and acks=0."""
    cluster = start_cluster(zookeeper_session_timeout_ms=2000)
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    port = cluster.brokers[1].port
    with Witness(cluster, topic, **IMPATIENT) as witness, Wire(port) as untold, Wire(port) as told:
        witness.until_acked()
        cluster.signal(1, signal.SIGSTOP)
        frozen_s = time.monotonic()
        untold.send(untold.produce_frame(topic, batch([ALONE]), acks=0))
        told.send(told.produce_frame(topic, batch([ALONE]), acks=1))
        witness.until_acked()
        gap_s = witness.gap_s(frozen_s - 0.5)
        print(f"next acknowledgement {gap_s:.2f} s after the last")
        time.sleep(max(0, frozen_s + 4 - time.monotonic()))  # twice the session
        cluster.signal(1, signal.SIGCONT)
        assert told.produced().error == errors.NOT_LEADER_OR_FOLLOWER
        assert untold.is_closed()
        cluster.until_in_sync(topic)
        witness.until_acked()
        witness.judge()
    assert gap_s < SILENT_S_MAX


def test_a_frozen_controller_is_replaced(start_cluster: Callable[..., Cluster]) -> None:
    """Another controller is elected after its session; when it wakes, its writes fail and brokers refuse its
    requests."""
    cluster = start_cluster(zookeeper_session_timeout_ms=1000)
    first = cluster.controller()
    others = [number for number in (1, 2, 3) if number != first]
    topic = cluster.create("t", replicas=[[*others, first]])
    with Witness(cluster, topic) as witness:
        witness.until_acked()
        cluster.signal(first, signal.SIGSTOP)
        brokers = [cluster.brokers[number] for number in others]
        until("another controls", lambda: any(b.count("controller elected") for b in brokers))
        cluster.kill(others[0])  # whose death the frozen controller will notice and try to handle
        cluster.signal(first, signal.SIGCONT)
        until("it has resigned", lambda: cluster.brokers[first].count("controller resigned"))
        cluster.restart()
        cluster.until_in_sync(topic)
        witness.until_acked()
        witness.judge()


def test_a_session_that_expires_five_times(tmp_path: Path, start_store: Callable[..., AnyStore]) -> None:
    """A leader is cut from the store for longer than a session, five times: it registers again each time, gets
    LeaderAndIsr of all partitions, and follows."""
    network = Network()
    with start_store(tick_ms=100) as own, Cluster(
        tmp_path, own, network=network, zookeeper_session_timeout_ms=2000
    ) as cluster:  # fmt: skip
        topic, broker = cluster.create("t", replicas=[[1, 2, 3]]), cluster.brokers[1]
        with Witness(cluster, topic) as witness:
            for _ in range(5):
                until("it is known", lambda: 1 in ids(cluster, 2))
                witness.until_acked(20)
                before = broker.count("broker registered")
                network.cut(1, STORE)
                until("it is gone", lambda: 1 not in ids(cluster, 2))
                network.heal()
                until("it is registered again", lambda n=before: broker.count("broker registered") > n)
            cluster.until_in_sync(topic)
            witness.until_acked()
            witness.judge()
    network.close()


def ids(cluster: Cluster, number: int) -> set[int]:
    """The live brokers in one broker's metadata."""
    return {broker.broker_id for broker in ask(cluster.brokers[number].port, "DescribeCluster", 0).brokers}


def test_control_requests_of_another_time(cluster: Cluster) -> None:
    """Requests of an earlier controller, for an earlier registration, of an earlier leader epoch, or duplicates are
    refused or without effect, and clients notice nothing."""
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    port = cluster.brokers[1].port
    topic_id = ask(port, "Metadata", 12, topics=[m.MetadataRequest.Topics(topic_id=bytes(16), name=topic)]).topics[0]
    kind = m.LeaderAndIsrRequest

    def lead(controller_epoch: int, broker_epoch: int, leader: int, leader_epoch: int) -> tuple[int, list[int]]:
        """Send LeaderAndIsr of the partition to its leader, broker 1; return (error code, codes of the partitions)."""
        state = kind.TopicStates.PartitionStates(
            partition_index=0, controller_epoch=controller_epoch, leader=leader, leader_epoch=leader_epoch,
            isr=[leader], partition_epoch=leader_epoch + 50, replicas=[1, 2, 3], adding_replicas=[],
            removing_replicas=[], is_new=False, leader_recovery_state=0,
        )  # fmt: skip
        answer = ask(
            port, "LeaderAndIsr", 7, controller_id=3, controller_epoch=controller_epoch, broker_epoch=broker_epoch,
            type=0, live_leaders=[],
            topic_states=[
                kind.TopicStates(topic_name=topic, topic_id=topic_id.topic_id, partition_states=[state])
            ],
        )  # fmt: skip
        codes = [p.error_code for found in answer.topics for p in found.partition_errors]
        return answer.error_code, codes

    with Witness(cluster, topic) as witness:
        witness.until_acked()
        assert lead(0, 1 << 40, 2, 9) == (errors.STALE_CONTROLLER_EPOCH, [errors.STALE_CONTROLLER_EPOCH])
        assert lead(1, 1, 2, 9) == (errors.STALE_BROKER_EPOCH, [errors.STALE_BROKER_EPOCH])
        for _ in range(2):
            assert lead(1, 1 << 40, 2, 0) == (0, [errors.STALE_CONTROLLER_EPOCH]), "it already leads in this epoch"
        doomed = m.StopReplicaRequest.TopicStates.PartitionStates
        stop = doomed(partition_index=0, leader_epoch=-2, delete_partition=True)
        answer = ask(
            port, "StopReplica", 4, controller_id=3, controller_epoch=1, broker_epoch=1,
            topic_states=[m.StopReplicaRequest.TopicStates(topic_name=topic, partition_states=[stop])],
        )  # fmt: skip
        assert answer.error_code == errors.STALE_BROKER_EPOCH
        witness.until_acked()
        assert cluster.partition(topic) == (1, [1, 2, 3])
        witness.judge()


def test_two_of_one_kind(cluster: Cluster, tmp_path: Path) -> None:
    """A second process on a data directory, a second broker with an id, and log dirs of another cluster are refused
    with the reason; the first broker goes on."""
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    first = cluster.brokers[1]
    quick = {**first.sets, "zookeeper.session.timeout.ms": 1000}
    with Witness(cluster, topic) as witness:
        for data_dir, sets, says in (
            (first.data_dir, first.sets, "another broker is using the data directory"),
            (tmp_path / "new", {**quick, "broker.id": 1}, "broker 1 has partitions in this cluster"),
            (tmp_path / "own", {**quick, "broker.id": -1}, ""),
            (tmp_path / "own", {**quick, **setting_of(cluster.store, cluster.chroot + "x")}, "knows of"),
        ):
            second = BrokerProcess(data_dir, 0, sets)
            if says:
                with pytest.raises(Ended, match=says):
                    second.start()
            else:
                second.start()
                second.stop()
            second.close()
        witness.until_acked()
        witness.judge()


@pytest.mark.parametrize("count", [1, 3])
def test_a_controllership_that_an_operator_deletes(count: int, tmp_path: Path, store: AnyStore) -> None:
    """After `deleteall /controller`, as in Kafka's runbooks, another term begins, acknowledged records are there, and
    the cluster goes on. A node without an owner blocks elections until it is deleted too."""
    sets: dict[str, object] = {"min.insync.replicas": 1}
    with Cluster(tmp_path, store, count, default_replication_factor=count, **sets) as cluster:
        replicas = [list(cluster.brokers)]
        topic = cluster.create("t", replicas=replicas)
        with editing(store, cluster.chroot) as admin, Witness(cluster, topic) as witness:
            witness.until_acked()
            for again in range(2):
                before = int(admin.get("/controller_epoch")[0])
                admin.delete("/controller")
                until("a node is there again", lambda: admin.exists("/controller"))
                assert int(admin.get("/controller_epoch")[0]) == before + 1
                cluster.create(f"later-{again}", replicas=replicas)
                witness.until_acked()
            replace(admin, "/controller", b"garbage")
            time.sleep(1)
            assert int(admin.get("/controller_epoch")[0]) == before + 1
            admin.delete("/controller")
            until("a node is there again", lambda: admin.exists("/controller"))
            cluster.create("last", replicas=replicas)
            witness.until_acked()
            witness.judge()
