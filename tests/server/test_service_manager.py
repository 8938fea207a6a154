"""The watchdog of a service manager hears from the event loop, and from nothing else."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.server.service_manager import ServiceManager


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "notify"))
        yield made


def notifying(manager: socket.socket, **environment: str) -> ServiceManager:
    return ServiceManager({"NOTIFY_SOCKET": manager.getsockname(), **environment})


async def test_a_stuck_loop_sends_nothing(manager: socket.socket) -> None:
    """WATCHDOG=1 comes while the event loop runs, and no more while it is stuck."""
    manager.setblocking(False)
    with notifying(manager, WATCHDOG_USEC="2000", WATCHDOG_PID=str(os.getpid())) as own:
        own.keep_alive(asyncio.get_running_loop())
        async with asyncio.timeout(30):
            for _ in range(5):
                assert await asyncio.get_running_loop().sock_recv(manager, 100) == b"WATCHDOG=1"
        manager.settimeout(0.1)
        with pytest.raises(TimeoutError):
            while True:
                manager.recv(100)


@pytest.mark.parametrize(
    "environment",
    [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "2000", "WATCHDOG_PID": "1"}],
)
async def test_without_a_watchdog_none_is_notified(manager: socket.socket, environment: dict[str, str]) -> None:
    """No WATCHDOG=1 is sent if the manager did not ask for it, or asked another process."""
    manager.setblocking(False)
    with notifying(manager, **environment) as own:
        own.keep_alive(asyncio.get_running_loop())
        own.notify("STATUS=\udcff")
    assert await asyncio.get_running_loop().sock_recv(manager, 100) == b"STATUS=?"


@pytest.mark.parametrize("at", [None, "", "vsock:2:1234", "relative"])
def test_without_a_socket_nothing_is_sent(at: str | None, caplog: pytest.LogCaptureFixture) -> None:
    ServiceManager({} if at is None else {"NOTIFY_SOCKET": at}).notify("READY=1")
    assert not caplog.records


def test_a_full_queue_holds_up_nothing(manager: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    """A manager that reads nothing costs a moment and a log line, once; the next notification is sent again."""
    with notifying(manager) as own:
        while not caplog.records:
            own.notify("STATUS=x")
        own.notify("STATUS=x")
        (record,) = caplog.records
        assert record.getMessage().startswith("service manager not notified socket=")
        manager.recv(100)
        own.notify("READY=1")
        assert len(caplog.records) == 1
