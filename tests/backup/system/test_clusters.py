"""Backups of Apache Kafka and of a cluster: transactions of a real coordinator, and replicas restored one by one."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka as ck
import pytest

from pybroker import Consumer, Producer
from pybroker.client.admin import Admin, Committed
from pybroker.testing import BrokerHandle
from tests.backup.kit import says
from tests.brokers.server import ThreeBrokers
from tests.cli.conftest import run
from tests.harness import Server, until
from tests.java.peers import each_peer

pytestmark = pytest.mark.java
READY_S = 60.0


def values(bootstrap: str, topic: str, *, committed: bool = False) -> list[bytes | None]:
    """The values of a topic of one partition, from its first to its last record."""
    level = "read_committed" if committed else "read_uncommitted"
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level=level) as consumer:
        consumer.assign([(topic, 0)])
        found: list[bytes | None] = []
        (end,) = consumer.end_offsets([(topic, 0)]).values()
        while consumer.position((topic, 0)) < end:
            found += [record.value for record in consumer.poll(500)]
    return found


def write_transactions(bootstrap: str, topic: str) -> None:
    """Write plain records, a committed and an aborted transaction, and compressed ones."""
    with Producer(bootstrap_servers=bootstrap) as plain:
        plain.send(topic, b"plain", partition=0)
    producer = ck.Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "compression.type": "lz4"})
    producer.init_transactions(READY_S)
    for value, end in ((b"yes", producer.commit_transaction), (b"no", producer.abort_transaction)):
        producer.begin_transaction()
        for n in range(5):
            producer.produce(topic, value + b"%d" % n, partition=0)
        producer.flush(READY_S)
        end(READY_S)
    with Producer(bootstrap_servers=bootstrap) as plain:
        plain.send(topic, b"last", partition=0)


@pytest.mark.parametrize("peer", each_peer())
def test_transactions_of_kafka(request: pytest.FixtureRequest, peer: str, tmp_path: Path, topic: str) -> None:
    """Kafka's log is backed up byte for byte, and what was committed is restored into a broker of ours."""
    kafka: Server = request.getfixturevalue(peer)
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic(topic, partitions=1, replication_factor=1, configs={"retention.ms": "-1"})
        write_transactions(kafka.bootstrap, topic)
        admin.alter_group_offsets(f"group-{topic}", {(topic, 0): Committed(8)})
    home = tmp_path / "backup"
    says(run("backup", topic, "--to", home, "-b", kafka.bootstrap, "--no-log-dirs"))
    log = b"".join(path.read_bytes() for path in sorted(kafka.partition_dir(topic).glob("*.log")))
    assert b"".join(path.read_bytes() for path in sorted((home / f"{topic}-0").iterdir())) == log
    expected = values(kafka.bootstrap, topic, committed=True)
    assert expected == [b"plain", *(b"yes%d" % n for n in range(5)), b"last"]
    with BrokerHandle() as ours:
        told = says(run("restore", home, "-b", ours.bootstrap_servers, "--json")).json
        assert [r.value for r in ours.records(topic)] == expected
        assert told["topics"][0]["left_out"] == 5
        with Admin(ours.bootstrap_servers) as admin:
            (at,) = admin.group_offsets([f"group-{topic}"])[f"group-{topic}"].values()
        assert expected[at.offset] == b"last"


def test_a_cluster_with_its_offsets(shared_cluster: ThreeBrokers, tmp_path: Path, topic: str) -> None:
    """A topic with three replicas is restored into the log dirs of three stopped brokers: same offsets, all in sync."""
    address = ("-b", shared_cluster.bootstrap)
    home = tmp_path / "backup"
    with Admin(shared_cluster.bootstrap) as admin:
        admin.create_topic(topic, partitions=1, replication_factor=3, configs={"segment.bytes": "4096"})
        with Producer(bootstrap_servers=shared_cluster.bootstrap, acks="all", batch_size=2000) as producer:
            for n in range(200):
                sent = producer.send(topic, b"%d" % n + b"x" * 100, partition=0)
            assert sent.result(READY_S).offset == 199
        admin.delete_records({(topic, 0): 50})
        was = values(shared_cluster.bootstrap, topic)
        assert len(was) == 150
        says(run("backup", topic, "--to", home, *address))
        admin.delete_topic(topic)
    says(run("restore", home, "--only", "topics", *address))
    for broker in shared_cluster.brokers:
        broker.stop()
    for broker in shared_cluster.brokers:
        told = says(run("restore", home, "--log-dir", broker.data_dir, "--json")).json
        assert told["partitions"] == [f"{topic}-0"]
    shared_cluster.start()
    assert values(shared_cluster.bootstrap, topic) == was
    with Admin(shared_cluster.bootstrap) as admin:

        def in_sync() -> bool:
            (found,) = admin.topics([topic])
            return len(found.partitions[0].isr) == 3

        until("all replicas in sync", in_sync, READY_S)
    with Producer(bootstrap_servers=shared_cluster.bootstrap, acks="all") as producer:
        assert producer.send(topic, b"next", partition=0).result(READY_S).offset == 200
