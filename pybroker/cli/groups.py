"""`pybroker groups`: consumer groups, their members, lag, and the cause of their last rebalance."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import click

from pybroker import errors
from pybroker.cli import output
from pybroker.cli.options import admin_of, ask, cluster_options, complete_groups, delete_each
from pybroker.cli.output import Document, Options
from pybroker.cli.reset import reset_offsets
from pybroker.client.admin import LATEST, Committed, GroupDescription
from pybroker.logs import printable
from pybroker.model import TopicPartition
from pybroker.operations.times import time_text

LINE: Final = 80
PARTITIONS_WIDTH: Final = 28
Offsets = Mapping[TopicPartition, int | None]


@click.group(name="groups")
def command() -> None:
    """List, describe, reset and delete the consumer groups of any broker that speaks Kafka's protocol.

    Exit codes: 0 done; 1 the broker refused or could not be reached; 2 the command or its options are wrong.
    """


command.add_command(reset_offsets)


@command.command("list")
@click.option(
    "--state", "states", multiple=True, help="List only groups in this state, such as Stable or Empty; repeatable."
)
@cluster_options
def list_groups(states: Sequence[str], bootstrap_server: str, timeout_s: float, as_json: bool) -> None:
    """List the groups by name."""
    with admin_of(bootstrap_server, timeout_s) as admin:
        found = admin.groups(states=states)
    if as_json:
        columns = ("group", "state", "type", "protocol_type")
        output.as_json([dict(zip(columns, (g.id, g.state, g.type, g.protocol_type), strict=True)) for g in found])
        return
    output.table(("group", "state", "type", "protocol"), [(g.id, g.state, g.type, g.protocol_type) for g in found])


@command.command()
@click.argument("groups", nargs=-1, metavar="[GROUP]...", shell_complete=complete_groups)
@cluster_options
def describe(groups: Sequence[str], bootstrap_server: str, timeout_s: float, as_json: bool) -> None:
    """Show members with their partitions, committed offsets and lag, and why the group last rebalanced. Without GROUPs,
    show all groups.

    A committed offset is that of the next record to read. Members are numbered; --json has their ids. Only pybroker
    reports why a group rebalanced.
    """
    with admin_of(bootstrap_server, timeout_s) as admin:
        found = admin.describe_groups(groups or [group.id for group in admin.groups()])
        committed = admin.group_offsets([group.id for group in found])
        named = {p.topic for offsets in committed.values() for p in offsets}
        named |= {p.topic for group in found for member in group.members for p in member.assignment}
        ends = admin.offsets(admin.cluster.metadata(sorted(named)), LATEST) if named else {}
    documents = [_description(group, committed[group.id], ends) for group in found]
    if as_json:
        output.as_json(documents)
        return
    for number, document in enumerate(documents):
        if number:
            click.echo()
        _show(document)


@command.command()
@click.argument("groups", nargs=-1, required=True, metavar="GROUP...", shell_complete=complete_groups)
@click.option("--if-exists", is_flag=True, help="Do not fail if a group does not exist.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@cluster_options
def delete(
    groups: Sequence[str], if_exists: bool, yes: bool, bootstrap_server: str, timeout_s: float, as_json: bool
) -> None:
    """Delete groups without members, with their committed offsets."""
    ask(f"Delete {', '.join(groups)}, with all committed offsets?", yes, "nothing was deleted")
    with admin_of(bootstrap_server, timeout_s) as admin:
        absent = errors.GROUP_ID_NOT_FOUND if if_exists else None
        delete_each("group", groups, admin.delete_group, absent, as_json)


# -- the description of a group -------------------------------------------------------------------------------------


def _description(
    group: GroupDescription, committed: Mapping[TopicPartition, Committed], ends: Offsets
) -> Document:
    """Return a group as `describe --json` prints it; unknown or missing values are null."""
    owners = {partition: member.id for member in group.members for partition in member.assignment}
    partitions = [_progress(partition, committed.get(partition), ends.get(partition), owners.get(partition))
                  for partition in sorted({*owners, *committed})]  # fmt: skip
    node = group.coordinator
    return {
        "group": group.id,
        "state": group.state,
        "type": group.type,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol or None,
        "coordinator": {"id": node.id, "host": node.host, "port": node.port},
        "last_rebalance": group.rebalance_cause and {"cause": group.rebalance_cause, "at": group.rebalance_ms},
        "lag": sum(p["lag"] or 0 for p in partitions),
        "partitions_without_commit": _without_commit(partitions, committed, ends),
        "members": [
            {
                "member": member.id,
                "instance": member.instance_id,
                "client": member.client_id,
                "host": member.client_host.lstrip("/"),
                "partitions": [{"topic": topic, "partition": index} for topic, index in member.assignment],
            }
            for member in group.members
        ],
        "partitions": partitions,
    }


def _without_commit(partitions: Sequence[Options], committed: Mapping[TopicPartition, Committed],
                    ends: Offsets) -> int:  # fmt: skip
    """Count the partitions without a committed offset, of the topics that the group reads or has committed: their
    records do not count as lag."""
    topics = {p["topic"] for p in partitions}
    return sum(partition.topic in topics and partition not in committed for partition in ends)


def _progress(partition: TopicPartition, at: Committed | None, end: int | None, owner: str | None) -> Document:
    """Return a group's position in a partition. A commit beyond the end (of a recreated topic, say) has no negative
    lag."""
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "committed": at.offset if at else None,
        "latest": end,
        "lag": max(0, end - at.offset) if at and end is not None else None,
        "member": owner,
        "metadata": at.metadata or None if at else None,
    }


def _show(document: Document) -> None:
    """Print a group for a terminal, with numbers instead of the long member ids."""
    node, last = document["coordinator"], document["last_rebalance"]
    protocol = " ".join(filter(None, (document["protocol_type"], document["protocol"])))
    members = document["members"]
    click.echo(printable(f"Group {document['group']}  {document['state']}  {protocol}".rstrip()))
    click.echo(f"Members {len(members):,}  lag {document['lag']:,}  coordinator {node['id']} at {node['host']}:"
               f"{node['port']}")  # fmt: skip
    if count := document["partitions_without_commit"]:
        lacks, counts = ("partition has", "does") if count == 1 else ("partitions have", "do")
        click.echo(f"{count:,} {lacks} no committed offset and {counts} not count as lag")
    if last:
        words = printable(f"Last rebalance {time_text(last['at'])}: {last['cause']}")
        click.echo("\n".join(textwrap.wrap(words, LINE, subsequent_indent="  ", break_on_hyphens=False)))
    if members:
        click.echo()
        instances = any(member["instance"] for member in members)
        rows = (row for number, member in enumerate(members, 1) for row in _member_rows(number, member, instances))
        output.table(("member", "client", "host", *["instance"] * instances, "topic", "partitions"), rows)
    if document["partitions"]:
        click.echo()
        columns = ("topic", "partition", "committed", "latest")
        numbers = {member["member"]: number for number, member in enumerate(members, 1)}
        output.table(
            (*columns, "lag", "member"),
            [
                (*(p[column] for column in columns), output.count(p["lag"]), numbers.get(p["member"]))
                for p in document["partitions"]
            ],
        )


def _member_rows(number: int, member: Options, instances: bool) -> Iterator[tuple[output.Cell, ...]]:
    """Yield a member's row, and more rows for further topics or for partitions that do not fit the line."""
    first = (number, member["client"], member["host"], *[member["instance"]] * instances)
    blank = ("",) * len(first)
    for topic, partitions in _runs(member["partitions"]) or [("-", "-")]:
        yield (*first, topic, partitions)
        first = blank


def _runs(partitions: Sequence[Options]) -> list[tuple[str, str]]:
    """Return runs of partitions by topic: [("orders", "0-4,7"), ("returns", "2")]. Runs that do not fit a line continue
    on lines without a topic."""
    runs: dict[str, list[tuple[int, int]]] = {}
    for topic, index in sorted((p["topic"], p["partition"]) for p in partitions):
        mine = runs.setdefault(topic, [])
        first = mine.pop()[0] if mine and mine[-1][1] == index - 1 else index
        mine.append((first, index))
    lines = []
    for topic, found in runs.items():
        words = " ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in found)
        pieces = textwrap.wrap(words, PARTITIONS_WIDTH, break_on_hyphens=False)
        lines += [("" if number else topic, piece.replace(" ", ",")) for number, piece in enumerate(pieces)]
    return lines
