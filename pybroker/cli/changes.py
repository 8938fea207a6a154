"""The last changes of partitions, as the brokers that made them or were told of them have them: `/changes`."""

import json
from collections.abc import Iterable, Sequence
from http.client import HTTPException
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import ProxyHandler, build_opener

from pybroker.client.admin import Admin, ConfigResource, ResourceType
from pybroker.client.metadata import Node
from pybroker.config.listeners import EVERY_INTERFACE
from pybroker.errors import KafkaError
from pybroker.model import HostPort, TopicPartition

LISTENER: Final = "metrics.listener"
COLUMNS: Final = ("partition", "time", "broker", "change", "leader", "epoch", "isr", "cause")
ANSWER_BYTES_MAX: Final = 1 << 20


def changes(
    admin: Admin, nodes: Sequence[Node], partitions: Iterable[TopicPartition], timeout_s: float
) -> tuple[dict[TopicPartition, list[dict[str, Any]]], list[str]]:
    """Of each partition its changes with the broker that told of them, the oldest first; and why some told nothing."""
    wanted = list(partitions)
    found: dict[TopicPartition, list[dict[str, Any]]] = {partition: [] for partition in wanted}
    silent = []
    for node in nodes:
        try:
            address = _address(admin, node)
            for partition in wanted:
                found[partition] += [{**each, "broker": node.id} for each in _ask(address, str(partition), timeout_s)]
        except (KafkaError, OSError, HTTPException, ValueError) as problem:
            reason = problem.reason if isinstance(problem, URLError) else problem
            silent.append(f"broker {node.id} tells of no changes: {reason}")
    for each in found.values():
        each.sort(key=lambda change: str(change["time"]))
    return found, silent


def _address(admin: Admin, node: Node) -> str:
    """Where a broker serves HTTP. Raises ValueError if it does not, or nobody can know where."""
    entries = admin.configs(ConfigResource(ResourceType.BROKER, str(node.id)), [LISTENER])
    value = next((entry.value for entry in entries if entry.name == LISTENER), None)
    if not value:
        raise ValueError(f"it has no {LISTENER}")
    listener = HostPort.parse(value)
    if not listener.port:
        raise ValueError(f"its {LISTENER} is a free port, {value}")
    return str(HostPort(node.host if listener.host in EVERY_INTERFACE else listener.host, listener.port))


def _ask(address: str, partition: str, timeout_s: float) -> list[dict[str, Any]]:
    """What one broker tells. Raises OSError, HTTPException or ValueError."""
    url = f"http://{address}/changes?partition={quote(partition)}"
    with build_opener(ProxyHandler({})).open(url, timeout=timeout_s) as answer:
        told = answer.read(ANSWER_BYTES_MAX).decode()
    lines = [json.loads(line) for line in told.splitlines()]
    if not all(isinstance(line, dict) and isinstance(line.get("time"), str) for line in lines):
        raise ValueError(f"{url} is not of pybroker")
    return lines


def rows(partition: int, told: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """One partition's part of a table."""
    return [
        (
            partition, each["time"], each["broker"], each.get("what"), each.get("leader"), each.get("leader_epoch"),
            ",".join(map(str, each.get("isr") or ())) or None, each.get("cause"),
        )
        for each in told
    ]  # fmt: skip
