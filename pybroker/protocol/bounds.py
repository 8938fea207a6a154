"""The table of bounds: the most elements in a request of each API, how many are decoded at once, and where it is cut.

An element is a struct, a string or a number of an array, at any depth; eight replicas of a controller's are one.
A request with more than `most` elements is refused while it is decoded; no real client sends one. A request with more
than `at_once` elements is decoded and answered in slices of that many elements, between which other requests are
executed. If the API can be cut, each slice is executed as a request of its own, and the responses are joined.

A cut has the arrays of the request, from the outermost to the one whose elements are sliced, and the corresponding
arrays of the response.

The bounds allow for Kafka's largest clusters: a client may ask one broker about 200,000 partitions, and a tool may
change or describe 100,000 topics, or 20,000 groups, at once.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from pybroker.protocol.schema import Struct
from pybroker.protocol.wire import ELEMENTS_MAX


class Cut(NamedTuple):
    """The arrays at which requests are cut and responses are joined."""

    asked: tuple[str, ...]
    told: tuple[str, ...]


class Bound(NamedTuple):
    """The bound of one API.

    `cuts`: a version uses the first one whose outermost array it has. `reads`: the API changes nothing, so a request is
    cancelled once its client disconnects. `once`: the fields that form a name, which must not repeat in a request."""

    most: int
    at_once: int
    cuts: tuple[Cut, ...] = ()
    reads: bool = False
    once: tuple[str, ...] = ()

    def cut(self, struct: Struct, version: int) -> Cut | None:
        """Return the cut of a request of this struct at a version; None for a request that is executed as a whole."""
        fields = {field.name for field in struct.fields if field.exists(version)}
        return next((cut for cut in self.cuts if cut.asked[0] in fields), None)


def _cut(asked: str, told: str) -> Cut:
    found = Cut(tuple(asked.split(".")), tuple(told.split(".")))
    assert len(found.asked) == len(found.told), f"{asked} is not told by {told}"
    return found


PARTITIONS: Final = ELEMENTS_MAX
NAMES: Final = 20_000
RESOURCES: Final = 100_000
"""Resources whose settings are described or altered, topics that are created or grown, and ACLs."""
FEW: Final = 1_000
FETCHED_TOPICS: Final = 100_000
"""Topics of one Fetch that is authorized. The whole request is in memory, and Python's garbage collector traverses all
of it without a pause."""
RESOURCE: Final = ("resource_type", "resource_name")

OTHERS: Final = Bound(FEW, FEW)
"""The bound of APIs that are not in the table."""

BOUNDS: Final[Mapping[str, Bound]] = {
    # Requests about many partitions.
    "Metadata": Bound(PARTITIONS, 200, (_cut("topics", "topics"),), reads=True),
    "ListOffsets": Bound(PARTITIONS, 400, (_cut("topics.partitions", "topics.partitions"),), reads=True),
    "OffsetForLeaderEpoch": Bound(PARTITIONS, 400, (_cut("topics.partitions", "topics.partitions"),), reads=True),
    "OffsetCommit": Bound(PARTITIONS, 1_000, (_cut("topics.partitions", "topics.partitions"),)),
    "OffsetFetch": Bound(
        PARTITIONS,
        400,
        (
            _cut("topics.partition_indexes", "topics.partitions"),
            _cut("groups.topics.partition_indexes", "groups.topics.partitions"),
        ),
        reads=True,
    ),
    "DescribeProducers": Bound(PARTITIONS, 400, (_cut("topics.partition_indexes", "topics.partitions"),), reads=True),
    "DeleteRecords": Bound(PARTITIONS, 1_000, (_cut("topics.partitions", "topics.partitions"),)),
    "OffsetDelete": Bound(PARTITIONS, 1_000, (_cut("topics.partitions", "topics.partitions"),)),
    "TxnOffsetCommit": Bound(PARTITIONS, 1_000, (_cut("topics.partitions", "topics.partitions"),)),
    "Produce": Bound(NAMES, 400, (_cut("topic_data.partition_data", "responses.partition_responses"),)),
    "ElectLeaders": Bound(
        PARTITIONS, 400, (_cut("topic_partitions.partitions", "replica_election_results.partition_result"),)
    ),
    "AlterPartitionReassignments": Bound(PARTITIONS, 400, (_cut("topics.partitions", "responses.partitions"),)),
    "ListPartitionReassignments": Bound(
        PARTITIONS, 400, (_cut("topics.partition_indexes", "topics.partitions"),), reads=True
    ),
    # Requests about many topics, groups, or other named things.
    "FindCoordinator": Bound(NAMES, 200, (_cut("coordinator_keys", "coordinators"),), reads=True),
    "DescribeGroups": Bound(NAMES, 200, (_cut("groups", "groups"),), reads=True),
    "DeleteGroups": Bound(NAMES, 200, (_cut("groups_names", "results"),)),
    "LeaveGroup": Bound(NAMES, 200, (_cut("members", "members"),)),
    "CreateTopics": Bound(PARTITIONS, 500, (_cut("topics", "topics"),), once=("name",)),
    "DeleteTopics": Bound(NAMES, 400, (_cut("topics", "responses"), _cut("topic_names", "responses"))),
    "CreatePartitions": Bound(PARTITIONS, 400, (_cut("topics", "results"),), once=("name",)),
    "DescribeConfigs": Bound(PARTITIONS, 10, (_cut("resources", "results"),), reads=True, once=RESOURCE),
    "AlterConfigs": Bound(PARTITIONS, 100, (_cut("resources", "responses"),), once=RESOURCE),
    "IncrementalAlterConfigs": Bound(PARTITIONS, 100, (_cut("resources", "responses"),), once=RESOURCE),
    "CreateAcls": Bound(RESOURCES, 200, (_cut("creations", "results"),)),
    "DeleteAcls": Bound(RESOURCES, 20, (_cut("filters", "filter_results"),)),
    "AlterClientQuotas": Bound(NAMES, 200, (_cut("entries", "entries"),)),
    "DescribeTransactions": Bound(NAMES, 200, (_cut("transactional_ids", "transaction_states"),), reads=True),
    # Requests that are executed as a whole.
    "AddPartitionsToTxn": Bound(PARTITIONS, 1_000),
    "Fetch": Bound(PARTITIONS, 1_000, reads=True),
    "SyncGroup": Bound(NAMES, 1_000),
    "DescribeLogDirs": Bound(PARTITIONS, 1_000, reads=True),
    "AlterReplicaLogDirs": Bound(5 * FEW, 1_000),
    "DescribeUserScramCredentials": Bound(NAMES, 1_000, (_cut("users", "results"),), reads=True),
    "AlterUserScramCredentials": Bound(2 * FEW, 2 * FEW),
    # Requests between brokers.
    "LeaderAndIsr": Bound(ELEMENTS_MAX, 1_000),
    "StopReplica": Bound(ELEMENTS_MAX, 1_000),
    "UpdateMetadata": Bound(ELEMENTS_MAX, 1_000),
    "AlterPartition": Bound(ELEMENTS_MAX, 1_000),
    "WriteTxnMarkers": Bound(PARTITIONS, 1_000, (_cut("markers", "markers"),)),
}
"""The bounds by API name. APIs with few elements, such as JoinGroup's protocols, use `OTHERS`."""


def bound_of(name: str) -> Bound:
    """Return the bound of an API."""
    return BOUNDS.get(name, OTHERS)
