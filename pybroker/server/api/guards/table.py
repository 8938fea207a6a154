"""The table of guards: one for each API that requires rights."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from pybroker.protocol.apis import SERVED
from pybroker.security.acls import Operation, ResourceType
from pybroker.security.matrix import MATRIX, DenialPlace
from pybroker.server.api.dispatch import AnyHandler
from pybroker.server.api.guards import cluster, data, delegation_tokens, groups, topics, transactions
from pybroker.server.api.guards.auth_helper import AuthHelper, Guarded

AnyGuarded = Guarded[Any, Any]
Guard = Callable[[AuthHelper, AnyHandler], AnyGuarded]


def _group(operation: Operation) -> Guard:
    return lambda auth, handler: groups.of_group(auth, handler, operation)


def _configs(operation: Operation, told: str) -> Guard:
    return lambda auth, handler: topics.of_configs(auth, handler, operation, told)


def _topics(name: str) -> Guard:
    return lambda auth, handler: topics.of_topics(auth, handler, topics.BY_TOPIC[name])


def _offset_commit(auth: AuthHelper, handler: AnyHandler) -> AnyGuarded:
    then = topics.of_topics(auth, handler, topics.BY_TOPIC["OffsetCommit"])
    return groups.of_group(auth, handler, Operation.READ, then)


def _txn_offset_commit(auth: AuthHelper, handler: AnyHandler) -> AnyGuarded:
    then = topics.of_topics(auth, handler, topics.BY_TOPIC["TxnOffsetCommit"])
    of_group = groups.of_group(auth, handler, Operation.READ, then)
    return transactions.with_id(auth, handler, of_group)


def _offset_delete(auth: AuthHelper, handler: AnyHandler) -> AnyGuarded:
    return groups.of_group(auth, handler, Operation.DELETE, topics.deleted_offsets(auth, handler))


GUARDS: Final[Mapping[str, Guard]] = {
    "Produce": data.produced,
    "Fetch": data.fetched,
    **{name: _topics(name) for name in ("ListOffsets", "DeleteRecords", "CreatePartitions", "DescribeProducers")},
    "OffsetForLeaderEpoch": topics.epochs,
    "CreateTopics": topics.created,
    "DeleteTopics": topics.deleted,
    "DescribeConfigs": _configs(Operation.DESCRIBE_CONFIGS, "results"),
    "AlterConfigs": _configs(Operation.ALTER_CONFIGS, "responses"),
    "IncrementalAlterConfigs": _configs(Operation.ALTER_CONFIGS, "responses"),
    **{name: _group(Operation.READ) for name in ("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup")},
    "OffsetCommit": _offset_commit,
    "OffsetFetch": groups.fetched_offsets,
    "OffsetDelete": _offset_delete,
    "FindCoordinator": groups.found_coordinators,
    "DescribeGroups": groups.described_groups,
    "ListGroups": groups.listed_groups,
    "DeleteGroups": lambda auth, handler: groups.of_groups(
        auth, handler, Operation.DELETE, "groups_names", "results"
    ),
    "InitProducerId": cluster.producer_ids,
    "AddPartitionsToTxn": transactions.added_partitions,
    "AddOffsetsToTxn": transactions.added_offsets,
    "EndTxn": transactions.with_id,
    "TxnOffsetCommit": _txn_offset_commit,
    "WriteTxnMarkers": transactions.wrote_markers,
    "DescribeTransactions": transactions.described,
    "ListTransactions": transactions.listed,
    "DescribeCluster": cluster.described_cluster,
    "CreateDelegationToken": delegation_tokens.created,
    "DescribeDelegationToken": delegation_tokens.described,
}
"""The guards by API name, without Metadata's and those of APIs that need only an operation on the cluster."""


def guarded(auth: AuthHelper, handlers: Mapping[int, AnyHandler], auto_create: bool) -> dict[int, AnyHandler]:
    """Return the table with a guard before each handler whose API requires rights."""
    made = {}
    for key, handler in handlers.items():
        name = SERVED[key].name
        by = handler.by
        if name == "Metadata":
            by = data.described(auth, handler, auto_create)
        elif name in GUARDS:
            by = GUARDS[name](auth, handler)
        elif MATRIX[key].checks:
            operation = cluster_operation(key)
            by = cluster.of_cluster(auth, handler, operation)
            handler = handler._replace(denied=cluster.denied(auth, operation))
        made[key] = handler._replace(by=by)
    return made


def cluster_operation(key: int) -> Operation:
    """The operation on the cluster that is all an API requires. Raises ValueError for an API without a guard."""
    checks = MATRIX[key].checks
    alone = len(checks) == 1 and checks[0].need.type is ResourceType.CLUSTER and checks[0].instead is None
    if not alone or checks[0].level is DenialPlace.FILTERED:
        raise ValueError(f"{MATRIX[key].name} has no guard")
    return checks[0].need.operation
