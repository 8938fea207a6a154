"""`pybroker restore`: topics of a backup into a running cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, Unpack

import click

from pybroker.backup.offline import RestoredLogs, restore_logs
from pybroker.backup.restoring import INCOMPLETE, Restored, RestoreOptions, RestoreRun
from pybroker.backup.verifying import read_backup
from pybroker.cli import output, profiles
from pybroker.cli.backup.backup import connector, opened, warn
from pybroker.cli.backup.progress import bar
from pybroker.cli.main import Misuse, Whole
from pybroker.cli.options import cluster_options, name_value, say
from pybroker.cli.output import Document
from pybroker.client.net.network import NetworkClient
from pybroker.client.settings import PRODUCER, Settings
from pybroker.config.settings import ConfigError


class RestoreArguments(TypedDict):
    """The values of the options by name, without those of the cluster."""

    topics: Sequence[str]
    name: str | None
    append: bool
    configs: Sequence[str]
    replication_factor: int | None
    no_groups: bool
    only: str | None
    log_dirs: Sequence[Path]


@click.command(name="restore")
@click.argument("backup", metavar="DIR|ADDRESS")
@click.option("--topics", "-t", multiple=True, metavar="TOPIC",
              help="Restore only this topic, or these by a pattern such as 'orders*'; repeatable.")  # fmt: skip
@click.option("--as", "name", metavar="NAME", help="Give the topic this name; for one topic.")
@click.option("--append", is_flag=True, help="Restore into topics that hold records, behind them.")
@click.option("--config", "-c", "configs", multiple=True, metavar="NAME=VALUE",
              help="A config of the topics, instead of that in the backup; repeatable.")  # fmt: skip
@click.option("--replication-factor", "-r", type=Whole(1, 32767),
              help="How many replicas; without it as many as there were, or as there are brokers.")  # fmt: skip
@click.option("--no-groups", is_flag=True, help="Leave the offsets of groups as they are.")
@click.option("--only", type=click.Choice(["topics", "groups"]),
              help="Only create the topics, without records; or only set the offsets of groups. For --log-dir.")
@click.option("--log-dir", "log_dirs", multiple=True, metavar="DIR",
              type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Restore records into the log dirs of a stopped broker, at their offsets; repeatable.")  # fmt: skip
@cluster_options
def command(
    backup: str, bootstrap_server: str, timeout_s: float, as_json: bool, **how: Unpack[RestoreArguments]
) -> None:
    """Restore topics of a backup into a running cluster, the same or another one: partitions, configs, records, and the
    offsets of groups.

    Records keep their offsets if their log began at 0 and had no gaps; otherwise the offsets of groups are translated.
    Records of transactions that were not committed are left out. If the command fails, the topics that it created are
    deleted again.

    To keep the offsets in any case, restore into log dirs: create the topics by --only topics, stop the broker (in a
    cluster, all brokers), restore into all of its log dirs by --log-dir (in a cluster, on each broker), start it, and
    set the offsets of groups by --only groups.

    Exit codes: 0 done; 1 the backup is damaged, a topic of this name holds records, or the broker refused or could not
    be reached; 2 the command or its options are wrong; 130 ended by Ctrl-C.
    """
    if how["only"] and how["log_dirs"]:
        raise Misuse("--only needs a broker that runs, and --log-dir one that is stopped")
    options = RestoreOptions(
        tuple(how["topics"]) or ("*",), how["name"], how["append"],
        dict(name_value(text, "--config") for text in how["configs"]), how["replication_factor"], not how["no_groups"],
    )  # fmt: skip

    def network() -> NetworkClient:
        asked = {"bootstrap_servers": bootstrap_server, "request_timeout_ms": int(timeout_s * 1000)}
        try:
            return NetworkClient("producer", Settings("producer", PRODUCER, {**asked, **profiles.security()}),
                                 create_topics=False)  # fmt: skip
        except ConfigError as error:
            raise Misuse(profiles.dotted(error.message)) from error

    with opened(backup, write=False) as target, bar("Restoring") as begin:
        manifest = read_backup(target)
        run = RestoreRun(connector(bootstrap_server, timeout_s), network, target, manifest, options)
        if how["log_dirs"]:
            _report_logs(restore_logs(target, run.named(), how["log_dirs"], begin), as_json)
            warn(() if manifest.complete else (INCOMPLETE,))
        elif how["only"] == "topics":
            _report(run.create_topics(), how["only"], as_json)
        elif how["only"] == "groups":
            _report(run.set_groups(), how["only"], as_json)
        else:
            _report(run.restore(begin=begin), None, as_json)


def _report(restored: Restored, only: str | None, as_json: bool) -> None:
    if as_json:
        output.as_json(_document(restored))
    else:
        _show(restored, only)
    warn(restored.warnings)


def _report_logs(restored: RestoredLogs, as_json: bool) -> None:
    logs, elsewhere = ([str(tp) for tp in tps] for tps in (restored.partitions, restored.elsewhere))
    there = f"; {len(elsewhere)} are in no log dir that was named" if elsewhere else ""
    words = f"Restored {len(logs)} partitions, {output.size(restored.size)}{there}."
    facts = {"partitions": logs, "elsewhere": elsewhere, "bytes": restored.size}
    say(as_json, facts, f"{words} The broker checks them as it starts.")


def _document(restored: Restored) -> Document:
    return {
        "topics": [
            {"name": topic.name, "from": topic.backup.name, "partitions": len(topic.backup.partitions),
             "records": topic.records, "left_out": topic.left_out, "moved_partitions": list(topic.moved)}
            for topic in restored.topics
        ],
        "groups": list(restored.groups),
        "warnings": list(restored.warnings),
    }  # fmt: skip


def _show(restored: Restored, only: str | None) -> None:
    if only == "topics":
        click.echo(f"Created {', '.join(topic.name for topic in restored.topics)}, without records.")
        return
    if only is None:
        _show_topics(restored)
    click.echo(f"Set the offsets of {len(restored.groups)} groups.")


def _show_topics(restored: Restored) -> None:
    rows = [
        (topic.name, len(topic.backup.partitions), output.count(topic.records),
         "translated" if topic.moved else "kept", output.count(topic.left_out))
        for topic in restored.topics
    ]  # fmt: skip
    output.table(("topic", "partitions", "records", "offsets", "not committed"), rows)
