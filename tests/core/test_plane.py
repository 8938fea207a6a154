"""The native plane, whose turns the tests step one by one, so that the order of events is fixed."""

from __future__ import annotations

import ctypes
import errno
import mmap
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pybroker import core, errors
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from tests.core.stage import FETCH, FRAME_MAX, METADATA, PRODUCE, TOPIC_ID, Client, Stage, batch
from tests.rows import with_each


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_at_every_version(stage: Stage, version: int) -> None:
    """Two Produces in one write are answered in order, each with its offset, at every version."""
    client = Client(stage)
    client.produce(batch(b"a", b"b"), version=version, number=7)
    client.produce(batch(b"c"), version=version, number=8)
    stage.step()
    for number, offset in ((7, 0), (8, 2)):
        answered, response = client.receive(PRODUCE, version)
        part = response.responses[0].partition_responses[0]
        assert (answered, part.error_code, part.base_offset) == (number, 0, offset)
    assert stage.log.high_watermark == 3 and not stage.plane.take()


@pytest.mark.parametrize("version", range(4, 18))
def test_fetch_at_every_version(stage: Stage, version: int) -> None:
    """A Fetch returns the appended records as they were stored, at every version."""
    stage.log.append(batch(b"a", b"b"), now_ms=1)
    client = Client(stage)
    client.fetch(1, version=version)
    stage.step()
    _, response = client.receive(FETCH, version)
    part = response.responses[0].partitions[0]
    assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, 2, 2)
    assert [h.base_offset for _, h in core.iter_batches(bytes(part.records))] == [0]


def test_acks_0_is_not_answered(stage: Stage) -> None:
    """A Produce with acks=0 is appended without an answer, and later requests are answered."""
    client = Client(stage)
    client.produce(batch(b"a"), acks=0, number=1)
    client.produce(batch(b"b"), acks=1, number=2)
    stage.step()
    assert client.receive(PRODUCE, 9)[0] == 2 and stage.log.log_end_offset == 2


def test_batches_of_one_turn_go_out_in_one_write(stage: Stage) -> None:
    """Batches of two connections in one turn share one write, so one failure fails both; later writes succeed."""
    clients = [Client(stage), Client(stage)]
    stage.broker.arm("segment.write", "errno", errno.ENOSPC)
    for client in clients:
        client.produce(batch(b"x"))
    stage.step()
    for client in clients:
        code = client.receive(PRODUCE, 9)[1].responses[0].partition_responses[0].error_code
        assert code == errors.KAFKA_STORAGE_ERROR
    assert stage.log.append(batch(b"x"), now_ms=1).base_offset == 0
    clients[0].produce(batch(b"x"))
    stage.step()
    assert clients[0].receive(PRODUCE, 9)[1].responses[0].partition_responses[0].base_offset == 1


def test_a_long_poll_is_woken_by_the_append(stage: Stage) -> None:
    """A long poll is answered by another connection's append, in the same turn or the next."""
    reader, writer = Client(stage), Client(stage)
    reader.fetch(0, max_wait_ms=60_000)
    stage.step()
    assert reader.quiet()
    writer.produce(batch(b"news"))
    stage.step()
    part = reader.receive(FETCH, 12)[1].responses[0].partitions[0]
    assert part.high_watermark == 1 and len(part.records) > 0


def test_a_long_poll_is_woken_by_an_append_of_python(stage: Stage) -> None:
    """A long poll is answered by an append from Python."""
    reader = Client(stage)
    reader.fetch(0, max_wait_ms=60_000)
    stage.step()
    stage.log.append(batch(b"news"), now_ms=1)
    stage.step()
    assert reader.receive(FETCH, 12)[1].responses[0].partitions[0].high_watermark == 1


def test_a_long_poll_ends_at_its_deadline(stage: Stage) -> None:
    """A long poll without records is answered empty at its deadline, not before; a turn's wait ends in time for it."""
    reader = Client(stage)
    began = time.monotonic()
    reader.fetch(0, max_wait_ms=30)
    while reader.quiet():
        stage.plane.step(0, 60_000)
    assert time.monotonic() - began >= 0.029  # the plane's clock has whole milliseconds
    part = reader.receive(FETCH, 12)[1].responses[0].partitions[0]
    assert (part.error_code, len(part.records)) == (0, 0)


def test_python_is_told_of_a_partition_that_it_watches(stage: Stage) -> None:
    """Python gets one letter for the first append to a watched partition."""
    stage.plane.watch(stage.log)
    assert stage.plane.take() == []
    Client(stage).produce(batch(b"x"))
    stage.step()
    assert [kind for kind, *_ in stage.plane.take()] == ["grown"]
    stage.log.append(batch(b"y"), now_ms=1)
    assert stage.plane.take() == []


