"""Log lines: an event is one line, for any values."""

import logging

import pytest

from pybroker.logs import FIELD_CHARS_MAX, SAID_BY_CLIENTS, SAID_CHARS_MAX, event
from tests.rows import with_each


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
