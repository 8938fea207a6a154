"""A follower in core fetches from its leader and appends what it receives; the test plays the leader over a socket."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker import core
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from tests.core.following import EPOCH, FETCH, TOPIC_ID, Brought, Following, asked, batch, content, forgotten
from tests.core.stage import STUCK_MS
from tests.harness import until

SESSION = 4711


@pytest.fixture
def following(tmp_path: Path) -> Iterator[Following]:
    following = Following(tmp_path)
    yield following
    following.close()


def test_it_copies_what_its_leader_has(following: Following) -> None:
    """A follower copies its leader's log byte for byte; each Fetch begins at its own log end."""
    request = following.add(0)
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (7, 77)
    assert (request.min_bytes, request.max_bytes) == (1, 10 << 20)
    assert [(t.topic_id, [p.partition for p in t.partitions]) for t in request.topics] == [(TOPIC_ID, [0])]
    assert asked(request) == {0: (EPOCH, 0, -1, 0)}
    first, second = batch(3, 0, 4), batch(2, 3)
    assert asked(following.turn({0: first})) == {0: (EPOCH, 3, 4, 0)}
    assert asked(following.turn({0: second + batch(1, 5)}, high_watermark=3)) == {0: (EPOCH, 6, EPOCH, 0)}
    assert content(following.log) == first + second + batch(1, 5)
    assert following.log.epochs() == [(4, 0), (EPOCH, 3)]
    assert following.log.high_watermark == 3
    assert following.events() == []


def test_the_high_watermark_comes_with_an_empty_answer(following: Following) -> None:
    """An empty answer moves the follower's high watermark, but never beyond its log end."""
    following.add(0)
    following.turn({0: batch(4)}, high_watermark=0)
    assert following.log.high_watermark == 0
    following.turn({0: b""}, high_watermark=3)
    assert following.log.high_watermark == 3
    following.turn({0: b""}, high_watermark=9)
    assert following.log.high_watermark == 4
    assert following.fetcher.lag(following.log) == 5


def test_in_a_session_a_request_names_what_changed(following: Following) -> None:
    """A Fetch of a session names all partitions at first, then those that grew or were added, and those to forget."""
    request = following.add()
    assert (request.session_id, request.session_epoch, sorted(asked(request))) == (0, 0, [0, 1])
    request = following.turn({1: batch(2)}, session=SESSION)
    assert (request.session_id, request.session_epoch) == (SESSION, 1)
    assert asked(request) == {1: (EPOCH, 2, EPOCH, 0)}
    request = following.turn(session=SESSION)
    assert (request.session_epoch, asked(request), forgotten(request)) == (2, {}, [])
    following.fetcher.remove(following.partitions[1])
    request = following.turn(session=SESSION)
    assert (asked(request), forgotten(request)) == ({}, [1])
    request = following.turn({1: batch(1, 2)}, session=SESSION)
    assert (asked(request), forgotten(request)) == ({}, [])
    assert following.partitions[1].log_end_offset == 2
    following.fetcher.add(following.partitions[1], EPOCH)
    request = following.turn(session=SESSION)
    assert (request.session_epoch, asked(request)) == (5, {1: (EPOCH, 2, EPOCH, 0)})


def test_one_that_leaves_and_comes_back_at_once_is_not_forgotten(following: Following) -> None:
    """A partition removed and added again before a Fetch is not forgotten, as the leader would drop it."""
    following.add()
    following.turn(session=SESSION)
    following.fetcher.remove(following.partitions[0])
    following.fetcher.add(following.partitions[0], EPOCH)
    request = following.turn(session=SESSION)
    assert (asked(request), forgotten(request)) == ({0: (EPOCH, 0, -1, 0)}, [])


