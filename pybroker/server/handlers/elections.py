"""ElectLeaders: whoever leads a partition is its preferred leader while one broker holds it (KIP-460)."""

from collections.abc import Iterable, Iterator
from typing import Any

from pybroker import errors
from pybroker.cluster.caller import Call
from pybroker.cluster.image import NO_LEADER, Image
from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m

PREFERRED, UNCLEAN = 0, 1
NOBODY = {
    PREFERRED: (errors.PREFERRED_LEADER_NOT_AVAILABLE, "the preferred leader is not alive"),
    UNCLEAN: (errors.ELIGIBLE_LEADERS_NOT_AVAILABLE, "no replica is alive"),
}


class ElectLeaders:
    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata

    def __call__(self, request: Any, call: Call) -> Any:
        """Where all partitions are meant, those that need no election are left out, as Kafka leaves them."""
        if request.election_type not in NOBODY:
            raise KafkaError(errors.INVALID_REQUEST, f"there is no election of type {request.election_type}")
        kind, image = m.ElectLeadersResponse.ReplicaElectionResults, self._metadata.image
        asked: dict[str, Iterable[int]] = {}
        if request.topic_partitions is None:
            asked = {topic.name: range(len(topic.partitions)) for topic in image.topics()}
            needless = {errors.ELECTION_NOT_NEEDED}
        else:
            for topic in request.topic_partitions:
                asked[topic.topic] = dict.fromkeys([*asked.get(topic.topic, ()), *topic.partitions])
            needless = set()
        results = []
        for name, partitions in asked.items():
            found = [r for r in _elect(image, name, partitions, request.election_type) if r.error_code not in needless]
            if found:
                results.append(kind(topic=name, partition_result=found))
        return m.ElectLeadersResponse(replica_election_results=results)


def _elect(image: Image, topic: str, partitions: Iterable[int], election_type: int) -> Iterator[Any]:
    for index in partitions:
        state = image.partition(topic, index)
        if state is None:
            code, message = errors.UNKNOWN_TOPIC_OR_PARTITION, "the partition does not exist"
        elif state.leader == NO_LEADER:
            code, message = NOBODY[election_type]
        else:
            code, message = errors.ELECTION_NOT_NEEDED, "the partition has its leader"
        yield _result(index, code, message)


def _result(index: int, code: int, message: str) -> Any:
    kind = m.ElectLeadersResponse.ReplicaElectionResults.PartitionResult
    return kind(partition_id=index, error_code=code, error_message=message)


def failed(request: Any, code: int, message: str) -> Any:
    kind = m.ElectLeadersResponse.ReplicaElectionResults
    return m.ElectLeadersResponse(
        error_code=code,
        replica_election_results=[
            kind(topic=topic.topic, partition_result=[_result(p, code, message) for p in topic.partitions])
            for topic in request.topic_partitions or ()
        ],
    )
