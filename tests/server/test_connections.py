"""The connections of a real broker, owned by the native plane: their limits, and the cost of an idle one."""

from __future__ import annotations

import os
import re
import resource
import select
import socket
from collections.abc import Callable
from pathlib import Path

from tests.harness import HOST, BrokerProcess, until
from tests.wire import API_VERSIONS, Wire

IDLE = 10_000
IDLE_BYTES_MAX = 8 << 10
CLIENT_DESCRIPTORS = 500


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) << 10


def test_ten_thousand_idle_connections(start_broker: Callable[..., BrokerProcess]) -> None:
    """Each costs less than 8 KiB of user memory, and the next client is served."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(IDLE, (hard if hard > 0 else IDLE * 2) - CLIENT_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + CLIENT_DESCRIPTORS), hard))
    broker = start_broker(sets={"socket.listen.backlog.size": 4096})
    assert broker.process is not None
    pid = broker.process.pid
    sockets = []
    try:
        before = resident_bytes(pid)
        for _ in range(count):
            sockets.append(socket.create_connection((HOST, broker.port), 10))
        # The broker also opens and closes files of its own meanwhile, far fewer than these connections.
        until("all are accepted", lambda: len(os.listdir(f"/proc/{pid}/fd")) >= count)
        each = (resident_bytes(pid) - before) / count
        with Wire(broker.port) as wire:
            wire.api_versions()
    finally:
        for sock in sockets:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(f"{count} idle connections: {each:.0f} bytes each")
    assert each < IDLE_BYTES_MAX


def test_connections_of_one_address(start_broker: Callable[..., BrokerProcess]) -> None:
    """max.connections.per.ip: at the limit the next connection is closed, and has room when another ends."""
    broker = start_broker(sets={"max.connections.per.ip": 2})
    with Wire(broker.port) as first:
        with Wire(broker.port) as second:
            assert first.api_versions() == second.api_versions()
            with Wire(broker.port) as third:
                assert third.is_closed()

        def is_served() -> bool:
            with Wire(broker.port) as again:
                try:
                    return bool(again.api_versions())
                except ConnectionError:
                    return False

        until("the next client is served", is_served)


def test_connections_of_a_broker(start_broker: Callable[..., BrokerProcess]) -> None:
    """max.connections: at the limit the next connection waits unaccepted, and is served when another ends."""
    broker = start_broker(sets={"max.connections": 2})
    with Wire(broker.port) as first, Wire(broker.port) as third:
        with Wire(broker.port) as second:
            assert first.api_versions() == third.api_versions()
            second.send(second.frame(API_VERSIONS, 0, b""))
            for _ in range(20):
                assert first.api_versions() == third.api_versions()
            assert select.select([second.socket], [], [], 0) == ([], [], [])
        first.socket.close()
        with Wire(broker.port) as last:
            last.api_versions()
