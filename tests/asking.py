"""One request to a broker of any kind, by name and version, on a connection of its own."""

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


def ask(port: int, name: str, version: int, **fields: Any) -> Any:
    """The answer."""
    frame = codec.encode_request(KEYS[name], version, 1, "test", m.message(f"{name}Request")(**fields))
    with socket.create_connection((HOST, port), ANSWER_S_MAX) as there:
        there.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", there.recv(4, socket.MSG_WAITALL))
        return codec.decode_response(KEYS[name], version, there.recv(size, socket.MSG_WAITALL))[1]
