"""The table of operations that each API requires, and of the errors of a denial: for handlers and for their tests.

The checks of a row are in the order in which they are made. Each comes before any look-up except of a topic id, so that
a denial is the same whether the resource exists or not. Sources: KafkaApis of Kafka 3.9, and tests of a Kafka 3.9.1.
"""

from enum import Enum
from functools import partial
from typing import Final, NamedTuple

from pybroker.errors import (
    CLUSTER_AUTHORIZATION_FAILED,
    DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    GROUP_AUTHORIZATION_FAILED,
    NONE,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
from pybroker.security.acls import Operation, ResourceType


class DenialPlace(Enum):
    """The place of a denial's error code in the response."""

    TOP = "the answer as a whole"
    TOPIC = "each topic that is denied"
    PARTITION = "each partition of a topic that is denied"
    EVERY_PARTITION = "every partition of the request"
    GROUP = "each group that is denied"
    RESOURCE = "each resource that is denied"
    ENTRY = "each entry of the request that is denied: a key, an id, a user, an ACL"
    FILTERED = "nowhere: what is denied is left out"


class Need(NamedTuple):
    """An operation on the resource that the request names, or on `any_of_type` (`AclRules.authorize_any`)."""

    operation: Operation
    type: ResourceType
    any_of_type: bool = False


class AuthorizerQuestion(NamedTuple):
    """A check by the authorizer: the caller needs `need`, or otherwise `instead`.

    `error` and `level` are the error of a denial and its place. `when` describes in words the requests that are
    checked, empty for all; `note` other effects of a denial, or an error that comes first."""

    need: Need
    error: int
    level: DenialPlace
    instead: Need | None = None
    when: str = ""
    note: str = ""


class Row(NamedTuple):
    """An API; without checks any client may call it."""

    key: int
    name: str
    checks: tuple[AuthorizerQuestion, ...] = ()


_ERRORS: Final = {
    ResourceType.TOPIC: TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.USER: DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
TOP, TOPIC, PARTITION = DenialPlace.TOP, DenialPlace.TOPIC, DenialPlace.PARTITION
EVERY_PARTITION = DenialPlace.EVERY_PARTITION
GROUP, RESOURCE, ENTRY, FILTERED = DenialPlace.GROUP, DenialPlace.RESOURCE, DenialPlace.ENTRY, DenialPlace.FILTERED

READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE, CLUSTER_ACTION = Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS


def _check(
    kind: ResourceType, operation: Operation, level: DenialPlace, *, error: int | None = None,
    instead: Need | None = None,
    when: str = "", note: str = "",
) -> AuthorizerQuestion:  # fmt: skip
    """A check whose `error` is that of the resource type, if not given."""
    if error is None:
        error = NONE if level is FILTERED else _ERRORS[kind]
    return AuthorizerQuestion(Need(operation, kind), error, level, instead, when, note)


_topic = partial(_check, ResourceType.TOPIC)
_group = partial(_check, ResourceType.GROUP)
_cluster = partial(_check, ResourceType.CLUSTER)
_transactional_id = partial(_check, ResourceType.TRANSACTIONAL_ID)
_CREATE_TOPIC = Need(CREATE, ResourceType.TOPIC)


def _by_config(operation: Operation) -> tuple[AuthorizerQuestion, ...]:
    return (
        _topic(operation, RESOURCE, when="of topics"),
        _cluster(operation, RESOURCE, when="of brokers, loggers and client metrics"),
    )


_ROWS: Final = (
    Row(0, "Produce", (
        _transactional_id(WRITE, EVERY_PARTITION, when="a batch is transactional", note="a null id is denied"),
        _topic(WRITE, PARTITION, note="with acks=0 the connection is closed"),
    )),
    Row(1, "Fetch", (
        _topic(
            READ, PARTITION, when="of a consumer",
            note="checked for every partition of the session at each fetch; UNKNOWN_TOPIC_ID comes first",
        ),
        _cluster(CLUSTER_ACTION, EVERY_PARTITION, error=TOPIC_AUTHORIZATION_FAILED, when="with a replica's id"),
    )),
    Row(2, "ListOffsets", (_topic(DESCRIBE, PARTITION),)),
    Row(3, "Metadata", (
        _topic(DESCRIBE, FILTERED, when="all topics are requested"),
        _topic(DESCRIBE, TOPIC, when="of a name", note="with the zero id and no partitions"),
        _topic(DESCRIBE, TOPIC, when="of an id", note="with the id and no name; UNKNOWN_TOPIC_ID comes first"),
        _cluster(
            CREATE, TOPIC, error=TOPIC_AUTHORIZATION_FAILED, instead=_CREATE_TOPIC,
            when="a topic does not exist, and the request and the broker allow its creation",
        ),
    )),
    Row(4, "LeaderAndIsr", (_cluster(CLUSTER_ACTION, TOP),)),
    Row(5, "StopReplica", (_cluster(CLUSTER_ACTION, TOP),)),
    Row(6, "UpdateMetadata", (_cluster(CLUSTER_ACTION, TOP),)),
    Row(7, "ControlledShutdown", (_cluster(CLUSTER_ACTION, TOP),)),
    Row(8, "OffsetCommit", (_group(READ, EVERY_PARTITION), _topic(READ, PARTITION))),
    Row(9, "OffsetFetch", (
        _group(DESCRIBE, GROUP, when="version 8 and newer"),
        _group(DESCRIBE, TOP, when="older than version 8"),
        _topic(DESCRIBE, PARTITION, when="partitions are named", note="with the offset -1"),
        _topic(DESCRIBE, FILTERED, when="all partitions are requested"),
    )),
    Row(10, "FindCoordinator", (
        _group(DESCRIBE, ENTRY, when="of groups", note="older than version 4 at the top"),
        _transactional_id(DESCRIBE, ENTRY, when="of transactional ids", note="older than version 4 at the top"),
    )),
    Row(11, "JoinGroup", (_group(READ, TOP),)),
    Row(12, "Heartbeat", (_group(READ, TOP),)),
    Row(13, "LeaveGroup", (_group(READ, TOP),)),
    Row(14, "SyncGroup", (_group(READ, TOP),)),
    Row(15, "DescribeGroups", (_group(DESCRIBE, GROUP),)),
    Row(16, "ListGroups", (_cluster(DESCRIBE, FILTERED, instead=Need(DESCRIBE, ResourceType.GROUP)),)),
    Row(17, "SaslHandshake"),
    Row(18, "ApiVersions"),
    Row(19, "CreateTopics", (
        _cluster(CREATE, TOPIC, error=TOPIC_AUTHORIZATION_FAILED, instead=_CREATE_TOPIC),
        _topic(
            DESCRIBE_CONFIGS, TOPIC, when="the response has configs",
            note="the topic is created: the error is its topic_config_error_code, its counts are -1",
        ),
    )),
    Row(20, "DeleteTopics", (
        _topic(DESCRIBE, TOPIC, when="of an id", note="with no name; UNKNOWN_TOPIC_ID comes first"),
        _topic(DELETE, TOPIC),
    )),
    Row(21, "DeleteRecords", (_topic(DELETE, PARTITION),)),
    Row(22, "InitProducerId", (
        _transactional_id(WRITE, TOP, when="with a transactional id"),
        _cluster(
            Operation.IDEMPOTENT_WRITE, TOP, instead=Need(WRITE, ResourceType.TOPIC, any_of_type=True),
            when="without a transactional id",
        ),
    )),
    Row(23, "OffsetForLeaderEpoch", (
        _cluster(
            CLUSTER_ACTION, PARTITION, error=TOPIC_AUTHORIZATION_FAILED, instead=Need(DESCRIBE, ResourceType.TOPIC)
        ),
    )),
    Row(24, "AddPartitionsToTxn", (
        _transactional_id(WRITE, EVERY_PARTITION, when="older than version 4"),
        _topic(
            WRITE, PARTITION, when="older than version 4",
            note="internal topics are always denied; other partitions get OPERATION_NOT_ATTEMPTED, and none is added",
        ),
        _cluster(CLUSTER_ACTION, TOP, when="version 4 and newer"),
    )),
    Row(25, "AddOffsetsToTxn", (_transactional_id(WRITE, TOP), _group(READ, TOP))),
    Row(26, "EndTxn", (_transactional_id(WRITE, TOP),)),
    Row(27, "WriteTxnMarkers", (
        _cluster(ALTER, EVERY_PARTITION, instead=Need(CLUSTER_ACTION, ResourceType.CLUSTER)),
    )),
    Row(28, "TxnOffsetCommit", (
        _transactional_id(WRITE, EVERY_PARTITION),
        _group(READ, EVERY_PARTITION),
        _topic(READ, PARTITION),
    )),
    Row(29, "DescribeAcls", (_cluster(DESCRIBE, TOP),)),
    Row(30, "CreateAcls", (_cluster(ALTER, ENTRY),)),
    Row(31, "DeleteAcls", (_cluster(ALTER, ENTRY),)),
    Row(32, "DescribeConfigs", _by_config(DESCRIBE_CONFIGS)),
    Row(33, "AlterConfigs", _by_config(ALTER_CONFIGS)),
    Row(34, "AlterReplicaLogDirs", (_cluster(ALTER, EVERY_PARTITION),)),
    Row(35, "DescribeLogDirs", (_cluster(DESCRIBE, TOP, note="older than version 3 empty, without the code"),)),
    Row(36, "SaslAuthenticate"),
    Row(37, "CreatePartitions", (_topic(ALTER, TOPIC),)),
    Row(38, "CreateDelegationToken", (
        _check(ResourceType.USER, Operation.CREATE_TOKENS, TOP, when="for another owner, whose principal is the name"),
    )),
    Row(39, "RenewDelegationToken"),  # only owner and renewers, not even super users: no ACL is checked
    Row(40, "ExpireDelegationToken"),
    Row(41, "DescribeDelegationToken", (
        _check(
            ResourceType.DELEGATION_TOKEN, DESCRIBE, FILTERED,
            instead=Need(Operation.DESCRIBE_TOKENS, ResourceType.USER), when="the token has another owner",
        ),
    )),
    Row(42, "DeleteGroups", (_group(DELETE, GROUP),)),
    Row(43, "ElectLeaders", (_cluster(ALTER, TOP, note="and at every partition"),)),
    Row(44, "IncrementalAlterConfigs", _by_config(ALTER_CONFIGS)),
    Row(45, "AlterPartitionReassignments", (_cluster(ALTER, TOP),)),
    Row(46, "ListPartitionReassignments", (_cluster(DESCRIBE, TOP),)),
    Row(47, "OffsetDelete", (_group(DELETE, TOP), _topic(READ, PARTITION))),
    Row(48, "DescribeClientQuotas", (_cluster(DESCRIBE_CONFIGS, TOP),)),
    Row(49, "AlterClientQuotas", (_cluster(ALTER_CONFIGS, ENTRY),)),
    Row(50, "DescribeUserScramCredentials", (_cluster(DESCRIBE, TOP),)),
    Row(51, "AlterUserScramCredentials", (_cluster(ALTER, ENTRY, note="NOT_CONTROLLER comes first"),)),
    Row(56, "AlterPartition", (_cluster(CLUSTER_ACTION, TOP),)),
    Row(57, "UpdateFeatures", (_cluster(ALTER, TOP),)),
    Row(58, "Envelope", (_cluster(CLUSTER_ACTION, TOP, note="the connection is closed at other listeners"),)),
    Row(60, "DescribeCluster"),
    Row(61, "DescribeProducers", (_topic(READ, PARTITION),)),
    Row(65, "DescribeTransactions", (
        _transactional_id(DESCRIBE, ENTRY), _topic(DESCRIBE, FILTERED, note="of a transaction's topics"),
    )),
    Row(66, "ListTransactions", (_transactional_id(DESCRIBE, FILTERED),)),
    Row(67, "AllocateProducerIds", (_cluster(CLUSTER_ACTION, TOP),)),
    Row(68, "ConsumerGroupHeartbeat", (_group(READ, TOP),)),
    Row(69, "ConsumerGroupDescribe", (_group(DESCRIBE, GROUP),)),
    Row(71, "GetTelemetrySubscriptions"),
    Row(72, "PushTelemetry"),
    Row(74, "ListClientMetricsResources", (_cluster(DESCRIBE_CONFIGS, TOP),)),
    Row(75, "DescribeTopicPartitions", (
        _topic(DESCRIBE, FILTERED, when="all topics are requested"),
        _topic(DESCRIBE, TOPIC, when="topics are named"),
    )),
)  # fmt: skip

MATRIX: Final = {row.key: row for row in _ROWS}
"""By API key: all APIs that this broker serves, and some others."""
