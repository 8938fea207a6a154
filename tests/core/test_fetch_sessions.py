"""Incremental fetch sessions of the native plane (KIP-227): requests and answers carry only what changed."""

from __future__ import annotations

import random
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pybroker import errors
from pybroker.protocol import codec
from pybroker.protocol.apis import SERVED
from tests.core.stage import FETCH, TOPIC_ID, Client, Stage, batch

VERSIONS = [7, 8, 11, 12, 13, 15, 16, 17]


def answered(stage: Stage, client: Client, version: int = 12) -> Any:
    stage.step()
    return client.receive(FETCH, version)[1]


def told(response: Any) -> dict[int, tuple[int, int]]:
    """Map partition to (error code, bytes of records)."""
    return {p.partition_index: (p.error_code, len(p.records or b"")) for t in response.responses for p in t.partitions}


def begun(stage: Stage, client: Client, offsets: dict[int, int], version: int = 12) -> int:
    """Begin a session; return its id."""
    client.fetch_in((0, 0), offsets, version=version)
    response = answered(stage, client, version)
    assert response.error_code == 0 and set(told(response)) == set(offsets)
    return int(response.session_id)


def read(frame: bytes, version: int) -> Any:
    """Decode the request in a frame that Python received."""
    return codec.decode(SERVED[FETCH].request, version, frame, codec.decode_request_header(frame).body_offset)[0]


@pytest.mark.parametrize("version", VERSIONS)
def test_only_news_is_told(stage: Stage, version: int) -> None:
    """An answer has only changed partitions: at first all, then none, then the one that was appended to."""
    client = Client(stage)
    session = begun(stage, client, {0: 0, 1: 0}, version)
    assert session > 0
    client.fetch_in((session, 1), {}, version=version)
    response = answered(stage, client, version)
    assert (response.session_id, told(response)) == (session, {})
    stage.partitions[1].append(batch(b"x"), now_ms=1)
    client.fetch_in((session, 2), {}, version=version)
    response = answered(stage, client, version)
    (((index, (error, size)),)) = told(response).items()
    assert (index, error) == (1, 0) and size > 0
    topic = response.responses[0]
    assert topic.topic_id == TOPIC_ID if version >= 13 else topic.topic == "t"
    client.fetch_in((session, 3), {1: 1}, version=version)
    assert told(answered(stage, client, version)) == {}
    assert stage.plane.take() == []


def test_what_is_not_consumed_is_told_again(stage: Stage) -> None:
    """A session's fetch offset moves only when the client changes it, so unconsumed records are sent again."""
    stage.log.append(batch(b"x"), now_ms=1)
    client = Client(stage)
    session = begun(stage, client, {0: 0})
    for epoch in (1, 2):
        client.fetch_in((session, epoch), {})
        assert told(answered(stage, client))[0][1] > 0


def test_partitions_come_and_go(stage: Stage) -> None:
    """A named partition is added, a forgotten one is no longer fetched, and an empty session ends."""
    client = Client(stage)
    session = begun(stage, client, {0: 0})
    stage.partitions[1].append(batch(b"x"), now_ms=1)
    client.fetch_in((session, 1), {1: 0})
    assert told(answered(stage, client)).keys() == {1}
    client.fetch_in((session, 2), {}, forget=[1, 7])
    assert told(answered(stage, client)) == {}
    client.fetch_in((session, 3), {}, forget=[0])
    assert answered(stage, client).session_id == 0
    client.fetch_in((session, 4), {})
    assert answered(stage, client).error_code == errors.FETCH_SESSION_ID_NOT_FOUND


def test_a_parked_incremental_fetch_is_woken(stage: Stage) -> None:
    """A parked incremental Fetch is woken by any partition of its session, and its changes apply once."""
    client = Client(stage)
    session = begun(stage, client, {0: 0})
    client.fetch_in((session, 1), {1: 0}, max_wait_ms=60_000)
    stage.step()
    assert client.quiet()
    stage.log.append(batch(b"x"), now_ms=1)
    response = answered(stage, client)
    assert response.session_id == session and told(response)[0][1] > 0
    client.fetch_in((session, 2), {0: 1})
    assert answered(stage, client).error_code == 0


