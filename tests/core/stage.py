"""A broker's core and a native plane whose turns the test steps by hand, and raw clients of it."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pybroker import core
from pybroker.protocol import codec
from pybroker.protocol import messages as m

PRODUCE, FETCH, METADATA = 0, 1, 3
TOPIC_ID = bytes(range(16))
FRAME_MAX = 1 << 20
STUCK_MS = 60_000
"""Sleep of a file call that the test ends with `disarm()`."""
PATIENCE_S = 30.0
REMEMBERED = 16
"""The number of a log's last batches that a read finds without looking into the file."""


def batch(*values: bytes, **how: Any) -> bytes:
    return core.build_batch([(1000 + n, None, value, ()) for n, value in enumerate(values)], **how)


class Client:
    """One end of a socket pair whose other end the plane owns; `address` is the client's address."""

    def __init__(
        self, stage: Stage, address: str | None = None, *, listener: int = 0, judged: bool = False
    ) -> None:
        self.stage = stage
        if address is None:
            self.sock, other = socket.socketpair()
        else:
            with socket.create_server((address, 0)) as server:
                self.sock = socket.create_connection(server.getsockname(), source_address=(address, 0))
                other, _ = server.accept()
        other.setblocking(False)
        self.sock.settimeout(PATIENCE_S)
        self.id = stage.plane.adopt(other.detach(), listener=listener, judged=judged)
        stage.clients.append(self)
        stage.step()

    def send(self, frame: bytes) -> None:
        self.sock.sendall(struct.pack(">i", len(frame)) + frame)

    def produce(
        self, records: bytes, *, version: int = 9, acks: int = 1, partition: int = 0, number: int = 1,
        timeout_ms: int = 1000, transactional_id: str | None = None,
    ) -> None:  # fmt: skip
        kind = m.ProduceRequest.TopicData
        parts = [kind.PartitionData(index=partition, records=records)]
        topics = [kind(name="t", topic_id=TOPIC_ID, partition_data=parts)]
        request = m.ProduceRequest(
            transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms, topic_data=topics
        )
        self.send(codec.encode_request(PRODUCE, version, number, "c", request))

    def fetch(
        self, offset: int, *, version: int = 12, max_wait_ms: int = 0, min_bytes: int = 1, number: int = 2,
        isolation_level: int = 0, max_bytes: int = 1 << 20,
    ) -> None:  # fmt: skip
        kind = m.FetchRequest.Topics
        parts = [kind.Partitions(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)]
        request = m.FetchRequest(
            max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=1 << 24, isolation_level=isolation_level,
            topics=[kind(topic="t", topic_id=TOPIC_ID, partitions=parts)],
        )  # fmt: skip
        self.send(codec.encode_request(FETCH, version, number, "c", request))

    def fetch_in(
        self, session: tuple[int, int], offsets: dict[int, int], *, version: int = 12, forget: Sequence[int] = (),
        max_wait_ms: int = 0, max_bytes: int = 1 << 24, number: int = 2, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        """Fetch partitions of `t` from these offsets in the session (id, epoch)."""
        kind = m.FetchRequest
        parts = [kind.Topics.Partitions(partition=i, fetch_offset=o, partition_max_bytes=1 << 20,
                                        last_fetched_epoch=last_epoch)
                 for i, o in offsets.items()]  # fmt: skip
        gone = [kind.ForgottenTopicsData(topic="t", topic_id=TOPIC_ID, partitions=list(forget))] if forget else []
        request = kind(
            max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=max_bytes, session_id=session[0], session_epoch=session[1],
            topics=[kind.Topics(topic="t", topic_id=TOPIC_ID, partitions=parts)] if parts else [],
            forgotten_topics_data=gone,
        )  # fmt: skip
        self.send(codec.encode_request(FETCH, version, number, "c", request))

    def receive(self, api: int, version: int) -> tuple[int, Any]:
        size = struct.unpack(">i", self._exactly(4))[0]
        return codec.decode_response(api, version, self._exactly(size))

    def receive_while(self, api: int, version: int, step: Callable[[], object]) -> Any:
        """Receive the next answer of any length while `step` steps the plane."""
        data = bytearray()
        self.sock.setblocking(False)
        while len(data) < 4 or len(data) - 4 < struct.unpack_from(">i", data)[0]:
            step()
            with contextlib.suppress(BlockingIOError):
                piece = self.sock.recv(1 << 16)
                assert piece, "the plane closed the connection"
                data += piece
        self.sock.settimeout(PATIENCE_S)
        return codec.decode_response(api, version, bytes(data[4:]))[1]

    def _exactly(self, n: int) -> bytes:
        data = b""
        while len(data) < n:
            piece = self.sock.recv(n - len(data))
            assert piece, "the plane closed the connection"
            data += piece
        return data

    def quiet(self) -> bool:
        """True if nothing was received."""
        self.sock.setblocking(False)
        try:
            return not self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        finally:
            self.sock.settimeout(PATIENCE_S)


def step_until(stage: Stage, probe: Callable[[], object], wait_ms: int = 20) -> int:
    """Step until the probe is true; return the number of turns. Each turn waits wait_ms at most."""
    deadline = time.monotonic() + PATIENCE_S
    for turns in itertools.count():
        if probe():
            return turns
        assert time.monotonic() < deadline, f"the probe was not true within {PATIENCE_S} s"
        for reactor in range(stage.reactors):
            stage.plane.step(reactor, wait_ms)
    raise AssertionError


class Stage:
    """A broker's core with one topic `t` (two partitions) and a plane that is stepped by hand."""

    def __init__(
        self, home: Path, reactors: int = 1, partitions: int = 2, *, clean: bool = False, **limits: int
    ) -> None:
        self.broker = core.LogManager()
        self.plane = core.Plane(self.broker, reactors=reactors, **{"frame_bytes_max": FRAME_MAX, **limits})
        self.reactors = reactors
        self.partitions = []
        self.clients: list[Client] = []
        for index in range(partitions):
            partition = self.broker.open(
                str(home), "t", index, topic_id=TOPIC_ID, config={"file.delete.delay.ms": 0}, clean=clean
            )
            partition.become_leader(0, 0)
            self.plane.publish(partition, native_append=True)
            self.partitions.append(partition)
        self.log = self.partitions[0]

    def step(self, turns: int = 3) -> None:
        for _ in range(turns):
            for reactor in range(self.reactors):
                self.plane.step(reactor)

    def close(self) -> None:
        for client in self.clients:
            client.sock.close()
        self.broker.disarm()
        self.plane.stop()
        self.broker.close()
