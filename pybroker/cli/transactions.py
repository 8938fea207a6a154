"""`pybroker transactions`: transactional ids, the producers of partitions, and transactions that hang."""

from collections.abc import Sequence
from typing import Final

import click

from pybroker.cli import output
from pybroker.cli.options import admin_of, ask, cluster_options, complete_topics
from pybroker.cli.output import Document
from pybroker.cli.reset import partitions_of
from pybroker.client.admin import Admin, HangingTransaction, TransactionDescription
from pybroker.client.admin.transactions import TIMEOUT_MS_MAX
from pybroker.clock import wall_ms
from pybroker.model import TopicPartition
from pybroker.operations.times import time_text

_MINUTE_MS: Final = 60_000


@click.group(name="transactions")
def command() -> None:
    """List, describe and abort transactions of any broker that speaks Kafka's protocol.

    Exit codes: 0 done; 1 the broker refused or could not be reached, or find-hanging has found a transaction that
    hangs; 2 the command or its options are wrong.
    """


@command.command("list")
@click.option(
    "--state", "states", multiple=True, help="List only ids in this state, such as Ongoing or Empty; repeatable."
)
@click.option("--producer-id", "producers", type=click.IntRange(0), multiple=True, help="Only this; repeatable.")
@click.option(
    "--open-for", "minutes", type=click.IntRange(0), metavar="MINUTES", help="Only transactions that began so long ago."
)
@cluster_options
def list_transactions(
    states: Sequence[str], producers: Sequence[int], minutes: int | None, bootstrap_server: str, timeout_s: float,
    as_json: bool,
) -> None:  # fmt: skip
    """List the transactional ids by name, with their producers and states."""
    with admin_of(bootstrap_server, timeout_s) as admin:
        open_for_ms = None if minutes is None else minutes * _MINUTE_MS
        found = admin.transactions(states=states, producer_ids=producers, open_for_ms=open_for_ms)
    if as_json:
        columns = ("transactional_id", "producer_id", "state")
        output.as_json([dict(zip(columns, each, strict=True)) for each in found])
        return
    output.table(("transactional id", "producer id", "state"), [(t.id, t.producer_id, t.state) for t in found])


@command.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@cluster_options
def describe(ids: Sequence[str], bootstrap_server: str, timeout_s: float, as_json: bool) -> None:
    """Show the state of transactional ids, and the partitions of open transactions."""
    with admin_of(bootstrap_server, timeout_s) as admin:
        found = admin.describe_transactions(ids)
    if as_json:
        output.as_json([_document(each) for each in found])
        return
    now_ms = wall_ms()
    for number, each in enumerate(found):
        if number:
            click.echo()
        output.table(("what", "value"), _rows(each, now_ms))


def _document(found: TransactionDescription) -> Document:
    return {
        "transactional_id": found.id,
        "state": found.state,
        "coordinator": found.coordinator.id,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.timeout_ms,
        "start": found.start_ms,
        "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in found.partitions],
    }


def _rows(found: TransactionDescription, now_ms: int) -> list[tuple[str, str]]:
    began = "-"
    if found.start_ms is not None:
        began = f"{time_text(found.start_ms)}, {max(0, now_ms - found.start_ms) / 1000:.0f} s ago"
    return [
        ("transactional id", found.id),
        ("state", found.state),
        ("coordinator", f"broker {found.coordinator.id}"),
        ("producer id, epoch", f"{found.producer_id}, {found.producer_epoch}"),
        ("timeout", f"{found.timeout_ms / 1000:g} s"),
        ("began", began),
        ("partitions", ", ".join(map(str, found.partitions)) or "-"),
    ]


@command.command("describe-producers")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC[:P,P]...", shell_complete=complete_topics)
@cluster_options
def describe_producers(topics: Sequence[str], bootstrap_server: str, timeout_s: float, as_json: bool) -> None:
    """Show the producers that the leaders of partitions know, and where open transactions begin."""
    with admin_of(bootstrap_server, timeout_s) as admin:
        found = admin.describe_producers(_partitions(admin, topics))
    rows = [
        (tp.topic, tp.partition, p.producer_id, p.producer_epoch, p.last_sequence, time_text(p.last_ms),
         p.coordinator_epoch, p.transaction_start)
        for tp, producers in sorted(found.items()) for p in producers
    ]  # fmt: skip
    names = (
        "topic", "partition", "producer id", "epoch", "last sequence", "last write", "coordinator epoch", "open at"
    )  # fmt: skip
    if as_json:
        keys = [name.replace(" ", "_") for name in names]
        output.as_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    output.table(names, rows)


