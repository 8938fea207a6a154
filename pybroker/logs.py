"""Structured logging: one line for each event, with a name and key=value pairs (logfmt), through `logging`."""

import logging
import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

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


def printable(text: str) -> str:
    """Escape line ends and other control characters of a text, as Python does, so that a terminal shows them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _quote(value: object, most: int) -> str:
    """Format a value as one logfmt word: quoted if it is empty or has a space, quote or equals sign; cut to `most`
    characters."""
    if isinstance(value, float):
        value = f"{value:.3f}".rstrip("0").rstrip(".")
    text = str(value)
    if not text and isinstance(value, BaseException):  # some errors have no text, TimeoutError usually
        text = "timed out" if isinstance(value, TimeoutError) else type(value).__name__
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
    words = [name]
    for key, value in fields.items():
        if value is not None:
            words.append(f"{key}={_quote(value, SAID_CHARS_MAX if key in SAID_BY_CLIENTS else FIELD_CHARS_MAX)}")
    logger.log(level, "%s", " ".join(words), exc_info=exc_info, stacklevel=2)


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


class Logfmt(logging.Formatter):
    """Formats lines as `time level logger event key=value ...`, with UTC times in milliseconds; tracebacks follow."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def to_stderr(level: int = logging.INFO) -> None:
    """Send the records of every pybroker logger to standard error. Again only sets the level."""
    root = logging.getLogger("pybroker")
    root.setLevel(level)
    if not any(isinstance(handler.formatter, Logfmt) for handler in root.handlers):
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(Logfmt())
        root.addHandler(handler)
        root.propagate = False
