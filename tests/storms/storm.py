"""Clients that connect and disconnect: at once, after a part of a request, or after a whole one."""

from __future__ import annotations

import random
import socket
import ssl
import struct
import threading
from contextlib import suppress

from pybroker.protocol import codec
from pybroker.protocol import messages as m
from tests.harness import HOST

RESET = struct.pack("ii", 1, 0)
API_VERSIONS, PRODUCE, FETCH, METADATA = 18, 0, 1, 3


def framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def fetch(topic: str) -> bytes:
    kind = m.FetchRequest.Topics
    topics = [kind(topic=topic, partitions=[kind.Partitions(partition=0, partition_max_bytes=1 << 20)])]
    request = m.FetchRequest(max_wait_ms=1000, min_bytes=1 << 30, max_bytes=1 << 20, topics=topics)
    return framed(codec.encode_request(FETCH, 12, 3, "c", request))


def no_questions() -> ssl.SSLContext:
    """A TLS context that accepts any server."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Storm(threading.Thread):
    """Connects and disconnects until it is stopped; `count` is the number of connections."""

    def __init__(self, port: int, seed: int, topic: str = "storm") -> None:
        super().__init__(name=f"storm-{seed}", daemon=True)
        self.port = port
        self.random = random.Random(seed)
        self.ended = threading.Event()
        self.count = 0
        self.words = [
            b"",
            framed(struct.pack(">hhih", API_VERSIONS, 0, 1, -1)),
            framed(codec.encode_request(METADATA, 9, 2, "c", m.MetadataRequest(topics=None))),
            fetch(topic),                          # parked when its client disconnects
            struct.pack(">i", 0),
            struct.pack(">i", -1),
            struct.pack(">i", 1 << 20) + bytes(100),  # the rest is never sent
            framed(bytes(40)),
        ]  # fmt: skip

    def run(self) -> None:
        while not self.ended.is_set():
            with suppress(OSError):
                self.come_and_go()

    def come_and_go(self) -> None:
        with socket.socket() as sock:
            if self.random.random() < 0.8:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            sock.connect((HOST, self.port))
            self.talk(sock)
        self.count += 1

    def talk(self, sock: socket.socket) -> None:
        for _ in range(self.random.randrange(3)):
            sock.sendall(self.random.choice(self.words))
        if self.random.random() < 0.1:
            sock.settimeout(0.05)
            with suppress(TimeoutError):
                sock.recv(100)

    def end(self) -> int:
        self.ended.set()
        self.join(30)
        return self.count


class TlsStorm(Storm):
    """Disconnects after a TLS handshake, a part of one, or bytes that are none."""

    context = no_questions()

    def talk(self, sock: socket.socket) -> None:
        sock.settimeout(5)
        if self.random.random() < 0.3:
            hello = self.hello()
            sock.sendall(hello[: self.random.randrange(len(hello))])
        elif self.random.random() < 0.1:
            sock.sendall(self.random.choice(self.words))
        else:
            with self.context.wrap_socket(sock) as inside:
                super().talk(inside)

    def hello(self) -> bytes:
        out = ssl.MemoryBIO()
        with suppress(ssl.SSLWantReadError):
            self.context.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
        return out.read()