@pytest.mark.parametrize("code", [70, 71, 106])
def test_a_session_that_the_leader_lost_is_begun_anew(following: Following, code: int) -> None:
    """A session that the leader lost is replaced by a full Fetch, which begins at each log end."""
    following.add()
    following.turn({0: batch(3)}, session=SESSION)
    request = following.turn(error=code)
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert asked(request) == {0: (EPOCH, 3, EPOCH, 0), 1: (EPOCH, 0, -1, 0)}


def test_without_a_session_every_request_names_all(following: Following) -> None:
    following.add()
    for _ in range(3):
        request = following.turn()
        assert (request.session_id, request.session_epoch, sorted(asked(request))) == (0, 0, [0, 1])


def test_a_listener_that_is_removed_is_no_leaders(following: Following) -> None:
    """Removing a listener does not close a follower's connection to its leader, for any listener number."""
    following.add()
    for offset, owed in enumerate((True, False)):
        following.plane.close_listener(0, owed=owed)
        following.turn({0: batch(1, offset)}, session=SESSION)
    assert following.log.log_end_offset == 2


def test_one_that_begins_a_session_is_answered_at_once(following: Following) -> None:
    """A Fetch that begins a session does not wait, as nothing added meanwhile could be fetched; other ones may wait."""
    assert following.add().max_wait_ms == 0
    assert [following.turn(session=SESSION).max_wait_ms for _ in range(2)] == [500, 500]
    assert following.turn(error=70).max_wait_ms == 0
    assert [following.turn(session=0).max_wait_ms for _ in range(2)] == [500, 500]


def test_topics_without_an_id_are_fetched_by_name(tmp_path: Path) -> None:
    """A topic without an id is fetched by name in version 12, where replica_id is a plain field."""
    following = Following(tmp_path, topic_id=bytes(16))
    request = following.add(0)
    assert (following.leader.version, request.replica_id) == (12, 7)
    assert [(t.topic, [p.partition for p in t.partitions]) for t in request.topics] == [("t", [0])]
    following.turn({0: batch(3)}, session=SESSION)
    assert content(following.log) == batch(3)
    following.close()


def test_a_divergence_is_told_and_the_rest_goes_on(following: Following) -> None:
    """A partition that diverges is reported and not fetched until Python truncates and adds it; the others go on."""
    following.add()
    following.turn({0: batch(6, 0, 4), 1: batch(1)}, session=SESSION)
    diverged = Brought(diverging_epoch=Brought.DivergingEpoch(epoch=4, end_offset=2), records=b"")
    request = following.turn({0: diverged, 1: batch(2, 1)}, session=SESSION)
    assert (asked(request), forgotten(request)) == ({1: (EPOCH, 3, EPOCH, 0)}, [0])
    assert following.events() == [("diverged", following.log, 0, 4, 2)]
    assert following.log.log_end_offset == 6
    following.log.truncate(0)
    following.fetcher.add(following.log, EPOCH)
    request = following.turn(session=SESSION)
    assert asked(request) == {0: (EPOCH, 0, -1, 0)}


@pytest.mark.parametrize("code", [1, 3, 6, 56, 74, 75, 100])
def test_an_error_of_a_partition_is_told_and_the_rest_goes_on(following: Following, code: int) -> None:
    following.add()
    following.turn(session=SESSION)
    request = following.turn({0: Brought(error_code=code, records=b""), 1: batch(2)}, session=SESSION)
    assert (asked(request), forgotten(request)) == ({1: (EPOCH, 2, EPOCH, 0)}, [0])
    assert following.events() == [("failed", following.log, code, -1, -1)]