def test_a_parked_incremental_fetch_ends_at_its_deadline(stage: Stage) -> None:
    client = Client(stage)
    session = begun(stage, client, {0: 0})
    began = time.monotonic()
    client.fetch_in((session, 1), {}, max_wait_ms=30)
    while client.quiet():
        stage.plane.step(0, 60_000)
    assert time.monotonic() - began >= 0.029  # the plane's clock has whole milliseconds
    response = client.receive(FETCH, 12)[1]
    assert (response.error_code, response.session_id, told(response)) == (0, session, {})


def test_a_full_answer_turns_among_partitions(stage: Stage) -> None:
    """Partitions with records take turns if an answer has room for one batch."""
    for partition in stage.partitions:
        for _ in range(4):
            partition.append(batch(bytes(1000)), now_ms=1)
    client = Client(stage)
    session = begun(stage, client, {0: 4, 1: 4})
    client.fetch_in((session, 1), {0: 0, 1: 0}, max_bytes=1)
    first = told(answered(stage, client))
    client.fetch_in((session, 2), {}, max_bytes=1)
    second = told(answered(stage, client))
    assert [index for index, (_, size) in first.items() if size] == [0]
    assert [index for index, (_, size) in second.items() if size] == [1]


@pytest.mark.parametrize("epoch", [0, 2, 3, -2, (1 << 31) - 1])
def test_a_wrong_epoch(stage: Stage, epoch: int) -> None:
    """Only the next session epoch is accepted; epoch 0 begins a new session and ends the old one."""
    client = Client(stage)
    session = begun(stage, client, {0: 0})
    client.fetch_in((session, epoch), {0: 0})
    response = answered(stage, client)
    if epoch == 0:
        assert response.error_code == 0 and response.session_id not in (0, session)
        client.fetch_in((session, 1), {})
        assert answered(stage, client).error_code == errors.FETCH_SESSION_ID_NOT_FOUND
    else:
        assert (response.error_code, response.session_id) == (errors.INVALID_FETCH_SESSION_EPOCH, 0)
        client.fetch_in((session, 1), {})
        assert answered(stage, client).error_code == 0


def test_an_unknown_session_and_one_that_was_closed(stage: Stage) -> None:
    """Session epoch -1 ends a session with a full answer; its id is unknown afterwards."""
    client = Client(stage)
    session = begun(stage, client, {0: 0})
    client.fetch_in((session, -1), {0: 0})
    response = answered(stage, client)
    assert (response.error_code, response.session_id) == (0, 0) and told(response).keys() == {0}
    for unknown in (session, session ^ 1, -5):
        client.fetch_in((unknown, 1), {})
        assert answered(stage, client).error_code == errors.FETCH_SESSION_ID_NOT_FOUND


def test_names_and_ids_do_not_mix(stage: Stage) -> None:
    client = Client(stage)
    session = begun(stage, client, {0: 0}, 12)
    client.fetch_in((session, 1), {}, version=13)
    assert answered(stage, client, 13).error_code == errors.FETCH_SESSION_TOPIC_ID_ERROR


def test_errors_of_a_partition_are_told_each_time(stage: Stage) -> None:
    """OFFSET_OUT_OF_RANGE is answered at once on each Fetch of a session, and so is its end."""
    client = Client(stage)
    session = begun(stage, client, {0: 0, 1: 0})
    for epoch in (1, 2):
        client.fetch_in((session, epoch), {0: 99}, max_wait_ms=60_000)
        assert told(answered(stage, client)) == {0: (errors.OFFSET_OUT_OF_RANGE, 0)}
    client.fetch_in((session, 3), {0: 0})
    assert told(answered(stage, client)) == {0: (0, 0)}


