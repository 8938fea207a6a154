"""A broker that appends as Kafka's do, idempotent producers' batches in their sequence, and fails by chance."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from pybroker import core, errors
from pybroker.protocol import apis, codec
from pybroker.protocol import messages as m
from pybroker.protocol.compression import open_batch

REMEMBERED = 5
"""Batches of a producer that are known when they come again."""
RESET = struct.pack("ii", 1, 0)


class _Hangup(Exception):
    """The connection ends here."""


class _Known:
    """What is known of one producer at one partition."""

    def __init__(self) -> None:
        self.epoch, self.sequence = -1, 0
        self.recent: deque[tuple[int, int, int]] = deque(maxlen=REMEMBERED)


class UnreliableBroker:
    """Leads all partitions of every topic. `chance`: how likely each misfortune is, see `_answer` and `_append`."""

    def __init__(
        self, partitions: int, seed: int = 0, chance: Mapping[str, float] | None = None, bytes_max: int = 1 << 30
    ) -> None:
        self.chance = dict(chance or {})
        self.log: dict[int, list[bytes]] = {p: [] for p in range(partitions)}
        self.happened: Counter[str] = Counter()
        self._bytes_max = bytes_max
        self._random = random.Random(seed)
        self._known: dict[tuple[int, int], _Known] = {}
        self._ids = 100
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.bootstrap = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._listen, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> UnreliableBroker:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, *self._connections):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def appending(self, partition: int, batch: bytes) -> None:
        """Called before a batch is looked at; a test may set another."""

    def _happens(self, what: str) -> bool:
        happens = self._random.random() < self.chance.get(what, 0)
        self.happened[what] += happens
        return happens

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                self._threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, struct.error, _Hangup), connection:
            while True:
                (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
                frame = connection.recv(size, socket.MSG_WAITALL)
                header = codec.decode_request_header(frame)
                api = apis.KNOWN[header.api_key]
                request, _ = codec.decode(api.request, header.api_version, frame, header.body_offset)
                is_produce = api.name == "Produce"
                answer = self._answer(connection, request) if is_produce else getattr(self, f"_of_{api.name}")(request)
                body = codec.encode_response(header.api_key, header.api_version, header.correlation_id, answer)
                connection.sendall(struct.pack(">i", len(body)) + body)
                if is_produce and self._happens("reset after the answer"):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    raise _Hangup

    def _of_ApiVersions(self, _: Any) -> Any:
        most = {"Produce": 9, "Metadata": 9}
        kind = m.ApiVersionsResponse.ApiKeys
        known = apis.KNOWN.values()
        return m.ApiVersionsResponse(api_keys=[
            kind(api_key=a.key, min_version=a.min_version, max_version=most.get(a.name, a.max_version)) for a in known
        ])  # fmt: skip

    def _of_Metadata(self, request: Any) -> Any:
        kind = m.MetadataResponse
        host, port = self.bootstrap.split(":")
        leader = -1 if self._happens("no leader") else 1
        partition = kind.Topics.Partitions
        found = [partition(partition_index=p, leader_id=leader, replica_nodes=[1], isr_nodes=[1]) for p in self.log]
        topics = [kind.Topics(name=topic.name, partitions=found) for topic in request.topics or ()]
        return kind(brokers=[kind.Brokers(node_id=1, host=host, port=int(port), rack=None)], topics=topics)

    def _of_InitProducerId(self, _: Any) -> Any:
        self._ids += 1
        return m.InitProducerIdResponse(producer_id=self._ids, producer_epoch=0)

    def _answer(self, connection: socket.socket, request: Any) -> Any:
        if self._happens("slow"):
            time.sleep(0.05 * self._random.random())
        if self._happens("reset"):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            raise _Hangup
        if self._happens("closed before"):
            raise _Hangup
        kind = m.ProduceResponse.Responses
        with self._lock:
            told = [
                kind(name=topic.name, partition_responses=[
                    self._append(data.index, bytes(data.records)) for data in topic.partition_data
                ])
                for topic in request.topic_data
            ]  # fmt: skip
        if self._happens("closed after"):
            raise _Hangup
        return m.ProduceResponse(responses=told, throttle_time_ms=30 * self._happens("throttled"))

    def _append(self, partition: int, batch: bytes) -> Any:
        def told(code: int, offset: int = -1) -> Any:
            return m.ProduceResponse.Responses.PartitionResponses(index=partition, error_code=code, base_offset=offset)

        self.appending(partition, batch)
        header = core.check_batch(batch)
        if self._happens("not leader"):
            return told(errors.NOT_LEADER_OR_FOLLOWER)
        if len(batch) > self._bytes_max and header.count > 1:
            self.happened["too large"] += 1
            return told(errors.MESSAGE_TOO_LARGE)
        if self._happens("refused"):
            return told(errors.INVALID_RECORD)
        log = self.log[partition]
        base = len(log)
        if header.producer_id >= 0:
            known = self._known.setdefault((partition, header.producer_id), _Known())
            code, repeated = self._sequence(known, header, base)
            if code or repeated >= 0:
                return told(code, repeated)
        log += [bytes(value or b"") for _, _, _, value, _ in core.walk_records(open_batch(batch, header), header)]
        return told(errors.REQUEST_TIMED_OUT if self._happens("timed out after") else errors.NONE, base)

    def _sequence(self, known: _Known, header: Any, base: int) -> tuple[int, int]:
        """(error, offset where the batch lies already or -1); it is taken down as appended where neither is."""
        if header.producer_epoch < known.epoch:
            return errors.INVALID_PRODUCER_EPOCH, -1
        if header.producer_epoch > known.epoch:
            if header.base_sequence != 0:
                return errors.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            known.epoch, known.sequence = header.producer_epoch, 0
            known.recent.clear()
        for sequence, count, offset in known.recent:
            if (sequence, count) == (header.base_sequence, header.count):
                return errors.NONE, offset
        if header.base_sequence != known.sequence:
            return errors.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        known.sequence += header.count
        known.recent.append((header.base_sequence, header.count, base))
        return errors.NONE, -1
