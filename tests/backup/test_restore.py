"""`pybroker restore` into a running cluster: records, configs and offsets of groups, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pybroker import errors
from pybroker.backup import restoring
from pybroker.backup.restoring import OffsetTranslation
from pybroker.client.admin import Admin, Committed
from pybroker.client.net.metadata import TopicInfo
from pybroker.core import build_batch
from pybroker.errors import KafkaError
from pybroker.model import CODECS, TopicPartition
from pybroker.protocol.compression import compress
from pybroker.protocol.records import LOG_APPEND_TIME
from pybroker.testing import BrokerHandle, ClusterHandle
from tests.backup import kit
from tests.backup.kit import ABORT, COMMIT, GroupOffset, batch, gapped, marker, record, says
from tests.cli.conftest import Done, run
from tests.harness import until
from tests.rows import with_each

Command = Callable[..., Done]


def values(broker: BrokerHandle, topic: str, partition: int = 0) -> list[bytes | None]:
    return [each.value for each in broker.records(topic, partition=partition)]


def committed(broker: BrokerHandle, group: str) -> dict[tuple[str, int], int]:
    with Admin(broker.bootstrap_servers) as admin:
        return {(tp.topic, tp.partition): at.offset for tp, at in admin.group_offsets([group])[group].items()}


def test_a_topic_comes_back(backup_broker: BrokerHandle, pybroker_: Command, tmp_path: Path, topic: str) -> None:
    """A deleted topic is restored with its records at their offsets, its configs and the offsets of its groups."""
    own = {"segment.bytes": 4096, "retention.ms": -1, "message.timestamp.type": "LogAppendTime"}
    backup_broker.create_topic(topic, 2, own)
    for n in range(60):
        backup_broker.produce(topic, b"%d" % n, key=b"k", partition=n % 2)
    was = backup_broker.records(topic)
    group = f"group of {topic}"
    with Admin(backup_broker.bootstrap_servers) as admin:
        admin.alter_group_offsets(group, {(topic, 0): Committed(7), (topic, 1): Committed(30)})
        says(pybroker_("backup", topic, "--to", tmp_path))
        admin.delete_topic(topic)
        told = says(pybroker_("restore", tmp_path, "--json")).json
        configs = {c.name: c.value for c in admin.topic_configs([topic])[topic]}
    (restored,) = told["topics"]
    assert restored["records"] == 60 and restored["moved_partitions"] == [] and told["groups"] == [group]
    assert backup_broker.records(topic) == was, "with the times at which the broker had got them"
    assert (configs["segment.bytes"], configs["message.timestamp.type"]) == ("4096", "LogAppendTime")
    assert committed(backup_broker, group) == {(topic, 0): 7, (topic, 1): 30}


@with_each("codec", range(len(CODECS)), ids=CODECS)
def test_batches_of_each_codec(
    backup_broker: BrokerHandle, pybroker_: Command, tmp_path_factory: pytest.TempPathFactory, codec: int
) -> None:
    """Compressed batches are restored as they are; those with gaps or of the broker's time are built anew."""
    home, topic = tmp_path_factory.mktemp("backup"), f"codec-{CODECS[codec]}"
    squeeze = (lambda data: compress(codec, data)) if codec else None
    plain = [record(b"v%d" % n, time_ms=kit.TIME_MS + n) for n in range(9)]
    made = [
        build_batch(plain, attributes=codec, compress=squeeze),
        build_batch(
            [record(b"late", time_ms=5), record(b"later", time_ms=6)], base_offset=9, compress=squeeze,
            attributes=codec | LOG_APPEND_TIME,
        ),
    ]  # fmt: skip
    kit.write(home, topic, kit.partition(home, topic, 0, made, start=3))
    told = says(pybroker_("restore", home, "--json")).json["topics"][0]
    assert told["records"] == 8 and told["moved_partitions"] == [0]
    found = backup_broker.records(topic)
    assert [r.value for r in found] == [b"v%d" % n for n in range(3, 9)] + [b"late", b"later"]
    assert [r.timestamp_ms for r in found[:6]] == [kit.TIME_MS + n for n in range(3, 9)]