def test_another_connection_goes_on_with_a_session(stage: Stage) -> None:
    """A session goes on over another connection; a Fetch parked on the first one gets INVALID_FETCH_SESSION_EPOCH."""
    one, two = Client(stage), Client(stage)
    session = begun(stage, one, {0: 0})
    one.fetch_in((session, 1), {}, max_wait_ms=60_000)
    stage.step()
    two.fetch_in((session, 2), {})
    assert answered(stage, two).error_code == 0
    stage.log.append(batch(b"x"), now_ms=1)
    assert answered(stage, one).error_code == errors.INVALID_FETCH_SESSION_EPOCH


def test_a_parked_client_that_goes_leaves_its_session(stage: Stage) -> None:
    """A parked client that disconnects can continue its session over another connection."""
    one, two = Client(stage), Client(stage)
    session = begun(stage, one, {0: 0})
    one.fetch_in((session, 1), {}, max_wait_ms=60_000)
    stage.step()
    one.sock.close()
    stage.step()
    two.fetch_in((session, 2), {})
    assert answered(stage, two).error_code == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_python_gets_a_request_that_names_everything(stage: Stage, version: int) -> None:
    """A Fetch that the plane cannot serve ends its session and reaches Python with all partitions and no session id."""
    client = Client(stage)
    session = begun(stage, client, {0: 0, 1: 5}, version)
    client.fetch_in((session, 1), {9: 3, 0: 2}, version=version, max_wait_ms=7)
    stage.step()
    ((kind, _, token, frame),) = stage.plane.take()
    assert kind == "request"
    request = read(frame, version)
    named = {p.partition: p.fetch_offset for t in request.topics for p in t.partitions}
    assert named == {9: 3, 0: 2, 1: 5}
    assert (request.session_id, request.session_epoch, request.max_wait_ms) == (0, -1, 7)
    assert request.forgotten_topics_data == []
    stage.plane.reply(token, None, close=True)
    other = Client(stage)
    other.fetch_in((session, 2), {}, version=version)
    assert answered(stage, other, version).error_code == errors.FETCH_SESSION_ID_NOT_FOUND


def test_python_is_asked_for_no_session(stage: Stage) -> None:
    """A Fetch that would begin a session, but names an unknown partition, reaches Python as one without a session."""
    client = Client(stage)
    client.fetch_in((0, 0), {9: 3})
    stage.step()
    ((_, _, token, frame),) = stage.plane.take()
    request = read(frame, 12)
    assert (request.session_id, request.session_epoch) == (0, -1)
    stage.plane.reply(token, None, close=True)


def test_a_partition_that_goes_ends_its_sessions(stage: Stage) -> None:
    """A deleted partition ends its sessions: its files are released, and a parked Fetch goes to Python."""
    client, idle = Client(stage), Client(stage)
    first, second = begun(stage, client, {0: 0, 1: 0}), begun(stage, idle, {0: 0})
    client.fetch_in((first, 1), {}, max_wait_ms=60_000)
    stage.step()
    stage.plane.withdraw(stage.log)
    stage.broker.delete(stage.log)
    stage.step()
    ((kind, _, token, frame),) = stage.plane.take()
    request = read(frame, 12)
    assert kind == "request" and sorted(p.partition for t in request.topics for p in t.partitions) == [0, 1]
    stage.plane.reply(token, None, close=True)
    idle.fetch_in((second, 1), {})
    assert answered(stage, idle).error_code == errors.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("slots", [0, 1, 3])
def test_slots(tmp_path: Path, slots: int) -> None:
    """Sessions are given up to the limit, and none at limit + 1, as recent sessions are not evicted."""
    stage = Stage(tmp_path, fetch_sessions=slots)
    clients = [Client(stage) for _ in range(slots + 1)]
    ids = [begun(stage, client, {0: 0}) for client in clients]
    assert all(ids[:-1]) and ids[-1] == 0 and len(set(ids)) == slots + 1
    if slots:
        clients[0].fetch_in((ids[0], -1), {0: 0})
        assert answered(stage, clients[0]).session_id == 0
        assert begun(stage, clients[-1], {0: 0}) > 0
    stage.close()


