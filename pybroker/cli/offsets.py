"""`pybroker offsets` and `pybroker delete-records`: show the offsets that partitions hold, and delete records before
one."""

import json
from collections.abc import Sequence
from typing import IO, Any, Final

import click

from pybroker.cli import output
from pybroker.cli.main import Failure
from pybroker.cli.options import admin_of, ask, cluster_options, complete_topics
from pybroker.cli.reset import partitions_of
from pybroker.cli.times import TIME_HELP, moment
from pybroker.client.admin import EARLIEST, HIGH_WATERMARK, LATEST
from pybroker.model import TopicPartition

OFFSET_MAX: Final = (1 << 63) - 1


@click.command(name="offsets")
@click.argument("topics", nargs=-1, metavar="[TOPIC[:P,P]]...", shell_complete=complete_topics)
@click.option("--at", type=moment, metavar="TIME", help=f"Also show the first offset at or after TIME: {TIME_HELP}")
@cluster_options
def offsets(
    topics: Sequence[str], at: int | None, bootstrap_server: str, timeout_s: float, as_json: bool
) -> None:
    """Show the earliest and the latest offset of each partition; without TOPICs, of all topics but internal ones.

    The latest offset is that of the next record. Records may be fewer than offsets: compaction and transactions leave
    gaps. With --at, "-" is shown if no record is that late.

    Exit codes: 0 done; 1 the broker refused or could not be reached; 2 the command or its options are wrong.
    """
    with admin_of(bootstrap_server, timeout_s) as admin:
        named = topics or [topic.name for topic in admin.topics() if not topic.internal]
        partitions = partitions_of(admin, named)
        found = admin.topics(sorted({p.topic for p in partitions}))
        told = {"earliest": admin.offsets(found, EARLIEST), "latest": admin.offsets(found, LATEST)}
        if at is not None:
            told["at"] = admin.offsets(found, at)
    documents = [{"topic": p.topic, "partition": p.partition, **{n: o[p] for n, o in told.items()}} for p in partitions]
    if as_json:
        output.as_json(documents)
    else:
        output.table(("topic", "partition", *told), [list(document.values()) for document in documents])


@click.command(name="delete-records")
@click.argument("topics", nargs=-1, metavar="[TOPIC[:P,P]]...", shell_complete=complete_topics)
@click.option("--before", metavar="OFFSET", help="The first offset that stays; latest: delete all records.")
@click.option("--offset-json-file", "plan", type=click.File("rb"), metavar="FILE",
              help="Partitions and offsets as kafka-delete-records.sh takes them; - is standard input.")  # fmt: skip
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@cluster_options
def delete_records(
    topics: Sequence[str],
    before: str | None,
    plan: IO[bytes] | None,
    yes: bool,
    bootstrap_server: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Delete the records of partitions that lie before an offset. Partitions begin with that offset from then on.

    \b
    FILE: {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "offset": 1000}, ...]}
    An offset of -1 stands for the latest.

    Exit codes: 0 done; 1 the broker refused or could not be reached, some partitions may be done; 2 the command or its
    options are wrong.
    """
    if (plan is not None) == (before is not None) or bool(topics) == (plan is not None):
        raise click.UsageError("either TOPIC and --before or --offset-json-file is needed")
    offset = None if before is None else _offset(before)
    cuts = {} if plan is None else _read(plan)
    with admin_of(bootstrap_server, timeout_s) as admin:
        if offset is not None:
            cuts = dict.fromkeys(partitions_of(admin, topics), offset)
        words = (f"{p} {'all' if cut == HIGH_WATERMARK else f'before {cut}'}" for p, cut in sorted(cuts.items()))
        ask(f"Delete records ({', '.join(words)})?", yes, "nothing was deleted")
        done = admin.delete_records(cuts)
    rows = [(p.topic, p.partition, first) for p, first in sorted(done.items())]
    if as_json:
        output.as_json([{"topic": topic, "partition": index, "earliest": first} for topic, index, first in rows])
    else:
        output.table(("topic", "partition", "earliest"), rows)


def _offset(text: str) -> int:
    if text == "latest":
        return HIGH_WATERMARK
    if not (text.isascii() and text.isdigit() and int(text) <= OFFSET_MAX):
        raise click.BadParameter(f"{text!r} is neither an offset nor latest", param_hint="--before")
    return int(text)


def _read(plan: IO[bytes]) -> dict[TopicPartition, int]:
    """Read the file of kafka-delete-records.sh. Failure if it is malformed."""
    try:
        document: Any = json.load(plan)
        if document.get("version", 1) != 1:
            raise ValueError(f"version {document['version']}, only 1 is supported")
        found: dict[TopicPartition, int] = {}
        for entry in document["partitions"]:
            partition, offset = TopicPartition(entry["topic"], entry["partition"]), entry["offset"]
            kinds = (type(partition.topic), type(partition.partition), type(offset))
            if kinds != (str, int, int) or partition.partition < 0 or not HIGH_WATERMARK <= offset <= OFFSET_MAX:
                raise ValueError(f"{entry} is not a topic, a partition and an offset")
            if partition in found:
                raise ValueError(f"{partition} is named twice")
            found[partition] = offset
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Failure(f"{plan.name} is not what kafka-delete-records.sh takes: {error}") from None
    if not found:
        raise Failure(f"{plan.name} names no partition")
    return found
