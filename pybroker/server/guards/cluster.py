"""Guards of what is asked of the cluster as a whole, and of whoever is about to produce."""

from collections.abc import Callable
from typing import Any

from pybroker import errors
from pybroker.cluster.caller import Call
from pybroker.security.acls import CLUSTER_NAME, Operation, ResourceType
from pybroker.security.operations import NOT_ASKED
from pybroker.server.dispatch import Handler
from pybroker.server.guards.auth_helper import AuthHelper, Guarded, after, refusal


def of_cluster(auth: AuthHelper, handler: Handler, operation: Operation) -> Guarded:
    """All of the request, or nothing."""

    def guarded(request: Any, call: Call) -> Any:
        if not auth.may_to_cluster(call.caller, operation):
            return refusal(handler, request, errors.CLUSTER_AUTHORIZATION_FAILED)
        return handler.by(request, call)

    return guarded


def denied(auth: AuthHelper, operation: Operation) -> Callable[[Call], int]:
    """A function that gives the code which denies a whole call, before its request is read; 0 if it is allowed."""

    def code(call: Call) -> int:
        return errors.NONE if auth.may_to_cluster(call.caller, operation) else errors.CLUSTER_AUTHORIZATION_FAILED

    return code


def producer_ids(auth: AuthHelper, handler: Handler) -> Guarded:
    """InitProducerId: for a transactional id, or for who may write idempotently to the cluster or to any topic."""

    def guarded(request: Any, call: Call) -> Any:
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


def described_cluster(auth: AuthHelper, handler: Handler) -> Guarded:
    """DescribeCluster is for everybody, but for what the caller may do."""

    def guarded(request: Any, call: Call) -> Any:
        def finish(answer: Any) -> Any:
            if answer.cluster_authorized_operations != NOT_ASKED:
                answer.cluster_authorized_operations = auth.operations(call.caller, ResourceType.CLUSTER, CLUSTER_NAME)
            return answer

        return after(handler.by(request, call), finish)

    return guarded
