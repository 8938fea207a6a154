"""Guards and handlers decide on the same view: a topic that becomes known between the two gives a client no access."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pybroker import errors
from pybroker.decisions.caller import Call, Caller
from pybroker.decisions.image import LiveBroker
from pybroker.decisions.metadata_cache import MetadataCache, UpdateMetadata
from pybroker.model import PLAINTEXT, HostPort
from pybroker.protocol import messages as m
from pybroker.security.access import Access
from pybroker.security.acls import Operation
from pybroker.server.api.dispatch import Handler
from pybroker.server.api.guards import data, topics
from pybroker.server.api.guards.auth_helper import AuthHelper
from pybroker.server.api.handlers.metadata import Metadata, failed

ID = bytes(range(16))
CALL = Call(13, "c", Caller("127.0.0.1", 1, "CLIENTS", "User:ann"))
UNKNOWN = errors.UNKNOWN_TOPIC_ID


class Told:
    """A metadata cache: complete and with one topic once that is known, empty before."""

    def __init__(self) -> None:
        self.image = self
        self.hidden: Any = None

    def topic_by_id(self, _: bytes) -> Any:
        return self.hidden

    def topic(self, _: str) -> Any:
        return self.hidden

    def is_complete(self, _: Any) -> bool:
        return self.hidden is not None


def late(told: Told, answer: Any) -> Handler:
    """A handler that makes the topic known, then answers."""

    async def by(request: Any, _: Call) -> Any:
        told.hidden = SimpleNamespace(name="hidden", id=ID)
        return answer(request)

    def failed(request: Any, code: int, _: str) -> Any:
        return SimpleNamespace(responses=[code] * len(getattr(request, "topics", None) or request.topic_data))

    return Handler(by, failed)


REQUESTS = {
    data.produced: m.ProduceRequest(acks=1, topic_data=[m.ProduceRequest.TopicData(topic_id=ID)]),
    data.fetched: m.FetchRequest(topics=[m.FetchRequest.Topics(topic_id=ID)]),
    topics.deleted: m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequest.Topics(name=None, topic_id=ID)]),
}


@pytest.mark.parametrize("guard", REQUESTS)
async def test_an_id_that_no_topic_has_yet_reaches_no_handler(guard: Any) -> None:
    told = Told()
    handler = late(told, lambda request: pytest.fail(f"the handler got {request}"))
    answer = guard(AuthHelper(Access(frozenset(), False, lambda *_: None), told), handler)(REQUESTS[guard], CALL)  # type: ignore[arg-type]
    if not hasattr(answer, "responses"):
        answer = await answer
    assert answer.responses == [UNKNOWN] and told.hidden is None


async def test_who_may_not_see_a_topic_is_not_told_its_name_by_an_id_that_becomes_known() -> None:
    told, kind = Told(), m.MetadataResponse.Topics
    handler = late(told, lambda _: m.MetadataResponse(topics=[kind(name="hidden", topic_id=ID)]))
    auth = AuthHelper(Access(frozenset(), False, lambda *_: None), told)  # type: ignore[arg-type]
    request = m.MetadataRequest(topics=[m.MetadataRequest.Topics(name=None, topic_id=ID)])
    (topic,) = (await data.described(auth, handler, True)(request, CALL)).topics
    assert (topic.error_code, topic.name, topic.topic_id) == (errors.TOPIC_AUTHORIZATION_FAILED, None, ID)


async def test_nothing_is_missing_before_a_controller_has_told_what_is_there() -> None:
    """A consumer with READ and without CREATE is not refused by a broker that has no topics from a controller yet."""
    told, asked = Told(), []
    handler = late(told, lambda request: asked.append(request) or m.MetadataResponse(topics=[]))
    access = Access(frozenset(), False, lambda *_: None)
    access.may = lambda *what, **_: "CREATE" not in str(what)  # type: ignore[method-assign]
    auth = AuthHelper(access, told)  # type: ignore[arg-type]
    request = m.MetadataRequest(topics=[m.MetadataRequest.Topics(name="hidden")], allow_auto_topic_creation=True)
    assert (await data.described(auth, handler, True)(request, CALL)).topics == []
    assert [each.topics[0].name for each in asked] == ["hidden"]


async def test_a_topic_that_goes_before_the_handler_looks_is_not_made_again_by_who_may_only_describe() -> None:
    """A topic deleted between guard and handler is created again only if the client has CREATE."""
    for may_make in (False, True):
        told, made = Told(), list[str]()
        told.hidden = SimpleNamespace(name="hidden", id=ID)
        without = MetadataCache("c")
        without.update(UpdateMetadata(1, 1, [LiveBroker(1, {"CLIENTS": HostPort("h", 1)}, {"CLIENTS": PLAINTEXT})], []))
        access = Access(frozenset(), False, lambda *_: None)
        access.may = lambda *what, may=may_make, **_: may or Operation.CREATE not in what  # type: ignore[method-assign]
        creator = SimpleNamespace(auto_create=made.append, is_creating=lambda _: False)
        handler = Metadata(without, creator, True)  # type: ignore[arg-type]
        guard = data.described(AuthHelper(access, told), Handler(handler, failed), True)  # type: ignore[arg-type]
        request = m.MetadataRequest(topics=[m.MetadataRequest.Topics(name="hidden")], allow_auto_topic_creation=True)
        [topic] = guard(request, CALL).topics
        assert made == (["hidden"] if may_make else [])
        code = errors.LEADER_NOT_AVAILABLE if may_make else errors.UNKNOWN_TOPIC_OR_PARTITION
        assert topic.error_code == code
