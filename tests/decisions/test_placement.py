"""Replica placement: each rule, and Kafka's own placement if there is Java."""

import itertools
import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.decisions.placement import alternate, place, place_in_racks


def test_leaders_go_round_and_followers_come_next() -> None:
    """Leaders go round the brokers and followers come next: with five brokers, ten partitions and three replicas, the
    second round shifts followers by one."""
    assert place(range(5), 10, 3, start=0, shift=0) == [
        [0, 1, 2],
        [1, 2, 3],
        [2, 3, 4],
        [3, 4, 0],
        [4, 0, 1],
        [0, 2, 3],
        [1, 3, 4],
        [2, 4, 0],
        [3, 0, 1],
        [4, 1, 2],
    ]


def test_a_topic_begins_where_it_is_told_and_brokers_need_not_be_numbered_from_0() -> None:
    assert place([30, 10, 20], 3, 2, start=1, shift=1) == [[20, 10], [30, 20], [10, 30]]


def test_one_broker_takes_everything() -> None:
    assert place([7], 3, 1, start=0, shift=0) == [[7], [7], [7]]


def test_a_topic_that_grows_goes_on_where_it_was() -> None:
    """A topic that grows continues round the brokers with its leaders; the shift of the followers begins anew with each
    growth, as in Kafka."""
    whole = place(range(3), 7, 2, start=1, shift=1)
    parts = [place(range(3), 1, 2, start=1, shift=1, first_partition=p)[0] for p in range(7)]
    assert [replicas[0] for replicas in parts] == [replicas[0] for replicas in whole]
    assert parts[:4] == whole[:4]


def test_racks_alternate() -> None:
    racks = {0: "r1", 1: "r3", 2: "r3", 3: "r2", 4: "r2", 5: "r1"}
    assert alternate(racks) == [0, 3, 1, 5, 4, 2]
    assert alternate({1: "a", 2: "b", 3: "a", 4: "a"}) == [1, 2, 3, 4]


def test_a_partition_is_in_as_many_racks_as_it_can() -> None:
    racks = {0: "r1", 1: "r3", 2: "r3", 3: "r2", 4: "r2", 5: "r1"}
    assert place_in_racks(racks, 7, 3, start=0, shift=0) == [
        [0, 3, 1],
        [3, 1, 5],
        [1, 5, 4],
        [5, 4, 2],
        [4, 2, 0],
        [2, 0, 3],
        [0, 4, 2],
    ]


sizes = st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))
draws = st.integers(0, 7)


@given(sizes, st.integers(1, 40), draws, draws, st.integers(0, 20))
def test_replicas_are_distinct_and_leaders_even(
    size: tuple[int, int], partitions: int, start: int, shift: int, first: int
) -> None:
    brokers, factor = size
    assignment = place(range(brokers), partitions, factor, start, shift, first)
    assert all(len(set(replicas)) == factor for replicas in assignment)
    leads = Counter(replicas[0] for replicas in assignment)
    assert max(leads.values()) - min(leads[broker] for broker in range(brokers)) <= 1


@given(st.lists(st.sampled_from("xyz"), min_size=1, max_size=8), st.data(), st.integers(1, 30), draws, draws)
def test_racks_are_all_used_before_one_is_used_twice(
    where: list[str], data: st.DataObject, partitions: int, start: int, shift: int
) -> None:
    racks = dict(enumerate(where))
    factor = data.draw(st.integers(1, len(racks)))
    for replicas in place_in_racks(racks, partitions, factor, start, shift):
        assert len(set(replicas)) == factor
        assert len({racks[broker] for broker in replicas}) == min(factor, len(set(where)))


KAFKAS = """
import java.util.*;
import org.apache.kafka.admin.*;

class Place {
    public static void main(String[] cases) {
        for (String text : cases) {
            String[] parts = text.split(" ");
            List<BrokerMetadata> brokers = new ArrayList<>();
            for (int id = 0; id < parts[0].length(); id++)
                brokers.add(new BrokerMetadata(id, parts[0].charAt(id) == '-' ? Optional.empty()
                    : Optional.of(parts[0].substring(id, id + 1))));
            int[] n = Arrays.stream(parts).skip(1).mapToInt(Integer::parseInt).toArray();
            System.out.println(AdminUtils.assignReplicasToBrokers(brokers, n[0], n[1], n[2], n[3]).values());
        }
    }
}
"""


@pytest.mark.java
def test_every_assignment_is_kafkas(tmp_path: Path) -> None:
    from tests.java import peers

    try:
        command = peers.java("3.9.1", str(tmp_path / "Place.java"))
    except peers.MissingJava as missing:
        pytest.skip(str(missing))
    (tmp_path / "Place.java").write_text(KAFKAS)
    layouts = ["-", "--", "---", "-----", "a", "ab", "abc", "aab", "abab", "aabbc", "aaabc", "abcabcab"]
    cases = [
        (layout, partitions, factor, start, first)
        for layout, start, first in itertools.product(layouts, (0, 1, 3), (0, 1, 4, 7))
        for partitions, factor in ((1, 1), (9, min(3, len(layout))), (20, len(layout)))
    ]
    said = subprocess.run(
        [*command, *(" ".join(map(str, case)) for case in cases)], capture_output=True, text=True, check=True
    )
    for case, line in zip(cases, said.stdout.splitlines(), strict=True):
        layout, partitions, factor, start, first = case
        if "-" in layout:
            ours = place(range(len(layout)), partitions, factor, start, start, first)
        else:
            ours = place_in_racks(dict(enumerate(layout)), partitions, factor, start, start, first)
        assert ours == json.loads(line), case
