"""Guards of requests of transactional producers, of markers, and of queries about transactions."""

from __future__ import annotations

from typing import TypeVar

from pybroker import errors
from pybroker.decisions.caller import Call
from pybroker.protocol import messages as m
from pybroker.security.acls import Operation, ResourceType
from pybroker.server.api.dispatch import A, Answered, Handler
from pybroker.server.api.guards.auth_helper import AuthHelper, Guarded, after, refusal, run, split, with_only

BATCHED_VERSION = 4
"""The first version of AddPartitionsToTxn that only brokers send."""
ID_DENIED = errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def _may_write(auth: AuthHelper, call: Call, transactional_id: str) -> bool:
    return auth.may(call.caller, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)


def added_partitions(
    auth: AuthHelper, handler: Handler[m.AddPartitionsToTxnRequest, m.AddPartitionsToTxnResponse]
) -> Guarded[m.AddPartitionsToTxnRequest, m.AddPartitionsToTxnResponse]:
    """AddPartitionsToTxn: needs Write on the transactional id and on each topic; if one is denied none is added. From
    version 4 on it needs ClusterAction on the cluster."""

    def guarded(
        request: m.AddPartitionsToTxnRequest, call: Call
    ) -> Answered[m.AddPartitionsToTxnResponse]:
        if call.version >= BATCHED_VERSION:
            if auth.may_to_cluster(call.caller, Operation.CLUSTER_ACTION):
                return handler.by(request, call)
            return refusal(handler, request, errors.CLUSTER_AUTHORIZATION_FAILED)
        if not _may_write(auth, call, request.v3_and_below_transactional_id):
            return refusal(handler, request, ID_DENIED)
        asked = request.v3_and_below_topics
        kept, denied = split(asked, lambda topic: auth.may_to_topic(call.caller, Operation.WRITE, topic.name))
        if not denied:
            return handler.by(request, call)
        answer = refusal(
            handler, with_only(request, "v3_and_below_topics", denied), errors.TOPIC_AUTHORIZATION_FAILED
        )
        rest = handler.failed(with_only(request, "v3_and_below_topics", kept), errors.OPERATION_NOT_ATTEMPTED, "")
        answer.results_by_topic_v3_and_below += rest.results_by_topic_v3_and_below
        return answer

    return guarded


def added_offsets(
    auth: AuthHelper, handler: Handler[m.AddOffsetsToTxnRequest, m.AddOffsetsToTxnResponse]
) -> Guarded[m.AddOffsetsToTxnRequest, m.AddOffsetsToTxnResponse]:
    """AddOffsetsToTxn: needs Write on the transactional id, and Read on the group."""

    def guarded(request: m.AddOffsetsToTxnRequest, call: Call) -> Answered[m.AddOffsetsToTxnResponse]:
        if not _may_write(auth, call, request.transactional_id):
            return refusal(handler, request, ID_DENIED)
        if not auth.may(call.caller, Operation.READ, ResourceType.GROUP, request.group_id):
            return refusal(handler, request, errors.GROUP_AUTHORIZATION_FAILED)
        return handler.by(request, call)

    return guarded


WithId = TypeVar("WithId", bound="m.EndTxnRequest | m.TxnOffsetCommitRequest")


def with_id(
    auth: AuthHelper, handler: Handler[WithId, A], then: Guarded[WithId, A] | None = None
) -> Guarded[WithId, A]:
    """EndTxn and TxnOffsetCommit: need Write on the transactional id."""
    go_on = then or handler.by

    def guarded(request: WithId, call: Call) -> Answered[A]:
        if not _may_write(auth, call, request.transactional_id):
            return refusal(handler, request, ID_DENIED)
        return go_on(request, call)

    return guarded


def wrote_markers(
    auth: AuthHelper, handler: Handler[m.WriteTxnMarkersRequest, m.WriteTxnMarkersResponse]
) -> Guarded[m.WriteTxnMarkersRequest, m.WriteTxnMarkersResponse]:
    """WriteTxnMarkers: needs Alter on the cluster, or ClusterAction."""

    def guarded(request: m.WriteTxnMarkersRequest, call: Call) -> Answered[m.WriteTxnMarkersResponse]:
        may_alter = auth.may_to_cluster(call.caller, Operation.ALTER, told=False)
        if may_alter or auth.may_to_cluster(call.caller, Operation.CLUSTER_ACTION):
            return handler.by(request, call)
        return refusal(handler, request, errors.CLUSTER_AUTHORIZATION_FAILED)

    return guarded


def described(
    auth: AuthHelper, handler: Handler[m.DescribeTransactionsRequest, m.DescribeTransactionsResponse]
) -> Guarded[m.DescribeTransactionsRequest, m.DescribeTransactionsResponse]:
    """DescribeTransactions: needs Describe on each transactional id; topics without Describe are left out."""

    def guarded(
        request: m.DescribeTransactionsRequest, call: Call
    ) -> Answered[m.DescribeTransactionsResponse]:
        def allowed(name: str) -> bool:
            return auth.may(call.caller, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name)

        def finish(answer: m.DescribeTransactionsResponse) -> m.DescribeTransactionsResponse:
            for state in answer.transaction_states:
                state.topics = [
                    topic
                    for topic in state.topics
                    if auth.may_to_topic(call.caller, Operation.DESCRIBE, topic.topic, told=False)
                ]
            return answer

        return after(run(handler, request, call, "transactional_ids", "transaction_states", allowed, ID_DENIED), finish)

    return guarded


def listed(
    auth: AuthHelper, handler: Handler[m.ListTransactionsRequest, m.ListTransactionsResponse]
) -> Guarded[m.ListTransactionsRequest, m.ListTransactionsResponse]:
    """ListTransactions: returns the transactional ids that the caller may describe."""

    def guarded(request: m.ListTransactionsRequest, call: Call) -> Answered[m.ListTransactionsResponse]:
        def finish(answer: m.ListTransactionsResponse) -> m.ListTransactionsResponse:
            answer.transaction_states = [
                state
                for state in answer.transaction_states
                if auth.may(
                    call.caller, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, state.transactional_id, told=False
                )
            ]
            return answer

        return after(handler.by(request, call), finish)

    return guarded