def test_transactions_and_gaps(backup_broker: BrokerHandle, pybroker_: Command, tmp_path: Path, topic: str) -> None:
    """Markers, aborted and open transactions are left out, gaps close up, and groups stand where they stood."""
    log = [
        batch(10, b"a", b"b"), batch(12, b"no", producer_id=1), batch(13, b"c", producer_id=2), marker(14, 1, ABORT),
        marker(15, 2, COMMIT), gapped(16, 6, {1: b"d", 4: b"e"}), batch(30, b"f"), batch(31, b"open", producer_id=1),
    ]  # fmt: skip
    stood = {0: 0, 10: 0, 11: 1, 12: 2, 13: 2, 14: 3, 17: 3, 18: 4, 20: 4, 21: 5, 30: 5, 31: 6, 32: 6, 99: 6}
    groups = {f"{topic} at {at}": [GroupOffset(topic, 0, at)] for at in stood}
    kit.write(tmp_path, topic, kit.partition(tmp_path, topic, 0, log[:4], log[4:]), groups=groups)
    told = says(pybroker_("restore", tmp_path, "--json")).json["topics"][0]
    assert values(backup_broker, topic) == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert (told["records"], told["left_out"], told["moved_partitions"]) == (6, 2, [0])
    for at, now in stood.items():
        assert committed(backup_broker, f"{topic} at {at}") == {(topic, 0): now}, at


def test_offsets_without_records() -> None:
    """Offsets are translated as records pass: to the first record that is not before them, or the end."""
    translation = OffsetTranslation([5, 0, 7, 5, 100])
    translation.note([4, 6], 10)
    translation.note([7], 12)
    translation.finish(13)
    assert translation.found == {0: 10, 5: 11, 7: 12, 100: 13}


def test_a_topic_that_is_there(backup_broker: BrokerHandle, pybroker_: Command, tmp_path: Path, topic: str) -> None:
    """A topic with records is refused unless --append or --as says what to do; an empty one is filled."""
    kit.write(tmp_path, topic, kit.partition(tmp_path, topic, 0, [batch(0, b"a", b"b")]))
    backup_broker.create_topic(topic)
    assert "its configs are as they were" in says(pybroker_("restore", tmp_path)).err
    assert "exists and holds records" in pybroker_("restore", tmp_path).sentence
    says(pybroker_("restore", tmp_path, "--append"))
    assert values(backup_broker, topic) == [b"a", b"b"] * 2
    says(pybroker_("restore", tmp_path, "--as", f"{topic}-2"))
    assert values(backup_broker, f"{topic}-2") == [b"a", b"b"]
    backup_broker.create_topic(f"{topic}-3", 2)
    refused = pybroker_("restore", tmp_path, "--as", f"{topic}-3").sentence
    assert "exists with 2 partitions, and the backup has 1" in refused


def test_a_failure_leaves_no_topic(backup_broker: BrokerHandle, pybroker_: Command, tmp_path: Path, topic: str) -> None:
    """A damaged file, or a batch that the broker refuses, is one sentence, and the new topic is deleted again."""
    backup = kit.partition(tmp_path, topic, 0, [batch(0, b"a"), batch(1, b"b")])
    kit.write(tmp_path, topic, backup)
    path = tmp_path / backup.directory / backup.files[0].name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"!")
    assert "CRC" in pybroker_("restore", tmp_path).sentence
    path.write_bytes(whole)
    refused = pybroker_("restore", tmp_path, "--config", "max.message.bytes=10").sentence
    assert f"{topic}-0: the batch of offset 0 was refused" in refused
    with Admin(backup_broker.bootstrap_servers) as admin:
        assert not admin.exists(topic)
    says(pybroker_("restore", tmp_path))
    assert values(backup_broker, topic) == [b"a", b"b"]


