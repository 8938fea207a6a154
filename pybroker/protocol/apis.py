"""The table of APIs: known, advertised and served APIs with their versions."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from pybroker.protocol.definitions import TEXTS
from pybroker.protocol.message import Message, message
from pybroker.protocol.schema import heading


class Api(NamedTuple):
    """One API with an inclusive range of versions. If no version is flexible `flexible_from` is above all versions."""

    key: int
    name: str
    min_version: int
    max_version: int
    flexible_from: int

    def has(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    @property
    def request(self) -> type[Message]:
        """The class of the API's requests."""
        return message(f"{self.name}Request")

    @property
    def response(self) -> type[Message]:
        """The class of the API's responses."""
        return message(f"{self.name}Response")


def _known() -> Iterator[Api]:
    for block in TEXTS.values():
        name, key, first, last, flexible_from = heading(block)
        if key >= 0 and name.endswith("Request"):
            yield Api(key, name.removesuffix("Request"), first, last, flexible_from)


KNOWN: Final[dict[int, Api]] = {api.key: api for api in sorted(_known())}
"""Every API with a definition, in all versions that the codec supports, by key."""

_BY_NAME: Final = {api.name: api for api in KNOWN.values()}

# The APIs that ApiVersions lists; add an API only with its handler. Produce is listed from version 0 because librdkafka
# up to 2.10 otherwise sends nothing compressed (KAFKA-18659); versions 0 to 2 are refused.
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
    ("AddPartitionsToTxn", 0, 5),
    ("AddOffsetsToTxn", 0, 4),
    ("EndTxn", 0, 5),
    ("WriteTxnMarkers", 1, 1),
    ("TxnOffsetCommit", 0, 5),
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
    ("DescribeTransactions", 0, 0),
    ("ListTransactions", 0, 1),
    ("AllocateProducerIds", 0, 0),
)

APIS: Final[dict[int, Api]] = {
    api.key: api
    for api in (_BY_NAME[name]._replace(min_version=first, max_version=last) for name, first, last in _ADVERTISED)
}
"""The APIs that the broker advertises, by key."""

SERVED: Final[dict[int, Api]] = {
    api.key: api._replace(min_version=max(api.min_version, KNOWN[api.key].min_version)) for api in APIS.values()
}
"""The APIs that the broker serves, by key: the advertised ranges without versions that have no definition. Any other
request closes its connection, except for ApiVersions (see `codec.encode_unsupported`)."""

ZSTD_SINCE: Final = {"Produce": 7, "Fetch": 10}
"""The first versions whose clients support zstd (KIP-110)."""

API_VERSIONS: Final = _BY_NAME["ApiVersions"].key
CONTROLLED_SHUTDOWN: Final = _BY_NAME["ControlledShutdown"].key

SPOKEN: Final[dict[int, Api]] = {
    key: api._replace(min_version=SERVED[key].min_version) if key in SERVED else api for key, api in KNOWN.items()
}
"""The versions that our client uses: without those that the codec has only to refuse them."""