BAD = {
    "a wrong CRC": (batch(2, 2)[:-1] + b"!", 2),
    "an offset that goes back": (batch(2, 1), 87),
    "a later epoch than the leader's": (batch(2, 2, EPOCH + 1), 2),
    "an earlier epoch than the batch before": (batch(2, 2, EPOCH - 1), 2),
    "an old format": (batch(2, 2)[:16] + b"\1" + batch(2, 2)[17:], 43),
    "a size below a header": (batch(2, 2)[:8] + (20).to_bytes(4, "big") + batch(2, 2)[12:], 2),
    "more records than offsets": (batch(2, 2)[:57] + (9).to_bytes(4, "big") + batch(2, 2)[61:], 2),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_batch_fails_its_partition_alone(following: Following, what: str) -> None:
    """A bad batch fails its partition, and nothing that came with the batch is appended; other partitions go on."""
    bad, code = BAD[what]
    following.add()
    request = following.turn({0: batch(2) + bad, 1: batch(2)}, session=SESSION)
    assert following.events() == [("failed", following.log, code, -1, 0)]
    assert (following.log.log_end_offset, following.partitions[1].log_end_offset) == (0, 2)
    assert (asked(request), forgotten(request)) == ({1: (EPOCH, 2, EPOCH, 0)}, [0])


def test_an_epoch_that_goes_back_is_refused_in_the_next_answer_too(following: Following) -> None:
    """A leader epoch that goes back in a later answer fails the partition, as a start takes such a log for damaged."""
    following.add(0)
    following.turn({0: batch(2)})
    following.leader.answer({0: batch(2, 2, EPOCH - 1)})
    assert following.events() == [("failed", following.log, 2, -1, 0)]
    assert following.log.log_end_offset == 2


def test_an_epoch_without_records_gives_way(following: Following) -> None:
    """An epoch that a former leader began without records gives way to an earlier epoch of the next leader."""
    following.log.append_replica(batch(2, 0, 1), leader_epoch=EPOCH)
    following.log.become_leader(EPOCH + 1, 0)
    assert following.log.epochs() == [(1, 0), (EPOCH + 1, 2)]
    following.log.become_follower(2, EPOCH + 2, 0)
    assert asked(following.add(0, epoch=EPOCH + 2)) == {0: (EPOCH + 2, 2, 1, 0)}
    assert asked(following.turn({0: batch(2, 2, 3)})) == {0: (EPOCH + 2, 4, 3, 0)}
    assert following.log.epochs() == [(1, 0), (3, 2)]


def test_a_gap_is_appended_as_it_comes(following: Following) -> None:
    """Gaps between offsets, as compaction leaves them, are appended as they come."""
    following.add(0)
    assert asked(following.turn({0: batch(1, 3) + batch(2, 9)}))[0][1] == 11
    assert content(following.log) == batch(1, 3) + batch(2, 9)


def test_an_empty_log_begins_where_its_leader_has_records(tmp_path: Path) -> None:
    """An empty log begins where its leader has records, however large that offset is, and a restart finds it there."""
    begin = 5 << 31
    following = Following(tmp_path, 1)
    following.fetcher.add(following.log, EPOCH, begin=begin)
    following.step()
    assert asked(following.leader.request()) == {0: (EPOCH, begin, -1, 0)}
    sent = batch(2, begin) + batch(1, begin + 2)
    assert asked(following.turn({0: sent}, high_watermark=begin + 1)) == {0: (EPOCH, begin + 3, EPOCH, begin)}
    assert following.events() == []
    log = following.log
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (begin, begin + 1, begin + 3)
    assert content(log) == sent
    following.close()
    again = core.LogManager()
    log = again.open(str(tmp_path), "t", 0, topic_id=TOPIC_ID, config={}, compacted=True, log_start_offset=begin)
    assert (log.log_start_offset, log.log_end_offset, content(log)) == (begin, begin + 3, sent)
    again.close()


def test_a_partial_batch_at_the_end_is_left_out(following: Following) -> None:
    following.add(0)
    assert asked(following.turn({0: batch(2) + batch(2, 2)[:-1]}))[0][1] == 2
    assert asked(following.turn({0: batch(2, 2) + b"\0"}))[0][1] == 4
    assert content(following.log) == batch(2) + batch(2, 2)


def test_a_batch_that_never_comes_whole_fails_its_partition(following: Following) -> None:
    """A batch that an answer never contains whole fails its partition, as fetching again would give the same."""
    following.add(0)
    following.leader.answer({0: batch(2)[:-1]})
    assert following.events() == [("failed", following.log, 10, -1, -1)]


def test_one_that_is_added_does_not_wait_for_the_answer_before(following: Following) -> None:
    """A partition that is added while a Fetch waits is named in a second Fetch at once; there is never a third."""
    following.add(0)
    request = following.turn(session=SESSION)
    assert (request.session_epoch, asked(request)) == (1, {})
    request = following.add(1)
    assert (request.session_epoch, asked(request), forgotten(request)) == (2, {1: (EPOCH, 0, -1, 0)}, [])
    first = following.leader.correlation - 1
    following.fetcher.remove(following.partitions[1])
    following.fetcher.add(following.partitions[1], EPOCH)
    following.step()
    assert following.leader.quiet()
    second, following.leader.correlation = following.leader.correlation, first
    following.leader.answer({0: batch(2)}, session=SESSION)
    following.step()
    request = following.leader.request()  # of the new partition, after the second request
    assert (request.session_epoch, asked(request)) == (3, {0: (EPOCH, 2, EPOCH, 0), 1: (EPOCH, 0, -1, 0)})
    third, following.leader.correlation = following.leader.correlation, second
    following.leader.answer({1: batch(1)}, session=SESSION)
    following.step()
    assert following.leader.quiet()
    assert following.partitions[1].log_end_offset == 0, "the answer was for the removed partition"
    following.leader.correlation = third
    request = following.turn({1: batch(1)}, session=SESSION)
    assert (request.session_epoch, asked(request)) == (4, {1: (EPOCH, 1, EPOCH, 0)})
    assert following.events() == []


def test_what_an_answer_before_brought_comes_again(following: Following) -> None:
    """Records that two answers carry are appended once, and the second copy is no error."""
    leader = following.leader
    following.add(0)
    following.turn(session=SESSION)
    second = leader.correlation
    following.add(1)
    third = leader.correlation
    following.fetcher.add(following.partitions[1], EPOCH)  # named in the Fetch behind the next answer
    leader.correlation = second
    leader.answer({0: batch(3)}, session=SESSION)
    following.step()
    assert sorted(asked(leader.request())) == [0, 1]
    fourth = leader.correlation
    leader.correlation = third
    leader.answer({0: batch(3)}, session=SESSION)
    following.step()
    assert following.events() == []
    leader.correlation = fourth
    assert asked(following.turn({0: batch(1, 3)}, session=SESSION)) == {0: (EPOCH, 4, EPOCH, 0)}


def test_what_is_forgotten_is_not_held_until_something_is_fetched(following: Following) -> None:
    """A forgotten partition is released before the leader knows of it; the next Fetch begins another session."""
    following.partitions[1].append_replica(batch(1), leader_epoch=EPOCH)
    following.add(0)
    following.turn({0: batch(3)}, session=SESSION)
    assert following.broker.open_files == 2
    following.fetcher.remove(following.log)
    following.broker.delete(following.log)
    following.partitions[0] = following.log = None  # type: ignore[call-overload,assignment]
    following.step()
    following.leader.answer(session=SESSION)
    following.step()
    assert following.leader.quiet()
    until("the partition's files are closed", lambda: following.broker.open_files == 1)
    request = following.add(1)
    assert (request.session_id, sorted(asked(request)), forgotten(request)) == (0, [1], [])


def test_a_session_that_is_over_takes_the_second_request_with_it(following: Following) -> None:
    """If a session ends, the answer to the second Fetch is ignored, and all partitions are fetched again."""
    following.add(0)
    following.turn(session=SESSION)
    following.add(1)
    second, following.leader.correlation = following.leader.correlation, following.leader.correlation - 1
    following.leader.answer(error=70)
    following.step()
    assert following.leader.quiet()
    following.leader.correlation = second
    request = following.turn({1: batch(3)}, error=71)
    assert (request.session_id, request.session_epoch, sorted(asked(request))) == (0, 0, [0, 1])
    assert asked(following.turn({1: batch(2)}, session=SESSION)) == {1: (EPOCH, 2, EPOCH, 0)}


CHATTER = """
import socket, sys
sock = socket.socket(fileno=int(sys.argv[1]))
frame = bytes.fromhex(sys.argv[2])
while True:
    sock.sendall(frame * 50)
    sock.recv(1 << 20)
"""


def test_no_order_is_lost_on_a_busy_reactor(following: Following) -> None:
    """A partition that is added while the reactor is busy in a turn is fetched, even if no other event follows."""
    here, there = socket.socketpair()
    here.setblocking(False)
    following.plane.adopt(here.detach())
    following.plane.start()
    frame = codec.encode_request(FETCH, 12, 1, "c", m.FetchRequest(topics=[], session_epoch=-1))
    sent = (len(frame).to_bytes(4, "big") + frame).hex()
    command = [sys.executable, "-c", CHATTER, str(there.fileno()), sent]
    with there, subprocess.Popen(command, pass_fds=[there.fileno()]) as chatter:
        try:
            until("the client sends requests", lambda: following.plane.stats()[0]["Fetch"]["requests"] > 1000)
            following.fetcher.add(following.partitions[0], EPOCH)
            following.leader.request()
            following.leader.answer({}, session=SESSION)
            following.leader.request()  # not answered
            for number in range(10000):
                partition = following.partitions[number % 2]
                following.fetcher.add(partition, EPOCH)  # added again, as a new partition
                request = following.leader.request()
                assert list(asked(request)) == [partition.partition]
                following.leader.correlation -= 1
                following.leader.answer({}, session=SESSION)
                following.leader.correlation += 1
        finally:
            chatter.kill()


def test_what_a_follower_says_that_it_has_is_on_disk(following: Following) -> None:
    """With flush.messages=1, a follower's next Fetch waits until the records are on disk; other connections go on."""
    following.log.configure({"flush.messages": 1})
    following.add(0, 1)
    before = sum(following.broker.sync_times()["counts"])
    following.broker.arm("segment.sync", "sleep", STUCK_MS)
    following.leader.answer({0: batch(3), 1: batch(1)}, session=SESSION)
    following.step()
    assert (following.log.log_end_offset, following.leader.quiet()) == (3, True)
    following.broker.disarm()
    until("the follower fetches on", lambda: following.step() or not following.leader.quiet())
    request = following.leader.request()
    assert asked(request) == {0: (EPOCH, 3, EPOCH, 0), 1: (EPOCH, 1, EPOCH, 0)}
    assert (following.log.durable_offset, sum(following.broker.sync_times()["counts"]) - before) == (3, 1)
    assert asked(following.turn({1: batch(1, 1)}, session=SESSION)) == {1: (EPOCH, 2, EPOCH, 0)}
    assert following.events() == []


def test_a_disk_that_hangs_holds_up_its_own_partition_alone(following: Following) -> None:
    """With flush.messages=1, a disk that hangs takes its partition out of the Fetch; the others are copied on."""
    following.log.configure({"flush.messages": 1})
    following.add(0, 1)
    following.broker.arm("segment.sync", "sleep", STUCK_MS)
    following.leader.answer({0: batch(3), 1: batch(1)}, session=SESSION)
    until("the follower fetches on", lambda: following.step() or not following.leader.quiet())
    request = following.leader.request()
    assert (asked(request), forgotten(request)) == ({1: (EPOCH, 1, EPOCH, 0)}, [0])
    assert following.events() == [("slow", following.log, 0, -1, -1)]
    assert following.log.durable_offset == 0
    assert following.log.slow_appends
    assert asked(following.turn({1: batch(1, 1)}, session=SESSION)) == {1: (EPOCH, 2, EPOCH, 0)}
    following.broker.disarm()
    until("the records are on disk", lambda: following.step() or following.log.durable_offset == 3)
    following.fetcher.add(following.log, EPOCH)
    assert asked(following.turn(session=SESSION)) == {0: (EPOCH, 3, EPOCH, 0)}


def test_nobody_waits_for_the_disk_of_a_partition_that_was_taken_away(following: Following) -> None:
    following.log.configure({"flush.messages": 1})
    following.add(0, 1)
    following.broker.arm("segment.sync", "sleep", STUCK_MS)
    following.leader.answer({0: batch(3), 1: batch(1)}, session=SESSION)
    following.step()
    assert following.leader.quiet()
    following.fetcher.remove(following.log)
    following.step()
    assert asked(following.leader.request()) == {1: (EPOCH, 1, EPOCH, 0)}
    following.broker.disarm()
    until("the records are on disk", lambda: following.step() or following.log.durable_offset == 3)


def test_a_follower_whose_disk_fails_does_not_say_that_it_has_it(following: Following) -> None:
    """A follower whose sync fails drops the partition and does not report its records; the other partition goes on."""
    following.log.configure({"flush.messages": 1})
    following.add(0, 1)
    following.broker.arm("segment.sync", "errno", errno.EIO)
    following.leader.answer({0: batch(3), 1: batch(1)}, session=SESSION)
    until("the follower fetches on", lambda: following.step() or not following.leader.quiet())
    assert 0 not in asked(following.leader.request())
    assert [(e.kind, e.code) for e in following.events() if e is not None][:1] == [("failed", 56)]


def test_a_plane_that_stops_waits_for_the_disk_of_its_followers(following: Following) -> None:
    """A stopping plane waits for a follower's sync, so that the reactor is there when the sync is reported."""
    following.log.configure({"flush.messages": 1})
    following.add(0)
    following.broker.arm("segment.sync", "sleep", 300)
    following.leader.answer({0: batch(3)}, session=SESSION)
    following.step()
    assert following.leader.quiet()


def test_connections_to_leaders_have_a_thread_of_their_own(tmp_path: Path) -> None:
    """Connections to leaders have a thread of their own, which takes no time from client connections."""
    broker = core.LogManager()
    plane = core.Plane(broker, reactors=2, fetchers=1)
    plane.start()
    sockets = [socket.socketpair() for _ in range(3)]
    for here, _ in sockets:
        here.setblocking(False)
    fetcher = core.LeaderConnection(plane, sockets[0][0].detach(), replica_id=7, broker_epoch=77)
    for here, _ in sockets[1:]:
        plane.adopt(here.detach())
    until("all connections are open", lambda: [reactor["connections"] for reactor in plane.stats()] == [1, 1, 1])
    threads = {thread.name: thread.native_id for thread in threading.enumerate()}
    policies = {name: os.sched_getscheduler(threads[name] or 0) for name in threads if name.startswith("pybroker-")}
    assert policies["pybroker-fetcher-0"] == os.SCHED_BATCH
    assert policies["pybroker-network-0"] == policies["pybroker-network-1"] == os.SCHED_OTHER
    plane.stop()
    broker.close()
    for _, there in sockets:
        there.close()
    del fetcher


def test_connections_are_spread_evenly(tmp_path: Path) -> None:
    """Client connections and leader connections are each spread evenly over the reactors, in any order of arrival."""
    broker = core.LogManager()
    plane = core.Plane(broker, reactors=2, fetchers=2)
    plane.start()
    sockets, fetchers = [socket.socketpair() for _ in range(8)], []
    for number, (here, _) in enumerate(sockets):
        here.setblocking(False)
        if number % 2:
            plane.adopt(here.detach())
        else:
            fetchers.append(core.LeaderConnection(plane, here.detach(), replica_id=7, broker_epoch=77))
    until("all connections are open", lambda: [reactor["connections"] for reactor in plane.stats()] == [2, 2, 2, 2])
    plane.stop()
    broker.close()
    for _, there in sockets:
        there.close()
