"""Guards of requests about topics and settings; each topic is checked on its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from pybroker import errors
from pybroker.decisions.caller import Call
from pybroker.protocol import messages as m
from pybroker.security.acls import Operation
from pybroker.server.api.dispatch import A, Answered, Handler, Q
from pybroker.server.api.guards.auth_helper import (
    AuthHelper,
    Guarded,
    after,
    refusal,
    run,
    split,
    with_known_ids,
    with_only,
)

TOPIC_RESOURCE = 2
Configs = TypeVar(
    "Configs", bound="m.DescribeConfigsRequest | m.AlterConfigsRequest | m.IncrementalAlterConfigsRequest"
)


class _Topic(Protocol):
    name: str


class _Resource(Protocol):
    resource_type: int
    resource_name: str


class _Named(NamedTuple):
    """The operation that an API requires, and the fields of its request and response that list topics."""

    operation: Operation
    asked: str = "topics"
    told: str = "topics"


BY_TOPIC: Final[Mapping[str, _Named]] = {
    "ListOffsets": _Named(Operation.DESCRIBE),
    "DeleteRecords": _Named(Operation.DELETE),
    "CreatePartitions": _Named(Operation.ALTER, "topics", "results"),
    "DescribeProducers": _Named(Operation.READ),
    "OffsetCommit": _Named(Operation.READ),
    "TxnOffsetCommit": _Named(Operation.READ),
}


def of_topics(auth: AuthHelper, handler: Handler[Q, A], named: _Named) -> Guarded[Q, A]:
    """Requests with a list of topics; each topic is checked on its own."""

    def guarded(request: Q, call: Call) -> Answered[A]:
        def allowed(topic: _Topic) -> bool:
            return auth.may_to_topic(call.caller, named.operation, topic.name)

        code = errors.TOPIC_AUTHORIZATION_FAILED
        return run(handler, request, call, named.asked, named.told, allowed, code)

    return guarded


def epochs(
    auth: AuthHelper, handler: Handler[m.OffsetForLeaderEpochRequest, m.OffsetForLeaderEpochResponse]
) -> Guarded[m.OffsetForLeaderEpochRequest, m.OffsetForLeaderEpochResponse]:
    """OffsetForLeaderEpoch: needs ClusterAction on the cluster, or Describe on each topic."""

    def guarded(request: m.OffsetForLeaderEpochRequest, call: Call) -> Answered[m.OffsetForLeaderEpochResponse]:
        if auth.may_to_cluster(call.caller, Operation.CLUSTER_ACTION, told=False):
            return handler.by(request, call)

        def allowed(topic: m.OffsetForLeaderEpochRequest.Topics) -> bool:
            return auth.may_to_topic(call.caller, Operation.DESCRIBE, topic.topic)

        return run(handler, request, call, "topics", "topics", allowed, errors.TOPIC_AUTHORIZATION_FAILED)

    return guarded


def deleted_offsets(
    auth: AuthHelper, handler: Handler[m.OffsetDeleteRequest, m.OffsetDeleteResponse]
) -> Guarded[m.OffsetDeleteRequest, m.OffsetDeleteResponse]:
    """OffsetDelete: needs Read on each topic; the partitions of a denied topic get the error code."""

    def guarded(request: m.OffsetDeleteRequest, call: Call) -> Answered[m.OffsetDeleteResponse]:
        kept, denied = split(request.topics, lambda topic: auth.may_to_topic(call.caller, Operation.READ, topic.name))
        code = errors.TOPIC_AUTHORIZATION_FAILED
        answer = handler.by(with_only(request, "topics", kept), call)

        def finish(answer: m.OffsetDeleteResponse) -> m.OffsetDeleteResponse:
            if not answer.error_code:
                answer.topics.extend(_denied_partitions(denied, code))
            return answer

        return after(answer, finish)

    return guarded


def _denied_partitions(
    topics: Iterable[m.OffsetDeleteRequest.Topics], code: int
) -> list[m.OffsetDeleteResponse.Topics]:
    kind = m.OffsetDeleteResponse.Topics
    return [
        kind(
            name=topic.name,
            partitions=[
                kind.Partitions(partition_index=each.partition_index, error_code=code) for each in topic.partitions
            ],
        )
        for topic in topics
    ]


def created(
    auth: AuthHelper, handler: Handler[m.CreateTopicsRequest, m.CreateTopicsResponse]
) -> Guarded[m.CreateTopicsRequest, m.CreateTopicsResponse]:
    """CreateTopics: needs Create on the cluster or on the topic; the response has its settings with DescribeConfigs."""

    def guarded(request: m.CreateTopicsRequest, call: Call) -> Answered[m.CreateTopicsResponse]:
        caller = call.caller
        any_topic = auth.may_to_cluster(caller, Operation.CREATE, told=False)

        def allowed(topic: m.CreateTopicsRequest.Topics) -> bool:
            return any_topic or auth.may_to_topic(caller, Operation.CREATE, topic.name)

        def may_describe(name: str) -> bool:
            return auth.may_to_topic(caller, Operation.DESCRIBE_CONFIGS, name, told=False)

        def finish(answer: m.CreateTopicsResponse) -> m.CreateTopicsResponse:
            for topic in answer.topics:
                if not topic.error_code and not may_describe(topic.name):
                    topic.topic_config_error_code = errors.TOPIC_AUTHORIZATION_FAILED
                    topic.configs, topic.num_partitions, topic.replication_factor = [], -1, -1
            return answer

        code = errors.TOPIC_AUTHORIZATION_FAILED
        return after(run(handler, request, call, "topics", "topics", allowed, code), finish)

    return guarded


def deleted(
    auth: AuthHelper, handler: Handler[m.DeleteTopicsRequest, m.DeleteTopicsResponse]
) -> Guarded[m.DeleteTopicsRequest, m.DeleteTopicsResponse]:
    """DeleteTopics, by names or by ids: needs Delete; the name of an id is revealed only with Describe."""

    def guarded(request: m.DeleteTopicsRequest, call: Call) -> Answered[m.DeleteTopicsResponse]:
        caller, code = call.caller, errors.TOPIC_AUTHORIZATION_FAILED

        def allowed(topic: m.DeleteTopicsRequest.Topics) -> bool:
            by_id = topic.name is None
            if by_id and not auth.may_to_topic(caller, Operation.DESCRIBE, "", topic.topic_id):
                return False
            return auth.may_to_topic(caller, Operation.DELETE, topic.name or "", topic.topic_id)

        def finish(answer: m.DeleteTopicsResponse) -> m.DeleteTopicsResponse:
            for topic in answer.responses:
                name = auth.name_of(topic.topic_id)
                if topic.error_code == code and topic.name is None and name is not None:
                    topic.name = name if auth.may_to_topic(caller, Operation.DESCRIBE, name, told=False) else None
            return answer

        return after(run(handler, request, call, "topics", "responses", allowed, code), finish)

    by_topics = with_known_ids(auth, handler, guarded, "topics", "responses")

    def by_names(request: m.DeleteTopicsRequest, call: Call) -> Answered[m.DeleteTopicsResponse]:
        def allowed(name: str) -> bool:
            return auth.may_to_topic(call.caller, Operation.DELETE, name)

        code = errors.TOPIC_AUTHORIZATION_FAILED
        return run(handler, request, call, "topic_names", "responses", allowed, code)

    return lambda request, call: (by_topics if request.topics else by_names)(request, call)


def of_configs(auth: AuthHelper, handler: Handler[Configs, A], operation: Operation, told: str) -> Guarded[Configs, A]:
    """Settings of topics and brokers; each resource is checked on its own."""

    def guarded(request: Configs, call: Call) -> Answered[A]:
        resources: Sequence[_Resource] = request.resources
        topics, others = split(resources, lambda each: each.resource_type == TOPIC_RESOURCE)
        kept, denied = split(topics, lambda each: auth.may_to_topic(call.caller, operation, each.resource_name))
        refused = [(denied, errors.TOPIC_AUTHORIZATION_FAILED)]
        if others and not auth.may_to_cluster(call.caller, operation):
            refused.append((others, errors.CLUSTER_AUTHORIZATION_FAILED))
            others = []
        if not kept and not others and request.resources:
            answer: Answered[A] = type(refusal(handler, request, errors.CLUSTER_AUTHORIZATION_FAILED))()
        else:
            answer = handler.by(with_only(request, "resources", [*kept, *others]), call)

        def finish(answer: A) -> A:
            for items, code in refused:
                failed = refusal(handler, with_only(request, "resources", items), code)
                getattr(answer, told).extend(getattr(failed, told))
            return answer

        return after(answer, finish)

    return guarded
