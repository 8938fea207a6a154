"""Guards of Metadata, Produce and Fetch, which check rights to see, write and read topics."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from pybroker import errors
from pybroker.core import Slice
from pybroker.decisions.caller import Call, Caller
from pybroker.protocol import messages as m
from pybroker.protocol.bounds import FETCHED_TOPICS
from pybroker.protocol.wire import refuse_many
from pybroker.security.acls import CLUSTER_NAME, Operation, ResourceType
from pybroker.security.operations import NOT_ASKED
from pybroker.server.api.dispatch import Answered, Handler, done
from pybroker.server.api.guards.auth_helper import (
    AuthHelper,
    Guarded,
    after,
    refusal,
    run,
    split,
    split_in_shares,
    with_known_ids,
    with_only,
)
from pybroker.tasks import in_shares

NO_ID = bytes(16)
RIGHT_READ, RIGHT_WRITE = 1, 2
"""Bits of the data plane (core/plane/limits/rights.pxd)."""
NO_SESSION = -1
"""The session epoch of a full fetch without a session (KIP-227)."""
EMPTY_IS_NONE_VERSION = 1
"""In earlier versions a Metadata request with an empty list asks for all topics."""
DENIED = errors.TOPIC_AUTHORIZATION_FAILED


def produced(
    auth: AuthHelper, handler: Handler[m.ProduceRequest, m.ProduceResponse]
) -> Guarded[m.ProduceRequest, m.ProduceResponse]:
    """Produce: needs Write on each topic, and on the transactional id if there is one."""

    def guarded(request: m.ProduceRequest, call: Call) -> Answered[m.ProduceResponse]:
        caller, own = call.caller, request.transactional_id
        if own is not None and not auth.may(caller, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, own):
            return refusal(handler, request, errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

        def allowed(topic: m.ProduceRequest.TopicData) -> bool:
            if not auth.may_to_topic(caller, Operation.WRITE, topic.name, topic.topic_id):
                return False
            auth.grant(caller, RIGHT_WRITE, topic.name, topic.topic_id)
            return True

        return run(handler, request, call, "topic_data", "responses", allowed, DENIED)

    return with_known_ids(auth, handler, guarded, "topic_data", "responses")


def fetched(
    auth: AuthHelper, handler: Handler[m.FetchRequest, m.FetchResponse]
) -> Guarded[m.FetchRequest, m.FetchResponse]:
    """Fetch: needs Read on each topic, and ClusterAction on the cluster for followers.

    Clients whose rights are checked get no session, so that each fetch names all its partitions and all are checked.
    If the ACLs change while a fetch waits, its response is checked again."""

    def guarded(request: m.FetchRequest, call: Call) -> Answered[m.FetchResponse]:
        caller = call.caller
        state = request.replica_state
        if request.replica_id >= 0 or (state is not None and state.replica_id >= 0):
            if auth.may_to_cluster(caller, Operation.CLUSTER_ACTION):
                return handler.by(request, call)
            return _everything_refused(handler, request)
        if request.session_id:
            return m.FetchResponse(error_code=errors.FETCH_SESSION_ID_NOT_FOUND)
        request = with_only(request, "session_epoch", NO_SESSION)
        return judged(request, call)

    async def judged(request: m.FetchRequest, call: Call) -> m.FetchResponse:
        caller, rules = call.caller, auth.rules
        if len(request.topics) > FETCHED_TOPICS:
            refuse_many("topics", FETCHED_TOPICS)

        def is_named(topic: m.FetchRequest.Topics) -> bool:
            return auth.has(topic.topic, topic.topic_id)

        def allowed(topic: m.FetchRequest.Topics | m.FetchResponse.Responses) -> bool:
            if not auth.may_to_topic(caller, Operation.READ, topic.topic, topic.topic_id):
                return False
            auth.grant(caller, RIGHT_READ, topic.topic, topic.topic_id)
            return True

        known, unknown = await split_in_shares(request.topics, is_named)
        kept, denied = await split_in_shares(known, allowed)
        answer = m.FetchResponse()
        if kept or not request.topics:
            answer = await done(handler.by(with_only(request, "topics", kept), call)) or answer
            if auth.rules is not rules:
                answer.responses, late = await split_in_shares(answer.responses, allowed)
                for topic in late:
                    _drop(topic)
                denied += (await split_in_shares(kept, allowed))[1]
        else:
            request.topics.clear()
        del known
        answer.responses += await _refused(handler, request, denied, DENIED)
        answer.responses += await _refused(handler, request, unknown, errors.UNKNOWN_TOPIC_ID)
        return answer

    return guarded


async def _refused(
    handler: Handler[m.FetchRequest, m.FetchResponse], request: m.FetchRequest, topics: list[m.FetchRequest.Topics],
    code: int,
) -> list[m.FetchResponse.Responses]:  # fmt: skip
    """Return the refusals of all partitions of topics, yielding to the event loop in between. `topics` is emptied on
    the way, so that a large request and its response are never both in memory."""
    found: list[m.FetchResponse.Responses] = []
    last: m.FetchRequest.Topics | None = None
    async for share in in_shares(_taken(topics)):
        asked = []
        for _, pairs in groupby(share, lambda pair: id(pair[0])):
            of_topic = list(pairs)
            asked.append(with_only(of_topic[0][0], "partitions", [p for _, p in of_topic if p is not None]))
        refused = list(refusal(handler, with_only(request, "topics", asked), code).responses)
        if share[0][0] is last:
            found[-1].partitions += refused.pop(0).partitions
        found += refused
        last = share[-1][0]
    return found


def _taken(
    topics: list[m.FetchRequest.Topics]
) -> Iterator[tuple[m.FetchRequest.Topics, m.FetchRequest.Topics.Partitions | None]]:
    """Take topics and their partitions out of their lists; yield None for a topic without partitions."""
    topics.reverse()
    while topics:
        topic = topics.pop()
        if not topic.partitions:
            yield topic, None
        topic.partitions.reverse()
        while topic.partitions:
            yield topic, topic.partitions.pop()


async def _everything_refused(
    handler: Handler[m.FetchRequest, m.FetchResponse], request: m.FetchRequest
) -> m.FetchResponse:
    return m.FetchResponse(responses=await _refused(handler, request, request.topics, DENIED))


def _drop(topic: m.FetchResponse.Responses) -> None:
    """Close the log files that the records of a response refer to."""
    for partition in topic.partitions:
        if isinstance(partition.records, Slice):
            partition.records.close()


def described(
    auth: AuthHelper, handler: Handler[m.MetadataRequest, m.MetadataResponse], auto_create: bool
) -> Guarded[m.MetadataRequest, m.MetadataResponse]:
    """Metadata: needs Describe on each topic, and does not reveal whether a denied topic exists. `auto_create`: the
    broker creates missing topics for callers with Create on the topic or the cluster."""

    def guarded(request: m.MetadataRequest, call: Call) -> Answered[m.MetadataResponse]:
        caller = call.caller

        def finish(answer: m.MetadataResponse) -> m.MetadataResponse:
            if answer.cluster_authorized_operations != NOT_ASKED:
                answer.cluster_authorized_operations = auth.operations(caller, ResourceType.CLUSTER, CLUSTER_NAME)
            for topic in answer.topics:
                if topic.topic_authorized_operations != NOT_ASKED and not topic.error_code and topic.name is not None:
                    topic.topic_authorized_operations = auth.operations(caller, ResourceType.TOPIC, topic.name)
            return answer

        if request.topics is None or (call.version < EMPTY_IS_NONE_VERSION and not request.topics):

            def visible(answer: m.MetadataResponse) -> m.MetadataResponse:
                answer.topics = [t for t in answer.topics if t.name and _may_see(auth, caller, t.name, told=False)]
                return finish(answer)

            return after(handler.by(request, call), visible)
        refused: list[m.MetadataResponse.Topics] = []
        names = {topic.name for topic in request.topics}
        kept = [topic for topic in request.topics if _is_shown(auth, caller, request, topic, auto_create, refused)]
        call = call._replace(
            version=max(call.version, EMPTY_IS_NONE_VERSION), may_create=lambda name: _may_create(auth, caller, name)
        )  # the handler checks Create again for topics deleted meanwhile

        def with_refused(answer: m.MetadataResponse) -> m.MetadataResponse:
            """Add the refusals. An id may have become known while the handler waited, so its topic is checked now."""
            found, late = split(
                answer.topics, lambda topic: not topic.name or topic.name in names or _may_see(auth, caller, topic.name)
            )
            refused.extend(_no_such_topic(topic) for topic in late)
            answer.topics = found + refused
            return finish(answer)

        return after(handler.by(with_only(request, "topics", kept), call), with_refused)

    return guarded


def _no_such_topic(
    topic: m.MetadataRequest.Topics | m.MetadataResponse.Topics
) -> m.MetadataResponse.Topics:
    """The response for an id whose topic the client may not describe."""
    return m.MetadataResponse.Topics(error_code=DENIED, name=None, topic_id=topic.topic_id)


def _may_see(auth: AuthHelper, caller: Caller, name: str, *, told: bool = True) -> bool:
    return auth.may_to_topic(caller, Operation.DESCRIBE, name, told=told)


def _may_create(auth: AuthHelper, caller: Caller, name: str) -> bool:
    may_any = auth.may_to_cluster(caller, Operation.CREATE, told=False)
    return may_any or auth.may_to_topic(caller, Operation.CREATE, name)


def _is_shown(
    auth: AuthHelper, caller: Caller, request: m.MetadataRequest, topic: m.MetadataRequest.Topics, auto_create: bool,
    refused: list[m.MetadataResponse.Topics],
) -> bool:
    """True if the handler shall describe the topic; otherwise the refusal is appended to `refused`."""
    kind = m.MetadataResponse.Topics
    if topic.name is None:
        name = auth.name_of(topic.topic_id)
        if name is None or _may_see(auth, caller, name):
            return True
        refused.append(_no_such_topic(topic))
        return False
    name = topic.name
    if not _may_see(auth, caller, name):
        refused.append(kind(error_code=DENIED, name=name, topic_id=NO_ID))
        return False
    wanted = auto_create and request.allow_auto_topic_creation and auth.is_missing(name)
    if not wanted or _may_create(auth, caller, name):
        return True
    refused.append(kind(error_code=DENIED, name=name, topic_id=NO_ID))
    return False
