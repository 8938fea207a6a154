"""When the native plane ends a connection, valid requests are answered first, and Python gets the reason."""

from __future__ import annotations

import errno
import struct

import pytest

from pybroker.protocol import codec
from pybroker.protocol import messages as m
from tests.core.stage import FETCH, FRAME_MAX, METADATA, PRODUCE, Client, Stage, batch

BAD_SIZES = [struct.pack(">i", -1), struct.pack(">i", FRAME_MAX + 1), b"GET / HTTP/1.1"]


@pytest.mark.parametrize("bad", BAD_SIZES)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_bad_frame_behind_a_request_costs_no_answer(stage: Stage, bad: bytes, at_once: bool) -> None:
    """A bad frame behind a request closes the connection after that request is executed and answered."""
    client = Client(stage)
    client.produce(batch(b"x"), number=7)
    if not at_once:
        stage.step()
    client.sock.sendall(bad)
    stage.step()
    number, answer = client.receive(PRODUCE, 9)
    assert number == 7 and answer.responses[0].partition_responses[0].error_code == 0
    assert client.sock.recv(1) == b""
    ((kind, key, _, reason),) = stage.plane.take()
    assert (kind, key) == ("closed", client.id) and b"size" in reason


def test_a_bad_frame_waits_for_answers_that_do_not_fit_into_the_socket(stage: Stage) -> None:
    """A bad frame closes the connection only after a slow client has received all its answers."""
    client = Client(stage)
    stage.log.append(batch(bytes(FRAME_MAX - 1000)), now_ms=1)
    client.fetch(0)
    client.sock.sendall(BAD_SIZES[0])
    stage.step()
    records = client.receive_while(FETCH, 12, stage.step).responses[0].partitions[0].records
    assert len(records) >= FRAME_MAX - 1000
    stage.step()
    assert client.sock.recv(1) == b""


def test_a_failure_that_has_no_answer_costs_no_other_answer(stage: Stage) -> None:
    """A failed acks=0 Produce closes the connection after the answers to earlier requests were sent."""
    client = Client(stage)
    client.produce(batch(b"a"), partition=1, number=1)
    stage.step()
    stage.log.append(batch(b"c"), now_ms=1)
    client.fetch(0, number=2)
    client.produce(batch(b"b"), acks=0)
    stage.broker.arm("segment.write", "errno", errno.ENOSPC)
    stage.step()
    assert client.receive(PRODUCE, 9)[0] == 1 and client.receive(FETCH, 12)[0] == 2
    assert client.sock.recv(1) == b""


@pytest.mark.parametrize("behind", ["nothing", "a request for Python", "a fetch that would wait"])
def test_a_failure_that_has_no_answer_ends_the_connection(stage: Stage, behind: str) -> None:
    """A failed acks=0 Produce closes the connection with a reason, and requests behind it are not executed."""
    client = Client(stage)
    stage.broker.arm("segment.write", "errno", errno.ENOSPC)
    client.produce(batch(b"x"), acks=0)
    if behind == "a request for Python":
        client.send(codec.encode_request(METADATA, 9, 5, "c", m.MetadataRequest(topics=None)))
    elif behind == "a fetch that would wait":
        client.fetch(0, max_wait_ms=60_000)
    stage.step()
    assert client.sock.recv(1) == b""
    ((kind, key, _, reason),) = stage.plane.take()
    assert (kind, key) == ("closed", client.id) and b"acks=0" in reason
    assert stage.plane.stats()[0]["connections"] == 0
