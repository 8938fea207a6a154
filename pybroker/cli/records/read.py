"""`pybroker read`: a topic as a table, into a Parquet, Arrow, CSV or JSON file, or its first rows on the terminal."""

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypedDict, Unpack

import click

from pybroker.cli import output, profiles
from pybroker.cli.interrupts import importing
from pybroker.cli.main import Failure, Misuse, Whole
from pybroker.cli.options import address_options, client_settings, complete_topics
from pybroker.cli.output import Document
from pybroker.cli.records.pipeline import read_registry_config
from pybroker.cli.records.progress import ProgressLine
from pybroker.cli.times import moment
from pybroker.client.settings import CONSUMER
from pybroker.config.settings import ConfigError
from pybroker.errors import KafkaError

if TYPE_CHECKING:
    from pybroker.frames.bad_records import Collected
    from pybroker.frames.files import TableFile
    from pybroker.frames.layouts import Piece
    from pybroker.frames.scanning import Scan, TopicRequest

HEAD_ROWS: Final = 10
BY_OPTION: Final = {
    "isolation_level": "isolation_level",
    "default_api_timeout_ms": "timeout_s",
    "group_id": None,
    "group_instance_id": None,
    "enable_auto_commit": None,
    "auto_offset_reset": None,
    "allow_auto_create_topics": None,
}
"""Settings of the consumer, and the options by which they are typed; None: this command decides."""
_OFFSET: Final = re.compile(r"-?\d{1,18}")
POINT_HELP: Final = "earliest, latest, an offset, -N (N records before the end), or a time: ISO 8601, or -15m ago."


Point = int | str | datetime


class ReadOptions(TypedDict):
    """The values of the options by name, without those of the address."""

    to: Path | None
    start: Point
    end: Point
    partitions: Sequence[int]
    form: Literal["json", "avro"] | None
    schema: str | None
    registry: str | None
    registry_config: str | None
    columns: str | None
    max_messages: int | None
    errors: Path | None
    log_dirs: Sequence[Path]
    isolation_level: str
    settings: Sequence[str]


def point(text: str) -> Point:
    """The type of --start and --end."""
    if text in ("earliest", "latest"):
        return text
    if _OFFSET.fullmatch(text):
        return int(text)
    return datetime.fromtimestamp(moment(text) / 1000, UTC)


@click.command(name="read")
@click.argument("topic", shell_complete=complete_topics)
@click.option("--to", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
              help="The file to write: .parquet, .arrow, .csv or .json (an object a line).")  # fmt: skip
@click.option("--start", type=point, default="earliest", show_default=True, metavar="POINT", help=POINT_HELP)
@click.option("--end", type=point, default="latest", show_default=True, metavar="POINT",
              help="Where to end: what lies before this point is read.")  # fmt: skip
@click.option("--partition", "-p", "partitions", multiple=True, type=Whole(0, (1 << 31) - 1),
              help="Read only this partition; repeatable.")  # fmt: skip
@click.option("--format", "-f", "form", type=click.Choice(["json", "avro"]),
              help="Decode values into columns; without it records are as they are.")  # fmt: skip
@click.option("--schema", metavar="TEXT|FILE",
              help="NAME:TYPE,... with types of Arrow, such as id:int64,at:timestamp[ms]; or an Avro record as JSON or "
              "in a file. Without it the types of JSON are those of the first records.")  # fmt: skip
@click.option("--registry", metavar="URL,...", help="The schema registry for the ids in Avro's frames.")
@click.option("--registry-config", metavar="FILE", help="The registry's login and CA, as for `pybroker pipeline`.")
@click.option("--columns", metavar="NAME,...", help="Only these: fields, and kafka_offset, kafka_key and the like.")
@click.option("--max-messages", "-n", type=Whole(0), metavar="N",
              help=f"End after N rows; without --to after {HEAD_ROWS}.")  # fmt: skip
@click.option("--errors", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
              help="The file for records that do not decode, instead of a failure at the end.")  # fmt: skip
