"""Brokers with a planted bug are found by the history, so a history without problems is worth something."""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka as ck
import pytest

from pybroker import errors
from pybroker.model import TopicPartition
from pybroker.state_log.placement import partition_of
from tests.brokers import chaos
from tests.brokers.kit import QUIET, SETS, Cluster
from tests.brokers.moves import Moves
from tests.brokers.remains import remains
from tests.brokers.system.test_failover import read_all
from tests.brokers.system.test_partitions import told_by
from tests.harness import until
from tests.lives.history import History, Told
from tests.stores import AnyStore
from tests.wire import Wire, batch

pytestmark = [pytest.mark.java]


@contextmanager
def frozen(cluster: Cluster, *numbers: int) -> Iterator[None]:
    for number in numbers:
        cluster.signal(number, signal.SIGSTOP)
    yield
    for number in numbers:
        cluster.signal(number, signal.SIGCONT)


@pytest.mark.parametrize("bug", ["", "session_timer_ignored"])
def test_a_leader_that_ignores_its_session(tmp_path: Path, store: AnyStore, bug: str) -> None:
    """A leader that was frozen and replaced acknowledges waiting requests, and their records are lost."""
    with Cluster(tmp_path, store, bug=bug, zookeeper_session_timeout_ms=1000) as cluster:
        topic, history, told = cluster.create("t", replicas=[[1, 2, 3]]), History(), Told("alone", 0)
        with Wire(cluster.brokers[1].port) as wire:
            first = batch([Told("all", 0).content])
            until("it leads", lambda: wire.produce(topic, first).error == 0)
            with frozen(cluster, 1):
                wire.send(wire.produce_frame(topic, batch([told.content]), acks=1))
                until("both know who leads", lambda: all(told_by(cluster, n, topic)[0] in (2, 3) for n in (2, 3)))
            answer = wire.produced()
        if not bug:
            assert answer.error == errors.NOT_LEADER_OR_FOLLOWER
            return
        assert answer.error == 0
        history.acknowledged(0, answer.base_offset, told)
        cluster.until_in_sync(topic)
        found = [(offset, content) for (_, offset), content in read_all(cluster, topic).items()]
        history.check_log(0, found, 0, len(found))
        assert history.counts["kept"] == 1, history.problems


def test_a_commit_that_nobody_else_has(tmp_path: Path, store: AnyStore) -> None:
    """A coordinator answers commits while its followers are frozen, and dies: the group has its earlier offset."""
    with Cluster(tmp_path, store, bug="commits_before_replication", replica_lag_time_max_ms=60_000) as cluster:
        topic, history = cluster.create("t", replicas=[[1, 2, 3]]), History()
        consumer = ck.Consumer({
            "bootstrap.servers": cluster.bootstrap, "group.id": "g", "enable.auto.commit": False, **QUIET,
        })  # fmt: skip

        def commit(offset: int) -> None:
            consumer.commit(offsets=[ck.TopicPartition(topic, 0, offset)], asynchronous=False)
            history.committed(0, offset)

        commit(1)
        place = partition_of("g", int(str(SETS["offsets.topic.num.partitions"])))
        leader = cluster.leader("__consumer_offsets", place)
        with frozen(cluster, *(number for number in (1, 2, 3) if number != leader)):
            for offset in range(2, 6):  # the first may be in an answer that was already parked
                commit(offset)
            cluster.kill(leader)
        until("another coordinates", lambda: cluster.leader("__consumer_offsets", place) not in (-1, leader))
        (found,) = consumer.committed([ck.TopicPartition(topic, 0)], timeout=20)
        consumer.close()
        history.check_committed(0, found.offset)
        assert history.counts["committed"] == 1, history.problems


LEFT_BY_CANCELS = {
    "cancel_keeps_the_target": r"t-0 is on \(3, 1, 2\)",
    "cancelled_copies_stay": r"broker 2 has .*t-0\.[0-9a-f]+-future",
}
LEFT_BY_MOVES = {
    "moved_logs_stay": r"broker 1 has .*t-0",
    "throttle_stays": r"topics/t has the config leader.replication.throttled.replicas",
}
"""A bug, and what is left behind because of it."""


