"""Requests that are wrong in every way: an answer or a closed connection, and the broker serves on."""

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
from pybroker.cluster.image import Image
from pybroker.protocol import codec
from pybroker.protocol.apis import API_VERSIONS, KNOWN, SERVED, Api
from pybroker.replication.replicas import Replica
from tests.protocol.values import sample
from tests.server.live import Live, batch, fetch_fields, produce_data

NAMES = sorted(api.name for api in SERVED.values())
HOSTILE_NAMES = ["..", ".", "../up", "../../etc/x", "a/b", "/", "a" * 250, "nul\0nul", "a\nb", "\x1b[2J", "back\\slash"]


@pytest.fixture
async def target(live: Live) -> Live:
    await live.restart("group.initial.rebalance.delay.ms=0")
    return live


async def outcome(live: Live, frame: bytes) -> bytes | None:
    """The answer to a frame, None if the connection was closed instead. A frame without answer makes the test fail."""
    wire = await live.connect()
    wire.send_frame(frame)
    try:
        return await wire.frame()
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return None
    finally:
        wire.writer.close()


async def serves(live: Live) -> None:
    """The broker is well: another client is answered."""
    wire = await live.connect()
    assert (await wire.call("ApiVersions", 2)).error_code == 0
    wire.writer.close()


def request(api: Api, version: int, rng: random.Random) -> bytes:
    """A request with values at random, but one that does not ask for a wait."""
    return codec.encode_request(api.key, version, 5, "test", without_wait(sample(api.request, version, rng), rng))


def without_wait(message: Any, rng: random.Random) -> Any:
    for field, value in (("max_wait_ms", 0), ("acks", rng.choice([-1, 1]))):
        if hasattr(message, field):
            setattr(message, field, value)
    return message


def versions(name: str) -> list[tuple[Api, int]]:
    api = next(api for api in SERVED.values() if api.name == name)
    return [(api, version) for version in range(api.min_version, api.max_version + 1)]


@pytest.mark.parametrize("name", NAMES)
async def test_values_at_random_are_answered(target: Live, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a well-formed request says, its answer is well-formed, at every version; nothing unexpected happens."""
    rng = random.Random(name)
    for api, version in versions(name):
        for _ in range(5):
            answer = await outcome(target, request(api, version, rng))
            assert answer is not None, f"{name} v{version} closed its connection"
            number, _ = codec.decode_response(api.key, version, answer)
            assert number == 5
    assert not [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    await serves(target)


@pytest.mark.parametrize("name", NAMES)
async def test_frames_that_are_cut_close_the_connection(
    target: Live, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The frame's length is right and its message ends early: one line in the log says who and what."""
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


@pytest.mark.parametrize("name", NAMES)
async def test_mutated_frames_do_no_harm(target: Live, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Random bytes anywhere, lengths and counts among them: an answer or a closed connection, never an exception."""
    rng = random.Random(name)
    for api, version in versions(name):
        for _ in range(8):
            frame = bytearray(request(api, version, rng))
            for _ in range(rng.randint(1, 4)):
                at = rng.randrange(8, len(frame))
                frame[at : at + 4] = rng.choice([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", rng.randbytes(4)])
            if api.name in ("Produce", "Fetch"):  # acks=0 has no answer, and a wait is one that was asked for
                continue
            await outcome(target, bytes(frame))
    assert not [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    await serves(target)


def named(message: Any, names: Sequence[str], rng: random.Random) -> Any:
    """The message with a hostile name wherever it has a string."""
    for field in type(message).STRUCT.fields:
        value = getattr(message, field.name)
        if field.struct:
            for one in value if field.is_array else [value]:
                if one is not None:
                    named(one, names, rng)
        elif field.type == "str" and value is not None:
            setattr(message, field.name, [rng.choice(names) for _ in value] if field.is_array else rng.choice(names))
    return message


@pytest.mark.parametrize("name", NAMES)
async def test_names_are_no_paths(target: Live, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Topics, groups, settings called `..`, `a/b`, 250 characters, NUL: an answer, and no file of that name."""
    rng = random.Random(name)
    await target.restart("auto.create.topics.enable=true")
    root = target.data_dir.parent
    for api, version in versions(name):
        for _ in range(5):
            message = without_wait(named(sample(api.request, version, rng), HOSTILE_NAMES, rng), rng)
            answer = await outcome(target, codec.encode_request(api.key, version, 5, "../c", message))
            assert answer is not None, f"{name} v{version} closed its connection"
            codec.decode_response(api.key, version, answer)
    assert not [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert [path.name for path in root.iterdir()] == [target.data_dir.name]
    made = {path.name for path in target.data_dir.iterdir() if path.is_dir()}
    assert {directory.rpartition("-")[0] for directory in made} <= {"__consumer_offsets"}, made
    await serves(target)


async def test_keys_and_versions_that_are_not_served(target: Live) -> None:
    """Only ApiVersions is answered at a version that is not served; every other connection is closed."""
    cases = [(key, version) for key in (*KNOWN, 93, 999, -1) for version in (-1, 0, 2, 99)]
    for key, version in cases:
        api = SERVED.get(key)
        if key == API_VERSIONS or (api is not None and api.has(version)):
            continue
        frame = struct.pack(">hhih", key, version, 5, -1) + bytes(20)
        assert await outcome(target, frame) is None, (key, version)
    await serves(target)


async def test_counts_that_would_fill_the_memory(target: Live) -> None:
    """An array of 2^31-1 topics in a short frame is refused before it is believed."""
    for api, version in [pair for name in NAMES for pair in versions(name)]:
        flexible = version >= api.flexible_from
        header = struct.pack(">hhih", api.key, version, 5, -1) + (b"\0" if flexible else b"")
        for body in (b"\x7f\xff\xff\xff" * 8, b"\xff\xff\xff\xff\x07" * 8, b"\xff" * 40):
            await outcome(target, header + body + b"\0" * 8)
    assert resident_bytes() < 400 << 20
    await serves(target)


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


async def test_tags_without_end(target: Live) -> None:
    """A tag section that claims four billion tags, and one with a tag that is longer than the frame."""
    header = struct.pack(">hhih", 3, 12, 5, -1)
    for tags in (b"\xff\xff\xff\xff\x0f", b"\x01\x00\xff\xff\xff\xff\x0f", b"\x80" * 30):
        assert await outcome(target, header + tags) is None
    await serves(target)


@pytest.mark.parametrize("live", ["python"], indirect=True)
async def test_what_nobody_foresaw_is_answered_and_logged(
    live: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug in a handler costs its request UNKNOWN_SERVER_ERROR and a line with a traceback; the connection goes on."""
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
