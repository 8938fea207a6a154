"""Requests to a broker of any kind, by name and version."""

from __future__ import annotations

import socket
import struct
from typing import Any

from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.protocol.apis import KNOWN
from tests.harness import HOST

KEYS = {api.name: key for key, api in KNOWN.items()}
ANSWER_S_MAX = 30


class Asker:
    """A connection to a broker of any kind, one request at a time."""

    def __init__(self, port: int) -> None:
        self._there = socket.create_connection((HOST, port), ANSWER_S_MAX)

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self._there.close()

    def ask(self, name: str, version: int, **fields: Any) -> Any:
        """Send one request, and return the answer."""
        frame = codec.encode_request(KEYS[name], version, 1, "test", m.message(f"{name}Request")(**fields))
        self._there.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", self._receive(4))
        return codec.decode_response(KEYS[name], version, self._receive(size))[1]

    def _receive(self, size: int) -> bytes:
        data = self._there.recv(size, socket.MSG_WAITALL)
        if len(data) < size:
            raise ConnectionError(f"the connection ended after {len(data)} of {size} bytes")
        return data


def ask(port: int, name: str, version: int, **fields: Any) -> Any:
    """Send one request on a new connection, and return the answer."""
    with Asker(port) as asker:
        return asker.ask(name, version, **fields)


def latest(port: int, topic: str) -> tuple[int, int]:
    """The error code and the latest offset of partition 0 of a topic, from ListOffsets."""
    kind = m.ListOffsetsRequest.Topics
    asked = kind.Partitions(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    topics = [kind(name=topic, partitions=[asked])]
    answer = ask(port, "ListOffsets", 7, replica_id=-1, isolation_level=0, topics=topics)
    return answer.topics[0].partitions[0].error_code, answer.topics[0].partitions[0].offset
