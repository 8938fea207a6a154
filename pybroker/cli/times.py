"""Parse times as people type them: milliseconds since the epoch, ISO 8601, or how long ago."""

import re
from datetime import UTC, datetime
from typing import Final

import click

from pybroker.clock import wall_ms

_AGO: Final = re.compile(r"-(\d{1,12})(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TIMESTAMP_MAX: Final = (1 << 63) - 1  # i64 on the wire

TIME_HELP: Final = "ISO 8601 (UTC without a zone), milliseconds since the epoch, or -90s, -15m, -2h, -7d ago."


def timestamp_ms(text: str, now_ms: int) -> int:
    """Return the time in milliseconds since the epoch. ValueError if the text is not a time."""
    ago = _AGO.fullmatch(text)
    if ago:
        moment = now_ms - int(ago[1]) * _UNIT_MS[ago[2]]
    elif text.isascii() and text.isdigit():
        moment = int(text)
    else:
        read = datetime.fromisoformat(text)
        moment = round((read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp() * 1000)
    if not 0 <= moment <= _TIMESTAMP_MAX:
        raise ValueError(f"{text} is out of the range of timestamps")
    return moment


def moment(text: str) -> int:
    """Parse a time: the type of an option."""
    try:
        return timestamp_ms(text, wall_ms())
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(f"{text!r} is not a time: {TIME_HELP}") from error
