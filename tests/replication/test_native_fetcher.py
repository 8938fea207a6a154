"""A fetcher in core keeps partitions and planes no longer than necessary, without the garbage collector's help."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pybroker import core, errors
from pybroker.config import BrokerConfig
from pybroker.decisions.metadata_cache import MetadataCache, Suspects
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.replication.fetcher import Complaints, FetcherContext
from pybroker.replication.native_fetcher import NativeFetcher, SlowFetcher
from pybroker.replication.replicas import Replicas
from tests.core.following import EPOCH, LEADER, TOPIC_ID, Brought, Leader, batch
from tests.harness import eventually

KEY = TopicPartition("t", 0)
UNTHROTTLED = core.QuotaBucket(1 << 62)
pytestmark = pytest.mark.usefixtures("uncollected")


class Follower:
    """A core with one follower partition, a plane, and a fetcher whose leader the test plays."""

    def __init__(self, home: Path) -> None:
        self.core = core.LogManager(flush_idle_ms=20)
        self.plane = core.Plane(self.core)
        log = self.core.open(str(home), *KEY, topic_id=TOPIC_ID, config={"file.delete.delay.ms": 0})
        log.become_follower(LEADER, EPOCH, 0)
        self.replica: Any = SimpleNamespace(
            key=KEY, log=log, offline=False, gone=False, partition=lambda: self.replica.log
        )  # fmt: skip
        self.hear: Callable[[str, bytes], object] | None = None
        asyncio.get_running_loop().add_reader(self.plane.fileno(), self._take)
        self.plane.start()
        nobody: Any = None
        self.cut: list[TopicPartition] = []
        self.hangs: set[TopicPartition] = set()
        context = FetcherContext(
            7, LEADER, BrokerConfig.load(None, []), lambda: 77, nobody, self._truncate, Suspects(lambda: 0.0),
            UNTHROTTLED,
        )  # fmt: skip
        self.fetcher = NativeFetcher(context, self._dial, self._open)
        self.fetcher.start()

    async def _truncate(self, replica: Any, offset: int, leader_epoch: int) -> None:
        self.cut.append(replica.key)
        await eventually("the fetcher goes on", lambda: replica.key not in self.hangs)
        replica.log.truncate(offset, leader_epoch=leader_epoch)

    async def _dial(self, broker: int) -> socket.socket:
        here, there = socket.socketpair()
        here.setblocking(False)
        there.settimeout(5)
        self.leader = Leader(there)
        return here

    def _open(self, fd: int, hear: Callable[[str, bytes], object], **settings: Any) -> core.LeaderConnection:
        self.hear = hear
        return core.LeaderConnection(self.plane, fd, **settings)

    def _take(self) -> None:
        for kind, _, _, letter in self.plane.take():
            assert self.hear is not None
            self.hear(kind, letter or b"")

    def beside(self, home: Path, index: int) -> Any:
        """Open another partition that is a follower."""
        log = self.core.open(str(home), "t", index, topic_id=TOPIC_ID, config={})
        log.become_follower(LEADER, EPOCH, 0)
        other: Any = SimpleNamespace(
            key=TopicPartition("t", index), log=log, offline=False, gone=False, partition=lambda: other.log
        )  # fmt: skip
        return other

    async def copy(self) -> m.FetchRequest:
        """Follow the partition; return the Fetch that the leader receives."""
        self.fetcher.follow(self.replica, EPOCH)
        return await self.asked()

    async def asked(self) -> m.FetchRequest:
        await eventually("the fetcher is connected", lambda: self.hear)
        return await asyncio.to_thread(self.leader.request)

    def drop(self) -> weakref.ref[core.Plane]:
        """Release log and plane as a closing broker does."""
        gone = weakref.ref(self.plane)
        asyncio.get_running_loop().remove_reader(self.plane.fileno())
        self.plane.stop()
        self.core.close(clean=False)
        self.replica.log = None
        del self.plane
        return gone


@pytest.fixture
async def follower(tmp_path: Path) -> AsyncIterator[Follower]:
    made = Follower(tmp_path)
    yield made
    made.leader.sock.close()


async def test_one_that_is_closed_while_it_copies_holds_no_plane(follower: Follower) -> None:
    """A fetcher that is closed while it copies releases its plane and the plane's descriptors."""
    await follower.copy()
    await follower.fetcher.close()
    assert follower.drop()() is None
    assert follower.core.open_files == 0


