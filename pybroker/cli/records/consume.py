"""`pybroker consume`: write the records of topics to standard output, from one position to another."""

import contextlib
import select
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

import click

from pybroker.cli import profiles
from pybroker.cli.main import EXIT_TERMINATED, Failure, Misuse, Whole
from pybroker.cli.options import address_options, admin_of, client_settings, complete_groups, complete_topics, escaped
from pybroker.cli.output import Options
from pybroker.cli.records import delimited, formats, jsonlines, start_offsets
from pybroker.cli.records.damage import Skips
from pybroker.cli.records.delimited import Notation
from pybroker.cli.records.progress import ProgressLine
from pybroker.cli.records.reading import WrittenCommits, batches, newest
from pybroker.cli.records.start_offsets import Start
from pybroker.cli.times import TIME_HELP, moment
from pybroker.client.admin import Admin
from pybroker.client.consuming.consumer import Consumer, Record
from pybroker.client.settings import CONSUMER
from pybroker.config.settings import ConfigError
from pybroker.model import TopicPartition

BY_OPTION: Final = {
    "isolation_level": "isolation_level",
    "default_api_timeout_ms": "timeout_s",
    "group_id": None,
    "enable_auto_commit": None,
    "auto_offset_reset": None,
    "allow_auto_create_topics": None,
}
"""Settings of the consumer, and the options that set them; None: the command sets it itself."""

OFFSET_HELP: Final = "earliest, latest, N, or -N: N records before the end of each partition."


@click.command(name="consume")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@click.option("--partition", "-p", "partitions", multiple=True, type=Whole(0, (1 << 31) - 1),
              help="Read only this partition; repeatable.")  # fmt: skip
@click.option("--offset", "-o", type=start_offsets.offset, metavar="OFFSET", help=f"Where to begin: {OFFSET_HELP}")
@click.option("--from-beginning", is_flag=True, help="Begin with the first record of each partition.")
@click.option("--at", type=moment, metavar="TIME", help=f"Begin with the first record at or after it: {TIME_HELP}")
@click.option("--last", type=Whole(1), metavar="N", help="Only the newest N records, by time, and then end.")
@click.option("--max-messages", "-n", type=Whole(1), metavar="N", help="End after N records.")
@click.option(
    "--exit-at-end",
    "-e",
    is_flag=True,
    help="Stop at the topics' end as of the start; by default also read from their beginning.",
)
@click.option("--skip-damaged", is_flag=True,
              help="Skip records that cannot be read, and report them; otherwise stop there.")  # fmt: skip
@click.option("--group", "-g", metavar="GROUP", shell_complete=complete_groups,
              help="Read as a member of a group: its assignment, from its committed offsets.")  # fmt: skip
@click.option("--isolation-level", type=click.Choice(["read_uncommitted", "read_committed"]),
              default="read_uncommitted", show_default=True,
              help="read_committed leaves out aborted transactions.")  # fmt: skip
@click.option("--key", is_flag=True, help="Write the key before the value, with a tab between them.")
@click.option(
    "--key-separator", "-K", callback=escaped, metavar="SEP",
    help="Write the key before the value, with SEP between them."
)
@click.option("--headers", is_flag=True, help="The headers before everything: NAME:VALUE,NAME:VALUE and a tab.")
@click.option("--null-value", callback=escaped, default="null", show_default=True, metavar="TEXT",
              help="The text that stands for null.")  # fmt: skip
@click.option("--delimiter", "-D", default=r"\n", show_default=True, callback=escaped,
              help="The text that ends a record.")  # fmt: skip
@click.option("--format", "-f", "form", metavar="FORMAT",
              help="A record as FORMAT says, such as '%t %p %o %k %s'; the letters are below.")  # fmt: skip
@click.option("--raw", is_flag=True, help="On a terminal too, write bytes as they are.")
@click.option("--json", "as_json", is_flag=True, help="Each record as a JSON object on a line, without any loss.")
@click.option("--setting", "-X", "settings", multiple=True, metavar="NAME=VALUE",
              help="A setting of the consumer by Kafka's name, such as fetch.max.bytes=99999; repeatable.")  # fmt: skip
@address_options
def command(topics: Sequence[str], bootstrap_server: str, timeout_s: float, **how: Any) -> None:
    """Write the records of TOPICs to standard output; by default those that arrive from now on.

    Separators, delimiters and formats may be written with \\n, \\t, \\r, \\0, \\\\ and \\xNN. Output to a file or a
    pipe is byte for byte; on a terminal control characters are shown as escapes. A group's offsets are
    committed once the records before them are written.

    \b
    The letters of --format are those of kcat:
      %t  topic      %k  key          %K  bytes of the key, -1 if it is null
      %p  partition  %s  value        %S  bytes of the value, -1 if it is null
      %o  offset     %T  time in ms   %R  the same, as 4 bytes, big-endian
      %%  percent    %h  headers: NAME=VALUE,NAME=VALUE

    A record ends with the delimiter, which is added unless FORMAT ends with it; --delimiter '' adds none.

    Exit codes: 0 all is written, or the output's reader closed it; 1 the broker refused or could not be
    reached; 2 the command, its options or a setting are wrong; 130 ended by Ctrl-C; 143 by SIGTERM.
    """
    start, shape = start_offsets.chosen(how), _shape(how)
    if how["last"] and how["max_messages"]:
        raise click.UsageError("--last and --max-messages exclude each other: both limit the number of records")
    if how["group"] is not None and (how["partitions"] or start.kind not in ("earliest", "latest")):
        raise click.UsageError("--group chooses the partitions and offsets: remove the other options")
    consumer = _consumer(bootstrap_server, start, timeout_s, how)
    with _terminable(), consumer:
        with admin_of(bootstrap_server, timeout_s) as admin:
            partitions = _partitions(admin, topics, how["partitions"])
        _read(consumer, partitions, start, timeout_s, how, shape)


