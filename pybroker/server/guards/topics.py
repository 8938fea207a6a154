"""Guards of what is asked of topics and of settings: each topic by itself."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from pybroker import errors
from pybroker.cluster.caller import Call
from pybroker.security.acls import Operation
from pybroker.server.dispatch import Handler
from pybroker.server.guards.auth_helper import (
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


class _Named(NamedTuple):
    """Where a request names topics, and its answer tells of them."""

    operation: Operation
    asked: str = "topics"
    told: str = "topics"


BY_TOPIC: Final[Mapping[str, _Named]] = {
    "ListOffsets": _Named(Operation.DESCRIBE),
    "DeleteRecords": _Named(Operation.DELETE),
    "CreatePartitions": _Named(Operation.ALTER, "topics", "results"),
    "DescribeProducers": _Named(Operation.READ),
    "OffsetCommit": _Named(Operation.READ),
}


def of_topics(auth: AuthHelper, handler: Handler, named: _Named) -> Guarded:
    """Each topic by itself."""

    def guarded(request: Any, call: Call) -> Any:
        def allowed(topic: Any) -> bool:
            return auth.may_to_topic(call.caller, named.operation, topic.name)

        code = errors.TOPIC_AUTHORIZATION_FAILED
        return run(handler, request, call, named.asked, named.told, allowed, code)

    return guarded


def epochs(auth: AuthHelper, handler: Handler) -> Guarded:
    """OffsetForLeaderEpoch: of brokers, or of who may describe the topic."""

    def guarded(request: Any, call: Call) -> Any:
        if auth.may_to_cluster(call.caller, Operation.CLUSTER_ACTION, told=False):
            return handler.by(request, call)

        def allowed(topic: Any) -> bool:
            return auth.may_to_topic(call.caller, Operation.DESCRIBE, topic.topic)

        return run(handler, request, call, "topics", "topics", allowed, errors.TOPIC_AUTHORIZATION_FAILED)

    return guarded


def deleted_offsets(auth: AuthHelper, handler: Handler) -> Guarded:
    """OffsetDelete answers a failure at its top alone: topics that are denied have their partitions' codes."""

    def guarded(request: Any, call: Call) -> Any:
        kept, denied = split(request.topics, lambda topic: auth.may_to_topic(call.caller, Operation.READ, topic.name))
        code = errors.TOPIC_AUTHORIZATION_FAILED
        answer = handler.by(with_only(request, "topics", kept), call)

        def finish(answer: Any) -> Any:
            if not answer.error_code:
                answer.topics.extend(_denied_partitions(type(answer).Topics, denied, code))
            return answer

        return after(answer, finish)

    return guarded


def _denied_partitions(kind: Any, topics: Iterable[Any], code: int) -> list[Any]:
    return [
        kind(
            name=topic.name,
            partitions=[
                kind.Partitions(partition_index=each.partition_index, error_code=code) for each in topic.partitions
            ],
        )
        for topic in topics
    ]


def created(auth: AuthHelper, handler: Handler) -> Guarded:
    """CreateTopics: who may create any, or this one; its settings are for who may describe them."""

    def guarded(request: Any, call: Call) -> Any:
        caller = call.caller
        any_topic = auth.may_to_cluster(caller, Operation.CREATE, told=False)

        def allowed(topic: Any) -> bool:
            return any_topic or auth.may_to_topic(caller, Operation.CREATE, topic.name)

        def may_describe(name: str) -> bool:
            return auth.may_to_topic(caller, Operation.DESCRIBE_CONFIGS, name, told=False)

        def finish(answer: Any) -> Any:
            for topic in answer.topics:
                if not topic.error_code and not may_describe(topic.name):
                    topic.topic_config_error_code = errors.TOPIC_AUTHORIZATION_FAILED
                    topic.configs, topic.num_partitions, topic.replication_factor = [], -1, -1
            return answer

        code = errors.TOPIC_AUTHORIZATION_FAILED
        return after(run(handler, request, call, "topics", "topics", allowed, code), finish)

    return guarded


def deleted(auth: AuthHelper, handler: Handler) -> Guarded:
    """DeleteTopics, by names or by ids: whoever may not describe a topic is not told the name that an id has."""

    def guarded(request: Any, call: Call) -> Any:
        caller, code = call.caller, errors.TOPIC_AUTHORIZATION_FAILED

        def allowed(topic: Any) -> bool:
            by_id = topic.name is None
            if by_id and not auth.may_to_topic(caller, Operation.DESCRIBE, "", topic.topic_id):
                return False
            return auth.may_to_topic(caller, Operation.DELETE, topic.name or "", topic.topic_id)

        def finish(answer: Any) -> Any:
            for topic in answer.responses:
                name = auth.name_of(topic.topic_id)
                if topic.error_code == code and topic.name is None and name is not None:
                    topic.name = name if auth.may_to_topic(caller, Operation.DESCRIBE, name, told=False) else None
            return answer

        return after(run(handler, request, call, "topics", "responses", allowed, code), finish)

    by_topics = with_known_ids(auth, handler, guarded, "topics", "responses")

    def by_names(request: Any, call: Call) -> Any:
        def allowed(name: str) -> bool:
            return auth.may_to_topic(call.caller, Operation.DELETE, name)

        code = errors.TOPIC_AUTHORIZATION_FAILED
        return run(handler, request, call, "topic_names", "responses", allowed, code)

    return lambda request, call: (by_topics if request.topics else by_names)(request, call)


def of_configs(auth: AuthHelper, handler: Handler, operation: Operation, told: str) -> Guarded:
    """Settings of topics, and of brokers: each resource by itself."""

    def guarded(request: Any, call: Call) -> Any:
        topics, others = split(request.resources, lambda each: each.resource_type == TOPIC_RESOURCE)
        kept, denied = split(topics, lambda each: auth.may_to_topic(call.caller, operation, each.resource_name))
        refused = [(denied, errors.TOPIC_AUTHORIZATION_FAILED)]
        if others and not auth.may_to_cluster(call.caller, operation):
            refused.append((others, errors.CLUSTER_AUTHORIZATION_FAILED))
            others = []
        if not kept and not others and request.resources:
            answer: Any = type(refusal(handler, request, errors.CLUSTER_AUTHORIZATION_FAILED))()
        else:
            answer = handler.by(with_only(request, "resources", [*kept, *others]), call)

        def finish(answer: Any) -> Any:
            for items, code in refused:
                failed = refusal(handler, with_only(request, "resources", items), code)
                getattr(answer, told).extend(getattr(failed, told))
            return answer

        return after(answer, finish)

    return guarded
