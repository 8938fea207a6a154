"""Log lines: an event is one line, whatever its values are."""

import logging

import pytest

from pybroker.logs import event


@pytest.mark.parametrize(
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
    event(logging.getLogger("test"), logging.WARNING, "something happened", what=value, none=None)
    assert [record.getMessage() for record in caplog.records] == [f"something happened what={written}"]