def test_a_large_session(tmp_path: Path) -> None:
    """A session of 300 partitions works: half are forgotten, one brings records, the others are quiet."""
    stage = Stage(tmp_path, partitions=300)
    client = Client(stage)
    session = begun(stage, client, dict.fromkeys(range(300), 0), 13)
    client.fetch_in((session, 1), {}, forget=range(0, 300, 2), version=13)
    assert told(answered(stage, client, 13)) == {}
    for index in (10, 11):
        stage.partitions[index].append(batch(b"x"), now_ms=1)
    client.fetch_in((session, 2), {}, version=13)
    assert told(answered(stage, client, 13)).keys() == {11}
    stage.close()


def test_two_reactors_share_a_session(tmp_path: Path) -> None:
    """Two connections on two reactors compete for one session: each epoch is won by one of them, and nothing breaks."""
    stage = Stage(tmp_path, reactors=2)
    clients = [Client(stage), Client(stage)]
    session = begun(stage, clients[0], {0: 0, 1: 0})
    stage.plane.start()
    won: list[int] = []

    def work(client: Client) -> None:
        for epoch in range(1, 300):
            client.fetch_in((session, epoch), {epoch & 1: 0}, forget=[~epoch & 1])
            if client.receive(FETCH, 12)[1].error_code == 0:
                won.append(epoch)

    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stage.close()
    assert won and len(won) == len(set(won))


@pytest.mark.parametrize("last", [0, 3, 7])
def test_a_client_that_says_which_epoch_it_read_last(stage: Stage, last: int) -> None:
    """A Fetch whose last fetched record is in the log is served; else Python answers the divergence."""
    stage.log.append(batch(b"a", b"b"), now_ms=1)
    for epoch in (3, 7):
        stage.log.become_leader(epoch, 0)
        stage.log.append(batch(b"c"), now_ms=1)
    client = Client(stage)
    ends = {0: 2, 3: 3, 7: 4}
    client.fetch_in((0, 0), {0: ends[last]}, last_epoch=last)
    session = answered(stage, client).session_id
    client.fetch_in((session, 1), {0: ends[last]}, last_epoch=last)
    assert answered(stage, client).session_id == session > 0
    client.fetch_in((session, 2), {0: ends[last] + 1}, last_epoch=last)
    stage.step()
    ((kind, _, token, _),) = stage.plane.take()
    assert kind == "request"
    stage.plane.reply(token, None, close=True)


def test_a_parked_fetch_that_is_diverted_leaves_its_session(stage: Stage) -> None:
    """A parked Fetch that is diverted to Python leaves its session; the connection then fetches in another session."""
    client = Client(stage)
    session, other = begun(stage, client, {0: 0}), begun(stage, client, {1: 0})
    client.fetch_in((session, 1), {}, max_wait_ms=60_000)
    stage.step()
    stage.plane.divert(True)
    stage.step()
    ((_, _, token, _),) = stage.plane.take()
    stage.plane.divert(False)
    stage.plane.reply(token, None)
    for epoch in (1, 2):
        client.fetch_in((other, epoch), {})
        assert answered(stage, client).session_id == other


def test_what_nobody_tells_of_is_seen_at_the_deadline(stage: Stage) -> None:
    """A log start that advances wakes no parked Fetch, but is answered at its deadline."""
    stage.log.append(batch(b"a", b"b"), now_ms=1)
    client = Client(stage)
    session = begun(stage, client, {0: 2, 1: 0})
    client.fetch_in((session, 1), {}, max_wait_ms=30)
    stage.step()
    stage.log.set_log_start(1)
    response = client.receive_while(FETCH, 12, lambda: stage.plane.step(0, 5))
    (part,) = response.responses[0].partitions
    assert (part.partition_index, part.log_start_offset) == (0, 1)


def test_the_next_request_of_a_session_ends_the_one_that_waits(stage: Stage) -> None:
    """A session's next request on another connection ends the parked one with INVALID_FETCH_SESSION_EPOCH at once."""
    first, second = Client(stage), Client(stage)
    session = begun(stage, first, {0: 0})
    first.fetch_in((session, 1), {}, max_wait_ms=60_000)
    stage.step()
    second.fetch_in((session, 2), {}, max_wait_ms=60_000)
    assert answered(stage, first).error_code == errors.INVALID_FETCH_SESSION_EPOCH
    stage.log.append(batch(b"x"), now_ms=1)
    assert told(answered(stage, second))[0][1] > 0


