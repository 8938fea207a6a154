"""A leader's high watermark waits for its followers, and watchers of it or of the log end are notified."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.core import LogError, LogManager, Partition
from tests.core import probes
from tests.core.logs import NOW, Home, batch, code_of, follow
from tests.core.stage import FETCH, STUCK_MS, Client, Stage
from tests.core.stage import batch as staged
from tests.core.transactional import COMMIT, data, marker, stored
from tests.harness import until

pytestmark = pytest.mark.xdist_group("probe")
probe = probes.load()

OFFSET_OUT_OF_RANGE = 1
NOT_LEADER_OR_FOLLOWER = 6
FENCED_LEADER_EPOCH = 74
UNKNOWN_LEADER_EPOCH = 75
STALE_BROKER_EPOCH = 77
INVALID_UPDATE_VERSION = 95
PATIENCE_S = 20


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    if made.broker is not None:
        made.crash()


def led(home: Home, *followers: int, epoch: int = 5) -> Partition:
    """A led partition with these followers, all in the ISR."""
    partition = home.open()
    partition.become_leader(epoch, 1, followers=followers)
    return partition


def append(partition: Partition, count: int = 1) -> None:
    partition.append(batch(count), now_ms=NOW)


def fetched(partition: Partition, broker: int, offset: int, now_ms: int = 0) -> int:
    """Record a follower's Fetch from `offset`; return the high watermark."""
    partition.note_fetch(broker, offset, leader_epoch=partition.leader_epoch, now_ms=now_ms)
    return partition.high_watermark


def watermarks(partition: Partition) -> tuple[int, int, int]:
    return partition.last_stable_offset, partition.high_watermark, partition.log_end_offset


# -- a leader's followers ----------------------------------------------------------------------------------------------


def test_the_high_watermark_waits_for_all_of_the_isr(home: Home) -> None:
    """Records are committed and visible once both followers in the ISR have fetched behind them."""
    partition = led(home, 2, 3)
    append(partition, 4)
    assert watermarks(partition) == (0, 0, 4)
    assert partition.read(0, 1000).slice is None
    assert fetched(partition, 2, 0) == 0
    assert fetched(partition, 3, 4) == 0
    append(partition, 2)
    assert fetched(partition, 2, 4) == 4
    assert fetched(partition, 3, 6) == 4
    assert fetched(partition, 2, 6) == 6
    assert watermarks(partition) == (6, 6, 6)


def test_a_leader_alone_has_committed_what_it_wrote(home: Home) -> None:
    """A leader alone in the ISR, with or without followers, commits what it writes."""
    partition = led(home)
    append(partition)
    assert partition.high_watermark == 1
    partition.become_leader(6, 1, followers=(2, 3), isr=())
    append(partition)
    assert partition.high_watermark == 2


def test_with_fewer_in_sync_than_wanted_others_must_have_it(home: Home) -> None:
    """Below min.insync.replicas of the ISR that the controller knows, only that is committed which as many replicas
    have, in the ISR or not.

    min.insync.replicas counts at most as many as there are replicas.
    """
    partition = led(home, 2, 3)
    partition.min_isr = 2
    append(partition)
    partition.set_isr([], 5, 2)
    assert partition.under_min_isr and partition.high_watermark == 0
    append(partition)
    assert fetched(partition, 2, 1) == 1
    partition.set_isr([2], 5, 2, in_sync=1)
    assert partition.under_min_isr and partition.high_watermark == 1, "a requested ISR does not count"
    assert fetched(partition, 3, 2) == 1, "what the requested ISR does not have is not committed"
    partition.set_isr([], 5, 3)
    assert partition.under_min_isr and partition.high_watermark == 2
    partition.set_isr([2], 5, 4)
    assert not partition.under_min_isr and fetched(partition, 2, 2) == 2
    partition.min_isr = 9
    assert partition.under_min_isr
    partition.set_isr([2, 3], 5, 5)
    assert not partition.under_min_isr, "there are three replicas"
    partition.become_leader(6, 6)
    assert not partition.under_min_isr and partition.high_watermark == 2, "it is the only replica"


