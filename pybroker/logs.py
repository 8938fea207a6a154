"""Structured logging: one line for each event, with a name and fields, as logfmt or JSON, through `logging`."""

import json
import logging
import math
import re
import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio

_log = logging.getLogger(__name__)

FIELD_CHARS_MAX = 1000
SAID_CHARS_MAX = 200
SAID_BY_CLIENTS = frozenset({
    "cause", "client_id", "group", "mechanism", "of", "own", "owner", "principal", "resource", "token", "user", "users",
})  # fmt: skip
"""Fields whose text a client can choose, at any length: they are cut to SAID_CHARS_MAX. Other fields may quote such a
text, so they are cut to FIELD_CHARS_MAX, which leaves room for a path and a sentence."""

_PLAIN = re.compile(r"[^\s\"=\\]+")
TEXT: Final = "text"
JSON: Final = "json"
FORMATS: Final = (TEXT, JSON)
OWN_MEMBERS: Final = ("time", "level", "logger", "event", "exception")
"""The members of each JSON object of the log, besides the fields of its event. `exception` only has a traceback."""


def printable(text: str) -> str:
    """Escape line ends and other control characters of a text, as Python does, so that a terminal shows them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _text(value: object) -> str:
    if isinstance(value, float):
        value = f"{value:.3f}".rstrip("0").rstrip(".")
    text = str(value)
    if not text and isinstance(value, BaseException):  # some errors have no text, TimeoutError usually
        text = "timed out" if isinstance(value, TimeoutError) else type(value).__name__
    return text


def _most(field: str) -> int:
    return SAID_CHARS_MAX if field in SAID_BY_CLIENTS else FIELD_CHARS_MAX


def _quote(value: object, most: int) -> str:
    """Format a value as one logfmt word: quoted if it is empty or has a space, quote or equals sign; cut to `most`
    characters."""
    text = _text(value)
    if len(text) <= most and _PLAIN.fullmatch(text) and text.isprintable():
        return text
    escaped = printable(text[: most + 1].replace("\\", "\\\\").replace('"', '\\"'))
    if len(text) > most or len(escaped) > 2 * most:  # escaping turns one character into up to ten
        escaped = f"{escaped[:most]}..."
    return f'"{escaped}"'


def event(
    logger: logging.Logger, level: int, name: str, *, exc_info: BaseException | bool | None = None, **fields: object
) -> None:
    """Log one event. Fields that are None are left out; `exc_info` adds a traceback."""
    if not logger.isEnabledFor(level):
        return
    there = {key: value for key, value in fields.items() if value is not None}
    words = [name, *(f"{key}={_quote(value, _most(key))}" for key, value in there.items())]
    told = {"told": (name, {key: _plain(key, value) for key, value in there.items()})} if in_json() else None
    logger.log(level, "%s", " ".join(words), exc_info=exc_info, stacklevel=2, extra=told)


class Unfailing(logging.LoggerAdapter[logging.Logger]):
    """A logger for clients whose calls never raise: a log handler of the program that fails, or calls sys.exit(), must
    not stop the thread that sends and fetches. Ctrl-C in the main thread is still raised."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        try:
            self.logger.log(level, msg, *args, **{**kwargs, "stacklevel": kwargs.get("stacklevel", 1) + 1})
        except Exception:
            pass
        except BaseException:
            if threading.current_thread() is threading.main_thread():
                raise


def unfailing(name: str) -> Unfailing:
    return Unfailing(logging.getLogger(name), {})


def log_late_failure(task: "asyncio.Task[object]") -> None:
    """Log the failure of a task that no caller waits for any more; a callback for `add_done_callback`."""
    if not task.cancelled() and (problem := task.exception()) is not None:
        event(_log, logging.WARNING, "request failed after it timed out", reason=problem)


def _plain(field: str, value: object) -> object:
    """Return the value of a field for JSON: numbers and booleans as they are, and text that is cut as in logfmt."""
    if isinstance(value, int):  # booleans too
        return value
    if isinstance(value, float) and math.isfinite(value):
        return round(value, 3)
    text, most = _text(value), _most(field)
    return text if len(text) <= most else f"{text[:most]}..."


class Logfmt(logging.Formatter):
    """Formats lines as `time level logger event key=value ...`, with UTC times in milliseconds; tracebacks follow."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return _utc(record)


class JsonLines(logging.Formatter):
    """Formats each record as one line with a JSON object in ASCII: OWN_MEMBERS and the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        name, fields = getattr(record, "told", None) or (_cut(record.getMessage()), {})
        told = {"time": _utc(record), "level": record.levelname, "logger": record.name, "event": name, **fields}
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told)


def _utc(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def _cut(text: str) -> str:
    return text if len(text) <= FIELD_CHARS_MAX else f"{text[:FIELD_CHARS_MAX]}..."


_handlers: Final[list[logging.Handler]] = []
"""The handler of `to_stderr`, if it was called."""


def in_json() -> bool:
    """True if this process logs to standard error as JSON."""
    return bool(_handlers) and isinstance(_handlers[0].formatter, JsonLines)


def to_stderr(level: int = logging.INFO, form: str = TEXT) -> None:
    """Send the records of every pybroker logger to standard error, in one of FORMATS. Again only sets the level.

    As JSON, warnings of other libraries and uncaught exceptions are lines too: a traceback of Python would be many."""
    root = logging.getLogger("pybroker")
    root.setLevel(level)
    if _handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == JSON else Logfmt())
    _handlers.append(handler)
    root.addHandler(handler)
    root.propagate = False
    if form == JSON:
        logging.getLogger().addHandler(handler)  # its level is WARNING
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
        threading.excepthook = lambda told: _log_uncaught(told.exc_type, told.exc_value, told.exc_traceback)
        sys.unraisablehook = lambda told: _log_uncaught(told.exc_type, told.exc_value, told.exc_traceback)


def _log_uncaught(kind: type[BaseException], problem: BaseException | None, _: TracebackType | None) -> None:
    if not issubclass(kind, SystemExit):
        event(_log, logging.CRITICAL, "uncaught exception", reason=problem or kind.__name__, exc_info=problem)
