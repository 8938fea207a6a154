"""The table of handlers, one for each API, built with the services that they depend on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pybroker.clock import wall_ms
from pybroker.config import BrokerConfig
from pybroker.decisions.config_repository import ConfigRepository
from pybroker.decisions.image import Node
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.groups.coordinator import Coordinator
from pybroker.metadata.broker_loggers import BrokerLoggers
from pybroker.metadata.config_admin import ConfigAdmin
from pybroker.metadata.delegation_tokens import TokenStore
from pybroker.metadata.entities import EntityConfigs
from pybroker.metadata.topic_admin import TopicAdmin
from pybroker.protocol.apis import SERVED
from pybroker.replication.proof import Proof
from pybroker.replication.replicas import Replicas
from pybroker.server.api.authorization import Authorization
from pybroker.server.api.certain import OF_GROUPS, OF_TRANSACTIONS, Certain
from pybroker.server.api.dispatch import AnyHandler, Handler
from pybroker.server.api.handlers import (
    acls,
    alter_configs,
    api_versions,
    cluster,
    configs,
    control,
    delegation_tokens,
    elections,
    fetch,
    group_offsets,
    groups,
    log_dirs,
    metadata,
    offsets,
    produce,
    producer_ids,
    producers,
    quotas,
    reassignments,
    records,
    sasl,
    topics,
    transaction_markers,
    transactions,
    users,
)
from pybroker.state_log.placement import partition_of
from pybroker.transactions.coordinator import TransactionCoordinator
from pybroker.transactions.verification import Verification

if TYPE_CHECKING:
    from pybroker.controller.controller import Controller


class Locates(Protocol):
    """Finds the coordinator of a group or a transactional id."""

    def locate(self, key: str, listener: str) -> Awaitable[Node]:
        """The coordinator, with the address for clients of this listener. Raises COORDINATOR_NOT_AVAILABLE."""

    def leader(self, key: str) -> Awaitable[int]:
        """The broker that is the coordinator; its topic is created if it does not exist. Raises
        COORDINATOR_NOT_AVAILABLE."""


@dataclass(slots=True)
class Collaborators:
    """The services that request handlers depend on."""

    broker_id: int
    config: BrokerConfig
    metadata: MetadataCache
    topic_configs: ConfigRepository
    replicas: Replicas
    admin: TopicAdmin
    draw_producer_id: Callable[[], Awaitable[int]]
    workers: Executor
    groups: Coordinator
    locator: Locates
    transactions: TransactionCoordinator
    transaction_locator: Locates
    verification: Verification
    configs: ConfigAdmin
    entities: EntityConfigs
    authorization: Authorization | None
    tokens: TokenStore | None = None
    controller: Callable[[], Controller | None] = lambda: None
    """Returns this broker's controller, elected or not; None while there is no session."""
    peers: control.Peers | None = None  # None at a lone broker, which gets no requests of other brokers
    followers: fetch.Followers | None = None


def fetch_of(c: Collaborators) -> fetch.Fetch:
    """The Fetch handler; the caller must call its `release` before the connections are closed."""
    return fetch.Fetch(c.replicas, c.metadata, c.config["fetch.max.bytes"], c.followers, Proof(c.replicas, c.config))


