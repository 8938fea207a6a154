"""JSON into columns at the wall: trees that are none, bytes that lie, buffers in Arrow's layout, and threads."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from pybroker.core import ByteColumn, JsonDecoder, ValueColumn

FLAT = [("struct", b"", 3), ("int", b"id", 0), ("text", b"name", 0), ("bool", b"on", 0)]
DEEP = [("struct", b"", 2), ("list", b"l", 1), ("map", b"m", 2), ("struct", b"item", 1), ("text", b"key", 0),
        ("double", b"value", 0), ("int", b"x", 0)]  # fmt: skip


POISON = [b'"', b"\\", b"{", b"]", b"\xff", b"\xf0\x9f", b"9" * 30, b"", b"\0"]


def rows(column: ValueColumn) -> list[Any]:
    """The rows of a column, by its buffers alone."""
    bits = np.unpackbits(np.frombuffer(column.validity, np.uint8), bitorder="little") if column.rows else []
    offsets = np.frombuffer(column.offsets, np.int32)
    inner = [rows(child) for child in column.children]
    made: list[Any] = []
    for row in range(column.rows):
        if not bits[row]:
            made.append(None)
        elif column.kind == "bool":
            made.append(bool(memoryview(column.data)[row >> 3] >> (row & 7) & 1))
        elif column.kind in ("int", "double"):
            made.append(np.frombuffer(column.data, np.int64 if column.kind == "int" else float)[row].item())
        elif column.kind == "struct":
            made.append([child[row] for child in inner])
        elif column.kind == "text":
            made.append(bytes(memoryview(column.data)[offsets[row] : offsets[row + 1]]).decode())
        elif column.kind == "list":
            made.append(inner[0][offsets[row] : offsets[row + 1]])
        else:
            part = slice(offsets[row], offsets[row + 1])
            made.append(dict(zip(inner[0][part], inner[1][part], strict=True)))
    return made


def test_rows_and_nulls() -> None:
    """Nine rows, so that a bitmap has a second byte; what is missing, null, empty or wrong is null."""
    values = [b'{"id":1,"name":"a","on":true}', None, b"", b"{}", b'{"on":false,"id":null}', b"x",
              b'{"name":"\\u00e9"}', b'{"id":7}', b'{"on":true}']  # fmt: skip
    batch = JsonDecoder(FLAT).decode(ByteColumn.of_list(values))
    nothing = [None] * 3
    assert rows(batch.root) == [
        [1, "a", True], None, None, nothing, [None, None, False], None, [None, "\u00e9", None], [7, None, None],
        [None, None, True]]  # fmt: skip
    assert batch.bad == [(5, "no object", 0, 0)] and batch.unknown == []


def test_nested_rows() -> None:
    values = [b'{"l":[{"x":1},null,{}],"m":{"a":1.5,"b":null}}', b'{"l":[],"m":{}}', b'{"l":null}']
    values.append(b'{"l":[{"x":"no"}]}')
    batch = JsonDecoder(DEEP).decode(ByteColumn.of_list(values))
    assert rows(batch.root) == [[[[1], None, [None]], {"a": 1.5, "b": None}], [[], {}], [None, None], None]
    assert batch.bad == [(3, "kind", 6, 11)]


def test_no_rows_have_buffers_too() -> None:
    """Offsets begin with 0, as Arrow wants them."""
    batch = JsonDecoder(DEEP).decode(ByteColumn.of_list([]))
    assert batch.root.rows == 0 and bytes(memoryview(batch.root.children[0].offsets)) == bytes(4)


@pytest.mark.parametrize(
    "nodes",
    [
        [],
        [("int", b"", 0)],
        [("struct", b"", 1)],
        [("struct", b"", 0), ("int", b"a", 0)],
        [("struct", b"", -1)],
        [("struct", b"", 1), ("int", b"a", 1), ("int", b"b", 0)],
        [("struct", b"", 1), ("list", b"a", 0)],
        [("struct", b"", 1), ("list", b"a", 2), ("int", b"x", 0), ("int", b"y", 0)],
        [("struct", b"", 1), ("map", b"a", 2), ("int", b"key", 0), ("int", b"value", 0)],
        [("struct", b"", 1), *[("struct", b"a", 1)] * 40, ("int", b"b", 0)],
    ],
)
def test_nodes_that_are_no_tree(nodes: Any) -> None:
    with pytest.raises(ValueError, match="node"):
        JsonDecoder(nodes)


def test_a_kind_that_there_is_not() -> None:
    with pytest.raises(ValueError):
        JsonDecoder([("struct", b"", 1), ("date", b"a", 0)])  # type: ignore[list-item]


def test_offsets_that_leave_their_data() -> None:
    offsets = np.array([0, 3, 900], np.int32)
    with pytest.raises(ValueError, match="offsets of the values leave their data"):
        JsonDecoder(FLAT).decode(ByteColumn.of_offsets(b'{"id":1}', offsets))


def test_it_reads_no_byte_behind_a_value() -> None:
    """Each value is cut at each byte: what would complete it lies behind it in the buffer, and is not read."""
    value = b'{"id":-12,"name":"a\\u00e9\xc3\xa9\\ud83d\\ude00b","on":true,"z":[{"q":null},1.5e3,"long enough text"]}'
    for end in range(1, len(value)):
        column = ByteColumn.of_offsets(value, np.array([0, end, len(value)], np.int32))
        batch = JsonDecoder(FLAT).decode(column)
        assert [row for row, *_ in batch.bad] == [0, 1], end  # the rest of it is none, either


def test_names_that_are_not_known() -> None:
    """The first 16 of them, each once."""
    value = json.dumps({f"f{n}": n for n in range(30)}).encode()
    batch = JsonDecoder(FLAT).decode(ByteColumn.of_list([value, value]))
    assert batch.unknown == [b"f%d" % n for n in range(16)]


def test_mutants() -> None:
    """Bytes of a sound value changed at random: each is decoded or refused, and the sound one behind it is read."""
    chance = random.Random(5)
    sound = b'{"l":[{"x":1},{"x":-9223372036854775808}],"m":{"a":1.5e300,"\\u00e9":0.1},"o":{"p":["\\n",true,null]}}'
    values = []
    for _ in range(4000):
        mutant = bytearray(sound)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(mutant))
            mutant[at : at + chance.randrange(3)] = chance.choice(POISON)
        values += [bytes(mutant), sound]
    batch = JsonDecoder(DEEP).decode(ByteColumn.of_list(values))
    found = rows(batch.root)
    assert len(found) == 8000 and all(each == found[1] for each in found[1::2])
    bad = {row for row, *_ in batch.bad}
    assert 2000 < len(bad) < 4000 and not {row for row in bad if row % 2}


def test_threads_share_a_decoder() -> None:
    values = ByteColumn.of_list([b'{"id":%d,"name":"n"}' % n for n in range(5000)])
    decoder = JsonDecoder(FLAT)
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: decoder.decode(values), range(16)))
    first = bytes(memoryview(made[0].root.children[0].data))
    assert all(bytes(memoryview(batch.root.children[0].data)) == first for batch in made)
