"""DescribeCluster: the brokers and the controller (KIP-700)."""

from __future__ import annotations

from pybroker import errors
from pybroker.decisions.caller import Call
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from pybroker.security import operations
from pybroker.security.acls import ResourceType

BROKERS = 1
CONTROLLERS = 2


class DescribeCluster:
    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata

    def __call__(self, request: m.DescribeClusterRequest, call: Call) -> m.DescribeClusterResponse:
        if request.endpoint_type == CONTROLLERS:
            raise KafkaError(errors.MISMATCHED_ENDPOINT_TYPE, "this endpoint is a broker, not a controller")
        if request.endpoint_type != BROKERS:
            words = f"unknown endpoint type {request.endpoint_type}: use 1 (brokers)"
            raise KafkaError(errors.UNSUPPORTED_ENDPOINT_TYPE, words)
        kind, image = m.DescribeClusterResponse, self._metadata.with_brokers()
        asked = request.include_cluster_authorized_operations
        return kind(
            cluster_id=image.cluster_id,
            controller_id=image.controller_id,
            brokers=[
                kind.Brokers(broker_id=node.id, host=node.host, port=node.port, rack=node.rack)
                for node in image.nodes(call.caller.listener)
            ],
            cluster_authorized_operations=operations.of(ResourceType.CLUSTER, asked),
        )


def failed(request: m.DescribeClusterRequest, code: int, message: str) -> m.DescribeClusterResponse:
    return m.DescribeClusterResponse(
        error_code=code, error_message=message, cluster_id="", endpoint_type=request.endpoint_type
    )