def handlers(c: Collaborators, fetching: fetch.Fetch) -> dict[int, AnyHandler]:
    """The handlers by API key."""
    proof, loggers = Proof(c.replicas, c.config), BrokerLoggers(c.broker_id)
    by_name: dict[str, AnyHandler] = {
        "Produce": Handler(
            produce.Produce(c.replicas, c.metadata, c.workers, c.verification, c.config), produce.failed
        ),
        "Fetch": Handler(fetching, fetch.failed, abandon=True),
        "ListOffsets": Handler(offsets.ListOffsets(c.replicas, proof), offsets.list_offsets_failed),
        "Metadata": Handler(
            metadata.Metadata(c.metadata, c.admin, c.config["auto.create.topics.enable"]), metadata.failed
        ),
        "SaslHandshake": Handler(sasl.handshake, sasl.handshake_failed),
        "SaslAuthenticate": Handler(sasl.authenticate, sasl.authenticate_failed),
        "ApiVersions": Handler(api_versions.api_versions, api_versions.failed),
        "CreateTopics": Handler(
            topics.CreateTopics(c.admin, c.config), topics.create_failed, size=topics.CreateTopics.size
        ),
        "DeleteTopics": Handler(
            topics.DeleteTopics(c.admin, c.metadata, c.config["delete.topic.enable"]), topics.delete_failed
        ),
        "DeleteRecords": Handler(records.DeleteRecords(c.replicas, proof), records.failed),
        "InitProducerId": Handler(
            producer_ids.InitProducerId(c.draw_producer_id, c.transactions), producer_ids.failed
        ),
        "OffsetForLeaderEpoch": Handler(
            offsets.OffsetForLeaderEpoch(c.replicas, proof), offsets.offset_for_leader_epoch_failed
        ),
        "DescribeConfigs": Handler(
            configs.DescribeConfigs(c.metadata, c.topic_configs, c.config, c.broker_id, loggers), configs.failed
        ),
        "CreatePartitions": Handler(
            topics.CreatePartitions(c.admin), topics.create_partitions_failed, size=topics.CreatePartitions.size
        ),
        "DescribeCluster": Handler(cluster.DescribeCluster(c.metadata), cluster.failed),
    }
    by_name |= Certain(c.groups, proof, OF_GROUPS).guard(group_handlers(c)) | admin_handlers(c) | control_handlers(c)
    by_name |= transaction_handlers(c)
    by_name |= Certain(c.transactions, proof, OF_TRANSACTIONS).guard(by_name)
    return {api.key: by_name[api.name] for api in SERVED.values()}


def transaction_handlers(c: Collaborators) -> dict[str, AnyHandler]:
    """The handlers of requests about transactions."""
    txn, locator, groups = c.transactions, c.locator, c.groups

    async def offsets_partition(group_id: str) -> int:
        await locator.leader(group_id)
        return partition_of(group_id, groups.partitions)

    markers = transaction_markers.WriteTxnMarkers(c.replicas, groups.write_marker)
    return {
        "AddPartitionsToTxn": Handler(
            transactions.AddPartitionsToTxn(txn, c.metadata), transactions.add_partitions_failed
        ),
        "AddOffsetsToTxn": Handler(
            transactions.AddOffsetsToTxn(txn, offsets_partition), transactions.add_offsets_failed
        ),
        "EndTxn": Handler(transactions.EndTxn(txn), transactions.end_failed),
        "WriteTxnMarkers": Handler(markers, transaction_markers.failed),
        "DescribeTransactions": Handler(transactions.DescribeTransactions(txn), transactions.describe_failed),
        "ListTransactions": Handler(transactions.ListTransactions(txn), transactions.list_failed),
    }


def control_handlers(c: Collaborators) -> dict[str, AnyHandler]:
    """The handlers of requests between brokers."""
    by = control.Control(c.peers)
    return {
        "LeaderAndIsr": Handler(by.leader_and_isr, control.leader_and_isr_failed),
        "StopReplica": Handler(by.stop_replica, control.stop_replica_failed),
        "UpdateMetadata": Handler(by.update_metadata, control.update_metadata_failed),
        "ControlledShutdown": Handler(by.controlled_shutdown, control.controlled_shutdown_failed),
        "AlterPartition": Handler(by.alter_partition, control.alter_partition_failed),
        "AllocateProducerIds": Handler(by.allocate_producer_ids, control.allocate_failed),
    }


