"""A broker of one node whose answers a test chooses."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

from pybroker.protocol import apis, codec
from pybroker.protocol import messages as m

Answers = dict[str, Callable[[Any], Any]]


class Reset(Exception):
    """Raised to reset the connection."""


class FakeBroker(threading.Thread):
    """A broker of one node with the given answer and version of each API."""

    def __init__(self, answers: Answers, versions: dict[str, int]) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._answers: Answers = {"ApiVersions": self._versions, "Metadata": self._metadata, **answers}
        self._highest = versions
        self._connections: list[socket.socket] = []
        self.start()

    def run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
                frame = connection.recv(size, socket.MSG_WAITALL)
                if len(frame) < size:
                    raise ConnectionResetError
                header = codec.decode_request_header(frame)
                api = apis.KNOWN[header.api_key]
                request, _ = codec.decode(api.request, header.api_version, frame, header.body_offset)
                body = codec.encode_response(
                    header.api_key, header.api_version, header.correlation_id, self._answers[api.name](request)
                )
                connection.sendall(struct.pack(">i", len(body)) + body)
                self.sent(api.name)
        except Reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        except (OSError, struct.error):
            connection.close()

    def sent(self, name: str) -> None:
        """Called after an answer was sent."""

    def close(self) -> None:
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def _versions(self, _: Any) -> Any:
        kind = m.ApiVersionsResponse.ApiKeys
        listed = [
            kind(api_key=api.key, min_version=api.min_version, max_version=self._highest.get(api.name, api.max_version))
            for api in apis.KNOWN.values()
        ]
        return m.ApiVersionsResponse(api_keys=listed)

    def _metadata(self, request: Any) -> Any:
        kind = m.MetadataResponse
        partition = kind.Topics.Partitions(partition_index=0, leader_id=1, replica_nodes=[1], isr_nodes=[1])
        topics = [kind.Topics(name=topic.name, partitions=[partition]) for topic in request.topics or []]
        broker = kind.Brokers(node_id=1, host="127.0.0.1", port=self.port, rack=None)
        return kind(brokers=[broker], cluster_id="fake", controller_id=1, topics=topics)

    def coordinator(self, request: Any) -> Any:
        kind = m.FindCoordinatorResponse.Coordinators
        found = [kind(key=key, node_id=1, host="127.0.0.1", port=self.port) for key in request.coordinator_keys]
        return m.FindCoordinatorResponse(node_id=1, host="127.0.0.1", port=self.port, coordinators=found)