@pytest.mark.parametrize("problem", [OSError(errno.EMFILE, "Too many open files"), ValueError("what nobody foresaw")])
async def test_it_goes_on_after_a_connection_that_came_to_nothing(
    follower: Follower, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, problem: Exception
) -> None:
    """A fetcher tries again after a connection to the leader failed for lack of a descriptor or another reason."""
    tries: list[int] = []

    def once(fd: int, hear: Callable[[str, bytes], object], **settings: Any) -> core.LeaderConnection:
        tries.append(fd)
        if len(tries) == 1:
            follower.leader.sock.close()
            raise problem
        return follower._open(fd, hear, **settings)

    monkeypatch.setattr(follower.fetcher, "_open_fetcher", once)
    await follower.copy()
    assert len(tries) == 2 and str(problem.args[-1]).lower() in caplog.text
    await follower.fetcher.close()
    assert follower.drop()() is None
    assert follower.core.open_files == 0


async def refuse(follower: Follower, caplog: pytest.LogCaptureFixture) -> None:
    """Answer with an error for the partition, and wait until the fetcher has logged it."""
    await follower.copy()
    follower.leader.answer({0: Brought(error_code=errors.UNKNOWN_SERVER_ERROR)})
    await eventually("the fetcher has logged the error", lambda: "partition not copied" in caplog.text)


async def test_a_reason_that_all_partitions_have_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """A reason for which no partition is copied, such as a lack of descriptors, is logged once a minute."""
    now_s = [0.0]
    with pytest.MonkeyPatch.context() as clock:
        clock.setattr(asyncio.get_running_loop(), "time", lambda: now_s[0])
        complaints = Complaints(leader=2)
        for now_s[0] in (0.0, 1.0, 59.0, 60.0, 61.0):
            for index in range(3):
                complaints.log(logging.WARNING, TopicPartition("t", index), "too many open files")
        complaints.log(logging.WARNING, TopicPartition("t", 1), "out of memory")
    line = 'partition not copied partition=t-0 leader=2 reason="too many open files"'
    other = 'partition not copied partition=t-1 leader=2 reason="out of memory"'
    assert caplog.messages == [line, f"{line} partitions=3", other]


async def test_one_that_is_closed_holds_no_partition_that_it_was_told_of(
    follower: Follower, caplog: pytest.LogCaptureFixture
) -> None:
    """A closed fetcher releases a partition that it had received an event of, and its files."""
    await refuse(follower, caplog)
    await follower.fetcher.close()
    assert follower.drop()() is None
    assert follower.core.open_files == 0


async def test_a_partition_that_it_was_told_of_is_deleted(follower: Follower, caplog: pytest.LogCaptureFixture) -> None:
    """A fetcher that lives on without events does not keep a deleted partition's files open."""
    await refuse(follower, caplog)
    follower.fetcher.leave(KEY)
    follower.core.delete(follower.replica.log)
    follower.replica.log = None
    await eventually("the partition's files are closed", lambda: follower.core.open_files == 0)
    await follower.fetcher.close()
    follower.drop()


def diverging(end: int, epoch: int = 0) -> Brought:
    """An answer with the leader's diverging epoch and its end."""
    return Brought(diverging_epoch=m.FetchResponse.Responses.Partitions.DivergingEpoch(epoch=epoch, end_offset=end))


@pytest.mark.parametrize(("epoch", "end"), [(99, 1 << 60), (99, 3), (EPOCH, 1 << 60)])
async def test_a_leader_that_is_wrong_about_a_divergence(
    follower: Follower, caplog: pytest.LogCaptureFixture, epoch: int, end: int
) -> None:
    """A divergence with a later epoch than all of ours, or that truncates nothing, is logged once and ignored."""
    follower.replica.log.append_replica(batch(3), leader_epoch=EPOCH, high_watermark=0)
    await follower.copy()
    for _ in range(2):
        follower.leader.answer({0: diverging(end, epoch)})
        await eventually("the event is processed", lambda: not follower.fetcher._heeding)
    await eventually("the refusal is logged", lambda: "log not truncated" in caplog.text)
    assert follower.cut == [] and follower.replica.log.log_end_offset == 3
    await follower.fetcher.close()
    follower.drop()


async def test_a_divergence_in_an_epoch_that_we_do_not_know(follower: Follower) -> None:
    """A divergence in an unknown epoch truncates the log to the leader's end offset, as Kafka's follower does."""
    follower.replica.log.append_replica(batch(3), leader_epoch=EPOCH, high_watermark=0)
    await follower.copy()
    follower.leader.answer({0: diverging(2, 99)})
    await eventually("the log is truncated", lambda: follower.cut == [KEY])
    await eventually("the log ends there", lambda: follower.replica.log.log_end_offset <= 2)
    await follower.fetcher.close()
    follower.drop()


