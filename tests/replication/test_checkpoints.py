"""The small text files of a log dir can be read as they were written, and cut or changed ones are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.model import TopicPartition
from pybroker.replication.disks import checkpoints
from pybroker.replication.disks.checkpoints import Malformed, Meta, Pass, Spot
from tests.rows import with_each

topics = st.text("abcXYZ019._-", min_size=1, max_size=20)
partitions = st.builds(TopicPartition, topics, st.integers(0, (1 << 31) - 1))
offsets = st.dictionaries(partitions, st.integers(0, (1 << 63) - 1), max_size=5)


@st.composite
def spots(draw: st.DrawFn) -> Spot:
    base, position, first = draw(st.integers(0, 1 << 60)), draw(st.integers(0, 1 << 60)), draw(st.integers(0, 1 << 30))
    size, lost = draw(st.integers(1, 1 << 30)), draw(st.integers(0, 99))
    return Spot(base, position, position + size, base + first, base + first + lost)


damage = st.dictionaries(partitions, st.frozensets(spots(), min_size=1, max_size=3), max_size=3)


@given(offsets)
def test_offsets_are_read_as_they_were_written(known: dict[TopicPartition, int]) -> None:
    assert checkpoints.read_offsets(checkpoints.write_offsets(known)) == known


@given(damage)
def test_damage_is_read_as_it_was_written(known: dict[TopicPartition, frozenset[Spot]]) -> None:
    assert checkpoints.read_damage(checkpoints.write_damage(known)) == known


@given(st.integers(0, 1 << 62), st.integers(0, 1 << 30))
def test_a_pass_is_read_as_it_was_written(began_ms: int, unchecked: int) -> None:
    assert checkpoints.read_scrubbed(checkpoints.write_scrubbed(Pass(began_ms, unchecked))) == Pass(began_ms, unchecked)


@pytest.mark.parametrize(
    ("read", "write", "strategy", "least"),
    [
        (checkpoints.read_offsets, checkpoints.write_offsets, offsets.filter(bool), 1),
        (checkpoints.read_damage, checkpoints.write_damage, damage.filter(bool), 0),
    ],
    ids=["offsets", "damage"],
)
@given(data=st.data())
def test_a_file_that_lost_lines_is_refused(
    read: Callable[[str], object], write: Callable[[Any], str], strategy: st.SearchStrategy[Any], least: int,
    data: st.DataObject,
) -> None:  # fmt: skip
    """A checkpoint that lost lines in a loss of power is refused, as it has fewer lines than it declares."""
    lines = write(data.draw(strategy)).splitlines(keepends=True)
    with pytest.raises(Malformed):
        read("".join(lines[: data.draw(st.integers(least, len(lines) - 1))]))


@with_each(
    "text",
    ["\n", "1\n0\n", "0\n1\nt 0\n", "0\n1\nt 0 x\n", "0\n1\nt -1 5\n", "0\n1\nt 2147483648 5\n",
     "0\n1\nt 0 9223372036854775808\n", "0\n2\nt 0 1\nt 0 2\n", "0\n1\nt 0 ٣\n"],
)  # fmt: skip
def test_offsets_that_nobody_wrote_are_refused(text: str) -> None:
    with pytest.raises(Malformed):
        checkpoints.read_offsets(text)


def test_meta_keeps_what_is_not_ours() -> None:
    """Rewriting meta.properties keeps KRaft's version 1 and node.id, and unknown lines."""
    before = "#\nversion=1\ncluster.id=abc\nnode.id=7\nx=y\n"
    assert checkpoints.read_meta(before) == Meta("abc", 7)
    after = checkpoints.write_meta(Meta("abc", 7, "dir"), before)
    assert checkpoints.read_meta(after) == Meta("abc", 7, "dir")
    assert "x=y\n" in after and "version=1\n" in after and "broker.id" not in after


@pytest.mark.parametrize("text", ["", "version=2\n", "version=0\nbroker.id=x\n", "version=0\nbroker.id=2147483648\n"])
def test_meta_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        checkpoints.read_meta(text)


@pytest.mark.parametrize(
    ("text", "epoch", "first"), [("", -1, 0), ("0\n0\n", -1, 0), ("0\n2\n3 10\n5 20\n", 5, 10)]
)
def test_leader_epochs(text: str, epoch: int, first: int) -> None:
    """The last leader epoch and the first one's start offset are read from a checkpoint."""
    assert (checkpoints.read_latest_epoch(text), checkpoints.read_first_offset(text)) == (epoch, first)


@pytest.mark.parametrize("text", ["0\n1\n5\n", "1\n1\n5 0\n", "0\n1\nx 0\n", "0\n1\n2147483648 0\n"])
def test_leader_epochs_that_nobody_wrote_are_refused(text: str) -> None:
    with pytest.raises(Malformed):
        checkpoints.read_latest_epoch(text)
