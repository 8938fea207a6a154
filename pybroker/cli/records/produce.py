"""`pybroker produce`: write the lines of standard input or a file as records, and report those that fail."""

import contextlib
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, BinaryIO, Final, NamedTuple

import click

from pybroker import errors
from pybroker.cli import profiles
from pybroker.cli.main import EXIT_FAILED, EXIT_INTERRUPTED, Failure, Misuse, Whole, failure_of
from pybroker.cli.options import address_options, admin_of, client_settings, complete_topics, escaped, header
from pybroker.cli.output import Document
from pybroker.cli.records import delimited, jsonlines
from pybroker.cli.records.delimited import Notation, Outgoing
from pybroker.cli.records.progress import ProgressLine
from pybroker.client.admin import Admin
from pybroker.client.producing.producer import Delivery, Producer
from pybroker.client.settings import PRODUCER
from pybroker.config.settings import ConfigError
from pybroker.errors import KafkaError
from pybroker.model import CODECS

REQUEST_MS_MAX: Final = 30_000
_GRACE_S: Final = 1.0  # beyond the timeout, after which the producer gives a record up
PARTITION: Final = Whole(0, (1 << 31) - 1)


class Fixed(NamedTuple):
    """The fields of every record, unless its line sets them."""

    key: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    partition: int | None
    repartition: bool

    def of(self, record: Outgoing) -> Outgoing:
        partition = self.partition if self.repartition or self.partition is not None else record.partition
        key = self.key if record.key is None and self.key is not None else record.key
        return record._replace(key=key, headers=[*record.headers, *self.headers], partition=partition)


BY_OPTION: Final = {"acks": "acks", "compression_type": "compression"} | dict.fromkeys(
    ("max_block_ms", "delivery_timeout_ms", "request_timeout_ms"), "timeout_s"
)
"""Settings of the producer, and the options that set them."""


@click.command(name="produce")
@click.argument("topic", shell_complete=complete_topics)
@click.option("--file", "-f", "source", type=click.File("rb"), default="-", metavar="FILE",
              help="The file to read; without it, standard input.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Each line is a JSON object, as consume --json writes it.")
@click.option("--key", "-k", callback=escaped, metavar="KEY", help="The key of every record.")
@click.option("--key-separator", "-K", callback=escaped, metavar="SEP", help="Each line begins with a key and this.")
@click.option(
    "--header", "-H", "fixed", multiple=True, type=header, metavar="NAME=VALUE",
    help="A header of every record; repeatable."
)
@click.option("--headers", is_flag=True, help="Each line begins with NAME:VALUE,NAME:VALUE and a tab.")
@click.option("--null-value", callback=escaped, metavar="TEXT",
              help="A value, key or header that is just this text is null.")  # fmt: skip
@click.option("--delimiter", "-D", default=r"\n", show_default=True, callback=escaped,
              help="The end of a record; an empty one makes the whole input one record.")  # fmt: skip
@click.option("--partition", "-p", type=PARTITION, help="The partition of every record; without it, the key decides.")
@click.option("--repartition", is_flag=True, help="With --json, let the key decide, and not the partition in the line.")
@click.option("--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True,
              help="Which replicas must have a record before it counts as stored.")  # fmt: skip
@click.option("--compression", "-z", type=click.Choice(CODECS), default="none", show_default=True,
              help="How batches of records are compressed.")  # fmt: skip
@click.option("--setting", "-X", "settings", multiple=True, metavar="NAME=VALUE",
              help="A setting of the producer by Kafka's name, such as linger.ms=50; repeatable.")  # fmt: skip
@click.option("--create", is_flag=True, help="Let the broker create a missing topic, if it does that.")
@address_options
def command(topic: str, source: BinaryIO, bootstrap_server: str, timeout_s: float, **how: Any) -> None:
    r"""Write each line of the input as a record of TOPIC.

    Separators and delimiters may be written with \n, \t, \r, \0, \\ and \xNN. Any byte is allowed in a record.

    The command ends at the first record that the broker refuses. Standard error says why, and how many records were not
    stored.

    Exit codes: 0 every record is stored; 1 a record was refused, or the broker could not be reached; 2 the command, its
    options or a setting are wrong; 130 interrupted by Ctrl-C, after sending what was read.
    """
    _check(how)
    fixed = Fixed(how["key"], how["fixed"], how["partition"], how["repartition"])
    wait_ms = max(1, int(timeout_s * 1000))
    settings = {
        "bootstrap_servers": bootstrap_server,
        "acks": how["acks"],
        "compression_type": how["compression"],
        "max_block_ms": wait_ms,
        "delivery_timeout_ms": wait_ms,
        "request_timeout_ms": min(wait_ms, REQUEST_MS_MAX),
    }
    from_x = client_settings(how["settings"], "producer", PRODUCER)
    try:
        producer = Producer(**{**profiles.merged(settings, BY_OPTION, PRODUCER), **from_x})
    except ConfigError as error:
        raise Misuse(profiles.dotted(error.message)) from error
    with producer:
        if not how["create"]:
            with admin_of(bootstrap_server, timeout_s) as admin:
                _check_topic(admin, topic)
        run = _ProduceRun(producer, topic, timeout_s, shown=not source.isatty())
        sys.exit(run.run(_records(source, how), fixed))


