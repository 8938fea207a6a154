"""The last changes of partitions, as the brokers that made them or were told of them have them: `/changes`."""

from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import quote

from pybroker.cli import metrics_listener
from pybroker.cli.beside import Silent
from pybroker.client.metadata import Node
from pybroker.model import TopicPartition

COLUMNS: Final = ("partition", "time", "broker", "change", "leader", "epoch", "isr", "cause")


def changes(
    nodes: Sequence[Node], partitions: Iterable[TopicPartition]
) -> tuple[dict[TopicPartition, list[dict[str, Any]]], list[str]]:
    """Of each partition its changes with the broker that told of them, the oldest first; and why some told nothing."""
    wanted = list(partitions)
    found: dict[TopicPartition, list[dict[str, Any]]] = {partition: [] for partition in wanted}
    silent = []

    def of_wanted(where: str) -> list[list[dict[str, Any]]]:
        told = [metrics_listener.objects(where, f"/changes?partition={quote(str(each))}") for each in wanted]
        if not all(isinstance(change.get("time"), str) for each in told for change in each):
            raise Silent(f"{where} is not of pybroker")
        return told

    for node, told in metrics_listener.told(nodes, of_wanted):
        if isinstance(told, Silent):
            silent.append(f"broker {node.id} tells of no changes: {told}")
            continue
        for partition, its in zip(wanted, told, strict=True):
            found[partition] += [{**change, "broker": node.id} for change in its]
    for each in found.values():
        each.sort(key=lambda change: str(change["time"]))
    return found, silent


def rows(partition: int, told: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """One partition's part of a table."""
    return [
        (
            partition, each["time"], each["broker"], each.get("what"), each.get("leader"), each.get("leader_epoch"),
            ",".join(map(str, each["isr"])) if isinstance(each.get("isr"), list) and each["isr"] else None,
            each.get("cause"),
        )
        for each in told
    ]  # fmt: skip
