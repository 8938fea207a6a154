"""Sentences of a command on standard error, which are log events where `pybroker serve` logs as JSON."""

import logging

import click

from pybroker.logs import event, in_json, printable

log = logging.getLogger(__name__)


def warn(words: str) -> None:
    """Warn about something that does not stop the command."""
    if in_json():
        event(log, logging.WARNING, "command warning", reason=words)
    else:
        click.echo(f"pybroker: warning: {printable(words)}", err=True)


def fail(words: str) -> None:
    """Say why the command failed."""
    if in_json():
        event(log, logging.ERROR, "command failed", reason=words)
    else:
        click.echo(f"pybroker: {printable(words)}", err=True)
