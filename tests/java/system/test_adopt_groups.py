"""A live copy of Kafka's log dir: groups have the offsets of their committed transactions, and no file is reported
damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest

from pybroker.protocol import messages as m
from tests.asking import ask
from tests.clients.adapters.confluent import QUIET, Confluent
from tests.harness import BrokerProcess, until
from tests.java.peers import ApacheKafka

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("kafka391")]

UNSTABLE_OFFSET_COMMIT = 88


def stands(port: int, group: str, topic: str) -> dict[bool, tuple[int, int]]:
    """The (offset, error) of partition 0, with require_stable and without."""
    kind = m.OffsetFetchRequest.Groups
    asked = [kind(group_id=group, topics=[kind.Topics(name=topic, partition_indexes=[0])])]

    def fetched(stable: bool) -> Any:
        [found] = ask(port, "OffsetFetch", 8, groups=asked, require_stable=stable).groups
        return found

    until("the group is loaded", lambda: fetched(False).error_code == 0)
    positions = {stable: fetched(stable).topics[0].partitions[0] for stable in (False, True)}
    return {stable: (position.committed_offset, position.error_code) for stable, position in positions.items()}


def transaction(bootstrap: str, name: str, group: str, topic: str, offset: int) -> ck.Producer:
    """An open transaction with an offset of a group."""
    consumer = ck.Consumer({**QUIET, "bootstrap.servers": bootstrap, "group.id": group})
    producer = ck.Producer({**QUIET, "bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{name}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    position = ck.TopicPartition(topic, 0, offset)
    producer.send_offsets_to_transaction([position], consumer.consumer_group_metadata(), 30)
    consumer.close()
    return producer


def test_offsets_count_from_their_commit_marker_on(
    kafka391: ApacheKafka, tmp_path: Path, start_broker: Callable[..., BrokerProcess], topic: str
) -> None:
    """Offsets count from their commit marker on: of 11 committed, 22 aborted and 33 open, Kafka returns 11, and
    UNSTABLE_OFFSET_COMMIT with require_stable."""
    Confluent(kafka391.bootstrap).create_topic(topic)
    for offset, name in ((11, "committed"), (22, "aborted"), (33, "open")):
        producer = transaction(kafka391.bootstrap, name, topic, topic, offset)
        if name == "committed":
            producer.commit_transaction(30)
        elif name == "aborted":
            producer.abort_transaction(30)
    expected = {False: (11, 0), True: (-1, UNSTABLE_OFFSET_COMMIT)}
    assert stands(kafka391.port, topic, topic) == expected
    data = tmp_path / "adopted"
    data.mkdir()
    for name in (f"{topic}-0", "__consumer_offsets-0"):
        shutil.copytree(kafka391.log_dir / name, data / name)
    producer.abort_transaction(30)
    shutil.copy(kafka391.log_dir / "meta.properties", data)
    (data / f"{topic}-0" / "leader-epoch-checkpoint").write_text("")  # as Kafka leaves it if it knows no epoch
    broker = start_broker(data_dir=data, sets={"broker.id": 1})
    assert stands(broker.port, topic, topic) == expected
    assert "file ignored" not in broker.output()
    assert "offsets of open transactions" in broker.output()
