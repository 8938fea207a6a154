"""A lone broker becomes three with one restart, as docs/one-to-three.md says, while its clients stay connected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as ck
import pytest

from tests.brokers.kit import QUIET, Cluster
from tests.brokers.witness import Witness
from tests.cli.conftest import run
from tests.harness import until
from tests.stores import AnyStore, kind_of, option_of, setting_of

pytestmark = [pytest.mark.java]
FIRST = {"default.replication.factor": 1, "min.insync.replicas": 1, "offsets.topic.replication.factor": 1}
"""Settings of the first broker: min.insync.replicas is raised once there are replicas, or acks=all would be refused."""
COMMITTED = 123


@pytest.fixture
def cluster(tmp_path: Path, store: AnyStore) -> Iterator[Cluster]:
    """Three brokers with an authorizer, none of them started; the first does not know the store yet."""
    authorizer = "kafka.security.authorizer.AclAuthorizer"
    made = Cluster(tmp_path, store, authorizer_class_name=authorizer, super_users="User:ANONYMOUS")
    del made.brokers[1].sets[f"{kind_of(store)}.connect"]
    for broker in made.brokers.values():
        broker.sets |= FIRST
    yield made
    made.close()


def kept(cluster: Cluster) -> dict[str, object]:
    """The facts that must be the same after the move, as the first broker answers."""
    at = ("-b", cluster.brokers[1].bootstrap, "--json")
    return {
        "cluster": run("cluster", *at).json["cluster"],
        "topics": {t["name"]: (t["topic_id"], t["partitions"]) for t in run("topics", "list", "--internal", *at).json},
        "settings": run("configs", "describe", "retention.ms", "-t", "t", *at).json,
        "users": run("users", "list", *at).json,
        "quotas": run("quotas", "list", *at).json,
        "acls": run("acls", "list", *at).json,
        "group": [p["committed"] for p in run("groups", "describe", "away", *at).json[0]["partitions"]],
    }  # fmt: skip


def prepare(cluster: Cluster) -> None:
    """Create what a user of one broker has: settings, a user with a password, quotas, ACLs and a group."""
    at = ("-b", cluster.brokers[1].bootstrap)
    for command in (
        ("topics", "create", "t", "--config", "retention.ms=86400001"),
        ("users", "set", "ann", "--password-file", "-"),
        ("quotas", "set", "--user", "ann", "producer_byte_rate=10000000"),
        ("acls", "add", "--allow", "User:ann", "--operation", "read", "--topic", "t", "--group", "g"),
        ("acls", "add", "--allow", "User:ann", "--operation", "write", "--topic", "of-ann-", "--prefixed"),
    ):
        done = run(*command, *at, stdin="her password\n")
        assert done.code == 0, done
    consumer = ck.Consumer({"bootstrap.servers": cluster.brokers[1].bootstrap, "group.id": "away", **QUIET})
    consumer.commit(offsets=[ck.TopicPartition("t", 0, COMMITTED)], asynchronous=False)
    consumer.close()


def test_clients_stay_while_one_broker_becomes_three(cluster: Cluster, tmp_path: Path) -> None:
    """A producer and a reader that stay connected lose nothing over the restart, the copying and the death of the first
    broker. Topic ids, settings, users, quotas, ACLs and committed offsets stay."""
    first = cluster.brokers[1]
    cluster.start(1)
    prepare(cluster)
    with Witness(cluster, "t") as witness:
        witness.until_acked()
        before = kept(cluster)
        assert before["acls"] and before["users"] and before["quotas"] and before["group"] == [COMMITTED]
        first.stop()
        first.sets |= setting_of(cluster.store, cluster.chroot)
        first.begin()
        assert first.wait_end() == 1
        option = " ".join(option_of(cluster.store, cluster.chroot))
        move = f"pybroker migrate-store --data-dir {first.data_dir} {option}"
        assert move in first.output(), first.output()
        moved = run(*move.split()[1:], "--create")
        assert moved.code == 0, moved
        cluster.start(1)
        witness.until_acked()
        assert kept(cluster) == before
        cluster.start(2, 3)
        added = run("reassign", "execute", "--replication-factor", 3, "--topics", "*", "--disk-limit", 100, "--yes",
                    "-b", cluster.bootstrap)  # fmt: skip
        assert added.code == 0, added
        raised = run("configs", "alter", "--broker-default", "--set", "min.insync.replicas=2", "-b", cluster.bootstrap)
        assert raised.code == 0, raised
        cluster.until_in_sync("t")
        cluster.until_in_sync("__consumer_offsets", 2)
        assert kept(cluster) == before | {"topics": kept(cluster)["topics"]}
        witness.until_acked()
        cluster.kill(1)
        until("another leads", lambda: cluster.leader("t") in (2, 3))
        witness.until_acked()
        group = run("groups", "describe", "away", "--json", "-b", cluster.brokers[2].bootstrap).json
        assert [each["committed"] for each in group[0]["partitions"]] == [COMMITTED]
        cluster.restart(1)
        cluster.until_in_sync("t")
        print(f"longest gap {witness.gap_s() * 1000:.0f} ms")
        witness.judge()