def asked_ahead_of_produce(stage: Stage) -> tuple[Client, tuple[Any, ...]]:
    """Send a Metadata and a Produce in one write; return the client and the letter for Python."""
    client = Client(stage)
    client.send(codec.encode_request(METADATA, 9, 5, "c", m.MetadataRequest(topics=None)))
    client.produce(batch(b"x"), number=6)
    stage.step()
    (asked,) = stage.plane.take()
    return client, asked


def test_what_python_must_answer_holds_back_the_rest(stage: Stage) -> None:
    """A Produce behind a Metadata waits for Python's answer, as no request overtakes another."""
    client, (kind, key, token, frame) = asked_ahead_of_produce(stage)
    assert (kind, key) == ("request", client.id) and codec.decode_request_header(frame).api_key == METADATA
    assert client.quiet() and stage.log.log_end_offset == 0
    stage.plane.reply(token, codec.encode_response_parts(METADATA, 9, 5, m.MetadataResponse()))
    stage.step()
    assert client.receive(METADATA, 9)[0] == 5 and client.receive(PRODUCE, 9)[0] == 6


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param({"records": batch(b"x")[:-1]}, id="a torn batch"),
        pytest.param({"records": b""}, id="no records"),
        pytest.param({"records": batch(b"x"), "partition": 9}, id="an unknown partition"),
        pytest.param({"records": batch(b"x"), "acks": 5}, id="unknown acks"),
    ],
)
def test_what_is_not_in_order_goes_to_python_untouched(stage: Stage, frame: dict[str, Any]) -> None:
    """A Produce that the plane does not execute reaches Python unchanged; nothing is appended."""
    client = Client(stage)
    client.produce(**frame)
    stage.step()
    assert [kind for kind, *_ in stage.plane.take()] == ["request"]
    assert client.quiet() and stage.log.log_end_offset == 0


def test_bytes_that_come_one_by_one(stage: Stage) -> None:
    """A frame whose bytes arrive one by one is executed like a whole one."""
    client, writer = Client(stage), Client(stage)
    writer.produce(batch(b"slowly"))
    client.sock.settimeout(5)
    frame = codec.encode_request(
        PRODUCE, 9, 3, "c",
        m.ProduceRequest(acks=1, timeout_ms=1, topic_data=[m.ProduceRequest.TopicData(
            name="t", partition_data=[m.ProduceRequest.TopicData.PartitionData(index=0, records=batch(b"v"))])]),
    )  # fmt: skip
    for byte in struct.pack(">i", len(frame)) + frame:
        client.sock.sendall(bytes([byte]))
        stage.step(1)
    assert client.receive(PRODUCE, 9)[0] == 3


@pytest.mark.parametrize("size", [-1, -(1 << 31), FRAME_MAX + 1, (1 << 31) - 1])
def test_frames_of_impossible_sizes_close_the_connection(stage: Stage, size: int) -> None:
    """A frame of impossible size closes the connection without an allocation, and Python gets the reason."""
    client = Client(stage)
    client.sock.sendall(struct.pack(">i", size) + b"x" * 64)
    stage.step()
    assert client.sock.recv(1) == b""
    ((kind, key, _, reason),) = stage.plane.take()
    assert (kind, key) == ("closed", client.id) and b"size" in reason


def test_a_client_that_goes_while_python_works_for_it(stage: Stage) -> None:
    """A client that disconnects while Python has its request is reported, and the late answer is dropped."""
    client = Client(stage)
    client.send(codec.encode_request(METADATA, 9, 5, "c", m.MetadataRequest(topics=None)))
    stage.step()
    ((_, _, token, _),) = stage.plane.take()
    client.sock.close()
    stage.step()
    assert sorted(kind for kind, *_ in stage.plane.take()) == ["closed", "gone"]
    stage.plane.reply(token, [b"late"])
    stage.step()
    assert stage.plane.stats()[0]["connections"] == 0


@pytest.mark.parametrize("cut", [0, 1, 4, 7, 20])
def test_an_end_that_comes_with_the_last_bytes_is_noticed(stage: Stage, cut: int) -> None:
    """A client that sends a request, a piece of another and the end of the stream gets its answer before the close."""
    client = Client(stage)
    client.produce(batch(b"x"), number=7)
    client.sock.sendall(b"\0\0\0\x40"[:cut] + bytes(max(cut - 4, 0)))
    client.sock.shutdown(socket.SHUT_WR)
    stage.step()
    assert client.receive(PRODUCE, 9)[0] == 7
    assert client.sock.recv(1) == b"" and stage.plane.stats()[0]["connections"] == 0


