"""`pybroker dump`: show a file of a log dir batch by batch or entry by entry, and where it is damaged."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from pybroker.cli import output
from pybroker.cli.files import data_files
from pybroker.cli.files.batches import Damage, Entry
from pybroker.cli.main import EXIT_FAILED, Misuse
from pybroker.operations.times import time_text

SHOWN_BYTES_MAX: Final = 80
"""The bytes shown of a key or value; JSON has all of them."""

BATCH_COLUMNS: Final = "{:>12}  {:>12}  {:>12}  {:>7}  {:>9}  {:<7}  {:<24}  {:>5}  {:<20}  {}"
BATCH_TITLES: Final = ("POSITION", "FIRST", "LAST", "RECORDS", "BYTES", "CODEC", "LATEST", "EPOCH", "PRODUCER", "")


@click.command(name="dump")
@click.argument("paths", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option("--records", "with_records", is_flag=True, help="Show the records of each batch too, decompressed.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def command(paths: Sequence[Path], with_records: bool, as_json: bool) -> None:
    """Show what is in a log segment (.log), an index (.index, .timeindex, .txnindex), a producer snapshot (.snapshot)
    or a checkpoint (...-checkpoint) of pybroker or Apache Kafka.

    Exit codes: 0 all files are sound; 1 one cannot be read or is damaged (standard error says where and how); 2 the
    name of one does not say what kind of file it is.
    """
    kinds = [(path, data_files.kind_of(path)) for path in paths]
    for path, kind in kinds:
        if kind is None:
            known = f"{', '.join(data_files.KINDS)} or ...-checkpoint"
            raise Misuse(f"{path}: the name does not say what kind of file it is: {known} can be shown")
    damages = 0
    for path, kind in kinds:
        assert kind is not None
        if not as_json and len(kinds) > 1:
            click.echo(f"{path}:")
        damages += _dump(path, kind, with_records, as_json)
    if damages:
        sys.exit(EXIT_FAILED)


def _dump(path: Path, kind: data_files.Kind, with_records: bool, as_json: bool) -> int:
    """Show one file; return the number of damages."""
    damages = 0
    shown = 0
    for item in kind.read(path, with_records):
        if isinstance(item, Damage):
            damages += 1
            sys.stdout.flush()
            click.echo(f"pybroker: {path} is damaged at byte {item.position}: {item.reason}", err=True)
            if as_json:
                output.as_json_line({"file": str(path), "damage": item.reason, "position": item.position})
        elif as_json:
            found = {"file": str(path), "kind": kind.name, **item}
            records = found.pop("records", None)
            if records is None:
                output.as_json_line(found)
            else:
                output.as_json_line_of(found, "records", records)
        elif kind.name == "log":
            _show_batch(item, first=shown == 0)
        else:
            click.echo("  ".join(f"{name} {value}" for name, value in item.items()))
        shown += not isinstance(item, Damage)
    if not as_json and shown == 0 and damages == 0:
        click.echo("(empty)")
    return damages


def _show_batch(batch: Entry, first: bool) -> None:
    if first:
        click.echo(BATCH_COLUMNS.format(*BATCH_TITLES).rstrip())
    producer = "-"
    if batch["producer_id"] >= 0:
        producer = f"{batch['producer_id']}/{batch['producer_epoch']}/{batch['base_sequence']}"
    flags = [name for name in ("transactional", "control", "delete_horizon") if batch[name]]
    if batch["timestamp_type"] == "LogAppendTime":
        flags.append("LogAppendTime")
    numbers = [batch[name] for name in ("position", "base_offset", "last_offset", "count", "size", "codec")]
    line = BATCH_COLUMNS.format(
        *numbers, time_text(batch["max_timestamp"]), batch["leader_epoch"], producer, " ".join(flags)
    )
    click.echo(line.rstrip())
    for record in batch.get("records", ()):
        _show_record(record)


def _show_record(record: Entry) -> None:
    head = f"    offset {record['offset']}  {time_text(record['timestamp'])}"
    if "marker" in record:
        click.echo(f"{head}  {record['marker']} of coordinator epoch {record['coordinator_epoch']}")
        return
    headers = "".join(f"  {name}: {_bytes(value)}" for name, value in record["headers"])
    click.echo(f"{head}  {_bytes(record['key'])} = {_bytes(record['value'])}{headers}")


def _bytes(value: bytes | None) -> str:
    """Return text in quotes, other bytes in hexadecimal, cut to fit a line."""
    if value is None:
        return "null"
    raw = bytes(value)
    more = f"... ({len(raw)} bytes)" if len(raw) > SHOWN_BYTES_MAX else ""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = "\0"
    return (repr(text[:SHOWN_BYTES_MAX]) if text.isprintable() else raw[:SHOWN_BYTES_MAX].hex()) + more
