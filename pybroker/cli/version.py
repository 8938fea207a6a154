"""`pybroker version`: pybroker's version, Python's and the machine."""

import json
import platform

import click

from pybroker import __version__


@click.command(name="version")
@click.option("--json", "as_json", is_flag=True, help="As a JSON document.")
def command(as_json: bool) -> None:
    """Print the version."""
    facts = {"pybroker": __version__, "python": platform.python_version(), "machine": platform.machine()}
    if as_json:
        click.echo(json.dumps(facts))
    else:
        click.echo(f"pybroker {__version__} (Python {facts['python']}, {facts['machine']})")