def admin_handlers(c: Collaborators) -> dict[str, AnyHandler]:
    """The handlers of admin requests."""
    moves = reassignments.PartitionReassignments(c.controller)
    return {
        "AlterConfigs": Handler(alter_configs.AlterConfigs(c.configs), alter_configs.alter_failed),
        "IncrementalAlterConfigs": Handler(
            alter_configs.IncrementalAlterConfigs(c.configs, BrokerLoggers(c.broker_id)),
            alter_configs.incremental_failed,
        ),
        "DescribeLogDirs": Handler(log_dirs.DescribeLogDirs(c.replicas), log_dirs.failed),
        "AlterReplicaLogDirs": Handler(log_dirs.AlterReplicaLogDirs(c.replicas), log_dirs.alter_failed),
        "ElectLeaders": Handler(
            elections.ElectLeaders(c.metadata, None if c.peers is None else c.peers.controller), elections.failed
        ),
        "AlterPartitionReassignments": Handler(moves.alter, reassignments.alter_failed),
        "ListPartitionReassignments": Handler(moves.list_under_way, reassignments.list_failed),
        "DescribeProducers": Handler(producers.DescribeProducers(c.replicas), producers.failed),
        "DescribeUserScramCredentials": Handler(users.DescribeUsers(c.entities.credentials), users.describe_failed),
        "AlterUserScramCredentials": Handler(users.AlterUsers(c.configs), users.alter_failed),
        "DescribeClientQuotas": Handler(quotas.DescribeQuotas(c.entities.quotas), quotas.describe_failed),
        "AlterClientQuotas": Handler(quotas.AlterQuotas(c.configs), quotas.alter_failed),
        **acl_handlers(c),
        **token_handlers(c),
    }


def acl_handlers(c: Collaborators) -> dict[str, AnyHandler]:
    """The handlers of ACL requests."""
    store, access = (None, None) if c.authorization is None else (c.authorization.store, c.authorization.access)
    by = acls.Acls(store, access)
    return {
        "DescribeAcls": Handler(by.describe, acls.describe_failed),
        "CreateAcls": Handler(by.create, acls.create_failed),
        "DeleteAcls": Handler(by.delete, acls.delete_failed),
    }


def token_handlers(c: Collaborators) -> dict[str, AnyHandler]:
    """The handlers of delegation token requests."""
    longest, expiry = c.config["delegation.token.max.lifetime.ms"], c.config["delegation.token.expiry.time.ms"]
    periods = delegation_tokens.Periods(longest, expiry)
    by = delegation_tokens.DelegationTokenHandlers(c.tokens, periods, wall_ms, judged=c.authorization is not None)
    return {
        "CreateDelegationToken": Handler(by.create, delegation_tokens.create_failed),
        "RenewDelegationToken": Handler(by.renew, delegation_tokens.renew_failed),
        "ExpireDelegationToken": Handler(by.expire, delegation_tokens.expire_failed),
        "DescribeDelegationToken": Handler(by.describe, delegation_tokens.describe_failed),
    }


def group_handlers(c: Collaborators) -> dict[str, AnyHandler]:
    """The handlers of group requests, and FindCoordinator."""
    locate = {group_offsets.GROUP: c.locator.locate, group_offsets.TRANSACTION: c.transaction_locator.locate}
    return {
        "FindCoordinator": Handler(group_offsets.FindCoordinator(locate), group_offsets.failed_find),
        "OffsetCommit": Handler(group_offsets.OffsetCommit(c.groups, c.metadata), group_offsets.failed_commit),
        "TxnOffsetCommit": Handler(
            group_offsets.TxnOffsetCommit(c.groups, c.metadata, c.verification, c.config),
            group_offsets.failed_txn_commit,
        ),
        "OffsetFetch": Handler(group_offsets.OffsetFetch(c.groups), group_offsets.failed_fetch),
        "OffsetDelete": Handler(group_offsets.OffsetDelete(c.groups), group_offsets.failed_delete),
        "JoinGroup": Handler(groups.JoinGroup(c.groups), groups.failed_join, abandon=True),
        "SyncGroup": Handler(groups.SyncGroup(c.groups), groups.failed_sync, abandon=True),
        "Heartbeat": Handler(groups.Heartbeat(c.groups), groups.failed_heartbeat),
        "LeaveGroup": Handler(groups.LeaveGroup(c.groups), groups.failed_leave),
        "DescribeGroups": Handler(groups.DescribeGroups(c.groups), groups.failed_describe),
        "ListGroups": Handler(groups.ListGroups(c.groups), groups.failed_list),
        "DeleteGroups": Handler(groups.DeleteGroups(c.groups), groups.failed_delete),
    }