@pytest.mark.parametrize("seed", range(30))
def test_no_record_is_left_behind(tmp_path: Path, seed: int) -> None:
    """A session's Fetch never waits for records that are there, and reads each record once, in order.

    Appends come before, during and after a wait; answers are small, and the tracked partitions change.
    """
    rng = random.Random(seed)
    count = rng.choice([2, 3, 12])
    stage = Stage(tmp_path, partitions=count)
    client = Client(stage)
    at, tracked = [0] * count, set(range(count))
    session = begun(stage, client, dict.fromkeys(tracked, 0))
    moved: dict[int, int] = {}
    for epoch in range(1, 80):
        for _ in range(rng.randrange(3)):
            rng.choice(stage.partitions).append(batch(b"v" * rng.randrange(1, 400)), now_ms=1)
        forget = [rng.choice(sorted(tracked))] if rng.random() < 0.1 and len(tracked) > 1 else []
        tracked.difference_update(forget)
        wanted = {index: offset for index, offset in moved.items() if index in tracked}
        if rng.random() < 0.2:
            again = rng.randrange(count)
            if again not in forget:
                tracked.add(again)
                wanted[again] = at[again]
        most = rng.choice([1, 500, 1 << 20])
        waits = rng.random() < 0.7
        client.fetch_in((session, epoch), wanted, forget=forget, max_bytes=most, max_wait_ms=60_000 if waits else 0)
        stage.step()
        there = any(stage.partitions[index].log_end_offset > at[index] for index in tracked)
        if waits and not there:
            assert client.quiet()
            stage.partitions[rng.choice(sorted(tracked))].append(batch(b"late"), now_ms=1)
            there = True
        response = answered(stage, client)
        assert response.error_code == 0
        moved = {}
        for topic in response.responses:
            for part in topic.partitions:
                index = part.partition_index
                assert part.error_code == 0 and index in tracked
                assert part.high_watermark == stage.partitions[index].log_end_offset
                if part.records:
                    first, last = span(bytes(part.records))
                    assert first == at[index]
                    at[index] = moved[index] = last + 1
        assert bool(moved) == there
    stage.close()


def span(records: bytes) -> tuple[int, int]:
    """The offsets of the first and last record in whole batches."""
    first, at, last = -1, 0, -1
    while at < len(records):
        base, length = struct.unpack_from(">qi", records, at)
        first = base if at == 0 else first
        last = base + struct.unpack_from(">i", records, at + 23)[0]
        at += 12 + length
    return first, last


def test_no_partition_is_told_twice_in_an_answer(tmp_path: Path) -> None:
    """An answer has no partition twice, even if it grows by another reactor meanwhile: kafka-python would fail."""
    stage, ended = Stage(tmp_path, reactors=2, partitions=200), threading.Event()
    producer, client = Client(stage), Client(stage)
    sent: list[bytes] = []
    producer.send = sent.append  # type: ignore[method-assign]
    for index in range(200):
        producer.produce(batch(b"x"), acks=0, partition=index)
    data = b"".join(struct.pack(">i", len(frame)) + frame for frame in sent)
    producer.sock.settimeout(None)

    def flood() -> None:
        while not ended.is_set():
            producer.sock.sendall(data)

    stage.plane.start()
    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        client.fetch_in((0, 0), dict.fromkeys(range(200), 0), max_bytes=1)
        session = client.receive(FETCH, 12)[1].session_id
        for epoch in range(1, 600):
            client.fetch_in((session, epoch), {}, max_bytes=1)
            response = client.receive(FETCH, 12)[1]
            indexes = [p.partition_index for topic in response.responses for p in topic.partitions]
            assert response.error_code == 0 and len(indexes) == len(set(indexes))
    finally:
        ended.set()
        flooding.join()
        stage.close()
