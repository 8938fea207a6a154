"""`pybroker restore`: topics of a backup into a running cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from pybroker.backup.restoring import Restored, RestoreOptions, RestoreRun
from pybroker.backup.verifying import read_backup
from pybroker.cli import output, profiles
from pybroker.cli.backup.backup import opened, warn
from pybroker.cli.backup.progress import bar
from pybroker.cli.main import Misuse, Whole
from pybroker.cli.options import admin_of, cluster_options, name_value
from pybroker.cli.output import Document
from pybroker.client.net.network import NetworkClient
from pybroker.client.settings import PRODUCER, Settings
from pybroker.config.settings import ConfigError

if TYPE_CHECKING:
    from pybroker.client.admin import Admin


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
@cluster_options
def command(
    backup: str,
    topics: Sequence[str],
    name: str | None,
    append: bool,
    configs: Sequence[str],
    replication_factor: int | None,
    no_groups: bool,
    bootstrap_server: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Restore topics of a backup into a running cluster, the same or another one: partitions, configs, records, and the
    offsets of groups.

    Records keep their offsets if their log began at 0 and had no gaps; otherwise the offsets of groups are translated.
    Records of transactions that were not committed are left out. If the command fails, the topics that it created are
    deleted again.

    Exit codes: 0 done; 1 the backup is damaged, a topic of this name holds records, or the broker refused or could not
    be reached; 2 the command or its options are wrong; 130 ended by Ctrl-C.
    """
    options = RestoreOptions(
        tuple(topics) or ("*",), name, append, dict(name_value(text, "--config") for text in configs),
        replication_factor, not no_groups,
    )  # fmt: skip

    def connect() -> Admin:
        return admin_of(bootstrap_server, timeout_s)

    def network() -> NetworkClient:
        asked = {"bootstrap_servers": bootstrap_server, "request_timeout_ms": int(timeout_s * 1000)}
        try:
            return NetworkClient("producer", Settings("producer", PRODUCER, {**asked, **profiles.security()}),
                                 create_topics=False)  # fmt: skip
        except ConfigError as error:
            raise Misuse(profiles.dotted(error.message)) from error

    with opened(backup, write=False) as target:
        manifest = read_backup(target)
        with bar("Restoring") as begin:
            restored = RestoreRun(connect, network, target, manifest, options).restore(begin=begin)
    if as_json:
        output.as_json(_document(restored))
    else:
        _show(restored)
    warn(restored.warnings)


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


def _show(restored: Restored) -> None:
    rows = [
        (topic.name, len(topic.backup.partitions), output.count(topic.records),
         "translated" if topic.moved else "kept", output.count(topic.left_out))
        for topic in restored.topics
    ]  # fmt: skip
    output.table(("topic", "partitions", "records", "offsets", "not committed"), rows)
    click.echo(f"Set the offsets of {len(restored.groups)} groups.")
