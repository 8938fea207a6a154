"""ElectLeaders (KIP-460): in a cluster the controller elects leaders; a lone broker is the preferred leader itself.

The controller of a lone broker is not involved: a partition with one replica has its leader, or none can lead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from pybroker import errors
from pybroker.decisions.caller import Call
from pybroker.decisions.image import NO_LEADER, Image
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m

if TYPE_CHECKING:
    from pybroker.controller.controller import Controller

PREFERRED, UNCLEAN = 0, 1
NOBODY = {
    PREFERRED: errors.PREFERRED_LEADER_NOT_AVAILABLE,
    UNCLEAN: errors.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}


SAID = {
    errors.ELECTION_NOT_NEEDED: "the partition already has this leader",
    errors.UNKNOWN_TOPIC_OR_PARTITION: "the partition does not exist",
    errors.PREFERRED_LEADER_NOT_AVAILABLE: "the preferred leader is not alive, or not in sync",
    errors.ELIGIBLE_LEADERS_NOT_AVAILABLE: "no replica is alive",
    errors.NOT_CONTROLLER: "the partition changed during the election: retry",
}
Result = m.ElectLeadersResponse.ReplicaElectionResults


class ElectLeaders:
    def __init__(self, metadata: MetadataCache, controller: Callable[[], Controller | None] | None) -> None:
        """`controller` returns the controller, or None while there is no session; at a lone broker it is None."""
        self._metadata = metadata
        self._controller = controller

    async def __call__(self, request: m.ElectLeadersRequest, call: Call) -> m.ElectLeadersResponse:
        """Elect leaders. If all partitions are asked for, those that need no election are left out, as in Kafka."""
        if request.election_type not in NOBODY:
            words = f"unknown election type {request.election_type}: use 0 (preferred) or 1 (unclean)"
            raise KafkaError(errors.INVALID_REQUEST, words)
        asked = None
        if request.topic_partitions is not None:
            asked = [TopicPartition(t.topic, index) for t in request.topic_partitions for index in t.partitions]
        if self._controller is None:
            found = self._alone(asked, request.election_type)
        else:
            found = await self._of_cluster(self._controller(), asked, request.election_type)
        topics: dict[str, list[m.ElectLeadersResponse.ReplicaElectionResults.PartitionResult]] = {}
        for key, result in found.items():
            if asked is not None or result.error_code != errors.ELECTION_NOT_NEEDED:
                topics.setdefault(key.topic, []).append(result)
        return m.ElectLeadersResponse(
            replica_election_results=[Result(topic=name, partition_result=each) for name, each in topics.items()]
        )

    async def _of_cluster(
        self, controller: Controller | None, keys: list[TopicPartition] | None, election_type: int
    ) -> Mapping[TopicPartition, m.ElectLeadersResponse.ReplicaElectionResults.PartitionResult]:
        """Let the controller elect. Raises NOT_CONTROLLER."""
        if controller is None:
            raise KafkaError(errors.NOT_CONTROLLER, "this broker is not the controller")
        from pybroker.controller.requests import elect_leaders

        codes = await elect_leaders(controller, keys, election_type)
        return {key: _result(key.partition, code, SAID.get(code)) for key, code in codes.items()}

    def _alone(
        self, keys: Iterable[TopicPartition] | None, election_type: int
    ) -> Mapping[TopicPartition, m.ElectLeadersResponse.ReplicaElectionResults.PartitionResult]:
        image = self._metadata.image
        if keys is None:
            keys = [TopicPartition(t.name, index) for t in image.topics() for index in range(len(t.partitions))]
        return {key: _judge(image, key, election_type) for key in keys}


def _judge(
    image: Image, key: TopicPartition, election_type: int
) -> m.ElectLeadersResponse.ReplicaElectionResults.PartitionResult:
    state = image.partition(*key)
    if state is None:
        code = errors.UNKNOWN_TOPIC_OR_PARTITION
    else:
        code = NOBODY[election_type] if state.leader == NO_LEADER else errors.ELECTION_NOT_NEEDED
    return _result(key.partition, code, SAID[code])


def _result(
    index: int, code: int, message: str | None
) -> m.ElectLeadersResponse.ReplicaElectionResults.PartitionResult:
    return Result.PartitionResult(partition_id=index, error_code=code, error_message=message)


def failed(request: m.ElectLeadersRequest, code: int, message: str) -> m.ElectLeadersResponse:
    return m.ElectLeadersResponse(
        error_code=code,
        replica_election_results=[
            Result(topic=topic.topic, partition_result=[_result(p, code, message) for p in topic.partitions])
            for topic in request.topic_partitions or ()
        ],
    )
