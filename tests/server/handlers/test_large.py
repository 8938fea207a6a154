"""A large request runs in slices, with small requests answered between them, and gets the same answer as unsliced.
Requests that no client sends are refused before they are decoded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from pybroker import errors
from pybroker.decisions.caller import Call, Caller, Disconnect
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.protocol.apis import SERVED, Api
from pybroker.protocol.bounds import Bound, bound_of
from pybroker.security.access import Access
from pybroker.server.api import dispatch as dispatch_module
from pybroker.server.api import twice
from pybroker.server.api.dispatch import Dispatcher
from pybroker.server.api.guards.auth_helper import AuthHelper
from pybroker.server.api.guards.table import guarded
from pybroker.server.api.responder import Waiting
from pybroker.server.api.turns import Turns
from tests.rows import with_each
from tests.server.handlers.desk import KEYS, Desk
from tests.wide import arrays, wide

ANN = Caller("127.0.0.1", 1, "CLIENTS", "User:ann")
BEFORE_LOGIN = {"SaslHandshake", "SaslAuthenticate", "ApiVersions"}
SMALL = Bound(300, 20)
WIDE = [
    (api, path)
    for api in SERVED.values()
    if api.name not in BEFORE_LOGIN
    for path in arrays(api.request.STRUCT, api.max_version)
]


def called(value: Any) -> str:
    return value.name if isinstance(value, Api) else ".".join(value)


class Judge(Access):
    """An authorizer that denies everything, and counts its calls between two rounds of the event loop."""

    def __init__(self) -> None:
        super().__init__(frozenset(), False, lambda *_: None)
        self.asked = self.most = 0

    def may(self, *asked: Any, **how: Any) -> bool:
        self.asked += 1
        self.most = max(self.most, self.asked)
        return super().may(*asked, **how)

    async def watch(self) -> None:
        while True:
            self.asked = 0
            await asyncio.sleep(0)


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set bounds that a test reaches soon; the place where each API is sliced stays."""

    def of(name: str) -> Bound:
        return bound_of(name)._replace(most=SMALL.most, at_once=min(SMALL.at_once, bound_of(name).at_once))

    monkeypatch.setattr(dispatch_module, "bound_of", of)


async def respond(dispatcher: Dispatcher, api: Api, request: Any, version: int | None = None) -> Any:
    """Return the answer to a request; None if there is none."""
    version = api.max_version if version is None else version
    answer: Any = dispatcher.respond(codec.encode_request(api.key, version, 3, "test", request), ANN)
    if isinstance(answer, Waiting):
        answer = await answer.answer
    return None if answer is None else codec.decode_response(api.key, version, b"".join(answer))[1]


@pytest.mark.usefixtures("bounds")
@with_each(("api", "path"), WIDE, ids=called)
async def test_what_is_denied_is_denied_in_slices(desk: Desk, api: Api, path: tuple[str, ...]) -> None:
    judge = Judge()
    table = guarded(AuthHelper(judge, desk.stage.metadata), desk.table, True)
    dispatcher = Dispatcher(table)
    count = 200 // len(path)
    request = wide(api.request, api.max_version, path, (1,) * (len(path) - 1) + (count,))
    if api.name == "Produce":
        request.acks = 1
    watching = asyncio.create_task(judge.watch())
    try:
        # The desk has no brokers, so Metadata closes the connection.
        with contextlib.suppress(*([Disconnect] if api.name == "Metadata" else [])):
            await respond(dispatcher, api, request)
    finally:
        watching.cancel()
    cut = bound_of(api.name).cut(api.request.STRUCT, api.max_version)
    if cut is not None and cut.asked[: len(path)] == path:
        assert judge.most <= 3 * SMALL.at_once, "a slice makes more authorizer calls than it has elements"


@pytest.mark.usefixtures("bounds")
@with_each(("api", "path"), WIDE, ids=called)
async def test_what_no_client_sends_is_refused(desk: Desk, api: Api, path: tuple[str, ...]) -> None:
    judge = Judge()
    table = guarded(AuthHelper(judge, desk.stage.metadata), desk.table, True)
    request = wide(api.request, api.max_version, path, (1,) * (len(path) - 1) + (SMALL.most + 1,))
    try:
        answer = await respond(Dispatcher(table), api, request)
    except Disconnect as closed:
        assert "elements in one message" in str(closed)
        assert not any(field.name == "error_code" for field in api.response.STRUCT.untagged(api.max_version))
    else:
        assert answer.error_code in (errors.CLUSTER_AUTHORIZATION_FAILED, errors.INVALID_REQUEST)
    assert judge.most <= 1


