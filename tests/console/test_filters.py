"""Filters, and records as text: pure functions, with hostile bytes."""

from __future__ import annotations

import json
from html import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.client.consuming.consumer import Record
from pybroker.console.filters import WORDS_MAX, RecordFilter, parse_path
from pybroker.console.rendering import FORMATS, KEY_MAX, RecordView, shown_bytes, shown_record

ORDER = json.dumps({"order": {"id": 7, "items": [{"sku": "A1"}, {"sku": None}], "open": True}, "a b": 1}).encode()


def record(value: bytes | None, key: bytes | None = b"Key", *headers: tuple[str, bytes | None]) -> Record:
    return Record("t", 0, 5, 1_700_000_000_000, 0, key, value, headers)


@pytest.mark.parametrize(
    ("text", "key", "path", "header", "matches"),
    [
        ("", "", "", "", True),
        ("SKU", "", "", "", True),
        ("sku2", "", "", "", False),
        ("", "ke", "", "", True),
        ("", "no", "", "", False),
        ("", "", "order.id=7", "", True),
        ("", "", "$.order.id = 7", "", True),
        ("", "", "order.id=8", "", False),
        ("", "", "order.items[0].sku=A1", "", True),
        ("", "", "order.items[1].sku=null", "", True),
        ("", "", "order.items[2].sku", "", False),
        ("", "", "order.open=true", "", True),
        ("", "", "order.id.deeper", "", False),
        ("", "", "order[0]", "", False),
        ("", "", "", "trace", True),
        ("", "", "", "trace=abc", True),
        ("", "", "", "trace=ab", False),
        ("", "", "", "Trace", False),
        ("sku", "key", "order.id", "trace", True),
        ("sku", "key", "order.id", "none", False),
    ],
)
def test_a_filter_matches(text: str, key: str, path: str, header: str, matches: bool) -> None:
    """All conditions of a filter hold for a record that matches."""
    wanted = RecordFilter.of(text, key, path, header)
    assert wanted.matches(record(ORDER, b"Key", ("trace", b"abc"), ("null", None))) is matches


@pytest.mark.parametrize("value", [None, b"", b"{", b"[" * 100_000, b"\xff\xfe", b"1" * 10_000, b"x" * (2 << 20)])
def test_a_value_that_is_no_json_does_not_match_a_path(value: bytes | None) -> None:
    assert not RecordFilter.of("", "", "a.b=1", "").matches(record(value))


@pytest.mark.parametrize("path", ["a..b", "a[", "a[x]", "[", "a b.c", "a[9999999999]"])
def test_a_path_that_is_none_is_named(path: str) -> None:
    with pytest.raises(ValueError, match="is not a path"):
        parse_path(path)


def test_a_filter_is_not_endless() -> None:
    RecordFilter.of("x" * WORDS_MAX, "", "", "")
    with pytest.raises(ValueError, match="501"):
        RecordFilter.of("x" * (WORDS_MAX + 1), "", "", "")


@pytest.mark.parametrize(
    ("data", "how", "text", "note"),
    [
        (None, "text", "", "null"),
        (b"", "text", "", ""),
        (b"a\nb\tc\x1b[2J", "text", "a\nb\\tc\\x1b[2J", ""),
        ("a\u202eb".encode(), "text", "a\\u202eb", ""),
        (b"\xff<b>", "text", "\\\\xff<b>", "not UTF-8"),
        (b'{"b":[1]}', "json", '{\n  "b": [\n    1\n  ]\n}', ""),
        (b'"\\ud800"', "json", '"\\ud800"', ""),
        (b"{", "json", "{", "not JSON"),
        (b"[" * 5000, "json", "[" * 5000, "not JSON"),
        (b"\x00A", "hex", f"00000000  {'00 41':<48} .A", ""),
    ],
)
def test_bytes_as_text(data: bytes | None, how: str, text: str, note: str) -> None:
    """Control characters are escaped, and what is not shown as asked has a note."""
    shown = shown_bytes(data, how, 10_000)
    assert (shown.text.replace("\\\\", "\\"), shown.note) == (text.replace("\\\\", "\\"), note)


@given(st.binary(max_size=3000), st.sampled_from(FORMATS), st.integers(40, 500))
def test_what_is_shown_is_bounded(data: bytes, how: str, most: int) -> None:
    """Any bytes become text that can be sent and is as short as asked, with a note if it is not all."""
    shown = shown_bytes(data, how, most)
    shown.text.encode()
    assert len(escape(shown.text)) <= most
    assert all(c == "\n" or c.isprintable() for c in shown.text)
    if how == "text" and len(data) > most:
        assert f"the beginning of {len(data):,} bytes" in shown.note


@given(st.lists(st.tuples(st.text(max_size=300), st.none() | st.binary(max_size=300)), max_size=50), st.binary())
def test_a_record_has_bounded_headers_and_key(headers: list[tuple[str, bytes | None]], key: bytes) -> None:
    shown = shown_record(record(b"v", key, *headers), RecordView("text", "text"), 1000)
    assert len(escape(shown.key.text)) <= KEY_MAX
    assert sum(len(escape(a)) + len(escape(b)) for a, b in shown.headers) <= 1000
    assert len(shown.headers) == len(headers) or shown.headers_note
