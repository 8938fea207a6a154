"""What a refusal tells of the leader, so that the client need not ask for metadata (KIP-951)."""

from typing import Any, NamedTuple

from pybroker.cluster.image import Image


class Leader(NamedTuple):
    """Which broker leads a partition, -1 for none that is known, and in which leader epoch."""

    id: int
    epoch: int


NO_LEADER = Leader(-1, -1)


def tell_leader(response: Any, answer: Any, leader: Leader, image: Image, listener: str) -> None:
    """Name the leader in the answer of a partition, and once in the response where its clients reach it."""
    if leader == NO_LEADER:
        return
    answer.current_leader = type(answer).CurrentLeader(leader_id=leader.id, leader_epoch=leader.epoch)
    node = image.node(leader.id, listener)
    if node is not None and all(known.node_id != node.id for known in response.node_endpoints):
        endpoint = type(response).NodeEndpoints(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
        response.node_endpoints.append(endpoint)
