"""Guards of requests about the cluster as a whole, and of InitProducerId."""

from __future__ import annotations

from collections.abc import Callable

from pybroker import errors
from pybroker.decisions.caller import Call
from pybroker.protocol import messages as m
from pybroker.security.acls import CLUSTER_NAME, Operation, ResourceType
from pybroker.security.operations import NOT_ASKED
from pybroker.server.api.dispatch import A, Answered, Handler, Q
from pybroker.server.api.guards.auth_helper import AuthHelper, Guarded, after, refusal


def of_cluster(auth: AuthHelper, handler: Handler[Q, A], operation: Operation) -> Guarded[Q, A]:
    """Allow or deny the whole request."""

    def guarded(request: Q, call: Call) -> Answered[A]:
        if not auth.may_to_cluster(call.caller, operation):
            return refusal(handler, request, errors.CLUSTER_AUTHORIZATION_FAILED)
        return handler.by(request, call)

    return guarded


def denied(auth: AuthHelper, operation: Operation) -> Callable[[Call], int]:
    """A function that returns the error code which denies a call, before its request is decoded; 0 if it is allowed."""

    def code(call: Call) -> int:
        return errors.NONE if auth.may_to_cluster(call.caller, operation) else errors.CLUSTER_AUTHORIZATION_FAILED

    return code


def producer_ids(
    auth: AuthHelper, handler: Handler[m.InitProducerIdRequest, m.InitProducerIdResponse]
) -> Guarded[m.InitProducerIdRequest, m.InitProducerIdResponse]:
    """InitProducerId: needs Write on the transactional id; without one, IdempotentWrite on the cluster or Write on any
    topic."""

    def guarded(request: m.InitProducerIdRequest, call: Call) -> Answered[m.InitProducerIdResponse]:
        caller = call.caller
        if request.transactional_id is not None:
            if not auth.may(caller, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
                return refusal(handler, request, errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        elif not (
            auth.may_to_cluster(caller, Operation.IDEMPOTENT_WRITE, told=False)
            or auth.may_to_any_topic(caller, Operation.WRITE)
        ):
            return refusal(handler, request, errors.CLUSTER_AUTHORIZATION_FAILED)
        return handler.by(request, call)

    return guarded


def described_cluster(
    auth: AuthHelper, handler: Handler[m.DescribeClusterRequest, m.DescribeClusterResponse]
) -> Guarded[m.DescribeClusterRequest, m.DescribeClusterResponse]:
    """DescribeCluster: always allowed; the response has the caller's authorized operations."""

    def guarded(request: m.DescribeClusterRequest, call: Call) -> Answered[m.DescribeClusterResponse]:
        def finish(answer: m.DescribeClusterResponse) -> m.DescribeClusterResponse:
            if answer.cluster_authorized_operations != NOT_ASKED:
                answer.cluster_authorized_operations = auth.operations(call.caller, ResourceType.CLUSTER, CLUSTER_NAME)
            return answer

        return after(handler.by(request, call), finish)

    return guarded
