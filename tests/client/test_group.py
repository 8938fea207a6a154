"""Our consumers in a group: they share, commit and take over, with each other and with other libraries' clients."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import confluent_kafka as ck
import pytest

from pybroker import errors
from pybroker.client.consuming.consumer import Consumer, OffsetAndMetadata, RebalanceListener
from pybroker.client.net.connection import BrokerConnection
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from tests.client.kit import WAIT_S, create, fill, read
from tests.harness import HOST, BrokerProcess, Server, until

PARTITIONS = 6
QUICK = {"heartbeat_interval_ms": 200, "session_timeout_ms": 6000, "auto_offset_reset": "earliest"}


class Worker:
    """A consumer on a thread that polls until it is stopped, and keeps its records."""

    def __init__(self, bootstrap: str, group: str, topic: str, **settings: Any) -> None:
        self.seen: list[tuple[int, int]] = []
        self.problem: BaseException | None = None
        self._stop = threading.Event()
        self.consumer = Consumer(bootstrap_servers=bootstrap, group_id=group, **{**QUICK, **settings})
        self.consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @property
    def assigned(self) -> set[int]:
        return {tp.partition for tp in self.consumer.assignment()}

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                self.seen += [(r.partition, r.offset) for r in self.consumer.poll(50)]
            self.consumer.close()
        except BaseException as problem:
            self.problem = problem

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive() and self.problem is None, self.problem


@pytest.fixture
def join(target: Server, topic: str) -> Iterator[Callable[..., Worker]]:
    """Start members of a group on `topic`, which has six partitions."""
    create(target, topic, partitions=PARTITIONS)
    workers: list[Worker] = []

    def start(**settings: Any) -> Worker:
        workers.append(Worker(target.bootstrap, f"group-of-{topic}", topic, **settings))
        return workers[-1]

    yield start
    for worker in workers:
        worker.stop()


def shared(*workers: Worker) -> bool:
    """True if every partition has one reader, and every member has partitions."""
    shares = [worker.assigned for worker in workers]
    return sorted(p for share in shares for p in share) == list(range(PARTITIONS)) and all(shares)


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_a_group_shares_a_topic(target: Server, topic: str, join: Callable[..., Worker], assignor: str) -> None:
    """A group shares a topic: one member has all partitions, a second takes half, and the first's half moves when it
    leaves. Each record is read once."""
    for partition in range(PARTITIONS):
        fill(target, topic, partition, [b"x"] * 20)
    first = join(partition_assignment_strategy=assignor)
    until("the first has all", lambda: shared(first), WAIT_S)
    until("and reads all", lambda: len(first.seen) == 20 * PARTITIONS, WAIT_S)
    second = join(partition_assignment_strategy=assignor)
    until("two share", lambda: shared(first, second), WAIT_S)
    first.stop()
    until("the second has all", lambda: shared(second), WAIT_S)
    for partition in range(PARTITIONS):
        fill(target, topic, partition, [b"y"])
    until("and reads what comes", lambda: len(second.seen) == PARTITIONS, WAIT_S)
    assert sorted(first.seen + second.seen) == [(p, n) for p in range(PARTITIONS) for n in range(21)]


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
def test_a_group_with_librdkafka(target: Server, topic: str, join: Callable[..., Worker], assignor: str) -> None:
    """A group with librdkafka shares a topic, with a member of either library as leader."""
    ours = join(partition_assignment_strategy=assignor)
    until("ours has all", lambda: shared(ours), WAIT_S)
    theirs = ck.Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": f"group-of-{topic}",
            "partition.assignment.strategy": assignor,
            "heartbeat.interval.ms": 200,
            "session.timeout.ms": 6000,
        }
    )
    try:
        theirs.subscribe([topic])

        def even() -> bool:
            theirs.poll(0.02)
            share = {tp.partition for tp in theirs.assignment()}
            return len(share) == 3 and share | ours.assigned == set(range(PARTITIONS)) and len(ours.assigned) == 3

        until("both have three", even, WAIT_S)
        another = join(partition_assignment_strategy=assignor)
        until("three have two each", lambda: even() or len(another.assigned) == 2 == len(ours.assigned), WAIT_S)
    finally:
        theirs.close()
    until("ours share again", lambda: shared(ours, another), WAIT_S)


def test_commits_and_where_others_begin(target: Server, topic: str) -> None:
    """A commit is where the next member begins: at the end of poll()'s records, or at a given offset, with metadata."""
    create(target, topic)
    fill(target, topic, 0, [b"%d" % n for n in range(10)])
    tp, group = TopicPartition(topic, 0), {"group_id": f"group-of-{topic}", "enable_auto_commit": False, **QUICK}
    with Consumer(bootstrap_servers=target.bootstrap, **group) as first:
        first.subscribe([topic])
        read(first, 4, max_records=4)
        assert first.committed([tp]) == {tp: None}
        first.commit()
        assert first.committed([tp]) == {tp: OffsetAndMetadata(4, leader_epoch=0)}
    with Consumer(bootstrap_servers=target.bootstrap, **group) as second:
        second.assign([tp])
        assert second.position(tp) == 4
        assert read(second, 1, max_records=1)[0].offset == 4
        second.commit_async({tp: OffsetAndMetadata(7, "a note")}).result(WAIT_S)
    with Consumer(bootstrap_servers=target.bootstrap, **group) as third:
        assert third.committed([tp]) == {tp: OffsetAndMetadata(7, "a note")}
        third.subscribe([topic])
        assert [r.offset for r in read(third, 3)] == [7, 8, 9]