async def test_a_large_request_is_answered_as_small_ones_are(desk: Desk) -> None:
    await desk.topic("many", partitions=700)
    await desk.topic("few", partitions=3)
    dispatcher, api = Dispatcher(desk.table), SERVED[KEYS["ListOffsets"]]
    kind = api.request.Topics
    asked = {"few": 3, "many": 701, "none": 2}
    request = api.request(
        replica_id=-1,
        topics=[
            kind(name=name, partitions=[kind.Partitions(partition_index=p, timestamp=-1) for p in range(count)])
            for name, count in asked.items()
        ],
    )
    answer = await respond(dispatcher, api, request)
    assert {topic.name: len(topic.partitions) for topic in answer.topics} == asked and len(answer.topics) == 3
    codes = {(t.name, p.partition_index) for t in answer.topics for p in t.partitions if p.error_code}
    assert codes == {("many", 700), ("none", 0), ("none", 1)}


async def test_others_have_their_turn_meanwhile(desk: Desk) -> None:
    """Small requests that arrive after one of four thousand names are answered first."""
    dispatcher, api = Dispatcher(desk.table), SERVED[KEYS["DescribeGroups"]]
    names = [f"g{number}" for number in range(4000)]
    large = asyncio.create_task(respond(dispatcher, api, api.request(groups=names)))
    await asyncio.sleep(0)
    for _ in range(10):
        small = await asyncio.create_task(respond(dispatcher, api, api.request(groups=["one"])))
        assert len(small.groups) == 1
    assert not large.done()
    assert [group.group_id for group in (await large).groups] == names