def test_who_sends_nothing_more_is_still_answered(stage: Stage) -> None:
    """A client that ends its stream gets answers to its pending requests, a parked Fetch at once, before the close."""
    waits, away = Client(stage), Client(stage)
    waits.fetch(0, max_wait_ms=60_000)
    away.send(codec.encode_request(METADATA, 9, 5, "c", m.MetadataRequest(topics=None)))
    stage.step()
    assert waits.quiet()
    for client in (waits, away):
        client.sock.shutdown(socket.SHUT_WR)
    stage.step()
    assert waits.receive(FETCH, 12)[0] == 2 and waits.sock.recv(1) == b""
    (_, _, token, _), (gone, *_) = [letter for letter in stage.plane.take() if letter[0] != "closed"]
    assert gone == "gone"
    stage.plane.reply(token, codec.encode_response_parts(METADATA, 9, 5, m.MetadataResponse()))
    stage.step()
    assert away.receive(METADATA, 9)[0] == 5 and away.sock.recv(1) == b""
    assert stage.plane.stats()[0]["connections"] == 0


def test_a_fetch_that_came_with_the_end_does_not_wait(stage: Stage) -> None:
    """A Fetch that arrives with the end of the stream does not wait, as no later event would end its wait."""
    client = Client(stage)
    client.fetch(0, max_wait_ms=60_000)
    client.sock.shutdown(socket.SHUT_WR)
    stage.step()
    assert client.receive(FETCH, 12)[0] == 2 and client.sock.recv(1) == b""


def test_a_partition_that_goes_wakes_who_waits_for_it(stage: Stage) -> None:
    """A parked Fetch whose partition is deleted is handed to Python, which knows the error."""
    reader = Client(stage)
    reader.fetch(0, max_wait_ms=60_000)
    stage.step()
    stage.plane.withdraw(stage.log)
    stage.broker.delete(stage.log)
    stage.step()
    assert [kind for kind, *_ in stage.plane.take()] == ["request"]


def test_diverted_requests_are_pythons_until_they_are_not(stage: Stage) -> None:
    """While requests are diverted, a Produce and an already parked Fetch go to Python; later ones are executed here."""
    reader, writer = Client(stage), Client(stage)
    reader.fetch(0, max_wait_ms=60_000)
    stage.step()
    assert reader.quiet() and stage.plane.take() == []
    stage.plane.divert(True)
    writer.produce(batch(b"a"))
    stage.step()
    letters = stage.plane.take()
    assert sorted(who for _, who, _, _ in letters) == [reader.id, writer.id]
    assert stage.log.log_end_offset == 0
    stage.plane.divert(False)
    for _, who, token, _ in letters:
        stage.plane.reply(token, [b"answer"] if who == reader.id else None)
    writer.produce(batch(b"b"))
    stage.step()
    assert reader._exactly(10) == b"\0\0\0\6answer"
    assert writer.receive(PRODUCE, 9)[0] == 1
    assert stage.log.log_end_offset == 1


def test_a_cut_closes_the_connections_that_there_are(stage: Stage) -> None:
    """A cut closes all connections, parked, idle or with a request in Python; a later connection is served."""
    parked, away, rests = (Client(stage) for _ in range(3))
    parked.fetch(0, max_wait_ms=60_000)
    away.send(codec.encode_request(METADATA, 9, 5, "c", m.MetadataRequest(topics=None)))
    stage.step()
    ((_, _, token, _),) = stage.plane.take()
    stage.plane.cut()
    late = Client(stage)
    assert [client.sock.recv(1) for client in (parked, away, rests)] == [b""] * 3
    assert sorted(kind for kind, *_ in stage.plane.take()) == ["closed"] * 3 + ["gone"]
    stage.plane.reply(token, None)
    late.produce(batch(b"a"))
    stage.step()
    assert late.receive(PRODUCE, 9)[0] == 1
    assert stage.plane.stats()[0]["connections"] == 1