def test_commits_in_the_background(target: Server, topic: str) -> None:
    """Commits in the background are, by default, of poll()'s records at intervals and at the end, and of no others."""
    create(target, topic)
    fill(target, topic, 0, [b"%d" % n for n in range(10)])
    tp, group = TopicPartition(topic, 0), {"group_id": f"group-of-{topic}", "auto_commit_interval_ms": 100, **QUICK}
    with Consumer(bootstrap_servers=target.bootstrap, **group) as consumer:
        consumer.subscribe([topic])
        read(consumer, 3, max_records=3)

        def committed() -> bool:
            consumer.pause(tp)
            consumer.poll(10)
            return consumer.committed([tp]) == {tp: OffsetAndMetadata(3, leader_epoch=0)}

        until("it is committed", committed, WAIT_S)
        consumer.resume(tp)
        read(consumer, 2, max_records=2)
    with Consumer(bootstrap_servers=target.bootstrap, **group) as consumer:
        assert consumer.committed([tp]) == {tp: OffsetAndMetadata(5, leader_epoch=0)}


def test_a_static_member_comes_back(target: Server, topic: str, join: Callable[..., Worker]) -> None:
    """A static member that stops and starts again (KIP-345) gets its share back, and no other member rebalances."""
    stay = join(group_instance_id="one", partition_assignment_strategy="range")
    until("one has all", lambda: shared(stay), WAIT_S)
    go = join(group_instance_id="two", partition_assignment_strategy="range")
    until("two share", lambda: shared(stay, go), WAIT_S)
    had, generation = go.assigned, stay.consumer._group.generation  # type: ignore[union-attr]
    go.stop()
    again = join(group_instance_id="two", partition_assignment_strategy="range")
    until("the share is back", lambda: again.assigned == had, WAIT_S)
    assert stay.consumer._group.generation == generation  # type: ignore[union-attr]


def test_a_static_member_is_replaced(target: Server, topic: str, join: Callable[..., Worker]) -> None:
    """A static member is replaced by a newer one of its instance id: the older is fenced, and its poll() raises."""
    create(target, f"{topic}-too")
    settings: dict[str, Any] = {"group_id": f"fenced-{topic}", "group_instance_id": "one", **QUICK}
    with Consumer(bootstrap_servers=target.bootstrap, **settings) as old:
        old.subscribe([topic])
        until("it joined", lambda: bool(old.poll(10) or old.assignment()), WAIT_S)
        with Consumer(bootstrap_servers=target.bootstrap, **settings) as new:
            new.subscribe([topic])
            until("the other joined", lambda: bool(new.poll(10) or new.assignment()), WAIT_S)
            with pytest.raises(KafkaError) as caught:
                until("it is fenced", lambda: bool(old.poll(10)), WAIT_S)
            assert caught.value.code == errors.FENCED_INSTANCE_ID


