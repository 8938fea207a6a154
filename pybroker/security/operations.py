"""The operations on each type of resource, as the bits in responses."""

from typing import Final

from pybroker.security.acls import Operation, ResourceType

NOT_ASKED: Final = -(1 << 31)


def bits(*operations: Operation) -> int:
    """A set of operations as bits, as in Metadata, DescribeGroups and DescribeCluster."""
    return sum(1 << operation for operation in operations)


OPERATIONS: Final = {
    ResourceType.TOPIC: bits(
        Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: bits(Operation.READ, Operation.DELETE, Operation.DESCRIBE),
    ResourceType.CLUSTER: bits(
        Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: bits(Operation.WRITE, Operation.DESCRIBE),
    ResourceType.DELEGATION_TOKEN: bits(Operation.DESCRIBE),
    ResourceType.USER: bits(Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}  # fmt: skip
"""The operations of each resource type."""


def of(kind: ResourceType, asked: bool) -> int:
    """The operations for a client that may do everything, if it requested them."""
    return OPERATIONS[kind] if asked else NOT_ASKED
