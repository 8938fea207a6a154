"""A broker with ACLs and three users: root may do everything, ann and bob only what they are granted."""

from __future__ import annotations

from typing import Any

from pybroker import errors
from pybroker.protocol import messages as m
from pybroker.security.acls import Operation, PatternType, Permission, ResourceType
from pybroker.security.login import Account
from tests.server.live import Live, Wire, batch
from tests.server.test_sasl import log_in

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SETS = [
    "listeners=OPEN://127.0.0.1:0,CLIENTS://127.0.0.1:0",
    "listener.security.protocol.map=OPEN:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "inter.broker.listener.name=OPEN",
    "sasl.enabled.mechanisms=PLAIN",
    f'listener.name.clients.plain.sasl.jaas.config={MODULE} required user_root="r" user_ann="a" user_bob="b";',
    "authorizer.class.name=kafka.security.authorizer.AclAuthorizer",
    "super.users=User:root;User:nobody",
]
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
DENIED = errors.TOPIC_AUTHORIZATION_FAILED
TOPIC_DENIED, GROUP_DENIED, CLUSTER_DENIED = 29, 30, 31


class Cast:
    """A broker with ACLs: root may do everything, ann what she is granted."""

    def __init__(self, live: Live) -> None:
        self.live = live

    async def login(self, user: str) -> Wire:
        wire = await self.live.connect("CLIENTS")
        await log_in(wire, Account("PLAIN", user, user[0]))
        return wire

    async def start(self) -> None:
        await self.live.start()
        self.root = await self.login("root")
        self.ann = await self.login("ann")
        assert (await self.root.create("t", 2)).error_code == 0
        for index in range(2):
            assert (await self.root.produce("t", batch(b"secret"), partition=index)).error_code == 0

    async def give(self, *acls: tuple[ResourceType, str, Operation], **how: Any) -> None:
        """Add these ALLOW ACLs for ann."""
        answer = await self.root.call("CreateAcls", 3, creations=[creation(*acl, **how) for acl in acls])
        assert [result.error_code for result in answer.results] == [0] * len(acls)

    async def take(self, kind: ResourceType = ResourceType.ANY, name: str | None = None) -> int:
        """Delete the ACLs that match; return their number."""
        answer = await self.root.call("DeleteAcls", 3, filters=[acl_filter(kind, name)])
        assert answer.filter_results[0].error_code == 0
        return len(answer.filter_results[0].matching_acls)


def creation(
    kind: ResourceType,
    name: str,
    operation: Operation,
    *,
    principal: str = "User:ann",
    host: str = "*",
    pattern: PatternType = LITERAL,
    permission: Permission = Permission.ALLOW,
) -> Any:
    return m.CreateAclsRequest.Creations(
        resource_type=kind, resource_name=name, resource_pattern_type=pattern, principal=principal, host=host,
        operation=operation, permission_type=permission,
    )  # fmt: skip


def acl_filter(kind: ResourceType = ResourceType.ANY, name: str | None = None, **how: Any) -> Any:
    given = {
        "pattern_type_filter": PatternType.ANY, "principal_filter": None, "host_filter": None,
        "operation": Operation.ANY, "permission_type": Permission.ANY,
    }  # fmt: skip
    return m.DeleteAclsRequest.Filters(resource_type_filter=kind, resource_name_filter=name, **{**given, **how})
