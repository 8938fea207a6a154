"""Notifications to the service manager that started this process, systemd for example, by the protocol of sd_notify(3).

A notification is one datagram of NAME=VALUE lines to the Unix socket that NOTIFY_SOCKET names. A socket in the abstract
namespace has "@" for its first byte, which is 0. Without the variable nothing is sent.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping
from typing import Final, Self

from pybroker.logs import event

log = logging.getLogger(__name__)

SEND_S_MAX: Final = 0.1
"""Seconds that a notification may hold up the event loop while the manager's queue is full."""


class ServiceManager:
    """The service manager of this process, if there is one."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        at = environment.get("NOTIFY_SOCKET", "")
        self._at = f"\0{at[1:]}" if at.startswith("@") else at
        self._socket: socket.socket | None = None
        if at.startswith(("/", "@")):  # opened once, so that notifications need no file later, when there may be none
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.settimeout(SEND_S_MAX)
        self._failed = False
        of_this_process = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        interval = environment.get("WATCHDOG_USEC", "")
        self._watchdog_s = int(interval) / 1e6 if of_this_process and interval.isdecimal() else 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def notify(self, *lines: str) -> None:
        """Send one notification. A failure is logged once; the broker goes on."""
        if self._socket is None:
            return
        try:
            self._socket.sendto("\n".join(lines).encode(errors="replace"), self._at)
        except OSError as problem:
            if not self._failed:
                event(log, logging.WARNING, "service manager not notified", socket=self._at, reason=problem)
            self._failed = True
        else:
            self._failed = False

    def serving(self, where: str) -> None:
        """Notify that the broker serves at these addresses."""
        self.notify("READY=1", f"STATUS=serving on {where}")

    def stopping(self, why: str) -> None:
        """Notify that the broker stops."""
        self.notify("STOPPING=1", f"STATUS={why}")

    def reloading(self) -> None:
        """Notify that the broker reads files again; `serving` ends it."""
        self.notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def keep_alive(self, loop: asyncio.AbstractEventLoop) -> None:
        """Notify the watchdog from the event loop, twice in each of its intervals, if the manager has one. A loop that
        is stuck sends nothing, and the manager ends the process."""
        if self._watchdog_s and self._socket is not None:
            self.notify("WATCHDOG=1")
            loop.call_later(self._watchdog_s / 2, self.keep_alive, loop)