def test_a_listener_hears_what_comes_and_goes(target: Server, topic: str) -> None:
    """A listener is called for assigned partitions before the first record, where a seek applies, and for revoked ones
    while a commit is possible."""
    create(target, topic)
    fill(target, topic, 0, [b"%d" % n for n in range(10)])
    tp, heard = TopicPartition(topic, 0), []

    class Listener(RebalanceListener):
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            heard.append(("assigned", partitions))
            consumer.seek(tp, 8)

        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            heard.append(("revoked", partitions))
            consumer.commit({tp: 9})

    settings: dict[str, Any] = {"group_id": f"group-of-{topic}", "enable_auto_commit": False, **QUICK}
    with Consumer(bootstrap_servers=target.bootstrap, **settings) as consumer:
        consumer.subscribe([topic], listener=Listener())
        assert [r.offset for r in read(consumer, 2)] == [8, 9]
        consumer.unsubscribe()
        assert heard == [("assigned", [tp]), ("revoked", [tp])] and consumer.assignment() == set()
        assert consumer.committed([tp]) == {tp: OffsetAndMetadata(9)}


def test_a_pattern_finds_topics_that_come(target: Server, topic: str) -> None:
    """A pattern subscribes to matching topics, also to those that are created later."""
    create(target, f"{topic}-a")
    settings: dict[str, Any] = {"group_id": f"group-of-{topic}", "metadata_max_age_ms": 200, **QUICK}
    with Consumer(bootstrap_servers=target.bootstrap, **settings) as consumer:
        consumer.subscribe(pattern=f"^{topic}-[ab]$")
        until("the first is there", lambda: consumer.poll(10) == [] and len(consumer.assignment()) == 1, WAIT_S)
        create(target, f"{topic}-b")
        create(target, f"{topic}-c")
        until("the second too", lambda: consumer.poll(10) == [] and len(consumer.assignment()) == 2, WAIT_S)
        assert consumer.subscription() == {f"{topic}-a", f"{topic}-b"}


