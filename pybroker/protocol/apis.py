"""The table of APIs: which ones exist, which ones this broker advertises, and which versions it answers."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pybroker.protocol import messages
from pybroker.protocol.definitions import TEXTS
from pybroker.protocol.schema import heading


class Api(NamedTuple):
    """One API with a range of versions, both ends included; `flexible_from` past every version: never flexible."""

    key: int
    name: str
    min_version: int
    max_version: int
    flexible_from: int

    def has(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    @property
    def request(self) -> Any:
        """The class of its requests."""
        return messages.message(f"{self.name}Request")

    @property
    def response(self) -> Any:
        """The class of its responses."""
        return messages.message(f"{self.name}Response")


def _known() -> Iterator[Api]:
    for block in TEXTS.values():
        name, key, first, last, flexible_from = heading(block)
        if key >= 0 and name.endswith("Request"):
            yield Api(key, name.removesuffix("Request"), first, last, flexible_from)


KNOWN: Final[dict[int, Api]] = {api.key: api for api in sorted(_known())}
"""Every API with a definition, at every version that the codec knows; by key, as the other tables are."""

_BY_NAME: Final = {api.name: api for api in KNOWN.values()}

# What ApiVersions lists. An API is added with its handler, not before. Produce goes down to 0 only because librdkafka
# up to 2.10 sends nothing compressed to a broker that does not list it (KAFKA-18659); 0 to 2 are refused.
_ADVERTISED: Final = (
    ("Produce", 0, 13),
    ("Fetch", 4, 18),
    ("ListOffsets", 1, 10),
    ("Metadata", 0, 13),
    ("OffsetCommit", 2, 9),
    ("OffsetFetch", 1, 9),
    ("FindCoordinator", 0, 6),
    ("JoinGroup", 0, 9),
    ("Heartbeat", 0, 4),
    ("LeaveGroup", 0, 5),
    ("SyncGroup", 0, 5),
    ("DescribeGroups", 0, 6),
    ("ListGroups", 0, 5),
    ("LeaderAndIsr", 4, 7),
    ("StopReplica", 3, 4),
    ("UpdateMetadata", 6, 8),
    ("ControlledShutdown", 2, 3),
    ("SaslHandshake", 0, 1),
    ("ApiVersions", 0, 4),
    ("CreateTopics", 2, 7),
    ("DeleteTopics", 1, 6),
    ("DeleteRecords", 0, 2),
    ("InitProducerId", 0, 5),
    ("OffsetForLeaderEpoch", 2, 4),
    ("DescribeAcls", 1, 3),
    ("CreateAcls", 1, 3),
    ("DeleteAcls", 1, 3),
    ("DescribeConfigs", 1, 4),
    ("AlterConfigs", 0, 2),
    ("AlterReplicaLogDirs", 1, 2),
    ("DescribeLogDirs", 1, 4),
    ("SaslAuthenticate", 0, 2),
    ("CreatePartitions", 0, 3),
    ("CreateDelegationToken", 1, 3),
    ("RenewDelegationToken", 1, 2),
    ("ExpireDelegationToken", 1, 2),
    ("DescribeDelegationToken", 1, 3),
    ("DeleteGroups", 0, 2),
    ("ElectLeaders", 0, 2),
    ("IncrementalAlterConfigs", 0, 1),
    ("AlterPartitionReassignments", 0, 1),
    ("ListPartitionReassignments", 0, 0),
    ("OffsetDelete", 0, 0),
    ("DescribeClientQuotas", 0, 1),
    ("AlterClientQuotas", 0, 1),
    ("DescribeUserScramCredentials", 0, 0),
    ("AlterUserScramCredentials", 0, 0),
    ("AlterPartition", 2, 3),
    ("DescribeCluster", 0, 2),
    ("DescribeProducers", 0, 0),
    ("AllocateProducerIds", 0, 0),
)

APIS: Final[dict[int, Api]] = {
    api.key: api
    for api in (_BY_NAME[name]._replace(min_version=first, max_version=last) for name, first, last in _ADVERTISED)
}
"""What the broker advertises."""

SERVED: Final[dict[int, Api]] = {
    api.key: api._replace(min_version=max(api.min_version, KNOWN[api.key].min_version)) for api in APIS.values()
}
"""What the broker answers: the advertised ranges less the versions that have no definition. A request for anything else
closes its connection, but for ApiVersions (see `codec.encode_unsupported`)."""

API_VERSIONS: Final = _BY_NAME["ApiVersions"].key
CONTROLLED_SHUTDOWN: Final = _BY_NAME["ControlledShutdown"].key

SPOKEN: Final[dict[int, Api]] = {
    key: api._replace(min_version=SERVED[key].min_version) if key in SERVED else api for key, api in KNOWN.items()
}
"""The versions that our client speaks: those that are known only to be refused, it does not."""
