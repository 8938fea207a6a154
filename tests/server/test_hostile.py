"""Requests that are wrong in every way get an answer or a closed connection, and the broker goes on serving."""

from __future__ import annotations

import asyncio
import logging
import random
import resource
import struct
from collections.abc import Sequence
from typing import Any

import pytest

from pybroker import errors
from pybroker.decisions.image import Image
from pybroker.decisions.topics import PARTITIONS_MAX
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.protocol.apis import API_VERSIONS, KNOWN, SERVED, Api
from pybroker.protocol.schema import Field, Struct
from pybroker.protocol.wire import STRING_MAX
from pybroker.replication.replica import Replica
from pybroker.server.api.handlers.topics import TOPICS_MAX
from pybroker.server.network import closed_connections
from tests.harness import eventually
from tests.protocol.values import sample
from tests.rows import with_each
from tests.server.live import Live, Wire, batch, fetch_fields, produce_data

NAMES = sorted(api.name for api in SERVED.values())
HOSTILE_NAMES = ["..", ".", "../up", "../../etc/x", "a/b", "/", "a" * 250, "nul\0nul", "a\nb", "\x1b[2J", "back\\slash"]


@pytest.fixture
async def target(live: Live) -> Live:
    await live.restart("group.initial.rebalance.delay.ms=0")
    return live


@pytest.fixture
async def creating(live: Live) -> Live:
    """A broker that creates topics named in Metadata requests."""
    await live.restart("auto.create.topics.enable=true")
    return live