@pytest.mark.parametrize("bugs", ["", ",".join(LEFT_BY_CANCELS | LEFT_BY_MOVES)], ids=["sound", "planted"])
def test_what_moves_leave_behind(tmp_path: Path, store: AnyStore, bugs: str) -> None:
    """Moves that are cancelled, throttled or between log dirs leave nothing behind, unless there are bugs."""

    def log_dirs(number: int) -> str:
        return ",".join(str(tmp_path / f"broker-{number}" / name) for name in ("one", "two"))

    with Cluster(
        tmp_path, store, bug=bugs, log_dirs=log_dirs, log_segment_delete_delay_ms=0,
        replica_alter_log_dirs_io_max_bytes_per_second=1000,
    ) as cluster:  # fmt: skip
        topic, key = cluster.create("t", replicas=[[1, 2]]), TopicPartition("t", 0)
        cluster.until_in_sync(topic, size=2)
        producer = ck.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", **QUIET})
        for number in range(1000):
            producer.produce(topic, Told("all", number).content, partition=0)
        assert producer.flush(20) == 0
        moves = Moves(cluster, [topic], random.Random(SEED), bugs)
        moves.expected[key].at_rest((1, 2))

        def are_judged(left: Mapping[str, str]) -> bool:
            """True if there is what each bug leaves, or nothing without bugs."""
            if not moves.ended():
                return False
            replicas = tuple(cluster.metadata(topic).topics[topic].partitions[0].replicas)
            found = "\n".join(moves.unexpected({key: replicas}) + remains(cluster))
            return all(re.search(each, found) for each in left.values()) if bugs else not found

        with frozen(cluster, 3):
            moves.ask({key: (3, 1)})
            moves.ask({key: None})
        here = cluster.brokers[2].partition_dir(topic).parent
        (there,) = {*cluster.log_dirs(2)} - {str(here)}
        moves.change_log_dirs(2, {key: there})
        until("a copy is made", lambda: list(Path(there).glob("t-0.*-future")))
        moves.change_log_dirs(2, {key: str(here)})
        until("the cancels are judged", lambda: are_judged(LEFT_BY_CANCELS))
        moves.execute({key: (2, 3)}, 1_000_000)
        moves.end_commands()
        until("the moves are judged", lambda: are_judged(LEFT_BY_MOVES))


SECONDS = 40
SEED = 1
FOUND: dict[tuple[str, str], set[str]] = {
    ("full_follower_in_sync", "fill_disk"): {"up"},
    ("sequences_forgotten", "cut_clients_one_way"): {"once", "in order"},
    ("buried_for_good", "refuse"): {"back", "up"},
    ("session_timer_ignored", "cut_from_store"): {"end"},
    ("damage_ends_a_reign", "break_state,kill"): {"up", "back"},
    ("rollback_kept_secret", "roll_back_store"): {"back"},
    ("lapsed_coordinator_answers", "cut_from_store"): {"committed"},
    ("moved_logs_stay", "move"): {"behind"},
    ("cancel_keeps_the_target", "move"): {"asked"},
    ("leader_moves_too_early", "move,kill"): {"kept", "identical", "end", "constant", "position", "back"},
    ("throttle_stays", "execute_throttled"): {"behind"},
    ("cancelled_copies_stay", "move_log_dirs"): {"behind"},
}
"""A bug, the faults that expose it, and the rules of which one is broken then."""


@pytest.mark.long
@pytest.mark.parametrize(("bug", "only"), FOUND)
def test_the_campaign_finds_what_a_fault_brings_to_light(
    tmp_path: Path, store_kind: str, bug: str, only: str
) -> None:
    """Each kind of bug is found in one seed, with only the faults that expose it."""
    history, faults = chaos.run(tmp_path, SECONDS, SEED, rate=100, bug=bug, only=only.split(","), store=store_kind)
    print(chaos.summary(history, faults, SEED, SECONDS))
    assert FOUND[bug, only] & history.counts.keys(), history.problems