def _consumer(bootstrap_server: str, start: Start, timeout_s: float, how: Options) -> Consumer:
    """Return the consumer. Misuse for a wrong setting."""
    settings = {
        "bootstrap_servers": bootstrap_server,
        "group_id": how["group"],
        "enable_auto_commit": False,
        "auto_offset_reset": start.reset_policy,
        "allow_auto_create_topics": False,
        "isolation_level": how["isolation_level"],
        "default_api_timeout_ms": max(1, int(timeout_s * 1000)),
    }
    from_x = client_settings(how["settings"], "consumer", CONSUMER)
    try:
        return Consumer(**{**profiles.merged(settings, BY_OPTION, CONSUMER), **from_x})
    except ConfigError as error:
        raise Misuse(profiles.dotted(error.message)) from error


def _read(
    consumer: Consumer,
    partitions: Sequence[TopicPartition],
    start: Start,
    timeout_s: float,
    how: Options,
    shape: Callable[[Record], bytes],
) -> None:
    """Read the partitions, and write their records in the shape that the options ask for."""
    commits = WrittenCommits(consumer) if how["group"] is not None else None
    if commits:
        consumer.subscribe({partition.topic for partition in partitions}, listener=commits)
    else:
        consumer.assign(partitions)
        start_offsets.seek(consumer, start, partitions)
    ends = consumer.end_offsets(partitions) if how["exit_at_end"] or how["last"] else None
    if ends is None and start.kind == "latest":
        _hint()
    skips = Skips(consumer, commits, allowed=how["skip_damaged"])
    found = batches(consumer, ends, how["max_messages"], timeout_s, skips.meet)
    if how["last"]:
        found = iter([newest(found, how["last"])])
    with _Sink(shape, commits, skips) as sink:
        for batch in found:
            sink.write(batch)


def _partitions(admin: Admin, topics: Sequence[str], wanted: Collection[int]) -> list[TopicPartition]:
    """Return the partitions to read. Failure for a topic or a partition that does not exist."""
    found = []
    for name, _, _, partitions, _ in admin.topics(list(dict.fromkeys(topics))):
        there = [p.partition for p in partitions]
        missing = sorted(set(wanted) - set(there))
        if missing:
            raise Failure(f"topic {name} has no partition {missing[0]}: it has {len(there)}, numbered from 0")
        found += [TopicPartition(name, index) for index in there if not wanted or index in wanted]
    return found


def _shape(how: Options) -> Callable[[Record], bytes]:
    """Return the function that formats a record. UsageError if options contradict each other."""
    ways = {"--format": how["form"] is not None, "--json": how["as_json"], "--headers": how["headers"],
            "--key": how["key"] or how["key_separator"] is not None}  # fmt: skip
    given = [option for option, is_given in ways.items() if is_given]
    if how["form"] is not None and len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} exclude each other: both define how a record is written")
    if how["as_json"]:
        return jsonlines.show
    shown = _text_shape(how)
    if sys.stdout.isatty() and not how["raw"]:
        return lambda record: delimited.harmless(shown(record))
    return shown


def _text_shape(how: Options) -> Callable[[Record], bytes]:
    if how["form"] is not None:
        try:
            by_format = formats.compiled(how["form"], how["delimiter"])
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--format") from None
        null = how["null_value"] or b""
        return lambda record: by_format(record, null)
    separator = how["key_separator"] if how["key_separator"] is not None else b"\t" if how["key"] else None
    notation = Notation(how["delimiter"], separator, how["headers"], how["null_value"])
    return lambda record: delimited.show(record, notation)


class _Sink:
    """Standard output, with the progress line and the commits of written records."""

    def __init__(self, shape: Callable[[Record], bytes], commits: WrittenCommits | None, skips: Skips) -> None:
        self._shape = shape
        self._commits = commits
        self._skips = skips
        self._out = sys.stdout.buffer
        self._progress = ProgressLine("read", shown=not sys.stdout.isatty())

    def write(self, batch: Sequence[Record]) -> None:
        """Write a batch. BrokenPipeError if the reader has left, which an empty batch detects too."""
        self._skips.say()
        if not batch:
            _check_reader()
            return
        data = b"".join(map(self._shape, batch))
        self._out.write(data)
        self._out.flush()
        self._progress.add(len(batch), len(data))
        if self._commits:
            self._commits.written(batch)

    def __enter__(self) -> "_Sink":
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.end()
        self._skips.say()
        if self._commits:
            self._commits.end()


def _check_reader() -> None:
    """BrokenPipeError if the reader of standard output has left: the command may never write, and so never notice."""
    try:
        number = sys.stdout.fileno()
    except (OSError, ValueError):  # standard output is closed or not a file
        return
    poll = select.poll()
    poll.register(number, 0)
    if any(event & select.POLLERR for _, event in poll.poll(0)):
        raise BrokenPipeError


def _hint() -> None:
    """Explain an empty terminal: no older records are shown."""
    if sys.stdout.isatty() and sys.stderr.isatty():
        click.echo("Waiting for new records. Ctrl-C ends it, --from-beginning shows older ones.",
                   err=True)  # fmt: skip


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the body as Ctrl-C does, so that the consumer leaves its group at once."""

    def end(*_: object) -> None:
        sys.exit(EXIT_TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
