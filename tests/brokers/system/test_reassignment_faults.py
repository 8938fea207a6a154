"""Each fault of a cluster while a reassignment is under way: clients go on, and it ends as if nothing had happened.

The broker that is to be added cannot reach the others at first. The fault strikes, then that broker copies, and then
the fault ends. tests/simulation/test_moves.py has the same faults by seeds, and at each step.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from kazoo.exceptions import NoNodeError

from pybroker import errors
from pybroker.metadata import nodes
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from tests.asking import ask
from tests.brokers.editor import Editor, editor_of
from tests.brokers.network import STORE, Network
from tests.brokers.system.test_reassignments import STEP_S_MAX, MovingCluster, move, moving, until_moved
from tests.brokers.witness import ALONE, Witness
from tests.harness import BrokerProcess, Ended, until
from tests.stores import AnyStore
from tests.wire import Wire, batch

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("moves under faults")]  # the tests share a cluster
BROKERS = 4
SESSION_MS = 2000
EXPIRIES = 5


class Stage:
    """A cluster of four brokers, with ways between them that can be cut. The partition of a topic moves from `leader`,
    `second` and `third` to `added`, `leader` and `second`."""

    def __init__(self, home: Path, store: AnyStore) -> None:
        self.store = store
        self.network = Network(refusing=True)
        self.cluster = MovingCluster(
            home, store, BROKERS, network=self.network, zookeeper_session_timeout_ms=SESSION_MS,
            replica_lag_time_max_ms=1500,
        )  # fmt: skip
        self.topic = ""
        self.leader = self.second = self.third = self.added = 0

    @contextmanager
    def moves(self, topic: str, led_by_controller: bool = False) -> Iterator[Witness]:
        """A reassignment of a new topic that is under way, as the broker to be added is cut off. At the end of the
        block all is healed; the reassignment must complete, and the history be right. The third replica is on the
        controller, or the first."""
        cluster, controller = self.cluster, self.cluster.controller()
        others = [number for number in cluster.brokers if number != controller]
        self.leader, self.second, self.third, self.added = (
            (controller, *others) if led_by_controller else (*others[:2], controller, others[2])
        )
        self.topic = cluster.create(topic, replicas=[[self.leader, self.second, self.third]])
        until("all are in sync", lambda: len(cluster.partition(topic)[1]) == 3, timeout_s=STEP_S_MAX)
        with Witness(cluster, topic) as witness:
            witness.until_acked(20, timeout_s=STEP_S_MAX)
            self.network.cut_off(self.added, self.leader, self.second, self.third)
            key, target = TopicPartition(topic, 0), [self.added, self.leader, self.second]
            move(cluster, {key: target})
            assert moving(cluster).keys() == {key}
            yield witness
            self.network.heal()
            cluster.start()
            until_moved(cluster, *target, topic=topic)
            witness.until_acked(20, timeout_s=STEP_S_MAX)
            witness.judge()

    def let_copy(self) -> None:
        """Let the broker to be added reach the others."""
        for other in (self.leader, self.second, self.third):
            self.network.heal(self.added, other)

    def until_led_by(self, *numbers: int) -> None:
        """Wait for a leader by the store: a broker that is cut off answers what it knew before."""
        until(f"one of {numbers} leads", lambda: self.state()[0] in numbers, STEP_S_MAX)

    def state(self) -> tuple[int, list[int]]:
        """The leader and the ISR in the store."""
        with self.editor() as store:
            told = json.loads(store.get(nodes.state(self.topic, 0))[0])
        return told["leader"], told["isr"]

    @contextmanager
    def editor(self) -> Iterator[Editor]:
        client = editor_of(self.store, self.cluster.chroot)
        client.start()
        yield client
        client.stop()
        client.close()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, start_store: Callable[..., AnyStore]) -> Iterator[Stage]:
    home = tmp_path_factory.mktemp("moves")
    with start_store(home=home / "store", tick_ms=100) as store:
        made = Stage(home, store)
        with made.cluster:
            yield made
        made.network.close()


def test_the_leader_is_cut_from_its_followers(stage: Stage) -> None:
    """The ISR shrinks; records that the leader takes alone, with acks=1, are cut when it is back."""
    with stage.moves("followers-cut") as witness:
        stage.network.cut_off(stage.leader, stage.second, stage.third, stage.added)
        with Wire(stage.cluster.brokers[stage.leader].port) as wire:
            assert wire.produce(stage.topic, batch([ALONE]), acks=1).error == errors.NONE
        stage.cluster.kill(stage.leader)
        stage.until_led_by(stage.second, stage.third)
        stage.let_copy()
        witness.until_acked(20, timeout_s=STEP_S_MAX)


def test_the_leader_is_cut_from_the_store(stage: Stage) -> None:
    """The replica to be added copies from a leader whose session has expired, and then from the next leader."""
    with stage.moves("store-cut"):
        stage.network.cut(stage.leader, STORE)
        stage.let_copy()
        stage.until_led_by(stage.second, stage.third, stage.added)
        until("the added one is in sync", lambda: stage.added in stage.state()[1], STEP_S_MAX)


def test_the_leader_is_frozen(stage: Stage) -> None:
    """A leader that wakes after another was elected follows, and is a replica of the target."""
    with stage.moves("frozen") as witness:
        stage.cluster.signal(stage.leader, signal.SIGSTOP)
        stage.until_led_by(stage.second, stage.third)
        stage.let_copy()
        witness.until_acked(20, timeout_s=STEP_S_MAX)
        stage.cluster.signal(stage.leader, signal.SIGCONT)


def test_the_controller_is_frozen(stage: Stage) -> None:
    """The next controller goes on with the reassignment; the first one, when it wakes, does not."""
    with stage.moves("controller") as witness:
        cluster, first = stage.cluster, stage.cluster.controller()
        before = sum(broker.count("controller elected") for broker in cluster.brokers.values())
        resigned = cluster.brokers[first].count("controller resigned")
        cluster.signal(first, signal.SIGSTOP)
        until(
            "another one is elected",
            lambda: sum(b.count("controller elected") for b in cluster.brokers.values()) > before, STEP_S_MAX,
        )  # fmt: skip
        stage.let_copy()
        cluster.signal(first, signal.SIGCONT)
        until("it has resigned", lambda: cluster.brokers[first].count("controller resigned") > resigned, STEP_S_MAX)
        witness.until_acked(20, timeout_s=STEP_S_MAX)


def test_the_store_is_away(stage: Stage) -> None:
    """The replica copies meanwhile, and joins the ISR when the store is back with its data."""
    with stage.moves("store") as witness:
        stage.store.kill()
        stage.let_copy()
        witness.until_acked(200, timeout_s=STEP_S_MAX)
        stage.store.start()


def test_registrations_are_lost(stage: Stage) -> None:
    """The broker to be added loses its registration again and again: each time it gets another broker epoch and all
    its roles."""
    with stage.moves("registrations") as witness, stage.editor() as store:
        stage.let_copy()
        for _ in range(EXPIRIES):
            before = stage.cluster.brokers[stage.added].count("broker registered")
            with suppress(NoNodeError):
                store.delete(nodes.broker(stage.added))
            until(
                "it is registered again",
                lambda n=before: stage.cluster.brokers[stage.added].count("broker registered") > n, STEP_S_MAX,
            )  # fmt: skip
        witness.until_acked(20, timeout_s=STEP_S_MAX)


def test_leaders_die_in_a_row(stage: Stage) -> None:
    """Each leader is killed soon after its election, until all of the first replicas were leaders once at least."""
    with stage.moves("failovers") as witness:
        for _ in range(3):
            leader = stage.cluster.leader(stage.topic)
            stage.cluster.kill(leader)
            witness.until_acked(5, timeout_s=STEP_S_MAX)
            stage.let_copy()
            stage.cluster.restart(leader)


def test_the_only_replica_in_sync_dies(stage: Stage) -> None:
    """Neither a replica that fell out of the ISR nor a partial copy leads: the partition waits for its last leader."""
    with stage.moves("last", led_by_controller=True) as witness:
        stage.network.cut_off(stage.leader, stage.second, stage.third)
        until("it is alone", lambda: stage.state() == (stage.leader, [stage.leader]), STEP_S_MAX)
        stage.cluster.kill(stage.leader)
        stage.network.heal()
        until("there is no leader", lambda: stage.state() == (-1, [stage.leader]), STEP_S_MAX)
        acked = witness.acked
        until("the broker to be added has no role", lambda: stage.cluster.controller() != stage.leader, STEP_S_MAX)
        assert witness.acked == acked
        stage.cluster.start(stage.leader)
        witness.until_acked(20, timeout_s=STEP_S_MAX)


def test_requests_of_another_time(stage: Stage) -> None:
    """A replica that is being added does not delete its log for a StopReplica of an earlier registration or
    controller."""
    with stage.moves("requests"):
        stage.let_copy()
        until("it has a log", lambda: stage.added in stage.cluster.logs(stage.topic), STEP_S_MAX)
        peers = int(str(stage.cluster.brokers[stage.added].sets["listeners"]).rpartition(":")[2])
        doomed = m.StopReplicaRequest.TopicStates.PartitionStates
        stop = doomed(partition_index=0, leader_epoch=-2, delete_partition=True)
        topics = [m.StopReplicaRequest.TopicStates(topic_name=stage.topic, partition_states=[stop])]
        for controller_epoch, broker_epoch, code in (
            (0, 1 << 40, errors.STALE_CONTROLLER_EPOCH), (1 << 20, 1, errors.STALE_BROKER_EPOCH),
        ):  # fmt: skip
            told = ask(
                peers, "StopReplica", 4, controller_id=3, controller_epoch=controller_epoch, broker_epoch=broker_epoch,
                topic_states=topics,
            )  # fmt: skip
            assert told.error_code == code


def test_a_second_process_and_a_quick_restart(stage: Stage) -> None:
    """A second process on the data directory of the broker to be added is refused; the broker itself, killed and
    started again while its session lives, is not."""
    with stage.moves("second") as witness:
        stage.let_copy()
        first = stage.cluster.brokers[stage.added]
        second = BrokerProcess(first.data_dir, 0, first.sets)
        with pytest.raises(Ended, match="another broker is using the data directory"):
            second.start()
        second.close()
        stage.cluster.kill(stage.added)
        stage.cluster.restart(stage.added)
        witness.until_acked(20, timeout_s=STEP_S_MAX)
