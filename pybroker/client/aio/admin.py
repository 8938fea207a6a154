"""The admin client for asyncio: the same operations, made one after another on a thread."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, Self, TypeVar

from pybroker import errors
from pybroker.client import foreign
from pybroker.client.admin import Admin
from pybroker.client.admin.acls import EVERY
from pybroker.client.admin.brokers import ClusterDescription
from pybroker.client.admin.configs import Alteration, ConfigEntry, ConfigResource
from pybroker.client.admin.group_offsets import Committed
from pybroker.client.admin.groups import GroupDescription, GroupListing
from pybroker.client.admin.reassignments import PartitionReassignment
from pybroker.client.admin.tokens import DelegationToken
from pybroker.client.admin.topics import BROKER_DEFAULT, CreatedTopic
from pybroker.client.admin.transactions import (
    TIMEOUT_MS_MAX,
    HangingTransaction,
    PartitionProducer,
    TransactionDescription,
    TransactionListing,
)
from pybroker.client.admin.users import ScramUser
from pybroker.client.aio.threads import on_thread
from pybroker.client.foreign import OfOtherClients, renamed
from pybroker.client.net.metadata import TopicInfo
from pybroker.client.security.settings import SECURITY
from pybroker.client.settings import SecuritySettings, signed
from pybroker.decisions.planning.measuring import LogDir
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.security.acls import AclBinding, AclFilter
from pybroker.security.quotas import ClientQuotaFilterComponent, Entity
from pybroker.security.scram import HASHES, ITERATIONS_MIN

Given = ParamSpec("Given")
Result = TypeVar("Result")


@signed(SECURITY, SecuritySettings)
class AsyncAdmin(OfOtherClients):
    """`pybroker.Admin` for asyncio: the same methods, awaited. Use it in an `async with`, or `await close()`.

    Calls of several tasks run one after another. A call whose awaiter is cancelled goes on to its end."""

    _OTHERS = foreign.ADMIN

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        timeout_s: float = 30.0,
        **security: object,
    ) -> None:
        """`security`: security_protocol, sasl_mechanism, sasl_username and the like, as a producer takes them."""
        self.admin = Admin(bootstrap_servers, timeout_s=timeout_s, **security)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="pybroker-async-admin")
        self._closed = False

    def __repr__(self) -> str:
        return repr(self.admin).replace("<Admin", "<AsyncAdmin", 1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection, after the calls before. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        ended: asyncio.Future[None] = on_thread(self._executor, self.admin.close)
        self._executor.shutdown(wait=False)
        await ended

    async def _call(self, call: Callable[Given, Result], *arguments: Given.args, **named: Given.kwargs) -> Result:
        if self._closed:
            raise KafkaError(errors.INVALID_REQUEST, "the admin client is closed")
        return await on_thread(self._executor, partial(call, *arguments, **named))

    # -- topics and records --------------------------------------------------------------------------------------------

    async def topics(self, names: Sequence[str] | None = None) -> list[TopicInfo]:
        """These topics, or all of them. KafkaError(UNKNOWN_TOPIC_OR_PARTITION) if a named one is missing."""
        return await self._call(self.admin.topics, names)

    async def exists(self, name: str) -> bool:
        """True if the topic exists."""
        return await self._call(self.admin.exists, name)

    @renamed(num_partitions="partitions", topic_configs="configs", config="configs")
    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = BROKER_DEFAULT,
        replication_factor: int = BROKER_DEFAULT,
        configs: Mapping[str, str] | None = None,
        replica_assignments: Mapping[int, Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> CreatedTopic:
        """Create a topic and wait until its partitions have leaders; `validate_only` stops before that.

        `replica_assignments` has the broker ids of each partition's replicas, preferred leader first, in place of both
        numbers."""
        return await self._call(
            self.admin.create_topic,
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=configs,
            replica_assignments=replica_assignments,
            validate_only=validate_only,
        )

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and everything in it."""
        await self._call(self.admin.delete_topic, name)

    async def create_partitions(self, name: str, count: int) -> None:
        """Grow a topic to `count` partitions in all."""
        await self._call(self.admin.create_partitions, name, count)

    async def elect_leaders(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elect the preferred replica of these partitions as leader, or of all (KIP-460); the error of each
        partition, None if it was elected. KafkaError(ELECTION_NOT_NEEDED) if it leads already."""
        return await self._call(self.admin.elect_leaders, partitions, unclean=unclean)

    async def alter_partition_reassignments(
        self, targets: Mapping[tuple[str, int], Sequence[int] | None]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Begin to move partitions to these brokers, preferred leader first; None cancels a partition's reassignment.
        The error of each partition, None if its reassignment was accepted."""
        return await self._call(self.admin.alter_partition_reassignments, targets)

    async def list_partition_reassignments(
        self, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """The reassignments in progress of these partitions, or of all. A partition without one is left out."""
        return await self._call(self.admin.list_partition_reassignments, partitions)

    async def offsets(self, topics: Iterable[TopicInfo], timestamp: int) -> dict[TopicPartition, int | None]:
        """The offset of each partition at `timestamp` (EARLIEST, LATEST or milliseconds); None if no leader
        answered, or no record is that late."""
        return await self._call(self.admin.offsets, topics, timestamp)

    async def delete_records(
        self, before: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, int]:
        """Delete the records of each partition before an offset (HIGH_WATERMARK: all); return the new first
        offsets. KafkaError(OFFSET_OUT_OF_RANGE) for an offset past the end; other partitions may be done by
        then."""
        return await self._call(self.admin.delete_records, before)

    # -- configs -------------------------------------------------------------------------------------------------------

    async def configs(self, resource: ConfigResource, names: Sequence[str] | None = None) -> list[ConfigEntry]:
        """The configs of one resource, or those of them that are named, by name."""
        return await self._call(self.admin.configs, resource, names)

    async def topic_configs(self, names: Iterable[str]) -> dict[str, list[ConfigEntry]]:
        """The configs of each of these topics, by the topic's name."""
        return await self._call(self.admin.topic_configs, names)

    async def alter_configs(
        self, resource: ConfigResource, alterations: Iterable[Alteration], *, validate_only: bool = False
    ) -> None:
        """Alter configs of one resource, all of them or none; those not named stay as they are."""
        await self._call(self.admin.alter_configs, resource, alterations, validate_only=validate_only)

    # -- groups --------------------------------------------------------------------------------------------------------

    async def group_offsets(self, ids: Iterable[str]) -> dict[str, dict[TopicPartition, Committed]]:
        """The committed offsets of each of these groups; none for a group that does not exist."""
        return await self._call(self.admin.group_offsets, ids)

    async def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, Committed] | Mapping[tuple[str, int], Committed]
    ) -> None:
        """Set committed offsets of a group that has no members, or does not exist yet."""
        await self._call(self.admin.alter_group_offsets, group, offsets)

    async def delete_group_offsets(
        self, group: str, partitions: Collection[TopicPartition] | Collection[tuple[str, int]]
    ) -> None:
        """Forget committed offsets. KafkaError(GROUP_SUBSCRIBED_TO_TOPIC) for those of a topic that a member
        reads."""
        await self._call(self.admin.delete_group_offsets, group, partitions)

    async def groups(self, *, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[GroupListing]:
        """The groups in any of these states and of any of these types (none given: all), by id."""
        return await self._call(self.admin.groups, states=states, types=types)

    async def describe_groups(self, ids: Iterable[str]) -> list[GroupDescription]:
        """These groups. KafkaError(GROUP_ID_NOT_FOUND) if one of them is not there."""
        return await self._call(self.admin.describe_groups, ids)

    async def transactions(
        self, *, states: Sequence[str] = (), producer_ids: Sequence[int] = (), open_for_ms: int | None = None
    ) -> list[TransactionListing]:
        """The transactional ids in any of these states and of any of these producers (none given: all), by id."""
        return await self._call(
            self.admin.transactions, states=states, producer_ids=producer_ids, open_for_ms=open_for_ms
        )

    async def describe_transactions(self, ids: Iterable[str]) -> list[TransactionDescription]:
        """These transactional ids. KafkaError(TRANSACTIONAL_ID_NOT_FOUND) if one of them is not there."""
        return await self._call(self.admin.describe_transactions, ids)

    async def describe_producers(
        self, partitions: Iterable[TopicPartition | tuple[str, int]]
    ) -> dict[TopicPartition, list[PartitionProducer]]:
        """The producers that the leaders of these partitions know. KafkaError if one has no leader, or refuses."""
        return await self._call(self.admin.describe_producers, partitions)

    async def hanging_transactions(
        self, partitions: Iterable[TopicPartition | tuple[str, int]], *, open_for_ms: int = TIMEOUT_MS_MAX
    ) -> list[HangingTransaction]:
        """Open transactions of these partitions that no coordinator will end, as `Admin.hanging_transactions`."""
        return await self._call(self.admin.hanging_transactions, partitions, open_for_ms=open_for_ms)

    async def abort_transaction(self, partition: TopicPartition | tuple[str, int], start: int) -> None:
        """Abort the open transaction of one partition that begins at offset `start`, as `Admin.abort_transaction`."""
        await self._call(self.admin.abort_transaction, partition, start)

    async def fence_producers(self, ids: Iterable[str]) -> None:
        """Raise the epoch of these transactional ids: their open transactions are aborted, their producers refused."""
        await self._call(self.admin.fence_producers, ids)

    async def delete_group(self, group: str) -> None:
        """Delete a group without members, and its offsets. KafkaError(NON_EMPTY_GROUP) if it has members."""
        await self._call(self.admin.delete_group, group)

    # -- brokers -------------------------------------------------------------------------------------------------------

    async def describe_cluster(self) -> ClusterDescription:
        """The id, controller and brokers of the cluster, from the metadata of one broker."""
        return await self._call(self.admin.describe_cluster)

    async def log_dirs(self, brokers: Iterable[int] | None = None, topics: Sequence[str] | None = None) -> list[LogDir]:
        """The log directories of these brokers (all, if None) with the replicas of these topics (all, if None)."""
        return await self._call(self.admin.log_dirs, brokers, topics)

    async def alter_replica_log_dirs(self, broker: int, log_dirs: Mapping[tuple[str, int], str]) -> None:
        """Move replicas of a broker to other log directories of it; see Admin.alter_replica_log_dirs."""
        await self._call(self.admin.alter_replica_log_dirs, broker, log_dirs)

    # -- SCRAM users ---------------------------------------------------------------------------------------------------

    async def users(self, names: Sequence[str] | None = None) -> list[ScramUser]:
        """These users, or all SCRAM users. KafkaError(RESOURCE_NOT_FOUND) for a user without SCRAM credentials."""
        return await self._call(self.admin.users, names)

    async def set_password(
        self, user: str, password: str, mechanisms: Sequence[str] = tuple(HASHES), iterations: int = ITERATIONS_MIN
    ) -> None:
        """Let a user log in by these mechanisms with this password from now on. Raises KafkaError."""
        await self._call(self.admin.set_password, user, password, mechanisms, iterations)

    async def remove_password(self, user: str, mechanisms: Sequence[str] | None = None) -> None:
        """Remove a user's credentials of these mechanisms, or of all. Raises KafkaError."""
        await self._call(self.admin.remove_password, user, mechanisms)

    # -- delegation tokens ---------------------------------------------------------------------------------------------

    async def create_token(
        self, owner: str | None = None, renewers: Sequence[str] = (), max_lifetime_ms: int = -1
    ) -> DelegationToken:
        """Create a token for this user, or for an owner like User:ann. Renewers may renew it too; a lifetime of -1
        is the broker's maximum."""
        return await self._call(self.admin.create_token, owner, renewers, max_lifetime_ms)

    async def tokens(self, owners: Sequence[str] | None = None) -> list[DelegationToken]:
        """The tokens that this user may describe, of these owners or of all, by id."""
        return await self._call(self.admin.tokens, owners)

    async def renew_token(self, secret: str, period_ms: int = -1) -> int:
        """Renew a token for `period_ms` (-1: the broker's period), and return its expiry in ms since the epoch."""
        return await self._call(self.admin.renew_token, secret, period_ms)

    async def expire_token(self, secret: str, period_ms: int = -1) -> int:
        """Let a token expire after `period_ms` (-1: at once), and return its expiry in ms since the epoch."""
        return await self._call(self.admin.expire_token, secret, period_ms)

    # -- ACLs ----------------------------------------------------------------------------------------------------------

    async def acls(self, wanted: AclFilter = EVERY) -> list[AclBinding]:
        """The ACLs that match, sorted. KafkaError(SECURITY_DISABLED) if the cluster has no authorizer."""
        return await self._call(self.admin.acls, wanted)

    async def create_acls(self, acls: Iterable[AclBinding]) -> None:
        """Create the ACLs that do not exist yet. KafkaError of the first that is refused; the others are created."""
        await self._call(self.admin.create_acls, acls)

    async def delete_acls(self, wanted: AclFilter) -> list[AclBinding]:
        """Delete the ACLs that match, and return them, sorted. Raises KafkaError."""
        return await self._call(self.admin.delete_acls, wanted)

    # -- client quotas -------------------------------------------------------------------------------------------------

    async def quotas(self, *wanted: ClientQuotaFilterComponent, strict: bool = False) -> dict[Entity, dict[str, float]]:
        """The quotas of entities that have these components, and with `strict` no others; of all where none is
        given."""
        return await self._call(self.admin.quotas, *wanted, strict=strict)

    async def alter_quotas(self, entity: Entity, changes: Mapping[str, float | None]) -> None:
        """Set quotas of an entity, or remove those whose value is None; the others stay. Raises KafkaError."""
        await self._call(self.admin.alter_quotas, entity, changes)
