"""The recent changes of partitions, from `/changes` of each broker: leaders' and the controller's."""

from collections.abc import Iterable, Sequence
from urllib.parse import quote

from pybroker.client.net.metadata import Node
from pybroker.model import Document, TopicPartition
from pybroker.operations import metrics_listener
from pybroker.operations.each_broker import AdminAt, Silent


def changes(
    nodes: Sequence[Node], admin_at: AdminAt, partitions: Iterable[TopicPartition]
) -> tuple[dict[TopicPartition, list[Document]], list[str]]:
    """Return the changes of each partition, oldest first, each with the broker that reported it; and why other brokers
    reported none."""
    wanted = list(partitions)
    found: dict[TopicPartition, list[Document]] = {partition: [] for partition in wanted}
    silent = []

    def of_wanted(where: str) -> list[list[Document]]:
        told = [metrics_listener.objects(where, f"/changes?partition={quote(str(each))}") for each in wanted]
        if not all(isinstance(change.get("time"), str) for each in told for change in each):
            raise Silent(f"{where} does not belong to a pybroker broker")
        return told

    for node, told in metrics_listener.answers(nodes, admin_at, of_wanted):
        if isinstance(told, Silent):
            silent.append(f"broker {node.id} does not report changes: {told}")
            continue
        for partition, its in zip(wanted, told, strict=True):
            found[partition] += [{**change, "broker": node.id} for change in its]
    for each in found.values():
        each.sort(key=lambda change: str(change["time"]))
    return found, silent
