"""The content of Kafka's nodes: values that no request to a broker can carry are damage, even in valid JSON."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

from pybroker.coordination.store import StoreDamaged
from pybroker.decisions.image import PartitionState
from pybroker.metadata import nodes
from pybroker.security import delegation_tokens
from pybroker.security.delegation_tokens import Token
from tests.controller.stage import live_broker
from tests.rows import with_each


def read_token(data: bytes) -> Token:
    try:
        return delegation_tokens.load(data)
    except ValueError as problem:
        raise StoreDamaged(detail=str(problem)) from None


@with_each(
    "replicas", ['["1"]', "[3000000000]", "[-1]", "[null]", "[true]", "[1.0]", "[]", "[1,1]", "{}", '"12"', "1"]
)
def test_replicas_are_different_numbers_of_brokers(replicas: str) -> None:
    sound = nodes.dump_assignment(b"t" * 16, [(2, 3), (2147483647, 0)])
    assert nodes.load_topic(sound).replicas == [(2, 3), (2147483647, 0)]
    with pytest.raises(StoreDamaged):
        nodes.load_topic(sound.replace(b"[2,3]", replicas.encode()))


@with_each(
    ("was", "said"),
    [
        ('"leader":2', '"leader":"2"'),
        ('"leader":2', '"leader":-3'),
        ('"leader":2', '"leader":2147483648'),
        ('"leader_epoch":7', '"leader_epoch":2147483648'),
        ('"leader_epoch":7', '"leader_epoch":2147483647'),
        ('"controller_epoch":9', '"controller_epoch":2147483647'),
        ('"leader_epoch":7', '"leader_epoch":null'),
        ('"controller_epoch":9', '"controller_epoch":9.5'),
        ("[2,3]", '["2","3"]'),
        ("[2,3]", "[2,2]"),
        ("[2,3]", "[3000000000]"),
        ("[2,3]", "23"),
    ],
)
def test_a_state_is_of_numbers(was: str, said: str) -> None:
    sound = b'{"version":1,"leader":2,"leader_epoch":7,"controller_epoch":9,"isr":[2,3]}'
    assert nodes.load_state(sound, (2, 3), 4) == PartitionState((2, 3), 2, 7, (2, 3), 9, 4)
    with pytest.raises(StoreDamaged):
        nodes.load_state(sound.replace(was.encode(), said.encode()), (2, 3), 4)


@pytest.mark.parametrize(
    ("was", "said"),
    [
        ('"PLAINTEXT":"PLAINTEXT"', '"PLAINTEXT":"EXTERNAL"'),
        ('"rack":"rack-1"', '"rack":1'),
        ('"PLAINTEXT://host-7:9092"', "7"),
        ('"endpoints":["PLAINTEXT://host-7:9092"],"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"}',
         '"endpoints":[],"listener_security_protocol_map":{}'),
    ],
)  # fmt: skip
def test_a_registration_is_of_listeners_and_protocols_that_are_known(was: str, said: str) -> None:
    sound = nodes.dump_broker(live_broker(7), 0)
    assert was.encode() in sound
    with pytest.raises(StoreDamaged):
        nodes.load_broker(7, sound.replace(was.encode(), said.encode()))


def test_json_that_no_parser_goes_to_the_end_of() -> None:
    with pytest.raises(StoreDamaged):
        nodes.load_config(b"[" * 100_000)


SOUND: dict[Callable[[bytes], object], bytes] = {
    nodes.load_topic: nodes.dump_assignment(b"t" * 16, [(1,)]),
    lambda data: nodes.load_state(data, (2, 3), 4): nodes.dump_state(PartitionState((2, 3), 2, 7, (2, 3), 9, 4)),
    nodes.load_config: nodes.dump_config({"retention.ms": "5"}),
    nodes.load_config_change: nodes.dump_config_change("topics/t"),
    nodes.load_log_dir_event: nodes.dump_log_dir_event(1),
    nodes.load_controller: nodes.dump_controller(1, 5),
    nodes.load_log_dirs: nodes.dump_log_dirs({"a": "/data"}),
    nodes.load_cluster_id: nodes.dump_cluster_id("abc"),
    lambda data: nodes.load_broker(7, data): nodes.dump_broker(live_broker(7), 0),
    nodes.load_block: nodes.dump_block(1, 0, 999),
    read_token: delegation_tokens.dump(Token("id", "User:ann", "User:ann", ("User:bob",), 1, 2, 3)),
}
"""The arguments of each function."""
HOSTILE = (
    "1e999",
    "NaN",
    "-Infinity",
    str(1 << 63),
    str((1 << 63) - 1),
    "-1",
    '"\\ud800"',
    f'"{"x" * 40_000}"',
    "[[]]",
    "{}",
)


def leaves(held: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths to numbers and strings."""
    if isinstance(held, dict | list):
        for key, each in held.items() if isinstance(held, dict) else enumerate(held):
            yield from leaves(each, (*path, key))
    else:
        yield path


def test_json_that_is_sound_and_hostile_is_damage_or_can_be_sent() -> None:
    """Hostile values at any place of any node: oversized numbers, half a surrogate pair, strings that are too long."""
    for load, data in SOUND.items():
        load(data)
        for path in leaves(json.loads(data)):
            for hostile in HOSTILE:
                held = json.loads(data)
                *above, last = path
                functools.reduce(lambda at, key: at[key], above, held)[last] = "here"
                said = json.dumps(held).replace('"here"', hostile).encode()
                with suppress(StoreDamaged):
                    assert_sendable(load(said), (data, said[:200]))


def assert_sendable(found: Any, told: object) -> None:
    if isinstance(found, Mapping):
        found = [*found, *found.values()]
    if isinstance(found, list | tuple):
        for each in found:
            assert_sendable(each, told)
    elif isinstance(found, str):
        found.encode()
    elif isinstance(found, int):
        assert -(1 << 31) <= found < 1 << 63, told
    else:
        assert found is None or isinstance(found, bytes), told


def test_a_block_and_a_registration_are_of_what_can_be_sent() -> None:
    block = nodes.dump_block(1, 0, 999)
    for hostile in ("1e999", '"9223372036854775807"', '"1e9"', "null"):
        with pytest.raises(StoreDamaged):
            nodes.load_block(block.replace(b'"999"', hostile.encode()))
    broker = nodes.dump_broker(live_broker(7), 0)
    for was, hostile in (('"rack-1"', '"\\ud800"'), ('"rack-1"', f'"{"x" * 40_000}"'), ("host-7", "h" * 40_000)):
        assert was.encode() in broker
        with pytest.raises(StoreDamaged):
            nodes.load_broker(7, broker.replace(was.encode(), hostile.encode()))


def test_an_epoch_of_controllers_leaves_room_for_the_next() -> None:
    assert nodes.load_controller_epoch(b"7") == 7
    for damaged in (b"abc", b"", b"-1", b"2147483647", b"1" * 5000):
        with pytest.raises(StoreDamaged):
            nodes.load_controller_epoch(damaged)
