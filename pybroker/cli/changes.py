"""The last changes of partitions, as the brokers that made them or were told of them have them: `/changes`."""

from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import quote

from pybroker.cli import metrics_listener
from pybroker.cli.metrics_listener import Silent
from pybroker.client.admin import Admin
from pybroker.client.metadata import Node
from pybroker.model import TopicPartition

COLUMNS: Final = ("partition", "time", "broker", "change", "leader", "epoch", "isr", "cause")


def changes(
    admin: Admin, nodes: Sequence[Node], partitions: Iterable[TopicPartition], timeout_s: float
) -> tuple[dict[TopicPartition, list[dict[str, Any]]], list[str]]:
    """Of each partition its changes with the broker that told of them, the oldest first; and why some told nothing."""
    wanted = list(partitions)
    found: dict[TopicPartition, list[dict[str, Any]]] = {partition: [] for partition in wanted}
    silent = []
    for node in nodes:
        try:
            where = metrics_listener.address(admin, node)
            for partition in wanted:
                told = metrics_listener.objects(where, f"/changes?partition={quote(str(partition))}", timeout_s)
                if not all(isinstance(each.get("time"), str) for each in told):
                    raise Silent(f"{where} is not of pybroker")
                found[partition] += [{**each, "broker": node.id} for each in told]
        except Silent as reason:
            silent.append(f"broker {node.id} tells of no changes: {reason}")
    for each in found.values():
        each.sort(key=lambda change: str(change["time"]))
    return found, silent


def rows(partition: int, told: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """One partition's part of a table."""
    return [
        (
            partition, each["time"], each["broker"], each.get("what"), each.get("leader"), each.get("leader_epoch"),
            ",".join(map(str, each.get("isr") or ())) or None, each.get("cause"),
        )
        for each in told
    ]  # fmt: skip
