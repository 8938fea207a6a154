"""One structured line an event: a name, then key=value pairs (logfmt), through the standard library's logging."""

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
"""Fields whose text a client can choose, at any length: SAID_CHARS_MAX of it are written. Other fields may quote such a
text, so they are cut, too, but leave room for a path and a sentence."""

_PLAIN = re.compile(r"[^\s\"=\\]+")


def printable(text: str) -> str:
    """The text with what a terminal would obey instead of showing (line ends, escapes) written as Python writes it."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _quote(value: Any, most: int) -> str:
    """The value as one logfmt word: quoted where it holds a space, a quote, an equals sign or nothing; cut where it has
    more than `most` characters."""
    if isinstance(value, float):
        value = f"{value:.3f}".rstrip("0").rstrip(".")
    text = str(value)
    if not text and isinstance(value, BaseException):  # some say nothing, TimeoutError as a rule
        text = "timed out" if isinstance(value, TimeoutError) else type(value).__name__
    if len(text) <= most and _PLAIN.fullmatch(text) and text.isprintable():
        return text
    escaped = printable(text[: most + 1].replace("\\", "\\\\").replace('"', '\\"'))
    if len(text) > most or len(escaped) > 2 * most:  # escaping makes up to ten characters of one
        escaped = f"{escaped[:most]}..."
    return f'"{escaped}"'


def event(logger: logging.Logger, level: int, name: str, **fields: Any) -> None:
    """Log one event; a field that is None is left out, `exc_info` adds the traceback that is being handled."""
    if not logger.isEnabledFor(level):
        return
    exc_info = fields.pop("exc_info", None)
    words = [name]
    for key, value in fields.items():
        if value is not None:
            words.append(f"{key}={_quote(value, SAID_CHARS_MAX if key in SAID_BY_CLIENTS else FIELD_CHARS_MAX)}")
    logger.log(level, "%s", " ".join(words), exc_info=exc_info, stacklevel=2)


class Unfailing(logging.LoggerAdapter[logging.Logger]):
    """The logger of a client, whose calls never raise: log handlers are the program's own code, and one that fails, or
    calls sys.exit(), must not stop the thread that sends and fetches. Ctrl-C in the main thread still does."""

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


def tell_late(task: "asyncio.Task[Any]") -> None:
    """A callback of a task: what nobody waits for any more is told in the log, if it failed."""
    if not task.cancelled() and (problem := task.exception()) is not None:
        event(_log, logging.WARNING, "request failed after it timed out", reason=problem)


class Logfmt(logging.Formatter):
    """`time level logger event key=value ...`, times in UTC with milliseconds; a traceback follows on its own lines."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def to_stderr(level: int = logging.INFO) -> None:
    """Send the records of every pybroker logger to standard error; calling it again only sets the level."""
    root = logging.getLogger("pybroker")
    root.setLevel(level)
    if not any(isinstance(handler.formatter, Logfmt) for handler in root.handlers):
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(Logfmt())
        root.addHandler(handler)
        root.propagate = False