async def test_what_was_told_of_an_earlier_copy_cuts_nothing(follower: Follower) -> None:
    """A divergence that an earlier copy received truncates nothing after the partition was followed again.

    The leader epoch is the same.
    """
    await follower.copy()
    busy = asyncio.Event()
    follower.fetcher._heeding[KEY] = asyncio.create_task(busy.wait())  # type: ignore[assignment]
    follower.leader.answer({0: diverging(0)})
    await eventually("it is received", lambda: len(asyncio.all_tasks()) and not follower.fetcher._native.partitions)  # type: ignore[union-attr]
    await follower.copy()
    busy.set()
    await eventually("the event is processed", lambda: not follower.fetcher._heeding)
    assert follower.cut == []
    await follower.fetcher.close()
    follower.drop()


async def test_an_end_that_was_asked_for_an_earlier_copy_cuts_nothing(follower: Follower) -> None:
    """An end offset that was requested for an earlier copy truncates nothing after the partition was followed again."""
    await follower.copy()
    follower.replica.log.append_replica(batch(3), leader_epoch=EPOCH, high_watermark=0)
    fetcher = follower.fetcher
    followed = fetcher._followed[KEY]

    async def offset(*asked: Any) -> int:
        fetcher.follow(follower.replica, EPOCH)
        return 1

    fetcher._offset = offset  # type: ignore[method-assign]
    await fetcher._begin_again(None, followed)  # type: ignore[arg-type]
    assert (follower.cut, follower.replica.log.log_end_offset) == ([], 3)
    await fetcher.close()
    follower.drop()


async def test_the_disk_of_one_log_holds_up_no_other(follower: Follower, tmp_path: Path) -> None:
    """A truncation that hangs delays only its own partition."""
    other = follower.beside(tmp_path, 1)
    follower.hangs.add(KEY)
    follower.replica.log.append_replica(batch(1), leader_epoch=EPOCH, high_watermark=0)
    other.log.append_replica(batch(1), leader_epoch=EPOCH, high_watermark=0)
    await follower.copy()
    follower.leader.answer({0: diverging(0)})
    await eventually("the first hangs", lambda: follower.cut == [KEY])
    follower.fetcher.follow(other, EPOCH)
    assert [p.partition for t in (await follower.asked()).topics for p in t.partitions] == [1]
    follower.leader.answer({1: diverging(0)})
    await eventually("the other log is truncated", lambda: other.log.log_end_offset == 0)
    follower.hangs.clear()
    await eventually("the first one, too", lambda: follower.replica.log.log_end_offset == 0)
    await follower.fetcher.close()
    other.log = None
    follower.drop()


async def test_a_slow_log_is_given_back() -> None:
    """A slow log is returned to the plane once, with the first answer after its disk recovered."""
    given: list[TopicPartition] = []
    log = SimpleNamespace(high_watermark=0, log_start_offset=0, slow_appends=True, follower_throttled=False)
    replica: Any = SimpleNamespace(key=KEY, log=log, partition=lambda: log, tell=lambda: None)
    answer = SimpleNamespace(error_code=0, diverging_epoch=None, records=b"", high_watermark=0, log_start_offset=0)
    nobody: Any = None
    config = BrokerConfig.load(None, [])
    suspects = Suspects(lambda: 0.0)
    context = FetcherContext(7, LEADER, config, lambda: 77, nobody, nobody, suspects, UNTHROTTLED)
    fetcher = SlowFetcher(given.append, context)
    fetcher.start()
    fetcher.take(replica, EPOCH, None)
    followed = fetcher._followed[KEY]

    async def take() -> None:
        await fetcher._take(nobody, followed, answer)
        await fetcher._busy[KEY]

    await take()
    assert (given, len(fetcher)) == ([], 1)
    log.slow_appends = False
    await take()
    await take()
    assert (given, len(fetcher)) == ([KEY], 0)
    await fetcher.close()


