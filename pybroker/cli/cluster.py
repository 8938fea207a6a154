"""`pybroker cluster`: a cluster's id, its brokers, and the partitions that lack a leader or a replica."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import click

from pybroker.cli import metrics_listener, output
from pybroker.cli.each_broker import Silent, Unanswered
from pybroker.cli.options import admin_of, cluster_options
from pybroker.cli.output import Options
from pybroker.client.admin import ConfigEntry
from pybroker.client.net.metadata import Node, TopicInfo

MIN_ISR: Final = "min.insync.replicas"
OFFLINE: Final = "offline"
UNDER_MIN_ISR: Final = "under min ISR"
UNDER_REPLICATED: Final = "under-replicated"


@click.command(name="cluster")
@cluster_options
def command(bootstrap_server: str, timeout_s: float, as_json: bool) -> None:
    """Show a cluster's id, its controller, its brokers with the partitions they lead, and each partition that lacks a
    leader or a replica, as one broker knows them.

    A partition is offline without a leader, under min ISR with fewer replicas in sync than its min.insync.replicas, and
    under-replicated with fewer than it has replicas. It counts in each state that is less serious, too: without
    under-replicated partitions each replica is in sync.

    A broker that does not answer within 2 s is named; it stays in the cluster until its session ends.

    A broker with a metrics.listener reports the epoch of its registration and that of the controller, and which of its
    log dirs are full; the epochs of leaders are in topics describe --json.

    Exit codes: 0 done; 1 the broker refused or could not be reached; 2 an option is wrong.
    """
    with admin_of(bootstrap_server, timeout_s) as admin:
        found = admin.describe_cluster()
        topics = admin.topics()
        lacking = [t.name for t in topics if any(len(p.isr) < len(p.replicas) for p in t.partitions)]
        least = {name: _min_isr(entries) for name, entries in admin.topic_configs(lacking).items()} if lacking else {}
    told = dict(metrics_listener.told(found.nodes, lambda where: metrics_listener.objects(where, "/epochs")))
    silent = {node.id: str(reason) for node, reason in told.items() if isinstance(reason, Unanswered)}
    shown = {node.id: each[0] for node, each in told.items() if not isinstance(each, Silent) and each}
    full = {number: dirs for number, each in shown.items() if isinstance(dirs := each.get("full_log_dirs"), Mapping)}
    epochs = {number: each for number, each in shown.items() if isinstance(each.get("controller_epoch"), int)}
    of_controller = max((each["controller_epoch"] for each in epochs.values()), default=None)
    controller = found.controller if found.controller >= 0 else None
    led = Counter(p.leader for topic in topics for p in topic.partitions)
    held = Counter(broker for topic in topics for p in topic.partitions for broker in p.replicas)
    lacks = list(troubled(topics, least))
    counts = counted(what for *_, what in lacks)
    total = sum(len(topic.partitions) for topic in topics)
    if as_json:
        brokers = [
            {
                "id": n.id, "epoch": _epoch(epochs, n), "host": n.host, "port": n.port, "rack": n.rack,
                "leaders": led[n.id], "replicas": held[n.id], "answers": n.id not in silent,
                "full_log_dirs": sorted(full.get(n.id, ())),
            }
            for n in found.nodes
        ]  # fmt: skip
        names = ("topic", "partition", "leader", "replicas", "isr", "state")
        partitions = [dict(zip(names, each, strict=True)) for each in lacks]
        document = {"cluster": found.id, "controller": controller, "controller_epoch": of_controller}
        document |= {"brokers": brokers, "partitions": total}
        output.as_json({**document, "troubled": partitions})
        return
    epoch = "" if of_controller is None else f" of epoch {of_controller}"
    click.echo(f"Cluster {output.text(found.id)}  controller {output.text(controller)}{epoch}")
    rows = [(n.id, _epoch(epochs, n), n.host, n.port, n.rack, led[n.id], held[n.id]) for n in found.nodes]
    output.table(("broker", "epoch", "host", "port", "rack", "leaders", "replicas"), rows)
    if away := sorted(held.keys() - {node.id for node in found.nodes}):
        click.echo(f"not registered, but named as replicas: {_ids(away)}")
    for number, reason in silent.items():
        click.echo(f"broker {number} does not answer: {reason}")
    for number, dirs in full.items():
        for path, why in dirs.items():
            click.echo(f"broker {number} takes no writes in {output.text(path)}: {output.text(why)}")
    states = "".join(f", {number} {state}" for state, number in counts.items())
    click.echo(f"Partitions {total}{states}")
    if lacks:
        lists = [(t, p, leader, _ids(replicas), _ids(isr), what) for t, p, leader, replicas, isr, what in lacks]
        output.table(("topic", "partition", "leader", "replicas", "isr", "state"), lists)


def _epoch(epochs: Mapping[int, Options], node: Node) -> int | None:
    return epochs.get(node.id, {}).get("broker_epoch")


def _min_isr(entries: Sequence[ConfigEntry]) -> int:
    """The topic's min.insync.replicas; 1 if the broker does not report it."""
    return next((int(entry.value) for entry in entries if entry.name == MIN_ISR and entry.value), 1)


def troubled(
    topics: Sequence[TopicInfo], least: Mapping[str, int]
) -> Iterator[tuple[str, int, int | None, list[int], list[int], str]]:
    """Yield each partition that lacks a leader or a replica, with the most serious fault."""
    for topic in topics:
        for p in topic.partitions:
            needed = min(least.get(topic.name, 1), len(p.replicas))
            if p.leader < 0:
                what = OFFLINE
            elif len(p.isr) < needed:
                what = UNDER_MIN_ISR
            elif len(p.isr) < len(p.replicas):
                what = UNDER_REPLICATED
            else:
                continue
            yield topic.name, p.partition, p.leader if p.leader >= 0 else None, list(p.replicas), list(p.isr), what


def counted(states: Iterable[str]) -> dict[str, int]:
    """Return the number of partitions by state, each counted in its most serious state and in all that are less so."""
    found, total, counts = Counter(states), 0, {}
    for state in (OFFLINE, UNDER_MIN_ISR, UNDER_REPLICATED):
        counts[state] = total = total + found[state]
    return counts


def _ids(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))