async def test_a_large_request_is_paid_for_before_it_runs(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client over its quota waits before its request runs, and again after a slice that exceeded the quota."""
    done: list[str] = []
    waits = [70, 0, 0, 30]

    def charge(api: str, call: Call, spent_ns: int) -> int:
        done.append(f"charged {api}")
        return waits.pop(0) if waits else 0

    async def sleep(seconds: float, then: Callable[[float], Any] = asyncio.sleep) -> None:
        done.append(f"waited {seconds:g}")
        await then(0)

    monkeypatch.setattr("pybroker.server.api.large.asyncio", MappingSleep(sleep))
    api = SERVED[KEYS["DescribeGroups"]]

    def by(request: Any, call: Call) -> Any:
        done.append(f"{len(request.groups)} groups")
        return api.response()

    table = {**desk.table, api.key: desk.table[api.key]._replace(by=by)}
    await respond(Dispatcher(table, charge), api, api.request(groups=[f"g{number}" for number in range(450)]))
    assert done[:2] == ["charged DescribeGroups", "waited 0.07"]
    assert [each for each in done if "charged" not in each] == [
        "waited 0.07", "200 groups", "200 groups", "waited 0.03", "50 groups",
    ]  # fmt: skip


class MappingSleep:
    """asyncio with another sleep function."""

    def __init__(self, sleep: Any) -> None:
        self.sleep = sleep


async def test_who_has_many_requests_has_no_more_turns() -> None:
    turns, had = Turns(), []

    async def work(who: str, slices: int) -> None:
        for _ in range(slices):
            await turns.take(who)
            had.append(who)

    others = [asyncio.create_task(work("ann", 5)) for _ in range(4)]
    await asyncio.gather(asyncio.create_task(work("bob", 5)), *others)
    assert had[:10].count("bob") == 5, had


async def test_a_turn_of_somebody_who_left_goes_to_the_next() -> None:
    turns, had = Turns(), []

    async def work(who: str) -> None:
        await turns.take(who)
        had.append(who)

    gone, stays = asyncio.create_task(work("ann")), asyncio.create_task(work("bob"))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait_for(stays, 10)
    assert had == ["bob"]


@pytest.mark.usefixtures("bounds")
@pytest.mark.parametrize("mentions", [2, 50])
async def test_what_is_named_twice_is_refused_wherever_it_is_named(desk: Desk, mentions: int) -> None:
    """A topic named twice, in the first and the last slice, is not created; all other topics are."""
    dispatcher, api = Dispatcher(desk.table), SERVED[KEYS["CreateTopics"]]
    names = ["again", *(f"t{number}" for number in range(60)), *["again"] * (mentions - 1)]
    kind = api.request.Topics
    topics = [kind(name=name, num_partitions=1, replication_factor=1) for name in names]
    answer = await respond(dispatcher, api, api.request(topics=topics, timeout_ms=60_000))
    told = [(topic.name, topic.error_code) for topic in answer.topics]
    assert sorted(each for each in told if each[0] != "again") == sorted((f"t{number}", 0) for number in range(60))
    assert {code for name, code in told if name == "again"} == {errors.INVALID_REQUEST}
    assert desk.stage.metadata.image.topic("again") is None


async def test_names_are_kept_up_to_a_bound(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request with too many names is refused before any topic is created, as all its names are kept until it ends."""
    monkeypatch.setattr(twice, "RESOURCES", 1_000)
    topics = [m.CreateTopicsRequest.Topics(name=f"t{n}", num_partitions=1, replication_factor=1) for n in range(1_001)]
    request = m.CreateTopicsRequest(topics=topics, timeout_ms=1000)
    with pytest.raises(Disconnect, match="more than 1000"):
        await respond(Dispatcher(desk.table), SERVED[m.CreateTopicsRequest.SCHEMA.key], request)
    assert not list(desk.stage.metadata.image.names)


@pytest.mark.parametrize("name", ["AlterConfigs", "DescribeConfigs", "IncrementalAlterConfigs"])
async def test_settings_of_many_topics_fit_into_one_request(desk: Desk, name: str) -> None:
    """A request with 25 settings for each of 1,000 topics is answered: MirrorMaker 2 sends such requests."""
    api = SERVED[KEYS[name]]
    kind = api.request.Resources
    settings: dict[str, Any] = {"configuration_keys": [f"key{n}" for n in range(25)]}
    if name != "DescribeConfigs":
        settings = {"configs": [kind.Configs(name=key, value="1") for key in settings["configuration_keys"]]}
    request = api.request(resources=[kind(resource_type=2, resource_name=f"t{n}", **settings) for n in range(1_000)])
    answer = await respond(Dispatcher(desk.table), api, request)
    told = answer.results if name == "DescribeConfigs" else answer.responses
    assert sorted(each.resource_name for each in told) == sorted(each.resource_name for each in request.resources)


@pytest.mark.usefixtures("bounds")
async def test_settings_asked_for_twice_are_refused_in_slices(desk: Desk) -> None:
    dispatcher, api = Dispatcher(desk.table), SERVED[KEYS["DescribeConfigs"]]
    names = ["again", *(f"t{number}" for number in range(40)), "again"]
    resources = [api.request.Resources(resource_type=2, resource_name=name) for name in names]
    answer = await respond(dispatcher, api, api.request(resources=resources))
    told = [(result.resource_name, result.error_code) for result in answer.results]
    assert len(told) == len(names)
    assert [code for name, code in told if name == "again"] == [errors.INVALID_REQUEST] * 2


async def test_as_many_acls_are_deleted_as_are_created(desk: Desk) -> None:
    dispatcher, count = Dispatcher(desk.table), 100_000
    create, delete = SERVED[KEYS["CreateAcls"]], SERVED[KEYS["DeleteAcls"]]
    assert bound_of("DeleteAcls").most == bound_of("CreateAcls").most >= count
    created = await respond(dispatcher, create, wide(create.request, create.max_version, ("creations",), (count,)))
    deleted = await respond(dispatcher, delete, wide(delete.request, delete.max_version, ("filters",), (count,)))
    assert len(created.results) == len(deleted.filter_results) == count


@pytest.mark.parametrize("name", ["DescribeConfigs", "IncrementalAlterConfigs"])
async def test_all_topics_of_a_large_cluster_fit_into_one_request(desk: Desk, name: str) -> None:
    """A request for the settings of 20,001 topics is answered: `kafka-topics --describe` asks for all at once."""
    api = SERVED[KEYS[name]]
    resources = [api.request.Resources(resource_type=2, resource_name=f"t{n}") for n in range(20_001)]
    answer = await respond(Dispatcher(desk.table), api, api.request(resources=resources))
    told = answer.results if name == "DescribeConfigs" else answer.responses
    assert len(told) == len(resources)
