"""The operations of authorisation, as Kafka numbers them, and the sets that answers show as bits."""

from enum import IntEnum
from typing import Final


class Operation(IntEnum):
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def bits(*operations: Operation) -> int:
    """A set of operations as Metadata and DescribeCluster carry it."""
    return sum(1 << operation for operation in operations)


_SHARED: Final = bits(
    Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
)
ALL_OF_TOPIC: Final = _SHARED | bits(Operation.READ, Operation.WRITE, Operation.DELETE)
ALL_OF_CLUSTER: Final = _SHARED | bits(Operation.CLUSTER_ACTION, Operation.IDEMPOTENT_WRITE)
NOT_ASKED: Final = -(1 << 31)
