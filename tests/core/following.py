"""A follower whose plane is stepped by the test, and its leader, which the test plays over a socket."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pybroker import core
from pybroker.protocol import codec
from pybroker.protocol import messages as m

FETCH = 1
TOPIC_ID = bytes(range(16))
EPOCH = 5
LEADER = 2
NOBODY = bytes(16)
Brought = m.FetchResponse.Responses.Partitions


def batch(count: int = 1, offset: int = 0, epoch: int = EPOCH, value: bytes = b"v", **how: Any) -> bytes:
    """Build records as a leader of this epoch would stamp them."""
    made = core.build_batch([(1000 + n, None, value, ()) for n in range(count)], **how)
    return offset.to_bytes(8, "big") + made[8:12] + epoch.to_bytes(4, "big") + made[16:]


class Leader:
    """The leader's end of a follower's connection: receives requests and sends answers."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.version = 17
        self.correlation = -1

    def request(self) -> m.FetchRequest:
        """Receive the next Fetch."""
        size = struct.unpack(">i", self._exactly(4))[0]
        frame = self._exactly(size)
        header = codec.decode_request_header(frame)
        assert (header.api_key, header.client_id) == (FETCH, "broker-7-fetcher-0")
        self.version, self.correlation = header.api_version, header.correlation_id
        request, end = codec.decode(m.FetchRequest, self.version, frame, header.body_offset)
        assert end == size
        return request

    def _exactly(self, n: int) -> bytes:
        data = b""
        while len(data) < n:
            piece = self.sock.recv(n - len(data))
            assert piece, "the follower closed the connection"
            data += piece
        return data

    def frame(
        self, brought: Mapping[int, bytes | Brought], *, session: int = 0, error: int = 0,
        high_watermark: int = 1 << 40, topic: str = "t", topic_id: bytes = TOPIC_ID,
    ) -> bytes:  # fmt: skip
        """Build an answer to the last Fetch that carries these partitions, with its size."""
        parts = [
            Brought(partition_index=index, high_watermark=high_watermark, log_start_offset=0, records=what)
            if isinstance(what, bytes)
            else what
            for index, what in brought.items()
        ]
        for index, part in zip(brought, parts, strict=True):
            part.partition_index = index
        topics = [m.FetchResponse.Responses(topic=topic, topic_id=topic_id, partitions=parts)] if parts else []
        answer = m.FetchResponse(session_id=session, error_code=error, responses=topics)
        body = codec.encode_response(FETCH, self.version, self.correlation, answer)
        return struct.pack(">i", len(body)) + body

    def answer(self, brought: Mapping[int, bytes | Brought] | None = None, **how: Any) -> None:
        self.sock.sendall(self.frame(brought or {}, **how))

    def quiet(self) -> bool:
        """True if nothing was received."""
        self.sock.setblocking(False)
        try:
            return not self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        finally:
            self.sock.settimeout(5)

    def closed(self) -> bool:
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True


class Following:
    """A core with partitions of one topic `t` that are followers, and one connection to their leader."""

    def __init__(
        self, home: Path, partitions: int = 2, *, topic_id: bytes = TOPIC_ID,
        follower_throttle: core.QuotaBucket | None = None, **limits: Any,
    ) -> None:  # fmt: skip
        self.broker = core.LogManager()
        self.plane = core.Plane(self.broker, frame_bytes_max=1 << 20, follower_throttle=follower_throttle)
        self.partitions = [
            self.broker.open(str(home), "t", i, topic_id=topic_id, config={"file.delete.delay.ms": 0})
            for i in range(partitions)
        ]
        for partition in self.partitions:
            partition.become_follower(LEADER, EPOCH, 0)
        self.log = self.partitions[0]
        self.limits = {"replica_id": 7, "broker_epoch": 77, "client_id": "broker-7-fetcher-0", **limits}
        self.letters: list[tuple[str, int, bytes | None]] = []
        self.connect()

    def connect(self) -> Leader:
        here, there = socket.socketpair()
        here.setblocking(False)
        there.settimeout(5)
        self.fetcher = core.LeaderConnection(self.plane, here.detach(), **self.limits)
        self.leader = Leader(there)
        self.step()
        return self.leader

    def add(self, *indexes: int, epoch: int = EPOCH) -> m.FetchRequest:
        """Follow these partitions (all if none is named); return the Fetch that the leader receives then."""
        for index in indexes or range(len(self.partitions)):
            self.fetcher.add(self.partitions[index], epoch)
        self.step()
        return self.leader.request()

    def step(self, turns: int = 3) -> None:
        for _ in range(turns):
            self.plane.step()
        self.letters += [(kind, key, frame) for kind, key, _, frame in self.plane.take()]

    def turn(self, brought: Mapping[int, bytes | Brought] | None = None, **how: Any) -> m.FetchRequest:
        """Answer as the leader; return the next Fetch."""
        self.leader.answer(brought, **how)
        self.step()
        return self.leader.request()

    def events(self) -> list[core.FetcherEvent | None]:
        """The fetcher events that Python received since the last call."""
        self.step()
        told = [self.fetcher.read(f) for kind, key, f in self.letters if kind == "fetcher" and key == self.fetcher.key]
        self.letters = [letter for letter in self.letters if letter[0] != "fetcher"]
        return told

    def ended(self) -> str | None:
        """Why the connection ended, empty if no reason was given; None while it is open."""
        self.step()
        for kind, key, frame in self.letters:
            if kind == "closed" and key == self.fetcher.key:
                return (frame or b"").decode()
        return None

    def close(self) -> None:
        self.leader.sock.close()
        with contextlib.suppress(RuntimeError):
            self.fetcher.close()
        self.broker.disarm()
        self.plane.stop()
        self.broker.close()


def asked(request: m.FetchRequest) -> dict[int, tuple[int, int, int, int]]:
    """(leader epoch, offset, last fetched epoch, log start) of each partition in a Fetch."""
    return {
        p.partition: (p.current_leader_epoch, p.fetch_offset, p.last_fetched_epoch, p.log_start_offset)
        for topic in request.topics
        for p in topic.partitions
    }


def forgotten(request: m.FetchRequest) -> list[int]:
    return [index for topic in request.forgotten_topics_data for index in topic.partitions]


def content(partition: core.Partition) -> bytes:
    """All bytes of a log."""
    data = b""
    offset = partition.log_start_offset
    while offset < partition.log_end_offset:
        found = partition.read(offset, 1 << 20, to_log_end=True).slice
        assert found is not None
        piece = found.tobytes()
        found.close()
        data += piece
        offset = [header for _, header in core.iter_batches(piece)][-1].last_offset + 1
    return data
