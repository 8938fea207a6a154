"""Ask brokers over HTTP, at their metrics.listener."""

import json
from collections.abc import Callable, Sequence
from http.client import HTTPException
from typing import Final, TypeVar
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from pybroker.client.admin import ConfigResource, ResourceType
from pybroker.client.net.metadata import Node
from pybroker.config.listeners import EVERY_INTERFACE
from pybroker.model import Document, HostPort
from pybroker.operations.each_broker import ANSWER_S_MAX, AdminAt, Silent, ask_each

LISTENER: Final = "metrics.listener"
ANSWER_BYTES_MAX: Final = 8 << 20
METRICS_BYTES_MAX: Final = 64 << 20
WAITING: Final = frozenset({"Fetch", "JoinGroup", "SyncGroup", "ConsumerGroupHeartbeat"})
"""APIs whose requests wait for records or members by design: their times say nothing about a broker."""
T = TypeVar("T")


def answers(nodes: Sequence[Node], admin_at: AdminAt, ask: Callable[[str], T]) -> list[tuple[Node, T | Silent]]:
    """Ask each broker over HTTP; `ask` gets its address, and raises Silent."""
    return ask_each(nodes, lambda node: ask(address(node, admin_at)))


def address(node: Node, admin_at: AdminAt) -> str:
    """Return the address where a broker serves HTTP. Raises Silent if it has none, KafkaError if the broker cannot be
    asked."""
    with admin_at(node) as admin:
        entries = admin.configs(ConfigResource(ResourceType.BROKER, str(node.id)), [LISTENER])
    value = next((entry.value for entry in entries if entry.name == LISTENER), None)
    if not value:
        raise Silent(f"it has no {LISTENER}")
    listener = HostPort.parse(value)
    if not listener.port:
        raise Silent(f"its {LISTENER} is a free port, {value}")
    return str(HostPort(node.host if listener.host in EVERY_INTERFACE else listener.host, listener.port))


def objects(where: str, path: str) -> list[Document]:
    """Return the JSON objects, one a line, at a path of an address. Raises Silent."""
    try:
        lines = [json.loads(line) for line in text(where, path).splitlines()]
    except (ValueError, RecursionError) as problem:
        raise Silent(str(problem)) from None
    if not all(isinstance(line, dict) for line in lines):
        raise Silent(f"http://{where}{path} does not belong to a pybroker broker")
    return lines


def text(where: str, path: str, bytes_max: int = ANSWER_BYTES_MAX, timeout_s: float = ANSWER_S_MAX) -> str:
    """Return the text at a path of an address, up to `bytes_max`. Raises Silent."""
    try:
        with build_opener(ProxyHandler({})).open(f"http://{where}{path}", timeout=timeout_s) as answer:
            data: bytes = answer.read(bytes_max)
        return data.decode()
    except URLError as problem:
        raise Silent(str(problem.reason)) from None
    except (OSError, HTTPException, ValueError) as problem:
        raise Silent(str(problem)) from None
