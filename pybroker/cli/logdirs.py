"""`pybroker logdirs`: the brokers' log dirs, the partitions in them with their sizes, and the free space."""

from collections.abc import Collection, Sequence

import click
from click.core import ParameterSource

from pybroker import errors
from pybroker.cli import output
from pybroker.cli.each_broker import TELL_S_MAX, Silent, admin_at, ask_each
from pybroker.cli.main import Failure, Whole
from pybroker.cli.options import admin_of, cluster_options, complete_topics
from pybroker.cli.output import Document
from pybroker.cli.reset import partitions_of
from pybroker.client.admin import LogDir, Replica
from pybroker.client.net.metadata import Node
from pybroker.model import TopicPartition


@click.command(name="logdirs")
@click.argument("topics", nargs=-1, metavar="[TOPIC[:P,P]]...", shell_complete=complete_topics)
@click.option("--broker", "brokers", multiple=True, type=Whole(0), metavar="ID",
              help="Show only the log dirs of this broker; repeatable.")  # fmt: skip
@cluster_options
def command(
    topics: Sequence[str], brokers: Sequence[int], bootstrap_server: str, timeout_s: float, as_json: bool
) -> None:
    """Show the log dirs of all brokers: their state, the size of their partitions, and the disk's size and free space.

    With TOPICs, count only these and show each of their partitions with its log dir. A broker that does not answer
    within 2 s, or within --timeout if given, is named; the others are shown.

    Exit codes: 0 done; 1 the broker refused or could not be reached; 2 the command or its options are wrong.
    """
    found, silent = _log_dirs(bootstrap_server, timeout_s, brokers, topics)
    for why in silent:
        click.echo(f"pybroker: {why}", err=True)
    if as_json:
        output.as_json([_document(log_dir) for log_dir in found])
        return
    output.table(
        ("broker", "log dir", "state", "partitions", "size", "disk", "free"),
        [
            (
                log_dir.broker,
                log_dir.path,
                _error(log_dir) or "online",
                output.count(len(log_dir.replicas)),
                output.size(sum(replica.size_bytes for replica in log_dir.replicas)),
                output.size(log_dir.total_bytes),
                output.size(log_dir.usable_bytes),
            )
            for log_dir in found
        ],
    )
    if topics:
        click.echo()
        rows = sorted((*r.partition, r.size_bytes, d.broker, _place(d, r)) for d in found for r in d.replicas)
        output.table(
            ("topic", "partition", "size", "broker", "log dir"),
            [(topic, index, output.size(size), broker, path) for topic, index, size, broker, path in rows],
        )


def _log_dirs(
    bootstrap_server: str, timeout_s: float, brokers: Sequence[int], topics: Sequence[str]
) -> tuple[list[LogDir], list[str]]:
    """Return the log dirs of these brokers, or all, with these topics and partitions, or all, and a sentence for each
    broker that does not answer. Raises if none does."""
    with admin_of(bootstrap_server, timeout_s) as admin:
        nodes = admin.describe_cluster().nodes
        wanted = set(partitions_of(admin, topics)) if topics else None
        names = sorted({tp.topic for tp in wanted}) if wanted else None
        if unknown := sorted(set(brokers) - {node.id for node in nodes}):
            return admin.log_dirs(unknown, names), []

    is_given = click.get_current_context().get_parameter_source("timeout_s") is not ParameterSource.DEFAULT

    def ask(node: Node) -> list[LogDir]:
        with admin_at(node, timeout_s if is_given else TELL_S_MAX) as admin:
            return admin.log_dirs([node.id], names)

    found, silent = list[LogDir](), list[str]()
    for node, told in ask_each([node for node in nodes if node.id in (brokers or (node.id,))], ask):
        if isinstance(told, Silent):
            silent.append(f"broker {node.id} does not report its log dirs: {told}")
        else:
            found += [_only(wanted, log_dir) for log_dir in told]
    if silent and not found:
        raise Failure("; ".join(silent))
    return found, silent


def _only(wanted: Collection[TopicPartition] | None, log_dir: LogDir) -> LogDir:
    """Return a log dir with the replicas of these partitions only; None: all."""
    return log_dir._replace(replicas=tuple(r for r in log_dir.replicas if wanted is None or r.partition in wanted))


def _place(log_dir: LogDir, replica: Replica) -> str:
    """A replica's log dir, with what it lacks if it is a copy that moves there."""
    behind = f" (moving here, {output.count(replica.offset_lag)} offsets to copy)" if replica.future else ""
    return log_dir.path + behind


def _error(log_dir: LogDir) -> str | None:
    return errors.lookup(log_dir.error).name if log_dir.error else None


def _document(log_dir: LogDir) -> Document:
    """Return a log dir as --json prints it; null for what a broker does not report."""
    return {
        "broker": log_dir.broker,
        "log_dir": log_dir.path,
        "error": _error(log_dir),
        "total_bytes": log_dir.total_bytes,
        "usable_bytes": log_dir.usable_bytes,
        "partitions": [
            {
                "topic": replica.partition.topic,
                "partition": replica.partition.partition,
                "size_bytes": replica.size_bytes,
                "offset_lag": replica.offset_lag,
                "future": replica.future,
            }
            for replica in log_dir.replicas
        ],
    }