def test_the_connections_of_a_listener_end(stage: Stage) -> None:
    """Connections of a closed listener get their answers first, if `owed`; other listeners' connections go on."""
    parked, away, other = (Client(stage, listener=number) for number in (62, 62, 0))
    parked.fetch(0, max_wait_ms=60_000)
    away.send(codec.encode_request(METADATA, 9, 5, "c", m.MetadataRequest(topics=None)))
    stage.step()
    ((_, _, token, _),) = stage.plane.take()
    stage.plane.close_listener(62, owed=True)
    stage.step()
    assert parked.receive(FETCH, 12)[1].error_code == 0 and parked.sock.recv(1) == b""
    assert away.quiet() and [kind for kind, *_ in stage.plane.take()] == ["closed"]
    stage.plane.close_listener(62, owed=False)
    stage.step()
    assert away.sock.recv(1) == b"" and sorted(kind for kind, *_ in stage.plane.take()) == ["closed", "gone"]
    stage.plane.reply(token, None)
    other.produce(batch(b"a"))
    stage.step()
    assert other.receive(PRODUCE, 9)[0] == 1
    for number in (-1, 63):
        with pytest.raises(ValueError, match=f"{number} is not a listener number from 0 to 62"):
            stage.plane.close_listener(number, owed=False)


def test_a_slow_reader_is_not_read_any_more(stage: Stage) -> None:
    """A client that does not receive its answers is not read any more, so the answers in its queue stay bounded."""
    for _ in range(20):
        stage.log.append(batch(bytes(100_000)), now_ms=1)
    client = Client(stage)
    for number in range(50):
        client.fetch(0, number=number)
    stage.step(20)
    assert stage.plane.stats()[0]["Fetch"]["requests"] < 10
    stage.plane.start()
    for number in range(50):
        assert client.receive(FETCH, 12)[0] == number


def test_an_answer_of_many_ranges_takes_no_more_than_they_need(tmp_path: Path) -> None:
    """An answer of thousands of file ranges takes address space only for what it holds."""
    stage = Stage(tmp_path, partitions=17)
    for partition in stage.partitions:
        partition.append(batch(b"v"), now_ms=1)
    client, wanted = Client(stage), 16_000
    kind = m.FetchRequest.Topics
    parts = [kind.Partitions(partition=n % 17, fetch_offset=0, partition_max_bytes=1000) for n in range(wanted)]
    request = m.FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=1 << 26, topics=[kind(topic="t", topic_id=TOPIC_ID, partitions=parts)]
    )
    before = address_space_kb()
    sender = threading.Thread(target=client.send, args=(codec.encode_request(FETCH, 12, 3, "c", request),))
    sender.start()
    while sender.is_alive():
        stage.step(1)
    stage.step()
    assert address_space_kb() - before < 512 << 10  # a thread's arena is part of it; a bug once took five gigabytes
    answer = client.receive_while(FETCH, 12, stage.step)
    assert [len(p.records) > 0 for t in answer.responses for p in t.partitions] == [True] * wanted
    stage.close()


def address_space_kb() -> int:
    return int(Path("/proc/self/status").read_text().split("VmSize:")[1].split()[0])


def test_an_answer_that_no_frame_holds_closes_the_connection(stage: Stage) -> None:
    """An answer above 2 GiB, which a 32-bit size cannot express, is not sent; the connection closes."""
    client = Client(stage)
    client.send(codec.encode_request(METADATA, 9, 5, "c", m.MetadataRequest(topics=None)))
    stage.step()
    [(_, _, token, _)] = stage.plane.take()
    with mmap.mmap(-1, 1 << 30) as pages:
        stage.plane.reply(token, [pages, pages])
    stage.step()
    assert client.sock.recv(1) == b""


def test_stop_answers_what_is_parked_and_closes(stage: Stage) -> None:
    """finish() answers a long poll with the records there are, then closes the connection."""
    reader, idle = Client(stage), Client(stage)
    reader.fetch(0, max_wait_ms=60_000)
    stage.step()
    stage.plane.finish()
    stage.step()
    assert reader.receive(FETCH, 12)[0] == 2
    assert reader.sock.recv(1) == b"" and idle.sock.recv(1) == b""


