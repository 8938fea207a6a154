"""`pybroker metrics`: write boards for Grafana, and rules of alerts for Prometheus."""

from pathlib import Path

import click

from pybroker.cli.main import Misuse, failure_of
from pybroker.cli.metrics.alerts import rules
from pybroker.cli.metrics.dashboards import BOARDS, dashboard


@click.command(name="metrics")
@click.option(
    "--dashboard", "directory", type=click.Path(path_type=Path, file_okay=False),
    help=f"Write a board for Grafana into this directory, as JSON, for each of: {', '.join(BOARDS)}.",
)  # fmt: skip
@click.option("--alerts", is_flag=True, help="Print a file of rules for Prometheus.")
def command(directory: Path | None, alerts: bool) -> None:
    """Write boards for Grafana, and rules of alerts for Prometheus, of the metrics that brokers have.

    Brokers serve metrics at their metrics.listener. The scrape job of a cluster must be named pybroker.

    Exit codes: 0 written; 1 a file cannot be written; 2 neither option is given.
    """
    if directory is None and not alerts:
        raise Misuse("nothing to write: give --dashboard DIRECTORY, --alerts, or both")
    if directory is not None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for name in BOARDS:
                (directory / f"pybroker-{name}.json").write_text(dashboard(name))
        except OSError as problem:
            raise failure_of(problem) from None
    if alerts:
        click.echo(rules(), nl=False)
