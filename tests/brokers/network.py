"""The network of a cluster of `pybroker serve` processes, which all use the same ways to each other and to ZooKeeper:
who has connected is found in /proc.

Nobody is refused, so that the death of a process has no proof, and takes a session: where nothing listens, a connection
is taken and then closed. A `refusing` network refuses where its end does.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from pybroker.testing import network
from pybroker.testing.network import NOBODY
from pybroker.testing.network import STORE as ZOOKEEPER

__all__ = ["ZOOKEEPER", "Network"]


class Network(network.Network):
    """`pids` says which process each broker is now."""

    def __init__(self, refusing: bool = False) -> None:
        super().__init__()
        self.refusing = refusing
        self.pids: Callable[[], Mapping[int, int]] = dict

    def refuses(self, way: network.Way) -> bool:
        return self.refusing

    def lives(self, ends: frozenset[int]) -> Mapping[int, int]:
        """The processes at these ends."""
        return {number: pid for number, pid in self.pids().items() if number in ends}

    def who(self, port: int) -> int:
        """The broker whose process has this port as its own end of a connection."""
        ours = f"{port:04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        sockets = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(f":{ours}")}
        for number, pid in self.pids().items():
            with contextlib.suppress(OSError):
                for name in os.listdir(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):
                        if os.readlink(f"/proc/{pid}/fd/{name}") in sockets:
                            return number
        return NOBODY
