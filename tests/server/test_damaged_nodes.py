"""A damaged node in the store costs only its own data: the broker starts, and its topics have leaders."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from pybroker.coordination.store import Create, NodeExists, Session
from pybroker.logs import Logfmt
from pybroker.metadata import nodes
from pybroker.metadata.lone_broker.loading import prepare
from pybroker.server.broker import Broker
from pybroker.testing.cluster_inprocess import BrokerStoreView
from tests.controller.forbidding import ForbiddingStore
from tests.harness import eventually
from tests.rows import Failures
from tests.server.live import broker_on

LINES_MAX = 8
"""The most warnings that one damage may cause in a start and an election."""
NODES = [
    "/config/brokers/<default>", "/config/brokers/1", "/config/topics", "/config/topics/t", "/config/users",
    "/config/users/u", "/config/clients", "/config/clients/c", "/config/ips",
    "/config/changes/config_change_0000000000", nodes.topic("t"), nodes.broker(9),
    "/brokers/seqid", "/latest_producer_id_block", "/isr_change_notification",
    "/isr_change_notification/isr_change_0000000000", "/log_dir_event_notification",
    "/log_dir_event_notification/log_dir_event_0000000000", "/admin/delete_topics", "/admin/delete_topics/t",
    "/admin/preferred_replica_election", "/admin/reassign_partitions", "/feature",
    "/kafka-acl/Topic/t", "/kafka-acl-changes/acl_changes_0000000000", "/delegation_token/tokens/x",
    "/delegation_token/token_changes/token_change_0000000000",
]  # fmt: skip
DAMAGES = {
    "garbage": b"\xff{", "empty": b"", "of another type": b"[1]", "a large one": b"x" * 999_000,
    "another's": b"{}",
}  # fmt: skip


async def put(session: Session, path: str, data: bytes) -> None:
    """Write a node, and create its missing parents."""
    names = path.split("/")
    for depth in range(2, len(names) + 1):
        try:
            await session.create("/".join(names[:depth]))
        except NodeExists:
            continue
    await session.set(path, data)


def broker(home: Path, store: ForbiddingStore) -> Broker:
    sets = [
        "broker.id=1", "super.users=User:ANONYMOUS",
        "authorizer.class.name=kafka.security.authorizer.AclAuthorizer", "delegation.token.secret.key=in winter",
    ]  # fmt: skip
    return broker_on(home, *sets, store=BrokerStoreView(store), give_up=["broker-1"])


async def damaged(node: str, damage: str) -> ForbiddingStore:
    """A store of two topics in which one node has damaged content."""
    store = ForbiddingStore()
    await store.open()
    admin = await store.session(60_000)
    store.owners.add(admin.id)
    await prepare(admin, nodes.OF_A_CLUSTER)
    for name in "tu":
        config = Create(nodes.topic_config(name), nodes.dump_config({}))
        assignment = nodes.dump_assignment(name.encode() * 16, [(1,)])
        await admin.multi([config, Create(nodes.topic(name), assignment)])
    await put(admin, node, DAMAGES[damage])
    if damage == "another's":
        store.forbidden.add(node)
    return store


async def ended(one: Broker, store: ForbiddingStore) -> None:
    await one.stop()
    await store.close()


async def leads_the_other(one: Broker, caplog: pytest.LogCaptureFixture) -> None:
    await one.start()

    def leads() -> bool:
        state = one.metadata.image.partition("u", 0)
        return state is not None and state.leader == 1

    await eventually("it leads", leads)
    lines = [Logfmt().format(record) for record in caplog.records if record.name.startswith("pybroker.")]
    lines = [line for line in lines if "SECURITY" not in line]
    assert len(lines) <= LINES_MAX, lines
    assert not [line for line in lines if "Traceback" in line], lines


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_broker_starts_and_leads(tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str) -> None:
    """The broker leads its other topic and logs a few lines, for any content of one node. Each node has its own broker;
    a stop is mostly waiting, so all stop at once."""
    caplog.set_level(logging.WARNING)
    stops = {}
    with Failures() as failures:
        for number, node in enumerate(NODES):
            with failures.of(node):
                store = await damaged(node, damage)
                one = broker(tmp_path / str(number), store)
                stops[node] = ended(one, store)
                caplog.clear()
                await leads_the_other(one, caplog)
        for node, error in zip(stops, await asyncio.gather(*stops.values(), return_exceptions=True), strict=True):
            with failures.of(f"the stop with {node}"):
                if error is not None:
                    raise error
