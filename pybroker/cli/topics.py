"""`pybroker topics`: the topics of any broker that speaks Kafka's protocol."""

import base64
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import click

from pybroker import errors
from pybroker.cli import output
from pybroker.cli.configs import source_name
from pybroker.cli.each_broker import Silent, admin_at, ask_each, in_command
from pybroker.cli.main import Failure, Misuse, Whole
from pybroker.cli.options import admin_of, ask, cluster_options, complete_topics, delete_each, name_value, say
from pybroker.cli.output import Document
from pybroker.client.admin import (
    BROKER_DEFAULT,
    EARLIEST,
    LATEST,
    Admin,
    ConfigEntry,
    ConfigSource,
    PartitionReassignment,
)
from pybroker.client.net.metadata import Node, TopicInfo
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.operations import partition_changes
from pybroker.operations.health import times

NO_TOPIC_ID: Final = bytes(16)
PARTITIONS: Final = Whole(1, (1 << 31) - 1)  # i32 on the wire
CONTROLLER_S_MAX: Final = 2.0
"""Seconds that `describe` waits for the controller."""
REPLICAS: Final = Whole(1, (1 << 15) - 1)  # i16
CHANGE_COLUMNS: Final = ("partition", "time", "broker", "change", "leader", "epoch", "isr", "cause")


def _replicas(_: click.Context, __: click.Parameter, text: str | None) -> dict[int, list[int]] | None:
    """Parse the notation of kafka-topics: partitions separated by commas, replicas by colons."""
    if text is None:
        return None
    lists = [each.split(":") for each in text.split(",")]
    if not all(broker.strip().isascii() and broker.strip().isdigit() for brokers in lists for broker in brokers):
        raise click.BadParameter(f"{text!r} is not a list of broker ids such as 1:2,2:3")
    return {partition: [int(broker) for broker in brokers] for partition, brokers in enumerate(lists)}


@click.group(name="topics")
def command() -> None:
    """Create, list, describe, alter and delete topics of any broker that speaks Kafka's protocol.

    Exit codes: 0 done; 1 the broker refused or could not be reached; 2 the command or its options are wrong.
    """


@command.command()
@click.argument("name")
@click.option("--partitions", "-p", type=PARTITIONS,
              help="How many partitions; without it, the broker's num.partitions.")  # fmt: skip
@click.option("--replication-factor", "-r", type=REPLICAS, help="How many replicas; without it, the broker's default.")
@click.option(
    "--config", "-c", "configs", multiple=True, metavar="NAME=VALUE", help="A config of the topic; repeatable."
)
@click.option("--replica-assignment", metavar="ID:ID,...", callback=_replicas,
              help="The brokers of each partition's replicas, leader first, in place of both numbers: 1:2,2:3.")