def _check(how: Document) -> None:
    """UsageError for options that contradict each other."""
    if how["key"] is not None and how["key_separator"] is not None:
        raise click.UsageError("--key and --key-separator exclude each other: one key for all records, or one in each")
    texts = ("key_separator", "null_value", "headers")
    if how["as_json"] and (any(how[name] not in (None, False) for name in texts) or how["delimiter"] != b"\n"):
        raise click.UsageError("--json has the whole record: --key-separator, --headers, --null-value and --delimiter "
                               "are for text")  # fmt: skip
    if how["repartition"] and not how["as_json"]:
        raise click.UsageError("--repartition needs --json")
    if how["key_separator"] == b"":
        raise click.UsageError("--key-separator cannot be empty")


def _check_topic(admin: Admin, topic: str) -> None:
    """Check that the topic exists, so that a typo does not create one."""
    try:
        admin.topics([topic])
    except KafkaError as error:
        if error.code == errors.UNKNOWN_TOPIC_OR_PARTITION:
            raise Failure(f"{error.message}; with --create the broker may make it") from error
        raise


def _records(source: BinaryIO, how: Document) -> Iterable[Outgoing]:
    """Yield the records of the input. Failure names the number of a malformed line."""
    parse: Callable[[bytes], Outgoing] = jsonlines.parse
    if not how["as_json"]:
        notation = Notation(how["delimiter"], how["key_separator"], how["headers"], how["null_value"])

        def parse(line: bytes) -> Outgoing:
            return delimited.parse(line, notation)

    for number, line in enumerate(delimited.split(source, b"\n" if how["as_json"] else how["delimiter"]), 1):
        try:
            yield parse(line)
        except ValueError as error:
            raise Failure(f"line {number} {error}") from error


class _ProduceRun:
    """Records in flight: their number, their outcomes, and the first that failed."""

    def __init__(self, producer: Producer, topic: str, timeout_s: float, *, shown: bool) -> None:
        self._producer = producer
        self._topic = topic
        self._timeout_s = timeout_s
        self._progress = ProgressLine("sent", shown=shown)
        self._under_way: deque[tuple[int, Delivery]] = deque()
        self._sent = 0
        self._failed = 0
        self._first: tuple[int, KafkaError] | None = None

    def run(self, records: Iterable[Outgoing], fixed: Fixed) -> int:
        """Send all records; return the exit code."""
        code = 0
        trouble: Failure | None = None
        try:
            for record in records:
                self._send(fixed.of(record))
                if self._first:
                    break
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        except Failure as failure:  # of a malformed line
            trouble, code = failure, EXIT_FAILED
        except KafkaError as error:  # of a record that could not be sent
            trouble, code = Failure(f"line {self._sent + 1}: {error.message}"), EXIT_FAILED
        except OSError as error:  # of the input
            trouble, code = failure_of(error), EXIT_FAILED
        self._flush()
        unknown = len(self._under_way)
        self._progress.end()
        stored = self._sent - self._failed - unknown
        if trouble:
            click.echo(f"pybroker: {trouble.message} (stored before it: {stored:,})", err=True)
        if self._first:
            number, why = self._first
            click.echo(f"pybroker: {self._failed:,} of {self._sent:,} records were not stored, the first of them line "
                       f"{number:,}: {why.message}", err=True)  # fmt: skip
            code = code or EXIT_FAILED
        if unknown:
            click.echo(f"pybroker: {unknown:,} of {self._sent:,} records were not acknowledged in time", err=True)
            code = code or EXIT_FAILED
        return code

    def _send(self, record: Outgoing) -> None:
        delivery = self._producer.send(
            self._topic,
            record.value,
            key=record.key,
            headers=record.headers,
            partition=record.partition,
            timestamp_ms=record.timestamp_ms,
        )
        self._sent += 1
        self._under_way.append((self._sent, delivery))
        self._progress.add(1, len(record.key or b"") + len(record.value or b""))
        self._settle()

    def _settle(self) -> None:
        """Forget the deliveries that are complete."""
        under_way = self._under_way
        while under_way and under_way[0][1].done():
            self._end(*under_way.popleft())

    def _end(self, number: int, delivery: Delivery) -> None:
        error = delivery.exception(0)
        if error is not None:
            self._failed += 1
            self._first = self._first or (number, error)

    def _flush(self) -> None:
        """Wait for records in flight; those still in flight afterwards have no outcome."""
        with contextlib.suppress(TimeoutError, KeyboardInterrupt):  # a second Ctrl-C does not wait
            self._producer.flush(self._timeout_s + _GRACE_S)
        under_way, self._under_way = self._under_way, deque()
        for number, delivery in under_way:
            if delivery.done():
                self._end(number, delivery)
            else:
                self._under_way.append((number, delivery))