def test_a_topic_that_comes_while_it_is_shared_out(
    target: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that is created during a rebalance is read soon, even if the empty assignment was already on its way."""
    held: list[tuple[Future[Any], Future[Any]]] = []
    settings = {**QUICK, "allow_auto_create_topics": False}
    with Consumer(bootstrap_servers=target.bootstrap, group_id=topic, **settings) as consumer:
        assert consumer._group is not None
        call, network = consumer._group._coordinator.call, consumer._network

        def hold(message: Any, **how: Any) -> Future[Any]:
            answer = call(message, **how)
            if not isinstance(message, m.SyncGroupRequest) or held:
                return answer
            held.append((answer, Future()))
            return held[0][1]

        monkeypatch.setattr(consumer._group._coordinator, "call", hold)
        consumer.subscribe([topic])
        until("its share is asked for", lambda: consumer.poll(10) == [] and held, WAIT_S)
        fill(target, topic, 0, [b"x"])
        until("the topic is known", lambda: network.view.leader(topic, 0) >= 0, WAIT_S)
        assert consumer.poll(10) == []
        answer, passed_on = held[0]
        passed_on.set_result(answer.result(WAIT_S))
        assert read(consumer, 1)[0].value == b"x"


def test_who_does_not_poll_is_out(target: Server, topic: str, join: Callable[..., Worker]) -> None:
    """A member that does not poll within max_poll_interval_ms is removed: others take over, and it is notified and
    joins again when it comes back."""
    lost: list[TopicPartition] = []

    class Listener(RebalanceListener):
        def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
            lost.extend(partitions)

    settings: dict[str, Any] = {"group_id": f"group-of-{topic}", "max_poll_interval_ms": 700, **QUICK}
    with Consumer(bootstrap_servers=target.bootstrap, **settings) as late:
        late.subscribe([topic], listener=Listener())
        until("it has all", lambda: late.poll(10) == [] and len(late.assignment()) == PARTITIONS, WAIT_S)
        other = join()
        until("the other has all, once the late one is out", lambda: shared(other), WAIT_S)
        until("the late one is back", lambda: late.poll(10) == [] and 0 < len(late.assignment()) < PARTITIONS, WAIT_S)
        assert len(lost) == PARTITIONS


def test_it_polls_in_the_moment_it_is_out(
    target: Server, topic: str, join: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that polls in the moment of its removal loses its partitions, and does not revoke them."""
    heard: list[str] = []
    out, polled = threading.Event(), threading.Event()

    class Listener(RebalanceListener):
        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            heard.append("revoked")

        def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
            heard.append("lost")

    settings: dict[str, Any] = {"group_id": f"group-of-{topic}", "max_poll_interval_ms": 700, **QUICK}
    with Consumer(bootstrap_servers=target.bootstrap, **settings) as late:
        late.subscribe([topic], listener=Listener())
        until("it has all", lambda: late.poll(10) == [] and len(late.assignment()) == PARTITIONS, WAIT_S)
        group = late._group
        assert group is not None

        def held(stop: Callable[[], None] = group._stop_heart) -> None:
            if group.generation < 0 and not out.is_set():
                out.set()
                polled.wait(WAIT_S)
            stop()

        monkeypatch.setattr(group, "_stop_heart", held)
        assert out.wait(WAIT_S), "it left the group"
        group._rejoin = "the group is rebalancing"  # as the last heartbeat could have reported
        late.poll(10)
        polled.set()
        assert heard == ["lost"]


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("ends", ["a rebalance", "close"])
def test_the_last_commit_shows_that_it_is_out(target: Server, topic: str, assignor: str, ends: str) -> None:
    """The last commit shows a member that the group has removed it: its partitions are lost, not revoked."""
    heard: list[tuple[str, int]] = []

    class Listener(RebalanceListener):
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            heard.append(("assigned", len(partitions)))

        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            heard.append(("revoked", len(partitions)))

        def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
            heard.append(("lost", len(partitions)))

    create(target, topic, partitions=PARTITIONS)
    create(target, f"{topic}-more")
    fill(target, topic, 0, [b"x"])
    settings: dict[str, Any] = {**QUICK, "heartbeat_interval_ms": 5000, "auto_commit_interval_ms": 60_000}
    group = f"group-of-{topic}"
    with Consumer(
        bootstrap_servers=target.bootstrap, group_id=group, partition_assignment_strategy=assignor, **settings
    ) as consumer:
        consumer.subscribe([topic], listener=Listener())
        read(consumer, 1)
        assert consumer._group is not None
        gone = m.LeaveGroupRequest.Members(member_id=consumer._group.member_id, group_instance_id=None)
        with BrokerConnection(HOST, target.coordinator_port(group)) as connection:
            asked = m.LeaveGroupRequest(group_id=group, member_id=gone.member_id, members=[gone])
            assert connection.request(asked).error_code == 0
        if ends == "a rebalance":
            consumer.subscribe([topic, f"{topic}-more"], listener=Listener())
            until("it is back", lambda: consumer.poll(10) == [] and len(heard) > 2, WAIT_S)
    again = [("assigned", PARTITIONS + 1), ("revoked", PARTITIONS + 1)] if ends == "a rebalance" else []
    assert heard == [("assigned", PARTITIONS), ("lost", PARTITIONS), *again]


@pytest.mark.parametrize("commits", ["close", "commit"])
def test_who_is_out_puts_no_offset_back(target: Server, topic: str, commits: str) -> None:
    """A removed member puts no offset back: another has read on and left, and a group without members accepts any
    commit."""
    create(target, topic)
    fill(target, topic, 0, [b"x"] * 20)

    def consumer(**settings: Any) -> Consumer:
        made = Consumer(bootstrap_servers=target.bootstrap, group_id=f"group-of-{topic}", **{**QUICK, **settings})
        made.subscribe([topic])
        return made

    with consumer(max_poll_interval_ms=700, max_poll_records=10, auto_commit_interval_ms=60_000) as late:
        read(late, 10)
        with consumer() as other:
            read(other, 20)
            other.commit()
        if commits == "commit":
            with pytest.raises(KafkaError, match="UNKNOWN_MEMBER_ID: this consumer is out of the group"):
                late.commit()
    with Consumer(bootstrap_servers=target.bootstrap, group_id=f"group-of-{topic}") as looks:
        at = looks.committed([(topic, 0)])[TopicPartition(topic, 0)]
        assert at is not None and at.offset == 20


def test_an_answer_to_a_commit_of_an_earlier_generation(target: Server, topic: str) -> None:
    """An error for a commit of an earlier generation does not affect the member that has joined again."""
    create(target, topic)
    with Consumer(bootstrap_servers=target.bootstrap, group_id=f"group-of-{topic}", **QUICK) as consumer:
        consumer.subscribe([topic])
        until("it has all", lambda: consumer.poll(10) == [] and len(consumer.assignment()) == 1, WAIT_S)
        assert consumer._group is not None
        before = consumer._group.identity
        consumer._group.expelled(KafkaError(errors.ILLEGAL_GENERATION), before._replace(generation=0))
        assert consumer.poll(10) == [] and consumer._group.identity == before
        consumer._group.expelled(KafkaError(errors.ILLEGAL_GENERATION), before)
        until("it joins again", lambda: consumer.poll(10) == [] and consumer._group.identity != before, WAIT_S)


def test_what_needs_a_group() -> None:
    """Calls that need a group fail with what is missing: a commit without group_id, or an instance id alone."""
    with (
        Consumer(bootstrap_servers="127.0.0.1:1") as consumer,
        pytest.raises(ValueError, match="this consumer has no group_id"),
    ):
        consumer.commit()
    with pytest.raises(KafkaError, match="group_instance_id needs group_id"):
        Consumer(bootstrap_servers="127.0.0.1:1", group_instance_id="one")
    with Consumer(bootstrap_servers="127.0.0.1:1", group_id="g") as consumer, pytest.raises(ValueError, match="one of"):
        consumer.subscribe(["t"], pattern="t")


def test_a_broker_that_comes_back(start_broker: Callable[..., BrokerProcess], topic: str) -> None:
    """A member survives its broker's death: it finds the broker again, and reads on at its position."""
    broker = start_broker(sets={"offsets.topic.num.partitions": 1})
    create(broker, topic, partitions=2)
    for partition in (0, 1):
        fill(broker, topic, partition, [b"x"] * 30)
    worker = Worker(broker.bootstrap, f"group-of-{topic}", topic, auto_commit_interval_ms=100)
    try:
        until("it reads", lambda: len(worker.seen) == 60, WAIT_S)
        broker.kill()
        broker.start()
        for partition in (0, 1):
            fill(broker, topic, partition, [b"y"] * 30)
        until("it reads on", lambda: len(set(worker.seen)) == 120, WAIT_S)
    finally:
        worker.stop()
    with Consumer(bootstrap_servers=broker.bootstrap, group_id=f"group-of-{topic}") as consumer:
        found = consumer.committed([(topic, 0), (topic, 1)])
        assert [at and at.offset for at in found.values()] == [60, 60]


def test_who_waits_does_not_work(shared_broker: Server, topic: str) -> None:
    """A waiting member uses next to no CPU time, both in poll() and while its threads sleep."""
    create(shared_broker, topic)
    with Consumer(bootstrap_servers=shared_broker.bootstrap, group_id=f"group-of-{topic}", **QUICK) as consumer:
        consumer.subscribe([topic])
        until("it joined", lambda: bool(consumer.poll(10) or consumer.assignment()), WAIT_S)
        consumer.poll(500)
        before_s = time.process_time()
        consumer.poll(2000)
        assert time.process_time() - before_s < 0.4