@with_each("seed", range(40))
def test_hostile_frames(stage: Stage, seed: int) -> None:
    """A mutated or cut frame gets an answer, goes to Python or closes its connection; the next client is served."""
    rng = random.Random(seed)
    good = Client(stage)
    good.produce(batch(b"a", b"b"), version=rng.randrange(3, 14))
    good.fetch(0, version=rng.randrange(4, 18))
    stage.step()
    for _ in range(25):
        client = Client(stage)
        api, version = rng.choice([(PRODUCE, rng.randrange(3, 14)), (FETCH, rng.randrange(4, 18))])
        recorded, pair = socket.socketpair()
        client.sock, kept = recorded, client.sock
        (client.produce if api == PRODUCE else client.fetch)(
            *((batch(b"x"),) if api == PRODUCE else (0,)), version=version
        )
        frame = bytearray(pair.recv(1 << 16)[4:])
        client.sock = kept
        recorded.close()
        pair.close()
        for _ in range(rng.randrange(1, 6)):
            frame[rng.randrange(len(frame))] = rng.randrange(256)
        data = bytes(frame[: rng.randrange(len(frame))]) if rng.random() < 0.3 else bytes(frame)
        client.sock.sendall(struct.pack(">i", len(data)) + data)
        stage.step(2)
        for kind, _, token, _ in stage.plane.take():
            if kind == "request":
                stage.plane.reply(token, None, close=True)
        client.sock.close()
        stage.step(2)
    stage.plane.take()
    last = Client(stage)
    last.produce(batch(b"z"), number=99)
    stage.step()
    assert last.receive(PRODUCE, 9)[0] == 99


PRODUCER = """
import socket, struct, sys, time
port, frame = int(sys.argv[1]), bytes.fromhex(sys.argv[2])
s = socket.create_connection(("127.0.0.1", port)); s.settimeout(10)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
end = time.monotonic() + 1.6
print("go", flush=True)
while time.monotonic() < end:
    s.sendall(frame); n = struct.unpack(">i", s.recv(4, socket.MSG_WAITALL))[0]
    s.recv(n, socket.MSG_WAITALL); time.sleep(0.002)
"""


def test_a_held_gil_delays_no_produce(tmp_path: Path) -> None:
    """While Python holds the GIL for a second, Produces of another process are answered."""
    stage = Stage(tmp_path)
    kind = m.ProduceRequest.TopicData
    topics = [kind(name="t", partition_data=[kind.PartitionData(index=0, records=batch(b"v"))])]
    frame = codec.encode_request(PRODUCE, 9, 3, "c", m.ProduceRequest(acks=1, timeout_ms=1, topic_data=topics))
    stage.plane.start()
    with socket.create_server(("127.0.0.1", 0)) as server:
        argument = (struct.pack(">i", len(frame)) + frame).hex()
        command = [sys.executable, "-c", PRODUCER, str(server.getsockname()[1]), argument]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as producer:
            sock, _ = server.accept()
            sock.setblocking(False)
            stage.plane.adopt(sock.detach())
            assert producer.stdout is not None and producer.stdout.readline() == "go\n"
            before = stage.log.log_end_offset
            ctypes.PyDLL(None).usleep(1_000_000)  # PyDLL keeps the GIL
            answered = stage.log.log_end_offset - before
    stage.close()
    assert answered > 20, "a second has time for some hundreds"


def test_two_reactors_append_to_one_partition(tmp_path: Path) -> None:
    """Two reactors append to one partition: each record is stored once, each answer has its own offset."""
    stage = Stage(tmp_path, reactors=2)
    clients = [Client(stage) for _ in range(4)]
    stage.plane.start()
    offsets: list[int] = []
    lock = threading.Lock()

    def work(client: Client) -> None:
        for number in range(200):
            client.produce(batch(b"v"), number=number)
            part = client.receive(PRODUCE, 9)[1].responses[0].partition_responses[0]
            with lock:
                offsets.append(part.base_offset)

    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stage.close()
    assert sorted(offsets) == list(range(800))


def test_what_comes_behind_a_request_that_ends_the_connection(stage: Stage) -> None:
    """A Produce behind a request that Python refuses by closing the connection is not executed."""
    client, (_, _, token, _) = asked_ahead_of_produce(stage)
    stage.plane.reply(token, None, close=True)
    stage.step()
    assert client.sock.recv(1) == b"" and stage.log.log_end_offset == 0


def test_two_reactors_in_a_told_order(tmp_path: Path) -> None:
    """An append in one reactor's turn is answered in that turn, and wakes a Fetch in the other reactor's next turn."""
    stage = Stage(tmp_path, reactors=2)
    reader, writer = Client(stage), Client(stage)
    reader.fetch(0, max_wait_ms=60_000)
    stage.step()
    writer.produce(batch(b"news"))
    stage.plane.step(0)
    assert stage.log.log_end_offset == 0 and reader.quiet() and writer.quiet()
    stage.plane.step(1)
    assert stage.log.log_end_offset == 1 and reader.quiet() and not writer.quiet()
    stage.plane.step(0)
    assert reader.receive(FETCH, 12)[1].responses[0].partitions[0].high_watermark == 1
    stage.close()