@click.option("--if-not-exists", is_flag=True, help="Do not fail if a topic of this name exists, whatever its configs.")
@cluster_options
def create(
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: Sequence[str],
    replica_assignment: dict[int, list[int]] | None,
    if_not_exists: bool,
    bootstrap_server: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Create a topic."""
    if replica_assignment and (partitions or replication_factor):
        raise click.UsageError("--replica-assignment has all partitions and replicas: leave out the numbers")
    wanted = dict(name_value(text, "--config") for text in configs)
    with admin_of(bootstrap_server, timeout_s) as admin:
        try:
            made = admin.create_topic(
                name,
                partitions=partitions or BROKER_DEFAULT,
                replication_factor=replication_factor or BROKER_DEFAULT,
                configs=wanted,
                replica_assignments=replica_assignment,
            )
        except KafkaError as error:
            if not (if_not_exists and error.code == errors.TOPIC_ALREADY_EXISTS):
                raise
            say(as_json, {"name": name, "created": False}, f"Topic {name} exists.")
            return
    count = made.partitions if made.partitions > 0 else partitions
    copies = made.replication_factor if made.replication_factor > 0 else replication_factor
    facts = {"name": name, "created": True, "partitions": count, "replication_factor": copies}
    say(as_json, facts, f"Created topic {name}: partitions {output.text(count)}, replicas {output.text(copies)}.")


@command.command("list")
@click.option("--internal", is_flag=True, help="List internal topics too.")
@cluster_options
def list_topics(internal: bool, bootstrap_server: str, timeout_s: float, as_json: bool) -> None:
    """List the topics by name."""
    with admin_of(bootstrap_server, timeout_s) as admin:
        found = [topic for topic in admin.topics() if internal or not topic.internal]
    if as_json:
        output.as_json([_summary(topic) for topic in found])
        return
    rows = [(t.name, len(t.partitions), _replication(t), "internal" if t.internal else "") for t in found]
    output.table(("topic", "partitions", "replicas", ""), rows)


@command.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_topics)
@click.option("--internal", is_flag=True, help="Without a name, show internal topics too.")
@click.option("--changes", "with_changes", is_flag=True,
              help="Show the last elections and ISR changes of each partition too, with their cause.")  # fmt: skip
@cluster_options
def describe(
    names: Sequence[str],
    internal: bool,
    with_changes: bool,
    bootstrap_server: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Show partitions, leaders, replicas, offsets, sizes, and the configs that differ from their default.

    A partition's offsets and size are those of its leader; "-" if the leader does not report them within 2 s.
    Changes come from every broker over HTTP, at its metrics.listener: the controller knows the cause of an election,
    the leader that of a change of its ISR. A broker keeps the last 16 of each partition, until it stops.
    """
    with admin_of(bootstrap_server, timeout_s) as admin:
        topics = [t for t in admin.topics(names or None) if names or internal or not t.internal]
        configs = admin.topic_configs([t.name for t in topics])
        nodes = admin.describe_cluster().nodes
    moving = _moving(bootstrap_server, min(timeout_s, CONTROLLER_S_MAX), topics)
    first, last, sizes, silent = _of_leaders(topics, nodes)
    if with_changes:
        wanted = [TopicPartition(topic.name, p.partition) for topic in topics for p in topic.partitions]
        told, more = partition_changes.changes(nodes, in_command(admin_at), wanted)
        silent += more
    documents = [_description(topic, configs.get(topic.name, []), first, last, sizes, moving) for topic in topics]
    for document in documents if with_changes else ():
        for p in document["partitions"]:
            p["changes"] = told[TopicPartition(document["name"], p["partition"])]
    if as_json:
        output.as_json(documents)
    else:
        for number, document in enumerate(documents):
            if number:
                click.echo()
            _show_topic(document)
    for why in silent:
        click.echo(f"pybroker: {why}", err=True)


@command.command()
@click.argument("name", shell_complete=complete_topics)
@click.option("--partitions", "-p", type=PARTITIONS, required=True, help="The new number of partitions in all.")
@cluster_options
def alter(name: str, partitions: int, bootstrap_server: str, timeout_s: float, as_json: bool) -> None:
    """Give a topic more partitions."""
    with admin_of(bootstrap_server, timeout_s) as admin:
        admin.create_partitions(name, partitions)
    say(as_json, {"name": name, "partitions": partitions}, f"Topic {name} has {partitions} partitions now.")


@command.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_topics)
@click.option("--if-exists", is_flag=True, help="Do not fail if a topic does not exist.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@cluster_options
def delete(
    names: Sequence[str], if_exists: bool, yes: bool, bootstrap_server: str, timeout_s: float, as_json: bool
) -> None:
    """Delete topics, with everything in them."""
    ask(f"Delete {', '.join(names)}, with all records?", yes, "nothing was deleted")
    with admin_of(bootstrap_server, timeout_s) as admin:
        absent = errors.UNKNOWN_TOPIC_OR_PARTITION if if_exists else None
        delete_each("topic", names, admin.delete_topic, absent, as_json)


@command.command("elect-leaders")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_topics)
@click.option("--unclean", is_flag=True,
              help="If there is no leader, elect a live replica, in sync or not: the records it lacks are lost.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@cluster_options
def elect_leaders(
    names: Sequence[str], unclean: bool, yes: bool, bootstrap_server: str, timeout_s: float, as_json: bool
) -> None:
    """Make the preferred replica, the first in the list, leader of each partition of these topics, or of all.

    A cluster does so by itself from time to time (auto.leader.rebalance.enable). With --unclean, name the topics.
    """
    if unclean and not names:
        raise Misuse("--unclean needs the names of topics, because records that the new leaders lack are lost")
    if unclean:
        ask(f"Elect out of sync replicas of {', '.join(names)}? Records may be lost.", yes, "no leader was elected")
    with admin_of(bootstrap_server, timeout_s) as admin:
        wanted = [TopicPartition(t.name, p.partition) for t in admin.topics(names) for p in t.partitions]
        became = admin.elect_leaders(wanted if names else None, unclean=unclean)
    needless = [tp for tp, problem in became.items() if problem and problem.code == errors.ELECTION_NOT_NEEDED]
    failed = {tp: problem for tp, problem in became.items() if problem is not None and tp not in needless}
    elected = [tp for tp, problem in became.items() if problem is None]
    facts = {
        "elected": [str(tp) for tp in elected], "not_needed": [str(tp) for tp in needless],
        "failed": {str(tp): problem.name for tp, problem in failed.items()},
    }  # fmt: skip
    sentence = election_words(len(elected), len(needless), len(failed), unclean=unclean)
    if as_json or sentence:
        say(as_json, facts, sentence)
    if failed:
        words = "; ".join(f"{tp}: {problem.message}" for tp, problem in failed.items())
        raise Failure(f"no leader was elected for {times(len(failed), 'partition')}: {words}")


def election_words(elected: int, needless: int, failed: int, *, unclean: bool) -> str:
    """Return a sentence about the partitions of an election; empty if it failed for all of them."""
    one, several = ("a leader", "leaders") if unclean else ("its preferred leader", "their preferred leaders")
    had = f"has {one}" if needless == 1 else f"have {several}"
    if elected:
        rest = f"; {needless:,} {had} already" if needless else ""
        return f"Elected the {'leader' if elected == 1 else 'leaders'} of {times(elected, 'partition')}{rest}."
    if needless:
        return f"{times(needless, 'partition')} {had} already."
    return "" if failed else f"Each partition has {one} already."


# -- the description of a topic -------------------------------------------------------------------------------------


def _replication(topic: TopicInfo) -> int:
    return max((len(p.replicas) for p in topic.partitions), default=0)


def _summary(topic: TopicInfo) -> Document:
    known = topic.id != NO_TOPIC_ID
    return {
        "name": topic.name,
        "topic_id": base64.urlsafe_b64encode(topic.id).decode().rstrip("=") if known else None,
        "internal": topic.internal,
        "partitions": len(topic.partitions),
        "replication_factor": _replication(topic),
    }


Offsets = dict[TopicPartition, int | None]
Sizes = dict[tuple[str, int, int], int]
"""{(topic, partition, broker): bytes}"""


def _of_leaders(topics: Sequence[TopicInfo], nodes: Sequence[Node]) -> tuple[Offsets, Offsets, Sizes, list[str]]:
    """Return the start and end offsets of partitions and their sizes, as their leaders report them; and which leaders
    do not answer."""
    nobody = {TopicPartition(topic.name, p.partition): None for topic in topics for p in topic.partitions}
    first: Offsets = dict(nobody)
    last: Offsets = dict(nobody)
    sizes: Sizes = {}

    def ask(node: Node) -> tuple[Offsets, Offsets, Sizes]:
        led = [topic._replace(partitions=tuple(p for p in topic.partitions if p.leader == node.id)) for topic in topics]
        led = [topic for topic in led if topic.partitions]
        with admin_at(node) as admin:
            return admin.offsets(led, EARLIEST), admin.offsets(led, LATEST), _sizes(admin, led, node.id)

    leaders = {p.leader for topic in topics for p in topic.partitions}
    silent = []
    for node, told in ask_each([node for node in nodes if node.id in leaders], ask):
        if isinstance(told, Silent):
            silent.append(f"broker {node.id} does not report the partitions it leads: {told}")
            continue
        for mine, its in ((first, told[0]), (last, told[1])):
            mine.update(its)
        sizes |= told[2]
    return first, last, sizes, silent


def _sizes(admin: Admin, topics: Sequence[TopicInfo], broker: int) -> Sizes:
    """Return the sizes of replicas; empty for a broker whose ACLs refuse it."""
    with contextlib.suppress(KafkaError):
        log_dirs = admin.log_dirs([broker], [topic.name for topic in topics])
        return {(*r.partition, broker): r.size_bytes for each in log_dirs for r in each.replicas if not r.future}
    return {}


def _description(
    topic: TopicInfo,
    configs: Sequence[ConfigEntry],
    first: Mapping[TopicPartition, int | None],
    last: Mapping[TopicPartition, int | None],
    sizes: Mapping[tuple[str, int, int], int],
    moving: Mapping[TopicPartition, PartitionReassignment],
) -> Document:
    """Return a topic as `describe --json` prints it; an unknown offset or leader is null."""
    partitions = [
        {
            "partition": p.partition,
            "leader": p.leader if p.leader >= 0 else None,
            "leader_epoch": p.leader_epoch if p.leader_epoch >= 0 else None,
            "replicas": list(p.replicas),
            "isr": list(p.isr),
            **_move(moving.get(TopicPartition(topic.name, p.partition))),
            "earliest": first[TopicPartition(topic.name, p.partition)],
            "latest": last[TopicPartition(topic.name, p.partition)],
            "size_bytes": sizes.get((topic.name, p.partition, p.leader)),
            "error": errors.lookup(p.error).name if p.error else None,
        }
        for p in topic.partitions
    ]
    differing = [c for c in configs if c.source != ConfigSource.DEFAULT]
    shown = {c.name: {"value": c.value, "source": source_name(c.source)} for c in sorted(differing)}
    return {**_summary(topic), "partitions": partitions, "configs": shown}


def _moving(
    bootstrap: str, timeout_s: float, topics: Sequence[TopicInfo]
) -> Mapping[TopicPartition, PartitionReassignment]:
    """The partitions of these topics whose replicas move; none if the controller does not answer in time."""
    asked = [(t.name, p.partition) for t in topics for p in t.partitions if set(p.isr) != set(p.replicas)]
    if asked:
        with contextlib.suppress(KafkaError), admin_of(bootstrap, timeout_s) as admin:
            return admin.list_partition_reassignments(asked)
    return {}  # nothing moves, it is an old Kafka, or the user may not describe the cluster


def _move(move: PartitionReassignment | None) -> Document:
    return {"adding": list(move.adding), "removing": list(move.removing)} if move is not None else {}


def _move_text(partition: Document) -> str:
    words = (f"{what} {','.join(map(str, partition[what]))}" for what in ("adding", "removing") if partition.get(what))
    return ", ".join(words)


def _show_topic(document: Document) -> None:
    click.echo(f"Topic {document['name']}  id {output.text(document['topic_id'])}")
    if document["configs"]:
        words = (f"{name}={output.text(c['value'])} ({c['source']})" for name, c in document["configs"].items())
        click.echo("Configs " + "  ".join(words))
    columns = ("partition", "leader", "replicas", "isr", "earliest", "latest", "size", "")
    output.table(
        columns,
        [
            (
                p["partition"],
                p["leader"],
                ",".join(map(str, p["replicas"])),
                ",".join(map(str, p["isr"])),
                p["earliest"],
                p["latest"],
                output.size(p["size_bytes"]),
                p["error"] or _move_text(p),
            )
            for p in document["partitions"]
        ],
    )
    if any(p.get("changes") for p in document["partitions"]):
        click.echo()
        rows = [row for p in document["partitions"] for row in _change_rows(p["partition"], p["changes"])]
        output.table(CHANGE_COLUMNS, rows)


def _change_rows(partition: int, changes: Iterable[Document]) -> list[tuple[output.Cell, ...]]:
    """The rows of one partition in the table of changes."""
    return [
        (
            partition, each["time"], each["broker"], each.get("what"), each.get("leader"), each.get("leader_epoch"),
            ",".join(map(str, each["isr"])) if isinstance(each.get("isr"), list) and each["isr"] else None,
            each.get("cause"),
        )
        for each in changes
    ]  # fmt: skip