@click.option("--log-dir", "log_dirs", multiple=True, metavar="DIR",
              type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Read the files in a broker's log dir, without a broker; repeatable.")  # fmt: skip
@click.option("--isolation-level", type=click.Choice(["read_uncommitted", "read_committed"]),
              default="read_uncommitted", show_default=True,
              help="read_committed leaves out aborted transactions.")  # fmt: skip
@click.option("--setting", "-X", "settings", multiple=True, metavar="NAME=VALUE",
              help="A setting of the consumer by Kafka's name; repeatable.")  # fmt: skip
@address_options
def command(topic: str, bootstrap_server: str, timeout_s: float, **how: Unpack[ReadOptions]) -> None:
    """Read TOPIC as a table, up to where it ends now, and write it to a file; without --to show its first rows.

    Records that do not decode are left out. When the others are written, the command fails with their number and the
    reason of the first one, unless --errors has a file for them.

    Exit codes: 0 done; 1 some records do not decode, or the broker refused or could not be reached; 2 the command, its
    options or a setting are wrong; 130 ended by Ctrl-C.
    """
    with importing(), _as_failures():
        from pybroker.frames import files, scanning
    with _as_failures():
        settings: Document = {} if how["log_dirs"] else _settings(bootstrap_server, timeout_s, how)
        most = how["max_messages"]
        request = scanning.TopicRequest(
            topic,
            list(how["log_dirs"]) or None,
            settings,
            how["start"],
            how["end"],
            list(how["partitions"]) or None,
            None if how["columns"] is None else how["columns"].split(","),
            how["form"],
            _schema(how["schema"]),
            how["registry"],
            read_registry_config(how["registry_config"]),
            HEAD_ROWS if most is None and how["to"] is None else most,
        )
        if how["to"] is not None:
            files.writer_of(how["to"])
        if how["errors"] is not None and files.writer_of(how["errors"]) is files.writer_of(Path("x.csv")):
            raise Misuse(f"--errors {how['errors']}: bytes are kept in .parquet, .arrow and .json files")
        _read(request, how["to"], how["errors"])


def _read(request: "TopicRequest", to: Path | None, bad: Path | None) -> None:
    """Read a topic into a file, or its first rows onto the terminal. Failure for records that do not decode."""
    from pybroker.frames.bad_records import BadRecords, Collected, empty_fields
    from pybroker.frames.scanning import Scan

    errors = Collected("raise")
    with Scan(request) as scan:
        rows = _show(scan, errors) if to is None else _write(scan, to, errors)
        lost, empty = scan.unknown, scan.empty
    if bad is not None:
        _write_errors(errors, bad)
    if lost:
        words = f"fields that only later records have are left out: {', '.join(lost)}; --schema would have them"
        click.echo(f"pybroker: warning: {words}", err=True)
    if empty:
        click.echo(f"pybroker: warning: {empty_fields(empty)}", err=True)
    try:
        if bad is None:
            errors.end()
    except BadRecords as problem:
        raise Failure(f"{rows:,} rows read; {problem}; --errors FILE keeps such records") from None


@contextlib.contextmanager
def _as_failures() -> Iterator[None]:
    """Arguments that make no sense are a misuse, a package that is missing a failure."""
    try:
        yield
    except ConfigError as error:
        raise Misuse(profiles.dotted(error.message)) from error
    except ModuleNotFoundError as error:
        raise Failure(str(error)) from error
    except (ValueError, TypeError) as error:
        if isinstance(error, KafkaError):
            raise
        raise Misuse(str(error)) from error


def _settings(bootstrap_server: str, timeout_s: float, how: ReadOptions) -> Document:
    """The settings of the consumer. Misuse for one that is wrong."""
    typed = {
        "bootstrap_servers": bootstrap_server,
        "isolation_level": how["isolation_level"],
        "default_api_timeout_ms": max(1, int(timeout_s * 1000)),
        "allow_auto_create_topics": False,
    }
    return {**profiles.merged(typed, BY_OPTION, CONSUMER), **client_settings(how["settings"], "consumer", CONSUMER)}


def _schema(text: str | None) -> object:
    """The schema of --schema: a mapping of names to types, or Avro as text or path, which `frames` reads itself."""
    if text is None or text.lstrip().startswith("{") or Path(text).exists():
        return text
    fields = re.split(r",(?![^\[(<]*[\])>])", text)  # not the commas within a type
    pairs = [field.partition(":") for field in fields]
    if not all(name.strip() and colon and kind.strip() for name, colon, kind in pairs):
        raise Misuse(f"--schema is {text!r}: expected is NAME:TYPE,NAME:TYPE or the name of an .avsc file")
    return {name.strip(): kind.strip() for name, _, kind in pairs}


def _write(scan: "Scan", path: Path, errors: "Collected") -> int:
    from pybroker.frames.files import TableFile

    rows = 0
    progress = ProgressLine("read", shown=True)
    with TableFile(path, scan.layout.schema) as file:
        try:
            for piece in scan.pieces():
                rows += _take(piece, errors, file)
                progress.add(piece.rows.num_rows, piece.rows.nbytes)
        finally:
            progress.end()
    return rows


def _take(piece: "Piece", errors: "Collected", file: "TableFile") -> int:
    file.write(piece.rows)
    errors.add(piece.errors)
    return int(piece.rows.num_rows)


def _write_errors(errors: "Collected", path: Path) -> None:
    from pybroker.frames.files import TableFile

    with TableFile(path, errors.table.schema) as file:
        for batch in errors.table.to_batches():
            file.write(batch)


def _show(scan: "Scan", errors: "Collected") -> int:
    """The rows as a table on standard output."""
    from pybroker.frames.files import as_text

    names = scan.layout.schema.names
    rows: list[tuple[str | None, ...]] = []
    for piece in scan.pieces():
        errors.add(piece.errors)
        columns = zip(names, piece.rows.columns, strict=True)
        rows += zip(*(as_text(column, name, strict=False).to_pylist() for name, column in columns), strict=True)
    output.table(names, rows)
    sys.stdout.flush()
    return len(rows)