def test_an_end_is_certain_once_no_earlier_leader_can_have_answered_a_later_one(home: Home) -> None:
    """A new leader's high watermark may be behind the last leader's; its own never went back. With too few replicas in
    sync it does not reach the log's end: then the ends of all replicas bound what can have been committed (KIP-207)."""
    partition = led(home, 2, 3)
    append(partition, 4)
    follow(partition)
    partition.min_isr = 2
    partition.become_leader(6, 1, followers=(2, 3), isr=(2,))
    assert not partition.is_end_certain
    assert fetched(partition, 2, 3) == 3 and not partition.is_end_certain
    partition.set_isr([], 6, 2)
    assert partition.high_watermark == 3 and not partition.is_end_certain, "3 may have all of it"
    assert fetched(partition, 3, 3) == 3 and partition.is_end_certain, "two of three end there"
    partition.become_leader(7, 3, followers=(2, 3), isr=())
    assert not partition.is_end_certain, "the ends of the others are unknown"
    partition.min_isr = 1
    partition.become_leader(7, 4, followers=(2, 3), isr=())
    assert partition.high_watermark == 4 and partition.is_end_certain
    append(partition)
    partition.min_isr = 2
    partition.become_leader(8, 5, followers=(2, 3), isr=())
    append(partition)
    assert partition.under_min_isr and partition.is_end_certain, "it led before, and answered no later end"
    partition.become_leader(10, 6, followers=(2, 3), isr=())
    assert not partition.is_end_certain, "another may have led meanwhile"


def test_replicas_that_are_added_count_once_they_are_in_sync(home: Home) -> None:
    """A partition with one replica takes appends while two are added, though min.insync.replicas is 2. They count, for
    that and for the high watermark, from the moment when the controller knows them as in sync."""
    partition = led(home, 2, 3)
    partition.min_isr = 2
    partition.become_leader(5, 1, followers=(2, 3), isr=(), adding=(2, 3))
    append(partition)
    assert not partition.under_min_isr and partition.high_watermark == 1
    fetched(partition, 2, 1)
    partition.set_isr([2], 5, 1, in_sync=1)
    assert not partition.under_min_isr, "a requested member does not count yet"
    append(partition)
    assert partition.high_watermark == 1, "it waits for the requested member"
    partition.set_isr([2], 5, 2)
    assert not partition.under_min_isr
    assert fetched(partition, 2, 2) == 2
    partition.set_isr([], 5, 3)
    assert not partition.under_min_isr, "as before it was in sync"
    partition.become_leader(6, 4, followers=(2, 3), isr=(2,))
    partition.set_isr([], 6, 5)
    assert partition.under_min_isr, "the reassignment is complete: all three count"


def test_a_shrunken_isr_is_waited_for_no_longer(home: Home) -> None:
    """A follower that left the ISR is no longer waited for; when it is back, the high watermark stays."""
    partition = led(home, 2, 3)
    append(partition, 5)
    assert fetched(partition, 2, 5) == 0
    partition.set_isr([1, 2], 5, 2)
    assert partition.high_watermark == 5
    append(partition)
    assert fetched(partition, 2, 6) == 6
    partition.set_isr([1, 2, 3], 5, 3)
    append(partition)
    assert fetched(partition, 2, 7) == 6
    assert fetched(partition, 3, 6) == 6
    assert fetched(partition, 3, 7) == 7
    assert [(f.broker, f.in_isr) for f in partition.followers] == [(2, True), (3, True)]


def test_a_new_leader_epoch_begins_with_nothing_known_of_followers(home: Home) -> None:
    """A new leader epoch forgets the followers' offsets, which may have been truncated; the high watermark stays."""
    partition = led(home, 2)
    append(partition, 3)
    assert fetched(partition, 2, 2) == 2
    partition.become_leader(6, 2, followers=[2])
    assert [(f.log_end_offset, f.caught_up_ms) for f in partition.followers] == [(-1, -1)]
    append(partition)
    assert partition.high_watermark == 2
    assert code_of(partition.note_fetch, 2, 4, leader_epoch=5, now_ms=0) == FENCED_LEADER_EPOCH
    assert fetched(partition, 2, 1) == 2
    assert fetched(partition, 2, 4) == 4


def test_the_same_leader_epoch_keeps_what_is_known(home: Home) -> None:
    """With the same leader epoch, a new set of replicas keeps the offsets of followers that stay."""
    partition = led(home, 2, 3)
    append(partition, 3)
    fetched(partition, 2, 3)
    partition.become_leader(5, 2, followers=[2, 4], isr=[2])
    assert partition.high_watermark == 3
    assert [(f.broker, f.log_end_offset) for f in partition.followers] == [(2, 3), (4, -1)]