def test_a_topic_of_another_client_stays(
    backup_broker: BrokerHandle, pybroker_: Command, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that the broker refuses to create is not deleted, as another client may create it at the same time."""
    kit.write(tmp_path, topic, kit.partition(tmp_path, topic, 0, [batch(0, b"a")]), configs={"retention.ms": "x"})
    create = Admin.create_topic

    def created_twice(admin: Admin, name: str, **how: Any) -> object:
        create(admin, name, partitions=1)
        backup_broker.produce(name, b"theirs")
        return create(admin, f"{name}-2", **how)

    monkeypatch.setattr(Admin, "create_topic", created_twice)
    assert "retention.ms" in pybroker_("restore", tmp_path).sentence
    assert values(backup_broker, topic) == [b"theirs"]


def test_what_can_not_be_restored(pybroker_: Command, tmp_path: Path, topic: str) -> None:
    """Wrong options and backups are one sentence each."""
    assert "has no manifest.json" in pybroker_("restore", tmp_path).sentence
    kit.write(tmp_path, topic, kit.partition(tmp_path, topic, 0, [batch(0, b"a")]))
    assert "the backup has no topic other" in pybroker_("restore", tmp_path, "--topics", "other").sentence
    assert "topic's name" in pybroker_("restore", tmp_path, "--as", "../x").sentence
    assert pybroker_("restore", tmp_path, "--config", "nothing").code == 2
    assert "min.insync.replicas = 'x'" in pybroker_("restore", tmp_path, "--config", "min.insync.replicas=x").sentence


def test_a_topic_without_a_leader(tmp_path: Path, topic: str) -> None:
    """A partition that no broker leads may hold records: it is not taken for an empty one, and offsets of groups stay.
    """
    with ClusterHandle(2, settings={"min.insync.replicas": 1}) as cluster, Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic(topic, replica_assignments={0: [2]})
        cluster.produce(topic, b"a", b"b", b"c")
        admin.alter_group_offsets("g", {(topic, 0): Committed(2)})
        groups = {"g": [GroupOffset(topic, 0, 2)]}
        kit.write(tmp_path, topic, kit.partition(tmp_path, topic, 0, [batch(0, b"a", b"b")]), groups=groups)
        cluster.kill(2)
        until("it has no leader", lambda: cluster.leader(topic) < 0)
        for only in (["--only", "groups"], []):
            done = run("restore", tmp_path, *only, "-b", cluster.bootstrap_servers, "--timeout", "1")
            assert f"the leader of {topic}-0 did not answer: nothing was restored" in done.sentence
        assert admin.group_offsets(["g"])["g"][TopicPartition(topic, 0)].offset == 2


@pytest.mark.parametrize("lacks", ["the leader", "the topic"])
def test_leaders_that_are_not_known_yet(
    backup_broker: BrokerHandle, pybroker_: Command, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch,
    lacks: str,
) -> None:  # fmt: skip
    """A broker that was asked too early to know the new topic, or its leader, is asked again."""
    kit.write(tmp_path, topic, kit.partition(tmp_path, topic, 0, [batch(0, b"a")]))
    asked = Admin.topics
    looks = 0

    def early(admin: Admin, names: Sequence[str] | None = None) -> list[TopicInfo]:
        nonlocal looks
        looks += topic in (names or ())
        found = asked(admin, names)
        if looks != 1 or names is None:
            return found
        if lacks == "the topic":
            raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} does not exist")
        return [each._replace(partitions=tuple(p._replace(leader=-1) for p in each.partitions)) for each in found]

    monkeypatch.setattr(Admin, "topics", early)
    says(pybroker_("restore", tmp_path))
    assert looks == 2 and values(backup_broker, topic) == [b"a"]


@pytest.mark.parametrize(
    ("during", "expected"),
    [
        ("_send_all", "interrupted: the topics that were created are deleted again; the same command begins anew"),
        ("_set_groups", "interrupted: all records are restored, but maybe not the offsets of all groups: set these by "
                        "pybroker groups reset-offsets, or delete {topic} and restore anew"),
    ],
)  # fmt: skip
def test_an_interrupted_restore_says_what_stands(
    backup_broker: BrokerHandle, pybroker_: Command, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch,
    during: str, expected: str,
) -> None:  # fmt: skip
    """Ctrl-C ends a restore with 130 and a sentence: what is there now, and how to go on."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    kit.write(tmp_path, topic, kit.partition(tmp_path, topic, 0, [batch(0, b"a")]))
    monkeypatch.setattr(restoring.RestoreRun, during, interrupted)
    done = pybroker_("restore", tmp_path)
    assert done.code == 130 and done.sentence == expected.format(topic=topic)
    with Admin(backup_broker.bootstrap_servers) as admin:
        assert admin.exists(topic) == (during == "_set_groups")


def test_an_interrupted_restore_that_can_not_clean_up(
    pybroker_: Command, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new topic that could not be deleted again is named: it has to go before the next try."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def refused(*_: object) -> None:
        raise KafkaError(errors.NETWORK_EXCEPTION)

    kit.write(tmp_path, topic, kit.partition(tmp_path, topic, 0, [batch(0, b"a")]))
    monkeypatch.setattr(restoring.RestoreRun, "_send_all", interrupted)
    monkeypatch.setattr(Admin, "delete_topic", refused)
    done = pybroker_("restore", tmp_path)
    assert done.code == 130
    left = f"{topic} could not be deleted again, and the restore is not complete: delete it, and restore anew"
    assert done.sentence == f"interrupted: {left}"


def test_min_isr_and_throttles(backup_broker: BrokerHandle, pybroker_: Command, tmp_path: Path, topic: str) -> None:
    """Configs that would make the topic unwritable here, or are about other brokers, are left out, and it is said."""
    configs = {"min.insync.replicas": "2", "leader.replication.throttled.replicas": "0:1", "retention.ms": "-1"}
    kit.write(tmp_path, topic, kit.partition(tmp_path, topic, 0, [batch(0, b"a")]), configs=configs)
    assert "has no min.insync.replicas: 2 is more than its replicas" in says(pybroker_("restore", tmp_path)).err
    with Admin(backup_broker.bootstrap_servers) as admin:
        own = {c.name: c.value for c in admin.topic_configs([topic])[topic] if c.source == 1}
    assert own == {"retention.ms": "-1"}


def test_many_batches_of_many_partitions(
    backup_broker: BrokerHandle, pybroker_: Command, tmp_path: Path, topic: str
) -> None:
    """More batches than are sent at a time, and more partitions than there are threads, come in their order; each once,
    although answers are lost."""
    log = [batch(n, b"%d" % n) for n in range(200)]
    backups = [kit.partition(tmp_path, topic, p, log) for p in range(2 * restoring.THREADS)]
    kit.write(tmp_path, topic, *backups)
    with backup_broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=3):
        says(pybroker_("restore", tmp_path))
    for p in range(len(backups)):
        assert values(backup_broker, topic, p) == [b"%d" % n for n in range(200)]


def test_a_group_with_members(backup_broker: BrokerHandle, tmp_path: Path, topic: str) -> None:
    """The offsets of a group that has members are left as they are; the records are restored."""
    from pybroker import Consumer

    kit.write(
        tmp_path, topic, kit.partition(tmp_path, topic, 0, [batch(0, b"a")]),
        groups={f"{topic}-group": [GroupOffset(topic, 0, 1)]},
    )  # fmt: skip
    backup_broker.create_topic(f"{topic}-other")
    with Consumer(bootstrap_servers=backup_broker.bootstrap_servers, group_id=f"{topic}-group") as consumer:
        consumer.subscribe([f"{topic}-other"])
        while not consumer.assignment():
            consumer.poll(100)
        done = says(run("restore", tmp_path, "-b", backup_broker.bootstrap_servers))
    assert f"the offsets of group {topic}-group were not set: it has members" in done.err
    assert values(backup_broker, topic) == [b"a"]
