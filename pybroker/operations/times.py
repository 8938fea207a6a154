"""Times as people type and read them."""

import re
from datetime import UTC, datetime
from typing import Final

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


def time_text(timestamp_ms: int) -> str:
    """Return milliseconds since the epoch as UTC; the number itself if it is outside the calendar."""
    if timestamp_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"
