"""Log lines: an event is one line, for any values, as text and as JSON."""

import json
import logging
import subprocess
import sys

import pytest

from pybroker.logs import FIELD_CHARS_MAX, OWN_MEMBERS, SAID_BY_CLIENTS, SAID_CHARS_MAX, event
from tests.harness import ROOT
from tests.rows import with_each
from tools import log_events


@with_each(
    ("value", "written"),
    [
        ("plain", "plain"),
        ("two words", '"two words"'),
        ('a "quote"', '"a \\"quote\\""'),
        ("", '""'),
        ("two\nlines", '"two\\nlines"'),
        (1.5, "1.5"),
        (0.1239, "0.124"),
        (OSError(2, "No such file"), '"[Errno 2] No such file"'),
        (TimeoutError(), '"timed out"'),
        (ConnectionResetError(), "ConnectionResetError"),
    ],
)
def test_a_value_is_one_word(caplog: pytest.LogCaptureFixture, value: object, written: str) -> None:
    caplog.clear()
    event(logging.getLogger("test"), logging.WARNING, "something happened", what=value, none=None)
    assert [record.getMessage() for record in caplog.records] == [f"something happened what={written}"]


def field(caplog: pytest.LogCaptureFixture, **fields: str) -> str:
    """The only field of a logged event, without its name."""
    caplog.clear()
    event(logging.getLogger("test"), logging.WARNING, "it", **fields)
    return caplog.messages[0].partition("=")[2]


@with_each("name", [*sorted(SAID_BY_CLIENTS), "reason"])
def test_a_value_of_any_length_makes_a_short_line(caplog: pytest.LogCaptureFixture, name: str) -> None:
    """A value of any length makes a short line, even if each character is written as ten."""
    most = FIELD_CHARS_MAX if name == "reason" else SAID_CHARS_MAX
    assert field(caplog, **{name: "x" * most}) == "x" * most
    assert field(caplog, **{name: "x" * (most + 1)}) == f'"{"x" * most}..."'
    assert field(caplog, **{name: "\U000e0001\n" * 20_000}).startswith('"\\U000e0001\\n\\U000e')
    for text in ("\U000e0001" * most, '"' * most, "\\" * 20_000, "a b" * 20_000):
        assert len(field(caplog, **{name: text})) <= 2 * most + len('"..."')


def in_json(program: str) -> list[dict[str, object]]:
    """Each line of standard error, as an object, of a program that logs as JSON."""
    head = "import logging; from pybroker.logs import *; log = logging.getLogger('pybroker.x'); to_stderr(20, 'json')"
    done = subprocess.run([sys.executable, "-c", f"{head}\n{program}"], capture_output=True, text=True, cwd=ROOT)
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_an_event_is_one_object() -> None:
    """An event as JSON is one object: numbers as numbers, all else as text that is cut as in the text form."""
    (told,) = in_json(
        "event(log, 20, 'it went', n=7, yes=True, s=0.12345, endless=float('inf'), text='a \\n\\u2028 b', none=None, "
        "bad='\\udc80', isr=[1, 2], late=TimeoutError(), user='x' * 10**6)"
    )
    assert list(told)[:4] == list(OWN_MEMBERS[:4]) and str(told.pop("time")).endswith("Z")
    assert told == {
        "level": "INFO", "logger": "pybroker.x", "event": "it went", "n": 7, "yes": True, "s": 0.123, "endless": "inf",
        "text": "a \n\u2028 b", "bad": "\udc80", "isr": "[1, 2]", "late": "timed out",
        "user": "x" * SAID_CHARS_MAX + "...",
    }  # fmt: skip


@with_each(
    ("program", "name", "logger"),
    [
        ("try: 1 / 0\nexcept ArithmeticError as e: event(log, 40, 'it failed', exc_info=e)", "it failed", "pybroker.x"),
        ("1 / 0", "uncaught exception", "pybroker.logs"),
        ("import threading; threading.Thread(target=lambda: 1 / 0).start()", "uncaught exception", "pybroker.logs"),
        ("class A:\n  def __del__(self): 1 / 0\nA()", "uncaught exception", "pybroker.logs"),
        ("try: 1 / 0\nexcept ArithmeticError: logging.getLogger('asyncio').exception('two\\nlines')",
         "two\nlines", "asyncio"),
    ],
)  # fmt: skip
def test_a_traceback_is_a_member(program: str, name: str, logger: str) -> None:
    """A traceback is text of the object, for each way to raise an exception, and never lines of its own."""
    (told,) = in_json(program)
    assert (told["event"], told["logger"]) == (name, logger)
    assert str(told["exception"]).startswith("Traceback (most recent call last):\n")
    assert str(told["exception"]).endswith("ZeroDivisionError: division by zero")


def test_what_libraries_log_is_an_object() -> None:
    """A warning of another library is an object, and is not repeated; what it logs below a warning is left out."""
    lines = in_json("logging.getLogger('kazoo').info('no'); logging.getLogger('kazoo').warning('yes %d', 1); "
                    "import warnings; warnings.warn('old')")  # fmt: skip
    assert len(lines) == 2 and lines[0]["event"] == "yes 1"
    assert lines[1]["logger"] == "py.warnings" and "UserWarning: old" in str(lines[1]["event"])


def test_no_field_has_the_name_of_another_member() -> None:
    """No event of the source has a field that JSON's own members would hide."""
    assert not [each for each in log_events.events() if set(each.fields) & set(OWN_MEMBERS)]
