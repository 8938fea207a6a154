"""The current leader in error answers, so that the client need not send a Metadata request (KIP-951)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pybroker.decisions.image import Image
from pybroker.protocol import messages as m

if TYPE_CHECKING:
    Answer = m.ProduceResponse.Responses.PartitionResponses | m.FetchResponse.Responses.Partitions


class Leader(NamedTuple):
    """The broker that leads a partition, -1 if unknown, and the leader epoch."""

    id: int
    epoch: int


NO_LEADER = Leader(-1, -1)


def tell_leader(
    response: m.ProduceResponse | m.FetchResponse, answer: Answer, leader: Leader, image: Image, listener: str
) -> None:
    """Set the leader in a partition's answer, and add the leader's address to the response, once."""
    if leader == NO_LEADER:
        return
    if isinstance(answer, m.FetchResponse.Responses.Partitions):
        answer.current_leader = answer.CurrentLeader(leader_id=leader.id, leader_epoch=leader.epoch)
    else:
        answer.current_leader = answer.CurrentLeader(leader_id=leader.id, leader_epoch=leader.epoch)
    node = image.node(leader.id, listener)
    if node is None or any(known.node_id == node.id for known in response.node_endpoints):
        return
    if isinstance(response, m.FetchResponse):
        endpoint = response.NodeEndpoints(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
        response.node_endpoints.append(endpoint)
    else:
        response.node_endpoints.append(
            response.NodeEndpoints(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
        )