def test_a_fetch_that_counts_for_nothing(home: Home) -> None:
    """A Fetch with a wrong leader epoch or broker epoch, by no follower, or out of range is not recorded."""
    partition = led(home, 2)
    append(partition, 2)
    partition.note_fetch(2, 1, leader_epoch=5, broker_epoch=9, now_ms=0)
    before = partition.followers
    for code, broker, offset, how in (
        (FENCED_LEADER_EPOCH, 2, 2, {"leader_epoch": 4}),
        (UNKNOWN_LEADER_EPOCH, 2, 2, {"leader_epoch": 6}),
        (UNKNOWN_LEADER_EPOCH, 7, 2, {"leader_epoch": 5}),
        (NOT_LEADER_OR_FOLLOWER, 7, 2, {}),
        (STALE_BROKER_EPOCH, 2, 2, {"broker_epoch": 8}),
        (OFFSET_OUT_OF_RANGE, 2, 3, {}),
        (OFFSET_OUT_OF_RANGE, 2, -1, {}),
    ):
        assert code_of(partition.note_fetch, broker, offset, now_ms=0, **how) == code
    assert partition.followers == before
    assert partition.high_watermark == 1
    follow(partition)
    assert code_of(partition.note_fetch, 2, 2, now_ms=0) == NOT_LEADER_OR_FOLLOWER


def test_when_a_follower_was_last_caught_up(home: Home) -> None:
    """A follower at the log end is caught up now; one at the end of its previous Fetch was caught up then."""
    partition = led(home, 2)
    seen = []
    for count, offset, now_ms in ((4, 0, 10), (0, 4, 20), (4, 4, 30), (4, 8, 40), (0, 9, 50), (0, 12, 60)):
        if count:
            append(partition, count)
        fetched(partition, 2, offset, now_ms)
        seen.append(partition.followers[0].caught_up_ms)
    assert seen == [-1, 20, 20, 30, 30, 60]


def test_a_fetch_is_noted_while_an_append_waits_for_the_disk(home: Home) -> None:
    """A follower's Fetch is recorded and commits records while an append waits for the disk."""
    partition = led(home, 2)
    append(partition, 3)
    assert home.broker is not None
    home.broker.arm("segment.write", "sleep", STUCK_MS)
    writer = threading.Thread(target=append, args=(partition,))
    writer.start()
    until("the write sleeps", lambda: home.broker is not None and home.broker.sleeping > 0, PATIENCE_S)
    assert fetched(partition, 2, 3) == 3
    assert writer.is_alive() and partition.log_end_offset == 3
    home.broker.disarm()
    writer.join()
    assert watermarks(partition) == (3, 3, 4)


# -- roles -------------------------------------------------------------------------------------------------------------


def test_a_replica_that_was_told_nothing_takes_nothing(tmp_path: Path) -> None:
    """A replica without a role refuses records from clients and from a leader."""
    home = Home(tmp_path)
    home.open()
    home.stop()
    broker = LogManager()
    partition = broker.open(str(tmp_path), "t", 0, topic_id=bytes(range(16)), config={}, clean=True)
    assert partition.role == ("offline", -1, -1, -1)
    assert code_of(partition.append, batch(), now_ms=NOW) == NOT_LEADER_OR_FOLLOWER
    assert code_of(partition.append_replica, batch()) == NOT_LEADER_OR_FOLLOWER
    broker.close()


def test_a_follower_takes_what_its_leader_stamped_and_nothing_else(home: Home) -> None:
    """A follower appends only records of its leader's epoch, and commits up to the leader's high watermark."""
    partition = home.open()
    partition.become_follower(2, 5, 3)
    assert partition.role == ("follower", 2, 5, 3)
    with pytest.raises(LogError, match="this replica is follower") as refused:
        append(partition)
    assert refused.value.code == NOT_LEADER_OR_FOLLOWER
    assert code_of(partition.append_replica, batch(2), leader_epoch=4) == FENCED_LEADER_EPOCH
    assert code_of(partition.append_replica, batch(2), leader_epoch=6) == UNKNOWN_LEADER_EPOCH
    assert partition.log_end_offset == 0
    stamped = [(number * 2).to_bytes(8, "big") + batch(2)[8:] for number in range(3)]
    for number, known, high in ((0, 0, 0), (1, 3, 3), (2, 100, 6)):
        partition.append_replica(stamped[number], leader_epoch=5, high_watermark=known)
        assert partition.high_watermark == high
    assert partition.append_replica(b"", leader_epoch=5, high_watermark=1) == 6
    assert partition.high_watermark == 6
    partition.become_leader(6, 4)
    assert code_of(partition.append_replica, (6).to_bytes(8, "big") + batch()[8:]) == NOT_LEADER_OR_FOLLOWER
    append(partition)
    partition.become_offline(6, 5)
    assert partition.role.kind == "offline"
    assert code_of(partition.append, batch(), now_ms=NOW) == NOT_LEADER_OR_FOLLOWER


