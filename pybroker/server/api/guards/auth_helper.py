"""Helpers of guards, which remove denied resources from a request and report them with Kafka's error codes.

    request ──all of it denied──> the API's response to a failure, with the authorization error
       └──some denied──> the allowed rest ──> the handler ──> its response, with errors for the denied part added.

A denied resource is never looked up, so a missing one is denied like an existing one. Handlers check no rights.
The operations that each API requires are in one table, pybroker/security/matrix.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Coroutine, Iterable
from typing import Final, TypeVar

from pybroker import errors
from pybroker.decisions.caller import Call, Caller
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.protocol import messages as m
from pybroker.security.access import Access
from pybroker.security.acls import CLUSTER_NAME, Operation, ResourceType
from pybroker.server.api.dispatch import A, Answered, Handler, Q
from pybroker.tasks import in_shares

SEE_LOG: Final = 'the broker logs the missing ACL in a line "request denied"'
WORDS: Final = {
    errors.TOPIC_AUTHORIZATION_FAILED: f"not authorized for this operation on the topic: {SEE_LOG}",
    errors.GROUP_AUTHORIZATION_FAILED: f"not authorized for this operation on the group: {SEE_LOG}",
    errors.CLUSTER_AUTHORIZATION_FAILED: f"not authorized for this operation on the cluster: {SEE_LOG}",
    errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: f"not authorized for the transactional id: {SEE_LOG}",
    errors.DELEGATION_TOKEN_AUTHORIZATION_FAILED: f"not authorized to create tokens for another owner: {SEE_LOG}",
    errors.UNKNOWN_TOPIC_ID: "no topic has this id",
}

T = TypeVar("T")
Guarded = Callable[[Q, Call], Answered[A]]


class AuthHelper:
    """Checks whether a caller is authorized; denials are logged."""

    def __init__(self, access: Access, metadata: MetadataCache) -> None:
        self._access = access
        self._metadata = metadata

    @property
    def rules(self) -> object:
        """The current rules; changed rules are another object."""
        return self._access.rules

    def may(self, caller: Caller, operation: Operation, kind: ResourceType, name: str, *, told: bool = True) -> bool:
        """True if the operation is allowed. Callers that only filter their response log no denial (the flag False)."""
        return self._access.may(caller.principal, caller.host, operation, kind, name, told=told)

    def may_to_cluster(self, caller: Caller, operation: Operation, *, told: bool = True) -> bool:
        return self.may(caller, operation, ResourceType.CLUSTER, CLUSTER_NAME, told=told)

    def grant(self, caller: Caller, bits: int, name: str, topic_id: bytes) -> None:
        """Let the data plane know the rights that this client was found to have on a topic."""
        if caller.rights is not None:
            topic = self._metadata.image.topic(name) if name else self._metadata.image.topic_by_id(topic_id)
            if topic is not None and topic.id:
                caller.rights.add(self._access.number, topic.id, bits)

    def may_to_topic(
        self, caller: Caller, operation: Operation, name: str, topic_id: bytes = b"", *, told: bool = True
    ) -> bool:
        """True if the operation is allowed on a topic, given by name or by id. An unknown id is always denied."""
        found = name or (self.name_of(topic_id) if topic_id else name)
        return found is not None and self.may(caller, operation, ResourceType.TOPIC, found, told=told)

    def may_to_any_topic(self, caller: Caller, operation: Operation) -> bool:
        return self._access.may_to_any(caller.principal, caller.host, operation, ResourceType.TOPIC)

    def operations(self, caller: Caller, kind: ResourceType, name: str) -> int:
        """The allowed operations, as bits."""
        return self._access.operations(caller.principal, caller.host, kind, name)

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of the topic with this id, or None."""
        topic = self._metadata.image.topic_by_id(topic_id)
        return None if topic is None else topic.name

    def is_missing(self, topic: str) -> bool:
        """True if the metadata from the controller is complete and has no such topic."""
        image = self._metadata.image
        return self._metadata.is_complete(image) and image.topic(topic) is None

    def has(self, name: str | None, topic_id: bytes) -> bool:
        """True if a name is given or the id is known."""
        return bool(name) or self.name_of(topic_id) is not None


def after(answer: Answered[A], finish: Callable[[A], A]) -> Answered[A]:
    """Apply `finish` to a response, now or when it is ready; None stays None."""
    return _settled(answer, lambda there: None if there is None else finish(there))


def _settled(answer: Answered[A], finish: Callable[[A | None], A | None]) -> Answered[A]:
    if not isinstance(answer, Coroutine):
        return finish(answer)

    async def later(waiting: Coroutine[object, None, A | None]) -> A | None:
        return finish(await waiting)

    return later(answer)


def refusal(handler: Handler[Q, A], request: Q, code: int) -> A:
    return handler.failed(request, code, WORDS[code])


def with_only(request: T, field: str, items: object) -> T:
    """A copy of the request with another value of one field."""
    less = copy.copy(request)
    setattr(less, field, items)
    return less


def split(items: Iterable[T], allowed: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """Split items into (allowed, denied)."""
    kept: list[T] = []
    denied: list[T] = []
    for item in items:
        (kept if allowed(item) else denied).append(item)
    return kept, denied


async def split_in_shares(items: Iterable[T], allowed: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """Do the same as `split` for many items, letting the event loop run in between."""
    kept: list[T] = []
    denied: list[T] = []
    async for share in in_shares(items):
        for parts, more in zip((kept, denied), split(share, allowed), strict=True):
            parts.extend(more)
    return kept, denied


def run(
    handler: Handler[Q, A], request: Q, call: Call, asked: str, told: str, allowed: Callable[[T], bool], code: int
) -> Answered[A]:
    """Execute the allowed items of the request's field `asked`, and add errors for the others to the response."""
    kept, denied = split(getattr(request, asked), allowed)
    if not denied:
        return handler.by(request, call)
    if not kept:
        return refusal(handler, request, code)
    denial = with_only(request, asked, denied)
    answer = handler.by(with_only(request, asked, kept), call)

    def finish(answer: A | None) -> A | None:
        failed = refusal(handler, denial, code)  # after the allowed part, as with acks=0 this raises Disconnect
        if answer is not None:
            getattr(answer, told).extend(getattr(failed, told))
        return answer

    return _settled(answer, finish)


def with_known_ids(
    auth: AuthHelper, handler: Handler[Q, A], then: Guarded[Q, A], asked: str, told: str
) -> Guarded[Q, A]:
    """Remove unknown topic ids from the requests of a guard. An id that becomes known later must not reach the handler,
    as no rights were checked for its topic."""
    inner = handler._replace(by=then)

    def known(topic: m.ProduceRequest.TopicData | m.DeleteTopicsRequest.Topics) -> bool:
        return auth.has(topic.name, topic.topic_id)

    def guarded(request: Q, call: Call) -> Answered[A]:
        return run(inner, request, call, asked, told, known, errors.UNKNOWN_TOPIC_ID)

    return guarded