@pytest.fixture(autouse=True)
def every_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log the reason of each closed connection, not of one a minute."""
    monkeypatch.setattr(closed_connections, "SILENT_SECONDS", 0)


async def outcome(live: Live, frame: bytes) -> bytes | None:
    """The answer to a frame; None if the connection was closed instead. A frame that gets neither fails the test."""
    wire = await live.connect()
    wire.send_frame(frame)
    try:
        return await wire.frame()
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return None
    finally:
        wire.writer.close()


async def serves(live: Live) -> None:
    """Check that another client is answered."""
    wire = await live.connect()
    assert (await wire.call("ApiVersions", 2)).error_code == 0
    wire.writer.close()


def request(api: Api, version: int, rng: random.Random) -> bytes:
    """A request with random values that asks for no wait."""
    return codec.encode_request(api.key, version, 5, "test", without_wait(sample(api.request, version, rng), rng))


def without_wait(message: Any, rng: random.Random) -> Any:
    for field, value in (("max_wait_ms", 0), ("acks", rng.choice([-1, 1]))):
        if hasattr(message, field):
            setattr(message, field, value)
    return message


def versions(name: str) -> list[tuple[Api, int]]:
    api = next(api for api in SERVED.values() if api.name == name)
    return [(api, version) for version in range(api.min_version, api.max_version + 1)]


@with_each("name", NAMES)
async def test_values_at_random_are_answered(target: Live, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Random values in a well-formed request get a well-formed answer, at every version, and no unexpected error."""
    rng = random.Random(name)
    caplog.clear()
    for api, version in versions(name):
        for _ in range(5):
            answer = await outcome(target, request(api, version, rng))
            assert answer is not None, f"{name} v{version} closed its connection"
            number, _ = codec.decode_response(api.key, version, answer)
            assert number == 5
    assert not [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    await serves(target)


@with_each("name", NAMES)
async def test_frames_that_are_cut_close_the_connection(
    target: Live, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A frame of the right length whose message ends early gets one log line with client and reason."""
    rng = random.Random(name)
    for api, version in versions(name):
        frame = request(api, version, rng)
        for length in {len(frame) - 1, len(frame) // 2, 9, 3, 1}:
            if not 0 < length < len(frame):
                continue
            caplog.clear()
            if await outcome(target, frame[:length]) is None:
                lines = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
                assert len(lines) == 1 and "client=127.0.0.1:" in lines[0], lines
    await serves(target)


@with_each("name", NAMES)
async def test_mutated_frames_do_no_harm(target: Live, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Random bytes anywhere, also in lengths and counts, get an answer or a closed connection, and no exception."""
    rng = random.Random(name)
    caplog.clear()
    for api, version in versions(name):
        for _ in range(8):
            frame = bytearray(request(api, version, rng))
            for _ in range(rng.randint(1, 4)):
                at = rng.randrange(8, len(frame))
                frame[at : at + 4] = rng.choice([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", rng.randbytes(4)])
            if api.name in ("Produce", "Fetch"):  # Produce with acks=0 has no answer, and Fetch may ask to wait
                continue
            await outcome(target, bytes(frame))
    assert not [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    await serves(target)


def named(message: Any, names: Sequence[str], rng: random.Random) -> Any:
    """The message with a hostile name in place of each string."""
    for field in type(message).STRUCT.fields:
        value = getattr(message, field.name)
        if field.struct:
            for one in value if field.is_array else [value]:
                if one is not None:
                    named(one, names, rng)
        elif field.type == "str" and value is not None:
            setattr(message, field.name, [rng.choice(names) for _ in value] if field.is_array else rng.choice(names))
    return message


def directories(live: Live) -> set[str]:
    return {path.name for path in live.data_dir.iterdir() if path.is_dir()}


@with_each("name", NAMES)
async def test_names_are_no_paths(creating: Live, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Topics, groups and settings named `..`, `a/b`, 250 characters or NUL are answered, and no such file is made."""
    rng = random.Random(name)
    caplog.clear()
    root, before = creating.data_dir.parent, directories(creating)
    for api, version in versions(name):
        for _ in range(5):
            message = without_wait(named(sample(api.request, version, rng), HOSTILE_NAMES, rng), rng)
            answer = await outcome(creating, codec.encode_request(api.key, version, 5, "../c", message))
            assert answer is not None, f"{name} v{version} closed its connection"
            codec.decode_response(api.key, version, answer)
    assert not [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert [path.name for path in root.iterdir()] == [creating.data_dir.name]
    made = directories(creating) - before
    assert {directory.rpartition("-")[0] for directory in made} <= {"__consumer_offsets"}, made
    await serves(creating)


async def test_keys_and_versions_that_are_not_served(target: Live) -> None:
    """ApiVersions, and old versions with a known answer, are answered at a version that is not served; other
    connections are closed."""
    cases = [(key, version) for key in (*KNOWN, 93, 999, -1) for version in (-1, 0, 2, 99)]
    for key, version in cases:
        api = SERVED.get(key)
        if key == API_VERSIONS or (api is not None and KNOWN[key].min_version <= version <= api.max_version):
            continue
        frame = struct.pack(">hhih", key, version, 5, -1) + bytes(20)
        assert await outcome(target, frame) is None, (key, version)
    await serves(target)


async def test_counts_that_would_fill_the_memory(target: Live) -> None:
    """An array count of 2^31-1 in a short frame is refused before memory is allocated."""
    before = resident_bytes()
    for api, version in [pair for name in NAMES for pair in versions(name)]:
        flexible = version >= api.flexible_from
        header = struct.pack(">hhih", api.key, version, 5, -1) + (b"\0" if flexible else b"")
        for body in (b"\x7f\xff\xff\xff" * 8, b"\xff\xff\xff\xff\x07" * 8, b"\xff" * 40):
            await outcome(target, header + body + b"\0" * 8)
    assert resident_bytes() - before < 100 << 20
    await serves(target)


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


async def test_tags_without_end(target: Live) -> None:
    """A section with four billion tags, and a tag longer than the frame, close the connection."""
    header = struct.pack(">hhih", 3, 12, 5, -1)
    for tags in (b"\xff\xff\xff\xff\x0f", b"\x01\x00\xff\xff\xff\xff\x0f", b"\x80" * 30):
        assert await outcome(target, header + tags) is None
    await serves(target)


@pytest.mark.parametrize("live", ["python"], indirect=True)
async def test_what_nobody_foresaw_is_answered_and_logged(
    live: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug in a handler is answered UNKNOWN_SERVER_ERROR and logged with a traceback; the connection goes on."""
    wire = await live.connect()
    await wire.create("t")

    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("a bug")

    for name, version, fields in (
        ("Fetch", 12, fetch_fields("t", 0)),
        ("Metadata", 12, {"topics": None}),
        ("Produce", 9, {"acks": 1, "timeout_ms": 1, "topic_data": produce_data("t", {0: batch(b"v")})}),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(Replica, "partition", broken)
            patch.setattr(Image, "topics", broken)
            caplog.clear()
            response = await wire.call(name, version, **fields)
        lines = [r for r in caplog.records if r.levelno == logging.ERROR]
        assert len(lines) == 1 and lines[0].exc_info and f"api={name}" in lines[0].getMessage()
        if name == "Produce":
            assert response.responses[0].partition_responses[0].error_code == errors.UNKNOWN_SERVER_ERROR
        if name == "Fetch":
            assert response.error_code == errors.UNKNOWN_SERVER_ERROR
    assert (await wire.produce("t", batch(b"v"))).error_code == 0


def longest(kind: Any, struct: Struct, text: str) -> Any:
    """A message with this text in every string, one element in every array, and valid numbers."""
    fitting = {"resource_type": 2, "session_timeout_ms": 9000, "num_partitions": 1, "replication_factor": 1, "acks": 1}

    def one(field: Field) -> Any:
        if field.struct:
            return longest(getattr(kind, field.struct.name), field.struct, text)
        kinds: dict[str, Any] = {"str": text, "bytes": b"", "records": b"", "uuid": bytes(16), "bool": False}
        return kinds.get(field.type, fitting.get(field.name, 0))

    return kind(**{field.name: [one(field)] if field.is_array else one(field) for field in struct.fields})


@with_each("text", ["n" * STRING_MAX, "\0" * STRING_MAX, "é" * (STRING_MAX // 2)], ids=["n", "nul", "é"])
async def test_names_as_long_as_strings_can_be(target: Live, text: str, caplog: pytest.LogCaptureFixture) -> None:
    """An answer that repeats the longest names can still be encoded, at every version."""
    caplog.clear()
    for api in SERVED.values():
        for version in range(api.min_version, api.max_version + 1):
            frame = codec.encode_request(api.key, version, 5, text, longest(api.request, api.request.STRUCT, text))
            answer = await outcome(target, frame)
            assert answer is not None, f"{api.name} v{version} closed its connection"
            codec.decode_response(api.key, version, answer)
    assert not [r.getMessage()[:500] for r in caplog.records if r.levelno >= logging.ERROR]
    await serves(target)


async def test_a_member_whose_client_s_name_and_reason_are_long(target: Live) -> None:
    """The member id has as much of the client's name as a string can hold; a description of the group is answered."""
    wire = await target.connect()
    await coordinator(wire)
    name = "n" * STRING_MAX
    request = m.JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=1000, member_id="", group_instance_id=name,
        protocol_type="consumer", protocols=[m.JoinGroupRequest.Protocols(name="range", metadata=b"")], reason=name,
    )  # fmt: skip
    wire.send_frame(codec.encode_request(11, 9, 5, name, request))
    joined = codec.decode_response(11, 9, await wire.frame())[1]
    assert joined.error_code == 0 and joined.member_id.startswith("nnn") and len(joined.member_id) < 400
    (group,) = (await wire.call("DescribeGroups", 5, groups=["g"])).groups
    assert group.error_code == 0 and group.members[0].group_instance_id == name


async def coordinator(wire: Wire) -> None:
    async def found() -> bool:
        return not (await wire.call("FindCoordinator", 0, key="g", key_type=0)).error_code

    await eventually("it is found", found)


async def test_an_offset_may_be_kept_until_the_end_of_time(target: Live) -> None:
    """An OffsetCommit whose retention_time_ms overflows 64 bits keeps its offset for the longest possible time."""
    wire = await target.connect()
    await wire.create("t")
    await coordinator(wire)
    kind = m.OffsetCommitRequest.Topics
    topics = [kind(name="t", partitions=[kind.Partitions(partition_index=0, committed_offset=7)])]
    how = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
    answer = await wire.call("OffsetCommit", 2, retention_time_ms=(1 << 63) - 1, **how)
    assert answer.topics[0].partitions[0].error_code == 0
    fetched = await wire.call("OffsetFetch", 5, group_id="g", topics=None)
    assert fetched.topics[0].partitions[0].committed_offset == 7


TIMES = 20_000


async def test_what_is_named_again_and_again_is_not_told_again(target: Live) -> None:
    """A short request that repeats a name does not get its long answer repeatedly."""
    wire = await target.connect()
    await wire.create("t", 50)
    await coordinator(wire)
    kind = m.OffsetCommitRequest.Topics
    note = kind.Partitions(partition_index=0, committed_offset=7, committed_metadata="n" * 4000)
    await wire.call(
        "OffsetCommit", 8, group_id="g", generation_id_or_member_epoch=-1, member_id="",
        topics=[kind(name="t", partitions=[note])],
    )  # fmt: skip
    resource = m.DescribeConfigsRequest.Resources(resource_type=2, resource_name="t", configuration_keys=None)
    of_group = m.OffsetFetchRequest.Groups(group_id="g", topics=None)
    of_topic = m.OffsetFetchRequest.Topics(name="t", partition_indexes=[0])
    of_producers = m.DescribeProducersRequest.Topics(name="t", partition_indexes=[0] * TIMES)
    ids = [n.to_bytes(16, "big") for n in range(TIMES)]
    asked: list[tuple[str, int, dict[str, Any]]] = [
        ("DescribeConfigs", 4, {"resources": [resource] * TIMES, "include_documentation": True}),
        ("OffsetFetch", 8, {"groups": [of_group] * TIMES}),
        ("OffsetFetch", 7, {"group_id": "g", "topics": [of_topic] * TIMES}),
        ("DescribeGroups", 5, {"groups": ["g"] * TIMES}),
        ("DescribeProducers", 0, {"topics": [of_producers]}),
        ("Metadata", 12, {"topics": [m.MetadataRequest.Topics(name="t", topic_id=i) for i in ids]}),
    ]
    for name, version, fields in asked:
        wire.send(name, version, **fields)
        answer = await wire.frame()
        assert len(answer) < 120 * TIMES, name
    once = await wire.call("OffsetFetch", 7, group_id="g", topics=[of_topic, of_topic])
    assert [(t.name, [p.committed_offset for p in t.partitions]) for t in once.topics] == [("t", [7])]


async def test_a_request_plans_no_more_than_can_be_planned_at_one_go(target: Live) -> None:
    """Topics and partitions are counted over the whole request: at the limit it is validated, above it is refused."""
    wire = await target.connect()
    kind = m.CreateTopicsRequest.Topics

    async def plan(topics: int, partitions: int) -> set[int]:
        asked = [kind(name=f"t{n}", num_partitions=partitions, replication_factor=1) for n in range(topics)]
        answer = await wire.call("CreateTopics", 7, topics=asked, timeout_ms=9000, validate_only=True)
        return {topic.error_code for topic in answer.topics}

    assert await plan(2, PARTITIONS_MAX // 2) == {0}
    assert await plan(2, PARTITIONS_MAX // 2 + 1) == {errors.POLICY_VIOLATION}
    assert await plan(TOPICS_MAX + 1, -1) == {errors.POLICY_VIOLATION}
    assert await plan(2000, PARTITIONS_MAX // 2000 + 1) == {errors.POLICY_VIOLATION}  # executed in slices
    await wire.create("t")
    grown = m.CreatePartitionsRequest.Topics(name="t", count=PARTITIONS_MAX + 1, assignments=None)
    answer = await wire.call("CreatePartitions", 3, topics=[grown], timeout_ms=9000, validate_only=True)
    assert answer.results[0].error_code == errors.INVALID_PARTITIONS


async def test_a_frame_that_cannot_be_executed_takes_no_other_with_it(
    live: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failure before the handler closes one connection; the plane's next messages are still read."""
    wires = [await live.connect() for _ in range(3)]
    decode = codec.decode

    def broken(kind: Any, *rest: Any) -> Any:
        if kind is m.DescribeAclsRequest:
            raise MemoryError("no room for it")
        return decode(kind, *rest)

    monkeypatch.setattr(codec, "decode", broken)
    wires[0].send("DescribeAcls", 1)
    assert await wires[0].closed()
    assert [r for r in caplog.records if r.levelno == logging.ERROR and "no room for it" in r.getMessage()]
    for wire in wires[1:]:
        assert (await wire.call("ApiVersions", 2)).error_code == 0
