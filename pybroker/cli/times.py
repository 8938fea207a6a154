"""Options that are times."""

import click

from pybroker.clock import wall_ms
from pybroker.operations.times import TIME_HELP, timestamp_ms

__all__ = ["TIME_HELP", "moment"]


def moment(text: str) -> int:
    """Parse a time: the type of an option."""
    try:
        return timestamp_ms(text, wall_ms())
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(f"{text!r} is not a time: {TIME_HELP}") from error