def test_a_role_of_an_older_epoch_is_refused(home: Home) -> None:
    """A role of an older leader epoch or partition epoch is refused and changes nothing."""
    partition = led(home, 2)
    for leader_epoch, partition_epoch, code in ((4, 9, FENCED_LEADER_EPOCH), (5, 0, INVALID_UPDATE_VERSION)):
        assert code_of(partition.become_leader, leader_epoch, partition_epoch) == code
        assert code_of(partition.become_follower, 2, leader_epoch, partition_epoch) == code
        assert code_of(partition.become_offline, leader_epoch, partition_epoch) == code
        assert code_of(partition.set_isr, [], leader_epoch, partition_epoch) == code
    assert code_of(partition.set_isr, [], 6, 9) == UNKNOWN_LEADER_EPOCH
    assert partition.role == ("leader", -1, 5, 1)
    assert partition.followers[0].in_isr
    follow(partition)
    assert code_of(partition.set_isr, [], 5, 2) == NOT_LEADER_OR_FOLLOWER


# -- the last stable offset --------------------------------------------------------------------------------------------


def test_the_last_stable_offset_is_behind_both_a_transaction_and_the_high_watermark(home: Home) -> None:
    """The last stable offset follows the high watermark up to the oldest transaction without a replicated marker."""
    partition = follow(home.open())
    partition.append_replica(batch(1), high_watermark=0)
    partition.append_replica(stored(data(7, 0), base=1), high_watermark=0)
    assert watermarks(partition) == (0, 0, 2)
    partition.append_replica((2).to_bytes(8, "big") + batch(2)[8:12] + bytes(4) + batch(2)[16:], high_watermark=1)
    assert watermarks(partition) == (1, 1, 4)
    partition.append_replica(b"", high_watermark=4)
    assert watermarks(partition) == (1, 4, 4)
    partition.append_replica(stored(marker(7, COMMIT), base=4), high_watermark=4)
    assert watermarks(partition) == (1, 4, 5)
    partition.append_replica(b"", high_watermark=5)
    assert watermarks(partition) == (5, 5, 5)
    partition.truncate(2)
    assert watermarks(partition) == (1, 2, 2)


# -- watchers ----------------------------------------------------------------------------------------------------------


def test_consumers_wait_for_the_high_watermark_and_followers_for_the_end(home: Home) -> None:
    """A consumer's watcher is notified once of the high watermark, a follower's of the log end; later ones stay."""
    partition = led(home, 2)
    bounds = (probe.LOG_END, probe.HIGH_WATERMARK, probe.LAST_STABLE)
    end, high, stable = (probe.Watch(partition, bound=bound, above=0) for bound in bounds)
    later = probe.Watch(partition, bound=probe.HIGH_WATERMARK, above=1)
    append(partition)
    assert (end.told, high.told, stable.told, later.told) == (1, 0, 0, 0)
    fetched(partition, 2, 1)
    assert (end.told, high.told, stable.told, later.told) == (1, 1, 1, 0)
    append(partition)
    fetched(partition, 2, 2)
    assert (end.told, high.told, stable.told, later.told) == (1, 1, 1, 1)


def test_everyone_is_told_of_another_role_and_of_a_cut(home: Home) -> None:
    """A new role or a truncation notifies all watchers, as their offset may never be reached."""
    partition = led(home, 2)
    append(partition, 2)
    for change in (lambda: follow(partition), lambda: partition.become_leader(6, 1), lambda: partition.truncate(1)):
        waiting = [probe.Watch(partition, bound=b, above=100) for b in (probe.HIGH_WATERMARK, probe.LOG_END)]
        change()
        assert [w.told for w in waiting] == [1, 1]


def test_a_parked_fetch_is_woken_by_what_is_committed(tmp_path: Path) -> None:
    """A parked Fetch is woken by the high watermark; the append alone does not execute it again."""
    stage = Stage(tmp_path)
    stage.log.become_leader(1, 1, followers=[2])
    client = Client(stage)
    client.fetch(0, max_wait_ms=STUCK_MS)
    stage.step()
    stage.log.append(staged(b"x"), now_ms=1)
    stage.plane.watch(stage.log, to_log_end=True)
    stage.step()
    assert client.quiet()
    fetched(stage.log, 2, 1)
    stage.step()
    _, answer = client.receive(FETCH, 12)
    assert answer.responses[0].partitions[0].high_watermark == 1
    assert len(answer.responses[0].partitions[0].records) > 0
    stage.close()


