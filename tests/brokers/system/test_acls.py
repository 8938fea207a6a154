"""ACLs of a cluster: each broker soon applies all ACLs in ZooKeeper, also on open connections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from pybroker import errors
from pybroker.client.net.connection import BrokerConnection
from pybroker.protocol import messages as m
from pybroker.security.login import Account
from tests.brokers.editor import editor_of
from tests.brokers.network import Network
from tests.brokers.system.test_sasl import MODULE, Secured
from tests.brokers.witness import Witness
from tests.harness import HOST, until
from tests.stores import AnyStore

pytestmark = [pytest.mark.java]
CLIENTS = f'{MODULE} required user_root="root" user_ann="ann";'
ANN = Account("PLAIN", "ann", "ann")


class Guarded(Secured):
    """A cluster where clients of the harness's listener, root, and brokers that log in may do everything."""

    def _ways(self, network: Network, number: int, port: int) -> dict[str, object]:
        return {
            **super()._ways(network, number, port),
            "listener.name.clients.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.clients.plain.sasl.jaas.config": CLIENTS,
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:root;User:ANONYMOUS",
        }


@pytest.fixture
def cluster(tmp_path: Path, store: AnyStore) -> Iterator[Guarded]:
    network = Network()
    with Guarded(tmp_path, store, network=network) as running:
        yield running
    network.close()


def settings(cluster: Guarded, user: str) -> dict[str, object]:
    return {
        "bootstrap.servers": ",".join(f"{HOST}:{port}" for port in cluster.clients), "sasl.username": user,
        "sasl.password": user, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "log_level": 0,
    }  # fmt: skip


def describes(port: int, topic: str) -> bool:
    """True if a broker shows the topic to ann."""
    with BrokerConnection(HOST, port, account=ANN) as connection:
        answer = connection.request(m.MetadataRequest(topics=[m.MetadataRequest.Topics(name=topic)]))
    code = answer.topics[0].error_code
    assert code in (0, errors.TOPIC_AUTHORIZATION_FAILED)
    return code == 0


def allow(name: str, operation: AclOperation = AclOperation.READ) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC, name, ResourcePatternType.LITERAL, "User:ann", "*", operation, AclPermissionType.ALLOW
    )


def test_every_broker_goes_by_them(cluster: Guarded, store: AnyStore) -> None:
    """ACLs apply everywhere, whether librdkafka's client sent them to a broker or a tool wrote them into ZooKeeper."""
    for name in ("t", "u"):
        cluster.create(name)
    admin = AdminClient(settings(cluster, "root"))  # type: ignore[arg-type]
    for made in admin.create_acls([allow("t")]).values():
        made.result(10)
    for port in cluster.clients:
        until("ann is told of it", lambda port=port: describes(port, "t"))  # type: ignore[misc]
        assert not describes(port, "u")
    outside = editor_of(store, cluster.chroot)
    outside.start()
    acl = b'{"principal":"User:ann","permissionType":"Allow","host":"*","operation":"Describe"}'
    outside.create("/kafka-acl/Topic/u", b'{"version":1,"acls":[%s]}' % acl)
    outside.create("/kafka-acl-changes/acl_changes_", b"TOPIC:u", sequence=True)
    for port in cluster.clients:
        until("ann is told of it", lambda port=port: describes(port, "u"))  # type: ignore[misc]
    anything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert {acl.name for acl in admin.describe_acls(anything).result(10)} == {"t", "u"}
    gone = admin.delete_acls([anything])[anything].result(10)
    assert {acl.name for acl in gone} == {"t", "u"}
    for port in cluster.clients:
        until("it is hidden", lambda port=port: not describes(port, "t"))  # type: ignore[misc]
    assert outside.get_children("/kafka-acl/Topic") == []
    outside.stop()
    outside.close()


def test_brokers_and_clients_of_theirs_go_on(cluster: Guarded) -> None:
    """The first ACL about the cluster takes no right from brokers: a leader fails over, and a consumer reads on."""
    admin = AdminClient(settings(cluster, "root"))  # type: ignore[arg-type]
    cluster_acl = AclBinding(
        ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL, "User:ann", "*", AclOperation.DESCRIBE,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    group = AclBinding(
        ResourceType.GROUP, "g", ResourcePatternType.LITERAL, "User:ann", "*", AclOperation.READ,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    for made in admin.create_acls([cluster_acl, group, allow("t"), allow("t", AclOperation.WRITE)]).values():
        made.result(10)
    topic = cluster.create("t")
    producer = ck.Producer({**settings(cluster, "ann"), "enable.idempotence": True})
    consumer = ck.Consumer({**settings(cluster, "ann"), "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    with Witness(cluster, topic) as witness:
        witness.until_acked()
        leader = cluster.leader(topic)
        cluster.kill(leader)
        until("another leads", lambda: cluster.leader(topic) not in (-1, leader))
        producer.produce(topic, b"alone")
        assert producer.flush(20) == 0
        witness.until_acked()
        cluster.restart(leader)
        cluster.until_in_sync(topic)
        seen: list[bytes | None] = []

        def read() -> bool:
            for message in consumer.consume(1000, 0.1):  # after all records of the witness
                if (error := message.error()) is None:
                    seen.append(message.value())
                else:  # the group moves to the broker that is back, and librdkafka asks the next one
                    assert error.code() in (errors.NOT_COORDINATOR, errors.COORDINATOR_LOAD_IN_PROGRESS), error
            return b"alone" in seen

        until("ann reads what she wrote", read)
        consumer.close()
        witness.judge(alone=1)
