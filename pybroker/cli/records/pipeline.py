"""`pybroker pipeline`: write topics into a table of Parquet files, Delta Lake or Iceberg, on Spark."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from pybroker.cli import file_permissions, output, profiles, secrets
from pybroker.cli.interrupts import importing
from pybroker.cli.main import Failure, Misuse, Whole
from pybroker.cli.options import Seconds, bootstrap_option, complete_topics, name_value
from pybroker.config import ConfigError
from pybroker.config.broker import read_properties
from pybroker.errors import INVALID_CONFIG, KafkaError

if TYPE_CHECKING:
    from pybroker.spark.pipeline import Job

F = TypeVar("F", bound=Callable[..., object])
EVERY_S_MAX: Final = 86_400.0
SECRETS: Final = ("kafka.sasl.password", "kafka.sasl.jaas.config")
"""Options of the source that are refused as arguments; they belong into --command-config."""


def _all(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Combine the options, in their order, into one decorator."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


source_options = _all(
    bootstrap_option,
    click.option("--topics", "-t", metavar="NAME,...", help="The topics to read.", shell_complete=complete_topics),
    click.option("--pattern", metavar="REGEX", help="Instead of --topics: every topic whose whole name matches."),
    click.option(
        "--from",
        "starting_offsets",
        default="earliest",
        show_default=True,
        metavar="earliest|latest|JSON",
        help="The first run's start; offsets are JSON, as Spark writes them.",
    ),
    click.option(
        "--max-records",
        type=Whole(min=1),
        default=5_000_000,
        show_default=True,
        help="The most records in a batch.",
    ),
    click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="One more option of the source."),
)
format_options = _all(
    click.option(
        "--format",
        "format_",
        type=click.Choice(["json", "avro", "raw"]),
        default="json",
        show_default=True,
        help="The format of the values; raw stores them as they are.",
    ),
    click.option("--schema", metavar="TEXT|@FILE", help="For JSON: 'id bigint, kind string'. For Avro: its JSON."),
    click.option("--registry", metavar="URL,...", help="The schema registry for the ids in Avro's frames."),
    click.option(
        "--registry-config",
        metavar="FILE",
        help="The registry's login and CA: basic.auth.user.info or bearer.auth.token, ssl.ca.location.",
    ),
    click.option(
        "--schemas",
        metavar="DIR|FILE",
        help="Avro schemas by id, instead of a registry: files 5.avsc, or a file {\"5\": SCHEMA, ...}.",
    ),
    click.option("--dead-letters", metavar="TOPIC",
    help="The topic for records that do not parse; without it, they are only counted."),
)
table_options = _all(
    click.option(
        "--table", required=True, metavar="DIR|URI|NAME", help="The table's place; for Iceberg CATALOG.NAMESPACE.NAME."
    ),
    click.option(
        "--table-format",
        type=click.Choice(["parquet", "delta", "iceberg"]),
        default="parquet",
        show_default=True,
        help="Plain files need a local disk or HDFS; the others also work on object stores, and isolate readers.",
    ),
    click.option(
        "--table-option",
        "table_options",
        multiple=True,
        metavar="NAME=VALUE",
        help="An option of the table's store or catalog, such as AWS_ENDPOINT_URL=...; may be repeated.",
    ),
    click.option(
        "--partition-by",
        default="date",
        show_default=True,
        metavar="COLUMN,...",
        help="A directory for each value: columns of the schema, date or hour; may be empty.",
    ),
    click.option("--checkpoint", metavar="DIR|URI", help="Where Spark keeps the offsets; in the table if not given."),
    click.option(
        "--compact-files",
        type=Whole(min=0),
        default=16,
        show_default=True,
        metavar="N",
        help="Merge each directory's small files after N batches; 0: never.",
    ),
)
run_options = _all(
    click.option(
        "--every",
        "trigger_s",
        type=Seconds(0, EVERY_S_MAX),
        default=10.0,
        show_default=True,
        metavar="SECONDS",
        help="How often a batch begins.",
    ),
    click.option("--once", is_flag=True, help="Read the records that are there now, and stop."),
    click.option("--name", default="pybroker-pipeline", show_default=True,
    help="The name of the query, and of its group."),
    click.option(
        "--master",
        metavar="URL",
        help="A Spark cluster; by default that of spark-submit or spark-defaults.conf, else local[*].",
    ),
    click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; may be repeated."),
    click.option(
        "--metrics-port",
        type=Whole(0, 65535),
        help="Serve metrics to Prometheus on this port of every interface.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Write a JSON document with the result at the end."),
)


@click.command(name="pipeline")
@source_options
@format_options
@table_options
@run_options
def command(metrics_port: int | None, as_json: bool, **given: Any) -> None:
    """Write topics into a table until SIGTERM or Ctrl-C, each record once.

    The next run continues from the checkpoint. Progress is reported on standard error.

    Exit codes: 0 it ended by --once, SIGTERM or Ctrl-C; 1 the query failed; 2 an option is wrong, or Spark or Java is
    missing.
    """
    with importing():
        from pybroker.spark.pipeline import run
        from pybroker.spark.pipeline.progress import PipelineProgress
        from pybroker.spark.stderr import standard_error

    sys.stderr = standard_error()  # also for the sentence of a failure
    try:
        done = run(_job(**given), PipelineProgress(metrics_port))
    except KafkaError as error:
        raise _failure(error) from error
    if as_json:
        output.as_json(done)


def _job(
    bootstrap_server: str,
    topics: str | None,
    pattern: str | None,
    starting_offsets: str,
    max_records: int,
    options: Sequence[str],
    format_: str,
    schema: str | None,
    registry: str | None,
    registry_config: str | None,
    schemas: str | None,
    dead_letters: str | None,
    table: str,
    table_format: str,
    table_options: Sequence[str],
    partition_by: str,
    checkpoint: str | None,
    compact_files: int,
    trigger_s: float,
    once: bool,
    name: str,
    master: str | None,
    conf: Sequence[str],
) -> "Job":
    """Return the job that the options describe. Raises KafkaError, or Misuse, if they contradict each other."""
    from pybroker.spark.pipeline import Job

    secured = {f"kafka.{name.replace('_', '.')}": text for name, text in profiles.security().items()}
    return Job(
        bootstrap=bootstrap_server,
        topics=topics,
        pattern=pattern,
        starting_offsets=starting_offsets,
        max_offsets=max_records,
        options=secured | _options(options),
        format=format_,  # type: ignore[arg-type]  # click has checked it
        schema=_text(schema),
        registry=registry,
        registry_options=read_registry_config(registry_config),
        schemas=schemas,
        dead_letters=dead_letters,
        table=table,
        table_format=table_format,  # type: ignore[arg-type]
        table_options=_of_others(table_options, "--table-option", "the environment"),
        partition_by=tuple(filter(None, (column.strip() for column in partition_by.split(",")))),
        checkpoint=checkpoint,
        compact_files=compact_files,
        trigger_s=None if once else trigger_s,
        name=name,
        master=master,
        conf=_of_others(conf, "--conf", "spark-defaults.conf"),
    )


def _failure(error: KafkaError) -> Exception:
    if error.code == INVALID_CONFIG:
        return Misuse(profiles.dotted(error.message))
    return Failure(error.message)


def _options(texts: Sequence[str]) -> dict[str, str]:
    """Parse NAME=VALUE options. Misuse for a secret."""
    given = dict(name_value(text, "--option") for text in texts)
    for name in (name for name in given if name.lower() in SECRETS):
        raise secrets.refused(name.lower().removeprefix("kafka."))
    return given


def read_registry_config(file: str | None) -> dict[str, str]:
    """Read the file of --registry-config. Misuse if it is malformed, or readable by other users."""
    from pybroker.avro.writer_schemas import SECRETS as OF_REGISTRY

    if file is None:
        return {}
    try:
        told = {name: text for name, text, _ in read_properties(file)}
    except ConfigError as error:
        raise Misuse(error.message) from error
    for name in OF_REGISTRY & told.keys():
        file_permissions.check_owned(file, name)
    return told


def _of_others(texts: Sequence[str], option: str, place: str) -> dict[str, str]:
    """Parse settings of Spark, or of the table's storage; warn about secrets, which belong into `place`."""
    given = dict(name_value(text, option) for text in texts)
    secrets.warn_of_others(given, place)
    return given


def _text(given: str | None) -> str | None:
    """Return an option's text; after @, that of a file."""
    if given is None or not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Misuse(f"the schema in {given[1:]} is not UTF-8 text: {error.reason}") from error