@command.command("find-hanging")
@click.argument("topics", nargs=-1, metavar="[TOPIC[:P,P]]...", shell_complete=complete_topics)
@click.option(
    "--open-for", "minutes", type=click.IntRange(0), default=TIMEOUT_MS_MAX // _MINUTE_MS, show_default=True,
    metavar="MINUTES", help="Look at transactions that wrote nothing for so long: transaction.max.timeout.ms.",
)  # fmt: skip
@cluster_options
def find_hanging(
    topics: Sequence[str], minutes: int, bootstrap_server: str, timeout_s: float, as_json: bool
) -> None:
    """Find open transactions that no coordinator will end: consumers with read_committed wait for them.

    Without TOPICs, look at all topics.
    """
    with admin_of(bootstrap_server, timeout_s) as admin:
        found = admin.hanging_transactions(_partitions(admin, topics), open_for_ms=minutes * _MINUTE_MS)
    if as_json:
        output.as_json([_hanging(each) for each in found])
    elif found:
        names = ("topic", "partition", "open at", "producer id", "last write", "transactional id")
        output.table(names, [tuple(_hanging(each).values()) for each in found])
        click.echo("\nEnd one with: pybroker transactions abort TOPIC:PARTITION --start OFFSET")
    else:
        click.echo("no transaction hangs")
    if found:
        raise SystemExit(1)


def _hanging(found: HangingTransaction) -> Document:
    return {
        "topic": found.partition.topic,
        "partition": found.partition.partition,
        "start": found.producer.transaction_start,
        "producer_id": found.producer.producer_id,
        "last_write": time_text(found.producer.last_ms),
        "transactional_id": found.transactional_id,
    }


@command.command()
@click.argument("partition", metavar="TOPIC:PARTITION", shell_complete=complete_topics)
@click.option(
    "--start", type=click.IntRange(0), required=True, metavar="OFFSET", help="The first offset of the transaction."
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@cluster_options
def abort(
    partition: str, start: int, yes: bool, bootstrap_server: str, timeout_s: float, as_json: bool
) -> None:
    """Abort the open transaction of a partition that begins at this offset; for one that hangs.

    A transaction that does not hang is torn by this: its records in the partition are lost, and a commit of its
    producer succeeds all the same.
    """
    with admin_of(bootstrap_server, timeout_s) as admin:
        partitions = _partitions(admin, [partition])
        if len(partitions) != 1:
            raise click.BadParameter("one partition is named as TOPIC:PARTITION.", param_hint="TOPIC:PARTITION")
        ask(f"Abort the transaction of {partitions[0]} that begins at offset {start}?", yes, "nothing was aborted")
        admin.abort_transaction(partitions[0], start)
    if as_json:
        output.as_json({"topic": partitions[0].topic, "partition": partitions[0].partition, "aborted": start})
    else:
        click.echo(f"aborted the transaction of {partitions[0]} at offset {start}")


@command.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@cluster_options
def fence(ids: Sequence[str], yes: bool, bootstrap_server: str, timeout_s: float, as_json: bool) -> None:
    """Refuse the present producers of transactional ids from now on, and abort their open transactions."""
    ask(f"Fence the producers of {', '.join(ids)}?", yes, "nobody was fenced")
    with admin_of(bootstrap_server, timeout_s) as admin:
        admin.fence_producers(ids)
    if as_json:
        output.as_json({"fenced": list(ids)})
    else:
        click.echo(f"fenced the producers of {', '.join(ids)}")


def _partitions(admin: Admin, named: Sequence[str]) -> list[TopicPartition]:
    """Return the named partitions; without names, those of all topics, as offsets of groups are in transactions too."""
    return partitions_of(admin, named or [topic.name for topic in admin.topics()])
