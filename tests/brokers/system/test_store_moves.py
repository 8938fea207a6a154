"""A cluster of three moves between ZooKeeper and etcd, and a cluster of one becomes a lone broker."""

from __future__ import annotations

import base64
import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from pybroker.development.etcd_server import Etcd
from pybroker.development.zookeeper_server import ZooKeeper
from pybroker.metadata.migration.marks import MIGRATED_FROM
from tests.cli.conftest import Done, run, start
from tests.harness import HOST, BrokerProcess, free_port, until

RECORDS = 300
COMMITTED = 123
SETS: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 2, "zookeeper.session.timeout.ms": 6000,
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:ANONYMOUS",
}  # fmt: skip
OF_THREE = {"default.replication.factor": 3, "min.insync.replicas": 2, "offsets.topic.replication.factor": 3}


class Estate:
    """Brokers that keep their log dirs, and whose store changes."""

    def __init__(self, home: Path, count: int, store: dict[str, str]) -> None:
        self._secure = {"sasl.enabled.mechanisms": "SCRAM-SHA-256"}
        self.doors = [free_port() for _ in range(count)]
        self.brokers = [self._broker(home, number) for number in range(count)]
        self.store = store

    def _broker(self, home: Path, number: int) -> BrokerProcess:
        port, many = free_port(), OF_THREE if len(self.doors) > 1 else {"offsets.topic.replication.factor": 1}
        listeners = f"PLAINTEXT://{HOST}:{port},DOOR://{HOST}:{self.doors[number]}"
        sets = {"broker.id": number + 1, "listeners": listeners,
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,DOOR:SASL_PLAINTEXT"}  # fmt: skip
        return BrokerProcess(home / str(number + 1), port, {**SETS, **many, **sets, **self._secure})

    @property
    def at(self) -> tuple[str, str]:
        return "-b", ",".join(f"{HOST}:{each.port}" for each in self.brokers)

    @contextlib.contextmanager
    def up(self) -> Iterator[None]:
        """Run the brokers with the store of the moment; stop them at the end."""
        with contextlib.ExitStack() as stack:
            for each in self.brokers:
                each.sets = without_store(each.sets) | self.store
                each.begin()
                stack.callback(each.close)
            for each in self.brokers:
                each.wait_ready()
            done = run("cluster", "check", "--wait", "in-sync", "--timeout", 120, *self.at)
            assert done.code == 0, done
            yield
            for each in self.brokers:
                each.stop()

    def fill(self) -> None:
        """Give the cluster one of each thing that must survive."""
        assert run("topics", "create", "orders", "--partitions", 3, *self.at).code == 0
        producer = Producer({"bootstrap.servers": self.at[1], "enable.idempotence": True})
        for number in range(RECORDS):
            producer.produce("orders", b"%d" % number, partition=0)
        assert producer.flush(60) == 0
        consumer = Consumer({"bootstrap.servers": self.at[1], "group.id": "g"})
        consumer.commit(offsets=[TopicPartition("orders", 0, COMMITTED)], asynchronous=False)
        consumer.close()
        for done in (
            run("configs", "alter", "-t", "orders", "--set", "retention.ms=86400001", *self.at),
            run("configs", "alter", "--broker-default", "--set", "log.cleaner.threads=2", *self.at),
            run("users", "set", "ann", "--password-file", "-", *self.at, stdin="of ann\n"),
            run("acls", "add", "--allow", "User:ann", "--operation", "read", "--topic", "orders", *self.at),
            run("acls", "add", "--allow", "User:ann", "--operation", "read", "--group", "anns", *self.at),
        ):
            assert done.code == 0, done

    def facts(self) -> dict[str, Any]:
        """Return the facts that must survive. ann logs in at the door of the last broker, and may read."""
        listed = run("topics", "list", "--internal", *self.at, "--json").json
        consumer = Consumer({
            "bootstrap.servers": f"{HOST}:{self.doors[-1]}", "security.protocol": "SASL_PLAINTEXT", "group.id": "anns",
            "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "ann", "sasl.password": "of ann",
        })  # fmt: skip
        consumer.assign([TopicPartition("orders", 0, 0)])
        values: list[tuple[int, bytes]] = []

        def read() -> bool:
            values.extend((message.offset(), message.value()) for message in consumer.consume(100, 0.2))
            return len(values) >= RECORDS

        until("all are read", read)
        consumer.close()
        return {
            "cluster": run("cluster", *self.at, "--json").json["cluster"],
            "topics": {each["name"]: (each["topic_id"], each["partitions"]) for each in listed},
            "settings": run("configs", "describe", "retention.ms", "-t", "orders", *self.at, "--json").json,
            "committed": run("groups", "describe", "g", *self.at, "--json").json[0]["partitions"][0]["committed"],
            "acls": run("acls", "list", *self.at, "--json").json,
            "users": run("users", "list", *self.at, "--json").json,
            "records": values,
        }  # fmt: skip

    def epochs(self) -> list[int]:
        """The leader epochs of orders."""
        (topic,) = run("topics", "describe", "orders", *self.at, "--json").json
        return [each["leader_epoch"] for each in topic["partitions"]]


def without_store(sets: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in sets.items() if name not in ("zookeeper.connect", "etcd.connect")}


def refusal(broker: BrokerProcess) -> str:
    """The output of a broker that refuses to start."""
    broker.begin()
    assert broker.wait_end() == 1
    said = broker.output()
    broker.close()
    return said


def kill_once_begun(etcd: Etcd, move: Sequence[str]) -> None:
    """Kill a move to etcd once the target has its mark, and before it is gone."""
    mark = base64.b64encode(b"/kafka/tree" + MIGRATED_FROM.encode()).decode()
    with start(*move) as killed:
        until("it has begun", lambda: etcd.servers[0].ask("v3/kv/range", key=mark).get("kvs"), every_s=0.001)
        killed.kill()
    assert killed.returncode == -9 and etcd.servers[0].ask("v3/kv/range", key=mark).get("kvs")


def again(move: Sequence[str]) -> Done:
    """Run a move after one that was killed, whose session goes on for a while."""
    done: list[Done] = []

    def ended() -> bool:
        done.append(run(*move))
        return "was killed less than" not in done[-1].err

    until("the session of the killed one has ended", ended, every_s=0.5)
    assert done[-1].code == 0, done[-1]
    return done[-1]


@pytest.mark.java
@pytest.mark.zookeeper("one of the two stores that a cluster moves between")
def test_a_cluster_moves_to_etcd_and_back(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    """Records, offsets, ACLs, logins and settings are there after each move; a killed move is finished by the next."""
    first = f"{zookeeper.connect}/{uuid.uuid4().hex}"
    second = f"{zookeeper.connect}/{uuid.uuid4().hex}"
    with Etcd() as etcd:
        there = f"{etcd.url}/kafka"
        estate = Estate(tmp_path, 3, {"zookeeper.connect": first})
        move = ("migrate-store", "--from-zookeeper", first, "--etcd", there)
        with estate.up():
            estate.fill()
            before, epochs = estate.facts(), estate.epochs()
            assert "is registered in ZooKeeper at" in run(*move).sentence
        kill_once_begun(etcd, move)
        half = estate.brokers[0]
        half.sets = without_store(half.sets) | {"etcd.connect": there}
        assert f"has an unfinished copy of ZooKeeper at {first}: finish it with pybroker" in refusal(half)
        done = again(move)
        assert done.out == (
            f"Moved cluster {before['cluster']} with 2 topics of 5 partitions to {there}. Put this into each broker's "
            f"properties, in place of zookeeper.connect:\netcd.connect={there}\n"
        )
        assert run(*move).out.startswith(f"Cluster {before['cluster']} was moved before. Put this into")
        half.sets = without_store(half.sets) | {"zookeeper.connect": first}
        assert f"this broker's topics were moved to etcd at {there}: start it with --etcd {there}" in refusal(half)
        estate.store = {"etcd.connect": there}
        with estate.up():
            assert estate.facts() == before
            assert all(new > old for new, old in zip(estate.epochs(), epochs, strict=True))
            epochs = estate.epochs()
        why = "check the chroot for a typo, or create it with --create"
        back = ("migrate-store", "--from-etcd", there, "--zookeeper", second)
        assert why in run(*back).sentence
        done = run(*back, "--create", "--json")
        assert done.code == 0, done
        assert {name: done.json[name] for name in ("topics", "partitions", "again", "from", "to")} == {
            "topics": 2, "partitions": 5, "again": False, "from": there, "to": second}  # fmt: skip
        estate.store = {"zookeeper.connect": second}
        with estate.up():
            assert estate.facts() == before
            assert all(new > old for new, old in zip(estate.epochs(), epochs, strict=True))
        refused = run("migrate-store", "--from-zookeeper", second, "--data-dir", tmp_path / "1").sentence
        assert "and a lone broker must have all of them: reassign every partition to broker 1 alone" in refused
        assert sorted(path.name for path in (tmp_path / "1").glob("coordination*")) == []


def test_a_cluster_of_one_leaves_etcd(tmp_path: Path) -> None:
    """The broker goes on alone, with all that it had, and can become the first of a cluster again."""
    with Etcd() as etcd:
        there, later = f"{etcd.url}/kafka", f"{etcd.url}/later"
        estate = Estate(tmp_path, 1, {"etcd.connect": there})
        with estate.up():
            estate.fill()
            before = estate.facts()
        home = tmp_path / "1"
        move = ("migrate-store", "--from-etcd", there, "--data-dir", home)
        done = run(*move)
        what = f"Moved cluster {before['cluster']} with 2 topics of 5 partitions to {home}. Take etcd.connect out of"
        assert done.out.startswith(what) and done.out.endswith(f"start it with: pybroker serve --data-dir {home}\n")
        assert run(*move).out.startswith(f"Cluster {before['cluster']} was moved before. Take etcd.connect out of")
        estate.store = {}
        with estate.up():
            assert estate.facts() == before
        refused = run("migrate-store", "--data-dir", home, "--etcd", there).sentence
        assert "has what was moved to the embedded store in" in refused
        assert run("migrate-store", "--data-dir", home, "--etcd", later).code == 0
        estate.store = {"etcd.connect": later}
        with estate.up():
            assert estate.facts() == before
