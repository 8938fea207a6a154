"""DescribeCluster: the brokers and the controller (KIP-700)."""

from typing import Any

from pybroker import errors
from pybroker.cluster.caller import Call
from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from pybroker.security import operations
from pybroker.security.acls import ResourceType

BROKERS = 1
CONTROLLERS = 2


class DescribeCluster:
    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata

    def __call__(self, request: Any, call: Call) -> Any:
        if request.endpoint_type == CONTROLLERS:
            raise KafkaError(errors.MISMATCHED_ENDPOINT_TYPE, "this endpoint is a broker's, not a controller's")
        if request.endpoint_type != BROKERS:
            raise KafkaError(errors.UNSUPPORTED_ENDPOINT_TYPE, f"there is no endpoint type {request.endpoint_type}")
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


def failed(request: Any, code: int, message: str) -> Any:
    return m.DescribeClusterResponse(
        error_code=code, error_message=message, cluster_id="", endpoint_type=request.endpoint_type
    )