class OtherLink:
    """A link to a leader that has a record for each requested partition."""

    hung_up = False

    def __init__(self) -> None:
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.asked: list[list[int]] = []

    async def ask(self, request: m.FetchRequest, version: int) -> m.FetchResponse:
        await asyncio.sleep(0.005)
        kind = m.FetchResponse.Responses
        asked = [p.partition for topic in request.topics for p in topic.partitions]
        self.asked.append(asked)
        parts = [Brought(partition_index=index, records=b"x", high_watermark=1, log_start_offset=0) for index in asked]
        return m.FetchResponse(responses=[kind(topic_id=TOPIC_ID, partitions=parts)])

    def close(self) -> None:
        self.closed.set_result("")


@pytest.mark.parametrize("fault", ["hangs", "is full"])
async def test_the_disk_of_one_slow_log_holds_up_no_other(fault: str) -> None:
    """A slow log whose disk hangs or fails delays no other one, and the leader is not suspected."""
    link, suspects, appended = OtherLink(), Suspects(lambda: 0.0), list[int]()
    never = asyncio.Event()

    def follower(index: int) -> Any:
        log = SimpleNamespace(
            log_end_offset=0,
            high_watermark=1,
            log_start_offset=0,
            slow_appends=True,
            epochs=list,
            follower_throttled=False,
        )

        async def at_disk(*what: Any) -> None:
            if index == 0 and fault == "hangs":
                await never.wait()
            if index == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            assert what[-1] == log.log_end_offset == 0  # the log end at the time of the request
            appended.append(index)

        return SimpleNamespace(
            key=TopicPartition("t", index), topic_id=TOPIC_ID, log=log, offline=False, gone=False, at_disk=at_disk,
            partition=lambda: log, tell=lambda: None, append_copied=None, flush_due=False,
        )  # fmt: skip

    async def connect(broker: int) -> Any:
        return link

    nobody: Any = None
    context = FetcherContext(
        7, LEADER, BrokerConfig.load(None, []), lambda: 77, connect, nobody, suspects, UNTHROTTLED
    )
    fetcher = SlowFetcher(lambda key: None, context)
    fetcher.start()
    for index in (0, 1):
        fetcher.take(follower(index), EPOCH, None)
    await eventually("the other is appended to", lambda: len(appended) > 5)
    assert not link.closed.done() and LEADER not in suspects
    assert link.asked[:2] == [[0, 1], [1]]
    await fetcher.close()


async def test_what_the_slow_path_says_that_it_has_is_on_disk() -> None:
    """The slow path fetches behind records only when they are on disk (flush.messages=1), and other logs at once."""
    link, durable = OtherLink(), asyncio.Event()

    def follower(index: int) -> Any:
        log = SimpleNamespace(
            log_end_offset=0,
            high_watermark=1,
            log_start_offset=0,
            slow_appends=True,
            epochs=list,
            follower_throttled=False,
        )
        replica = SimpleNamespace(
            key=TopicPartition("t", index), topic_id=TOPIC_ID, log=log, offline=False, gone=False,
            partition=lambda: log, tell=lambda: None, append_copied=None, flush_if_due="flush", flush_due=index == 0,
        )  # fmt: skip

        async def at_disk(*what: Any) -> None:
            if what[0] == "flush":
                await durable.wait()
                replica.flush_due = False

        replica.at_disk = at_disk
        return replica

    async def connect(broker: int) -> Any:
        return link

    nobody: Any = None
    suspects = Suspects(lambda: 0.0)
    context = FetcherContext(
        7, LEADER, BrokerConfig.load(None, []), lambda: 77, connect, nobody, suspects, UNTHROTTLED
    )
    fetcher = SlowFetcher(lambda key: None, context)
    fetcher.start()
    for index in (0, 1):
        fetcher.take(follower(index), EPOCH, None)
    await eventually("the other log is fetched", lambda: len(link.asked) > 5)
    assert all(asked == [1] for asked in link.asked)
    durable.set()
    await eventually("the first one, too", lambda: any(0 in asked for asked in link.asked))
    await fetcher.close()


class Hearer:
    def hear(self, kind: str, letter: bytes) -> None: ...


def test_replicas_that_were_closed_hold_no_fetcher() -> None:
    """Closed replicas release a fetcher whose pending events may refer to a partition."""
    replicas = Replicas(7, BrokerConfig.load(None, []), MetadataCache("c"), [])
    plane = replicas.native_plane(reactors=1)
    here, there = socket.socketpair()
    here.setblocking(False)
    hearer = Hearer()
    replicas.open_fetcher(here.detach(), hearer.hear, replica_id=7, broker_epoch=77)
    plane.stop()
    replicas.abandon()
    there.close()
    gone = weakref.ref(hearer)
    del hearer
    assert gone() is None
