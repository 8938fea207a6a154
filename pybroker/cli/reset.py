"""`pybroker groups reset-offsets`: choose a group's new offset in each partition, show the plan, and commit it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, Final

import click

from pybroker.cli import output
from pybroker.cli.main import Failure, Whole
from pybroker.cli.options import admin_of, cluster_options, complete_groups, complete_topics
from pybroker.cli.times import TIME_HELP, moment
from pybroker.client.admin import Admin, Committed
from pybroker.model import TopicPartition
from pybroker.operations import offset_reset
from pybroker.operations.offset_reset import NewOffsets, OffsetMove

OFFSET: Final = Whole(0, (1 << 63) - 1)
SHIFT: Final = Whole(-(1 << 63), (1 << 63) - 1)
LINE_MAX: Final = 1000
"""The longest line of a plan, in characters: a topic's name has at most 249."""


@click.command("reset-offsets")
@click.argument("group", shell_complete=complete_groups)
@click.option("--topic", "-t", "topics", multiple=True, metavar="TOPIC[:P,P...]", shell_complete=complete_topics,
              help="A topic, or some of its partitions; repeatable.")  # fmt: skip
@click.option("--all-topics", is_flag=True, help="Every partition for which the group has committed an offset.")
@click.option("--to-earliest", is_flag=True, help="The first record of each partition.")
@click.option("--to-latest", is_flag=True, help="The end: read only records that arrive from now on.")
@click.option("--to-current", is_flag=True, help="The committed offset, or the end if there is none.")
@click.option("--to-offset", type=OFFSET, metavar="N", help="This offset.")
@click.option(
    "--to-time",
    type=moment,
    metavar="TIME",
    help=f"The first record at or after this time, or the end: {TIME_HELP}",
)
@click.option(
    "--shift-by", type=SHIFT, metavar="N", help="N records forward from the committed offset; negative N goes back."
)
@click.option("--from-file", type=click.File("r", encoding="utf-8"), metavar="CSV",
              help="Lines of TOPIC,PARTITION,OFFSET, as --export writes them; - is standard input.")  # fmt: skip
@click.option("--execute/--dry-run", default=False,
              help="Set the offsets; without --execute the command only shows them.")  # fmt: skip
@click.option("--export", is_flag=True, help="Print lines of TOPIC,PARTITION,OFFSET, as Kafka's tool does.")
@cluster_options
def reset_offsets(
    group: str,
    topics: Sequence[str],
    all_topics: bool,
    from_file: IO[str] | None,
    execute: bool,
    export: bool,
    bootstrap_server: str,
    timeout_s: float,
    as_json: bool,
    **target: Any,
) -> None:
    """Set the offsets at which a group continues. Without --execute, only show them. The group must have no members.

    An offset out of a partition's range becomes the nearest one in it, and a line on standard error says so.
    """
    chosen = [name for name, value in target.items() if value is not None and value is not False]
    if len(chosen) + (from_file is not None) != 1:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in (*target, "from-file"))
        raise click.UsageError(f"exactly one of {names} is needed")
    if (len(topics) > 0) + all_topics + (from_file is not None) != 1:
        raise click.UsageError("exactly one of --topic, --all-topics and --from-file is needed")
    with admin_of(bootstrap_server, timeout_s) as admin:
        offset_reset.check_inactive(admin, group)
        committed = admin.group_offsets([group])[group]
        if from_file is not None:
            wanted: NewOffsets = dict(_plan(from_file))
            partitions = partitions_of(admin, [f"{topic}:{index}" for topic, index in wanted])
        else:
            partitions = partitions_of(admin, topics or _all_committed(group, committed), "--topic")
            wanted = offset_reset.new_offsets(admin, partitions, committed, chosen[0], target[chosen[0]])
        moves = offset_reset.moves(admin, partitions, committed, wanted)
        if execute:
            admin.alter_group_offsets(group, {move.partition: Committed(move.new) for move in moves})
    _show(group, moves, execute, export, as_json)


def _all_committed(group: str, committed: Mapping[TopicPartition, Committed]) -> list[str]:
    if not committed:
        raise Failure(f"group {group} has committed no offsets: name its topics with --topic")
    return [f"{topic}:{index}" for topic, index in committed]


def partitions_of(admin: Admin, named: Iterable[str], hint: str = "TOPIC") -> list[TopicPartition]:
    """Return the partitions that TOPIC or TOPIC:P,P stands for. Failure for missing ones."""
    asked: dict[str, set[int]] = {}
    for text in named:
        topic, colon, listed = text.partition(":")
        words = listed.split(",") if colon else []
        if not all(word.isascii() and word.isdigit() for word in words):
            raise click.BadParameter(f"{text!r} is not TOPIC or TOPIC:P,P...", param_hint=hint)
        asked.setdefault(topic, set()).update(int(word) for word in words)
    found = []
    for name, _, _, partitions, _ in admin.topics(sorted(asked)):
        there = {p.partition for p in partitions}
        missing = asked[name] - there
        if missing:
            raise Failure(f"topic {name} has no partition {min(missing)}")
        found += [TopicPartition(name, index) for index in sorted(asked[name] or there)]
    return found


def _plan(lines: Iterable[str]) -> Iterable[tuple[TopicPartition, int]]:
    """Parse the lines of a plan. Failure names the number of a malformed line."""
    for number, line in enumerate(_text(lines), 1):
        fields = [field.strip().strip('"') for field in line[: LINE_MAX + 1].split(",")]
        if fields == [""]:
            continue
        if len(fields) != 3 or not all(f.isascii() and f.isdigit() for f in fields[1:]) or len(line) > LINE_MAX:
            raise Failure(f"line {number} of the file is not TOPIC,PARTITION,OFFSET: {line[:60].strip()!r}")
        yield TopicPartition(fields[0], int(fields[1])), int(fields[2])


def _text(lines: Iterable[str]) -> Iterator[str]:
    try:
        yield from lines
    except UnicodeDecodeError as error:
        raise Failure(f"the file is not UTF-8 text: {error.reason}") from error


def _show(group: str, moves: Sequence[OffsetMove], executed: bool, export: bool, as_json: bool) -> None:
    for move in moves:
        if move.asked != move.new:
            click.echo(f"{move.partition}: {move.asked} is out of range, {move.new} is the nearest", err=True)
    rows = [(move.partition.topic, move.partition.partition, move.old, move.new) for move in moves]
    if export:
        for topic, index, _, new in rows:
            click.echo(f"{topic},{index},{new}")
    elif as_json:
        columns = ("topic", "partition", "old", "new")
        partitions = [dict(zip(columns, row, strict=True)) for row in rows]
        output.as_json({"group": group, "executed": executed, "partitions": partitions})
    else:
        output.table(("topic", "partition", "old", "new"), rows)
    if not executed:
        click.echo("Nothing was changed: add --execute to set the offsets.", err=True)