def test_python_watches_either(tmp_path: Path) -> None:
    """Python can watch the high watermark or the log end of a partition, and gets a letter for it."""
    stage = Stage(tmp_path)
    stage.log.become_leader(1, 1, followers=[2])
    stage.plane.watch(stage.log, to_log_end=True)
    stage.plane.watch(stage.partitions[1])
    for partition in stage.partitions:
        partition.append(staged(b"x"), now_ms=1)
    assert [kind for kind, *_ in stage.plane.take()] == ["grown", "grown"]
    stage.plane.watch(stage.log)
    stage.log.append(staged(b"x"), now_ms=1)
    assert stage.plane.take() == []
    fetched(stage.log, 2, 2)
    assert [kind for kind, *_ in stage.plane.take()] == ["grown"]
    stage.close()


# -- a model -----------------------------------------------------------------------------------------------------------


class Model:
    """A leader whose followers, ISR and epoch change at random, with the expected watermarks."""

    BROKERS = (2, 3, 4)

    def __init__(self, home: Home, seed: int) -> None:
        self.random = random.Random(seed)
        self.partition = home.open()
        self.end = self.high = self.leader_epoch = self.partition_epoch = 0
        self.ends: dict[int, int] = {}
        self.isr: set[int] = set()
        self.watches: list[tuple[int, probe.Watch]] = []
        self.lead()

    def lead(self) -> None:
        """Begin a new leader epoch, or keep the epoch with other replicas."""
        if new := self.random.random() < 0.7:
            self.leader_epoch += 1
        self.partition_epoch += 1
        replicas = self.random.sample(self.BROKERS, self.random.randrange(4))
        self.isr = {b for b in replicas if self.random.random() < 0.7}
        self.ends = {b: -1 if new else self.ends.get(b, -1) for b in replicas}
        self.partition.become_leader(self.leader_epoch, self.partition_epoch, followers=replicas, isr=self.isr)
        assert all(w.told == 1 for _, w in self.watches)
        self.watches.clear()

    def append(self) -> None:
        self.end += (count := self.random.randrange(1, 4))
        append(self.partition, count)

    def fetch(self) -> None:
        """Record a Fetch of a follower or another broker, usually further than before."""
        broker = self.random.choice(self.BROKERS)
        offset = self.random.randrange(max(0, self.ends.get(broker, 0)), self.end + 2)
        offset = offset if self.random.random() < 0.9 else self.random.randrange(self.end + 1)
        code = code_of(self.partition.note_fetch, broker, offset, now_ms=0)
        if broker not in self.ends:
            assert code == NOT_LEADER_OR_FOLLOWER
        elif offset > self.end:
            assert code == OFFSET_OUT_OF_RANGE
        else:
            assert code == 0
            self.ends[broker] = offset

    def set_isr(self) -> None:
        self.isr = {b for b in self.ends if self.random.random() < 0.6}
        self.partition_epoch += 1
        self.partition.set_isr(self.isr, self.leader_epoch, self.partition_epoch)

    def watch(self) -> None:
        bound = self.random.choice((probe.HIGH_WATERMARK, probe.LAST_STABLE, probe.LOG_END))
        above = self.reached(bound) + self.random.choice((0, 0, 1, 5))
        self.watches.append((bound, probe.Watch(self.partition, bound=bound, above=above)))

    def reached(self, bound: int) -> int:
        return self.end if bound == probe.LOG_END else self.high

    def check(self) -> None:
        """Check the watermarks, and that exactly the watchers below them were notified."""
        before, self.high = self.high, max(self.high, min([self.end, *(self.ends[b] for b in self.isr)]))
        assert before <= self.high <= self.end
        assert watermarks(self.partition) == (self.high, self.high, self.end)
        for bound, watch in self.watches:
            assert watch.told == (self.reached(bound) > watch.above)
        self.watches = [(bound, watch) for bound, watch in self.watches if not watch.told]


@pytest.mark.parametrize("seed", range(10))
def test_the_watermarks_are_those_of_a_model(home: Home, seed: int) -> None:
    """The high watermark is the lowest end in the ISR, never goes back, and notifies the right watchers."""
    model = Model(home, seed)
    steps = [model.append, model.fetch, model.fetch, model.fetch, model.set_isr, model.watch, model.watch]
    for _ in range(400):
        model.random.choice([*steps * 3, model.lead])()
        model.check()
