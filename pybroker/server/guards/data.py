"""Guards of Metadata, Produce and Fetch: which topics a client sees, writes to and reads."""

from collections.abc import Coroutine, Iterator
from itertools import groupby
from typing import Any

from pybroker import errors
from pybroker.cluster.caller import Call, Caller
from pybroker.core import Slice
from pybroker.protocol import messages as m
from pybroker.protocol.bounds import FETCHED_TOPICS
from pybroker.protocol.wire import refuse_many
from pybroker.security.acls import CLUSTER_NAME, Operation, ResourceType
from pybroker.security.operations import NOT_ASKED
from pybroker.server.dispatch import Handler
from pybroker.server.guards.auth_helper import (
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
"""As the data plane has them (core/plane/rights.pxd)."""
NO_SESSION = -1
"""The epoch of a full fetch that begins no session (KIP-227)."""
EMPTY_IS_NONE_VERSION = 1
"""Before, a Metadata request that names nothing asks for all topics."""
DENIED = errors.TOPIC_AUTHORIZATION_FAILED


def produced(auth: AuthHelper, handler: Handler) -> Guarded:
    """Produce, of a transactional id too."""

    def guarded(request: Any, call: Call) -> Any:
        caller, own = call.caller, request.transactional_id
        if own is not None and not auth.may(caller, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, own):
            return refusal(handler, request, errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

        def allowed(topic: Any) -> bool:
            if not auth.may_to_topic(caller, Operation.WRITE, topic.name, topic.topic_id):
                return False
            auth.grant(caller, RIGHT_WRITE, topic.name, topic.topic_id)
            return True

        return run(handler, request, call, "topic_data", "responses", allowed, DENIED)

    return with_known_ids(auth, handler, guarded, "topic_data", "responses")


def fetched(auth: AuthHelper, handler: Handler) -> Guarded:
    """Fetch. Whoever is asked for rights has no session: each fetch names all its partitions, and each is looked at.

    What a fetch has waited for is looked at again, if the rules are others by then."""

    def guarded(request: Any, call: Call) -> Any:
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

    async def judged(request: Any, call: Call) -> Any:
        caller, rules = call.caller, auth.rules
        if len(request.topics) > FETCHED_TOPICS:
            refuse_many("topics", FETCHED_TOPICS)

        def is_named(topic: Any) -> bool:
            return auth.has(topic.topic, topic.topic_id)

        def allowed(topic: Any) -> bool:
            if not auth.may_to_topic(caller, Operation.READ, topic.topic, topic.topic_id):
                return False
            auth.grant(caller, RIGHT_READ, topic.topic, topic.topic_id)
            return True

        known, unknown = await split_in_shares(request.topics, is_named)
        kept, denied = await split_in_shares(known, allowed)
        answer = m.FetchResponse()
        if kept or not request.topics:
            answer = handler.by(with_only(request, "topics", kept), call)
            answer = await answer if isinstance(answer, Coroutine) else answer
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


async def _refused(handler: Handler, request: Any, topics: list[Any], code: int) -> list[Any]:
    """Return the refusals of all partitions of topics, made in shares. The list is empty afterwards: what is refused is
    let go, so that a large request and the answer to it are never both in memory."""
    found: list[Any] = []
    last: Any = None
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


def _taken(topics: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Take topics and their partitions out of their lists; a topic without any comes with None."""
    topics.reverse()
    while topics:
        topic = topics.pop()
        if not topic.partitions:
            yield topic, None
        topic.partitions.reverse()
        while topic.partitions:
            yield topic, topic.partitions.pop()


async def _everything_refused(handler: Handler, request: Any) -> Any:
    return m.FetchResponse(responses=await _refused(handler, request, request.topics, DENIED))


def _drop(topic: Any) -> None:
    """Let go of the files that an answer's records lie in."""
    for partition in topic.partitions:
        if isinstance(partition.records, Slice):
            partition.records.close()


def described(auth: AuthHelper, handler: Handler, auto_create: bool) -> Guarded:
    """Metadata: who may not describe a topic is told neither that it is there nor that it is not. `auto_create`: the
    broker makes topics that are missing, for who may."""

    def guarded(request: Any, call: Call) -> Any:
        caller = call.caller

        def finish(answer: Any) -> Any:
            if answer.cluster_authorized_operations != NOT_ASKED:
                answer.cluster_authorized_operations = auth.operations(caller, ResourceType.CLUSTER, CLUSTER_NAME)
            for topic in answer.topics:
                if topic.topic_authorized_operations != NOT_ASKED and not topic.error_code:
                    topic.topic_authorized_operations = auth.operations(caller, ResourceType.TOPIC, topic.name)
            return answer

        if request.topics is None or (call.version < EMPTY_IS_NONE_VERSION and not request.topics):

            def visible(answer: Any) -> Any:
                answer.topics = [topic for topic in answer.topics if _may_see(auth, caller, topic.name, told=False)]
                return finish(answer)

            return after(handler.by(request, call), visible)
        refused: list[Any] = []
        names = {topic.name for topic in request.topics}
        kept = [topic for topic in request.topics if _is_shown(auth, caller, request, topic, auto_create, refused)]
        call = call._replace(
            version=max(call.version, EMPTY_IS_NONE_VERSION), may_create=lambda name: _may_create(auth, caller, name)
        )  # which is asked again of what is missing by then

        def with_refused(answer: Any) -> Any:
            """An id may have become known while the handler waited: whose it is, is asked now."""
            found, late = split(
                answer.topics, lambda topic: not topic.name or topic.name in names or _may_see(auth, caller, topic.name)
            )
            refused.extend(_no_such_topic(topic) for topic in late)
            answer.topics = found + refused
            return finish(answer)

        return after(handler.by(with_only(request, "topics", kept), call), with_refused)

    return guarded


def _no_such_topic(topic: Any) -> Any:
    """What is told of an id whose topic the client may not describe."""
    return m.MetadataResponse.Topics(error_code=DENIED, name=None, topic_id=topic.topic_id)


def _may_see(auth: AuthHelper, caller: Caller, name: str, *, told: bool = True) -> bool:
    return auth.may_to_topic(caller, Operation.DESCRIBE, name, told=told)


def _may_create(auth: AuthHelper, caller: Caller, name: str) -> bool:
    may_any = auth.may_to_cluster(caller, Operation.CREATE, told=False)
    return may_any or auth.may_to_topic(caller, Operation.CREATE, name)


def _is_shown(
    auth: AuthHelper, caller: Caller, request: Any, topic: Any, auto_create: bool, refused: list[Any]
) -> bool:
    """Is the handler to answer for a topic? If not, `refused` gets the answer."""
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
