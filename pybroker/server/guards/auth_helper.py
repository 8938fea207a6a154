"""What stands before each handler: what the caller may not do is taken out of the request, and told with Kafka's codes.

    request ──all of it is denied──> the answer that the API has for a failure, with the code of the denial
       └──some──> what is left ──> the handler ──> its answer, and what was denied beside it

A denied resource is looked for nowhere: what is there is denied as what is not. The handlers know of nobody's rights.
What is asked of whom is one table, pybroker/security/matrix.py.
"""

import copy
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from pybroker import errors
from pybroker.cluster.caller import Call, Caller
from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.security.access import Access
from pybroker.security.acls import CLUSTER_NAME, Operation, ResourceType
from pybroker.server.dispatch import Handler
from pybroker.tasks import in_shares

WORDS: Final = {
    errors.TOPIC_AUTHORIZATION_FAILED: "the principal may not do this with the topic",
    errors.GROUP_AUTHORIZATION_FAILED: "the principal may not do this with the group",
    errors.CLUSTER_AUTHORIZATION_FAILED: "the principal may not do this with the cluster",
    errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the principal may not do this with the transactional id",
    errors.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "the principal may not have tokens in another's name",
    errors.UNKNOWN_TOPIC_ID: "no topic has this id",
}

Guarded = Callable[[Any, Call], Any]


class AuthHelper:
    """Who asks whether a caller may do something; what is denied is told to whoever keeps the log."""

    def __init__(self, access: Access, metadata: MetadataCache) -> None:
        self._access = access
        self._metadata = metadata

    @property
    def rules(self) -> object:
        """The rules that hold now: others are another object."""
        return self._access.rules

    def may(self, caller: Caller, operation: Operation, kind: ResourceType, name: str, *, told: bool = True) -> bool:
        """`told` False: a denial is no news, for it leaves something out."""
        return self._access.may(caller.principal, caller.host, operation, kind, name, told=told)

    def may_to_cluster(self, caller: Caller, operation: Operation, *, told: bool = True) -> bool:
        return self.may(caller, operation, ResourceType.CLUSTER, CLUSTER_NAME, told=told)

    def grant(self, caller: Caller, bits: int, name: str, topic_id: bytes) -> None:
        """Have the data plane know that a client may do this with a topic, which it was found to may."""
        if caller.rights is not None:
            topic = self._metadata.image.topic(name) if name else self._metadata.image.topic_by_id(topic_id)
            if topic is not None and topic.id:
                caller.rights.add(self._access.number, topic.id, bits)

    def may_to_topic(
        self, caller: Caller, operation: Operation, name: str, topic_id: bytes = b"", *, told: bool = True
    ) -> bool:
        """Of a topic that is named, or else given by its id. With an id that no topic has nobody may do anything."""
        found = name or (self.name_of(topic_id) if topic_id else name)
        return found is not None and self.may(caller, operation, ResourceType.TOPIC, found, told=told)

    def may_to_any_topic(self, caller: Caller, operation: Operation) -> bool:
        return self._access.may_to_any(caller.principal, caller.host, operation, ResourceType.TOPIC)

    def operations(self, caller: Caller, kind: ResourceType, name: str) -> int:
        """As bits."""
        return self._access.operations(caller.principal, caller.host, kind, name)

    def name_of(self, topic_id: bytes) -> str | None:
        """The topic that has an id; None where no topic has."""
        topic = self._metadata.image.topic_by_id(topic_id)
        return None if topic is None else topic.name

    def is_missing(self, topic: str) -> bool:
        """Is there no such topic, as far as a controller has told?"""
        image = self._metadata.image
        return self._metadata.is_complete(image) and image.topic(topic) is None

    def has(self, name: str | None, topic_id: bytes) -> bool:
        """Is a topic named, or its id known?"""
        return bool(name) or self.name_of(topic_id) is not None


def after(answer: Any, finish: Callable[[Any], Any]) -> Any:
    """What `finish` makes of an answer, now or when it is there."""
    if not isinstance(answer, Coroutine):
        return finish(answer)

    async def later() -> Any:
        return finish(await answer)

    return later()


def refusal(handler: Handler, request: Any, code: int) -> Any:
    return handler.failed(request, code, WORDS[code])


def with_only(request: Any, field: str, items: Any) -> Any:
    """The same request with another value of a field: about fewer things, mostly."""
    less = copy.copy(request)
    setattr(less, field, items)
    return less


def split(items: Iterable[Any], allowed: Callable[[Any], bool]) -> tuple[list[Any], list[Any]]:
    """Those that are allowed, and those that are not."""
    kept: list[Any] = []
    denied: list[Any] = []
    for item in items:
        (kept if allowed(item) else denied).append(item)
    return kept, denied


async def split_in_shares(items: Iterable[Any], allowed: Callable[[Any], bool]) -> tuple[list[Any], list[Any]]:
    """Do the same as `split` for many items, letting the event loop run in between."""
    kept: list[Any] = []
    denied: list[Any] = []
    async for share in in_shares(items):
        for parts, more in zip((kept, denied), split(share, allowed), strict=True):
            parts.extend(more)
    return kept, denied


def run(
    handler: Handler, request: Any, call: Call, asked: str, told: str, allowed: Callable[[Any], bool], code: int
) -> Any:
    """Execute what is allowed of the things in a field of the request; the answer has those in the field `told`."""
    kept, denied = split(getattr(request, asked), allowed)
    if not denied:
        return handler.by(request, call)
    if not kept:
        return refusal(handler, request, code)
    denial = with_only(request, asked, denied)
    answer = handler.by(with_only(request, asked, kept), call)

    def finish(answer: Any) -> Any:
        failed = refusal(handler, denial, code)  # behind what is allowed: with acks=0 it closes the connection
        if answer is not None:
            getattr(answer, told).extend(getattr(failed, told))
        return answer

    return after(answer, finish)


def with_known_ids(auth: AuthHelper, handler: Handler, then: Guarded, asked: str, told: str) -> Guarded:
    """A guard's requests without the ids that no topic has. One that becomes known later must reach no handler: nobody
    has asked whose it is."""
    inner = handler._replace(by=then)

    def known(topic: Any) -> bool:
        return auth.has(topic.name, topic.topic_id)

    def guarded(request: Any, call: Call) -> Any:
        return run(inner, request, call, asked, told, known, errors.UNKNOWN_TOPIC_ID)

    return guarded
