"""A leader that always answers its follower at once and wrongly: the follower pauses between its requests."""

from __future__ import annotations

import logging
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

import pybroker.testing
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.testing import ClusterHandle
from tests.asking import ask
from tests.harness import HOST, until
from tests.server.test_hostile_control import epoch, lead_and_follow, port, state

FETCH, LIST_OFFSETS = 1, 2
LEADER = 99
SECONDS = 0.6
ASKED_MAX = 45
"""The most requests in that time: one per 20 ms for NOT_LEADER_OR_FOLLOWER, fewer for other answers."""
Part = m.FetchResponse.Responses.Partitions
Answer = Callable[[int, int, int, Any], bytes]


class Leader:
    """Broker 99, which gives the same answer to every Fetch; `asked` counts requests by API."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: Counter[int] = Counter()
        self.server = socket.create_server((HOST, 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock = self.server.accept()[0]
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, suppress(OSError):
            while head := sock.recv(4, socket.MSG_WAITALL):
                frame = sock.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL)
                header = codec.decode_request_header(frame)
                kind = {FETCH: m.FetchRequest, LIST_OFFSETS: m.ListOffsetsRequest}[header.api_key]
                request = codec.decode(kind, header.api_version, frame, header.body_offset)[0]
                self.asked[header.api_key] += 1
                body = self.answer(header.api_key, header.api_version, header.correlation_id, request)
                sock.sendall(struct.pack(">i", len(body)) + body)

    def close(self) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()


def fetched(part: Part, offset: int = 0) -> Answer:
    """Answer each Fetch with this for every partition, and each ListOffsets with `offset`."""

    def answer(api: int, version: int, correlation: int, request: Any) -> bytes:
        if api == LIST_OFFSETS:
            of_topic = m.ListOffsetsResponse.Topics
            told = of_topic.Partitions(partition_index=0, offset=offset)
            topics = [of_topic(name=t.name, partitions=[told]) for t in request.topics]
            return codec.encode_response(api, version, correlation, m.ListOffsetsResponse(topics=topics))
        kind = m.FetchResponse.Responses
        responses = [kind(topic_id=t.topic_id, partitions=[part]) for t in request.topics]
        return codec.encode_response(api, version, correlation, m.FetchResponse(responses=responses))

    return answer


def nothing_of_offsets(api: int, version: int, correlation: int, request: Any) -> bytes:
    """Answer OFFSET_OUT_OF_RANGE to a Fetch, and nothing to ListOffsets."""
    if api == LIST_OFFSETS:
        return codec.encode_response(api, version, correlation, m.ListOffsetsResponse(topics=[]))
    return fetched(Part(error_code=1, records=b""))(api, version, correlation, request)


FALSE: dict[str, Answer] = {
    "it diverges, and nothing is to be cut": fetched(
        Part(diverging_epoch=Part.DivergingEpoch(epoch=0, end_offset=1 << 40), records=b"")
    ),
    "it diverges in an epoch that never was": fetched(
        Part(diverging_epoch=Part.DivergingEpoch(epoch=-5, end_offset=0), records=b"")
    ),
    "out of a range that we are in": fetched(Part(error_code=1, records=b"")),
    "out of range, and the range is nowhere": fetched(Part(error_code=1, records=b""), offset=-1),
    "out of range, and no word of the range": nothing_of_offsets,
    "not the leader": fetched(Part(error_code=6, records=b"")),
    "an error that nobody knows": fetched(Part(error_code=9999, records=b"")),
    "a batch that is none": fetched(Part(records=bytes(100))),
    "no answer at all": lambda api, version, correlation, request: bytes(64),
}


@pytest.fixture
def one() -> Iterator[ClusterHandle]:
    with pybroker.testing.cluster(1) as cluster:
        yield cluster


def follow(cluster: ClusterHandle, leader: Leader) -> None:
    """Send, as the controller, that broker 99 is alive and leads t-0, which broker 1 follows."""
    kind = m.UpdateMetadataRequest.LiveBrokers
    live = [
        kind(id=number, endpoints=[kind.Endpoints(port=at, host=HOST, listener="PLAINTEXT", security_protocol=0)])
        for number, at in ((1, port(cluster)), (LEADER, leader.port))
    ]
    answer = ask(
        port(cluster), "UpdateMetadata", 8, controller_id=1, controller_epoch=epoch(cluster), broker_epoch=-1,
        topic_states=[], live_brokers=live,
    )  # fmt: skip
    assert answer.error_code == 0
    assert lead_and_follow(cluster, "t", state(leader=LEADER)) == [0, 0]


@pytest.mark.parametrize("what", FALSE)
def test_a_follower_waits_a_little(one: ClusterHandle, what: str, caplog: pytest.LogCaptureFixture) -> None:
    """The follower floods neither its leader nor its log, truncates and stores nothing, and logs no traceback."""
    with closing(Leader(FALSE[what])) as leader:
        follow(one, leader)
        until("it is asked", lambda: leader.asked[FETCH])
        leader.asked.clear()
        caplog.clear()
        began = time.monotonic()
        time.sleep(SECONDS)
        asked, took = sum(leader.asked.values()), time.monotonic() - began
        assert asked <= ASKED_MAX * took / SECONDS
        lines = [r.getMessage() for r in caplog.records if r.levelno >= logging.INFO]
        assert not [r for r in caplog.records if r.exc_info]
        assert len(lines) <= 2 * (time.monotonic() - began) + 3, lines[:5]
    assert ask(port(one), "ApiVersions", 2).error_code == 0
