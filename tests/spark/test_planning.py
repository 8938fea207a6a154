"""Ranges, limits and losses, decided without a broker."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.errors import OFFSET_OUT_OF_RANGE, KafkaError
from pybroker.model import TopicPartition
from pybroker.spark import options
from pybroker.spark.reading import data_loss, planning
from pybroker.spark.reading.planning import Lost, OffsetRange
from tests.rows import with_each

offsets_of = st.dictionaries(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), st.integers(0, 10**12), max_size=8)


def test_ranges_are_what_lies_between() -> None:
    """Ranges lie between start and end, ordered by topic and partition; empty ranges and partitions without a start are
    left out."""
    tp = TopicPartition
    start = {tp("b", 0): 5, tp("a", 10): 0, tp("a", 2): 7}
    end = {tp("b", 0): 9, tp("a", 10): 1, tp("a", 2): 7, tp("new", 0): 3}
    assert planning.ranges(start, end) == [OffsetRange("a", 10, 0, 1), OffsetRange("b", 0, 5, 9)]


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**6)), min_size=1, max_size=6),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(50_000, 10**6),
)
def test_a_split_loses_and_repeats_nothing(
    sizes: list[tuple[int, int]], min_partitions: int | None, max_records: int | None
) -> None:
    """A split neither loses nor repeats an offset: its parts, in order, are the ranges; none is empty or above the
    limit."""
    whole = [OffsetRange("t", number, start, start + size) for number, (start, size) in enumerate(sizes)]
    parts = planning.split(whole, min_partitions=min_partitions, max_records=max_records)
    for r in whole:
        mine = [part for part in parts if part.partition == r.partition]
        assert [mine[0].start, *(part.end for part in mine)] == [*(part.start for part in mine), r.end]
    assert all(part.size > 0 and (max_records is None or part.size <= max_records) for part in parts)


@with_each(
    ("sizes", "min_partitions", "expected"),
    [((100, 100), None, 2), ((100, 100), 4, 4), ((300, 100), 4, 4), ((1, 999), 4, 5), ((100, 100), 1, 2), ((2,), 9, 2)],
)
def test_big_partitions_are_read_by_several_tasks(
    sizes: tuple[int, ...], min_partitions: int | None, expected: int
) -> None:
    """minPartitions splits large partitions for several tasks in proportion to size, approximately, and never within a
    record."""
    whole = [OffsetRange("t", number, 0, size) for number, size in enumerate(sizes)]
    assert len(planning.split(whole, min_partitions=min_partitions, max_records=None)) == expected


@given(offsets_of, offsets_of, st.integers(1, 10**12))
def test_a_limited_trigger_moves_on_and_not_too_far(
    start: dict[tuple[str, int], int], more: dict[tuple[str, int], int], most: int
) -> None:
    """A limited trigger takes at least one record of each partition and at most all of them; every partition progresses
    in time."""
    latest = {tp: start.get(tp, 0) + size for tp, size in more.items()}
    begin = planning.with_new_partitions(start, latest)
    end = planning.limit(begin, latest, most)
    assert end.keys() == latest.keys()
    for tp, offset in end.items():
        assert begin[tp] <= offset <= latest[tp]
        assert offset > begin[tp] or latest[tp] == begin[tp]
    taken = sum(end[tp] - begin[tp] for tp in end)
    assert taken <= max(most, len(end)) + len(end)


def test_a_limit_is_shared_out_by_backlog() -> None:
    """A limit is shared in proportion to backlog: a partition with three times the records gets three times the
    share."""
    begin, latest = {("t", 0): 0, ("t", 1): 100}, {("t", 0): 3000, ("t", 1): 1100}
    assert planning.limit(begin, latest, 1000) == {("t", 0): 750, ("t", 1): 350}
    assert planning.limit(begin, latest, 4000) == latest


@pytest.mark.parametrize(
    ("new", "since_s", "waits"), [(9, 1.0, True), (10, 1.0, False), (9, 60.0, False), (0, 1.0, True)]
)
def test_a_trigger_waits_for_enough_or_long_enough(new: int, since_s: float, waits: bool) -> None:
    """A trigger waits until there are minOffsetsPerTrigger records, or until maxTriggerDelay has passed."""
    held = planning.waits_for_more(
        {("t", 0): 5}, {("t", 0): 5 + new}, min_offsets=10, since_last_s=since_s, max_trigger_delay_s=60.0
    )
    assert held is waits


def test_a_run_that_is_to_end_sees_nothing_later() -> None:
    """A Trigger.AvailableNow run ignores records and partitions that appear after its start."""
    assert planning.bounded({("t", 0): 9, ("t", 1): 3, ("t", 2): 1}, {("t", 0): 5, ("t", 1): 7}) == {
        ("t", 0): 5,
        ("t", 1): 3,
    }


def test_what_retention_overtook_is_told_and_what_is_left_is_kept() -> None:
    """A range that retention has partly deleted begins at the partition's first offset; a range that is deleted whole
    is empty."""
    ranges = [OffsetRange("t", 0, 5, 9), OffsetRange("t", 1, 5, 9), OffsetRange("t", 2, 5, 9)]
    gone = planning.overtaken(ranges, {("t", 0): 5, ("t", 1): 7, ("t", 2): 100})
    assert {r: (left.start, left.end) for r, (_, left) in gone.items()} == {ranges[1]: (7, 9), ranges[2]: (9, 9)}


def test_a_topic_that_was_made_anew_is_not_read_on() -> None:
    """A partition that is missing, or ends before the offset that was read, has lost records."""
    lost = planning.vanished({("a", 0): 5, ("a", 1): 5, ("b", 0): 5}, {("a", 0): 5, ("a", 1): 4})
    assert [each.tp for each in lost] == [("a", 1), ("b", 0)]


def test_lost_records_end_a_query_or_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """failOnDataLoss decides if lost records fail the query or are logged; the sentence names partitions, and not all
    of very many."""
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
    strict = options.parse_source(given, streaming=True)
    lax = options.parse_source({**given, "failOnDataLoss": "false"}, streaming=True)
    lost = [Lost(TopicPartition("t", number), "is gone") for number in range(5)]
    data_loss.check_data_loss(strict, [])
    with pytest.raises(KafkaError, match="t-0 is gone; t-1 is gone; t-2 is gone; and 2 more") as caught:
        data_loss.check_data_loss(strict, lost)
    assert caught.value.code == OFFSET_OUT_OF_RANGE
    data_loss.check_data_loss(lax, lost)
    assert "goes on without them: t-0 is gone" in caplog.text


def test_offsets_of_another_topic() -> None:
    """Offsets belong to a topic id: a deleted topic is another topic, and so is one without an id on either side."""
    read = {TopicPartition(name, 0): 5 for name in ("same", "anew", "gone", "unknown")}
    was = {"same": "A", "anew": "A", "gone": "A"}
    found = planning.of_another_topic(read, was, {"same": "A", "anew": "B", "unknown": "C"})
    assert found == {TopicPartition("anew", 0): 5}
