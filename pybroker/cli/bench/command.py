"""`pybroker bench`: run the same workloads on any broker that speaks Kafka's protocol, and measure them."""

import contextlib
import importlib.util
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from pybroker import extras
from pybroker.cli import output, profiles
from pybroker.cli.bench import chart
from pybroker.cli.bench.load import READ_MIB, WORKLOADS, Bench, Measurement, Prepared, Workload
from pybroker.cli.main import Misuse, Whole
from pybroker.cli.options import Seconds, cluster_options
from pybroker.cli.output import Document
from pybroker.config.settings import ConfigError

REFRESH_S: Final = 0.1


def _names(ctx: click.Context, option: click.Parameter, text: str | None) -> list[Workload]:
    if text is None:
        return list(WORKLOADS.values())
    wanted = [name.strip().upper() for name in text.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in WORKLOADS]
    if unknown or not wanted:
        raise click.BadParameter(f"{', '.join(unknown) or text!r}: the workloads are {', '.join(WORKLOADS)}")
    return [WORKLOADS[name] for name in wanted]


@click.command(name="bench")
@click.option("--only", "workloads", callback=_names, metavar="W1,F1,...", help="Run only these workloads.")
@click.option("--seconds", type=Seconds(0.1, 3600), default=5.0, show_default=True, help="How long each workload runs.")
@click.option("--warm", type=Seconds(0, 3600), default=1.0, show_default=True, metavar="SECONDS",
              help="How long each workload runs before that, not counted: a JVM needs it.")  # fmt: skip
@click.option("--read-mib", type=Whole(1, 1 << 20), default=READ_MIB, show_default=True, metavar="MIB",
              help="How much to write first for the workloads that read.")  # fmt: skip
@click.option("--svg", type=click.Path(dir_okay=False, writable=True, path_type=Path), metavar="FILE",
              help="Also draw the figures into this file.")  # fmt: skip
@cluster_options
def command(
    workloads: list[Workload],
    seconds: float,
    warm: float,
    read_mib: int,
    svg: Path | None,
    bootstrap_server: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Measure what a broker can do: requests, records and megabytes a second, and latencies.

    Each workload uses its own topic, which is deleted afterwards. Each writes at most 2 GiB, so
    that the broker is measured and not its disk. The generator takes a core: give the broker another one, or
    run this on another machine.

    \b
    W1  150 x 100 B a request, 4 connections, 5 deep    W6  2,000 requests/s of 10 records, timed from when due
    W2  1,000 x 1 KiB a request (1 MiB)                 W7  10,000 requests/s of one record
    W3  one record a request, 1 connection              W8  as W1, over 1,000 partitions
    W4  one record a request, 16 connections            F1  read 1 MiB a request, 1 connection
    W5  the same, 5 requests deep                       F2  the same, 4 connections
                                                        F3  read 64 KiB a request, 4 connections

    Exit codes: 0 done; 1 the broker refused or could not be reached; 2 the command or its options are wrong.
    """
    if svg is not None:
        check_svg(svg)
    outcomes = []
    with _bench(bootstrap_server, timeout_s, read_mib << 20) as bench:
        for workload in workloads:
            with bench.prepared(workload) as prepared:
                if warm:
                    _run(prepared, warm, "warming up")
                outcomes.append(_run(prepared, seconds, workload.shows))
    if svg is not None:
        figures = [_figure(o, bootstrap_server) for o in outcomes]
        chart.draw(svg, figures, f"pybroker bench, {seconds:g} s for each workload, {time.strftime('%Y-%m-%d')}")
    if as_json:
        output.as_json([_document(o) for o in outcomes])
    else:
        tell(outcomes)


def _bench(bootstrap: str, timeout_s: float, read_bytes: int) -> Bench:
    try:
        return Bench(bootstrap, timeout_s=timeout_s, read_bytes=read_bytes, **profiles.security())
    except ConfigError as error:
        raise Misuse(profiles.dotted(error.message)) from error


def tell(outcomes: Sequence[Measurement]) -> None:
    """Print the figures, and below them a description of each workload."""
    output.table(("", "requests/s", "records/s", "MB/s", "p50 ms", "p99 ms", "p99.9 ms", "errors"),
                 [_row(o) for o in outcomes])  # fmt: skip
    click.echo()
    for o in outcomes:
        click.echo(f"{o.workload}  {WORKLOADS[o.workload].shows}")


def _row(o: Measurement) -> tuple[output.Cell, ...]:
    rates = (f"{o.requests_s:,.0f}", f"{o.records_s:,.0f}", f"{o.mb_s:,.1f}")
    latencies = (f"{us / 1000:,.3f}" for us in (o.p50_us, o.p99_us, o.p999_us))
    return (o.workload, *rates, *latencies, output.count(o.errors))


def check_svg(path: Path) -> None:
    """Check before an hour of measuring that the chart can be drawn and written after it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError(f"--svg needs matplotlib, which is not installed: {extras.install('chart')}")
    try:
        path.touch()
    except OSError as problem:
        raise click.BadParameter(f"{path}: {problem.strerror}", param_hint="--svg") from None


def _figure(o: Measurement, broker: str) -> chart.Figure:
    workload = WORKLOADS[o.workload]
    times = (o.p50_us, o.p99_us, o.p999_us)
    return chart.Figure(o.workload, workload.shows, broker, o.requests_s, o.records_s, *times, bool(workload.rate))


def _document(o: Measurement) -> Document:
    rates = {"requests_s": o.requests_s, "records_s": o.records_s, "mb_s": o.mb_s}
    shown = {name: round(value, 1) for name, value in rates.items()}
    return {"shows": WORKLOADS[o.workload].shows} | o._asdict() | shown


def _run(prepared: Prepared, seconds: float, what: str) -> Measurement:
    """Run a workload, with a progress line on a terminal; Ctrl-C ends it between two requests."""
    done: list[Measurement | BaseException] = []

    def work() -> None:
        try:
            done.append(prepared.run(seconds))
        except BaseException as error:
            done.append(error)

    thread = threading.Thread(target=work, name="bench")
    with _progress(f"{prepared.workload.name} {what}", seconds) as show:
        thread.start()
        try:
            while thread.is_alive():
                thread.join(REFRESH_S)
                show(prepared.load.tally["requests"])
        finally:
            prepared.load.stop()
            thread.join()
    if isinstance(done[0], BaseException):
        raise done[0]
    return done[0]


@contextlib.contextmanager
def _progress(what: str, seconds: float) -> Iterator[Callable[..., object]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[requests]:,} requests"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=seconds, requests=0)
        begun = time.monotonic()
        yield lambda requests: bar.update(task, completed=time.monotonic() - begun, requests=requests)
