"""What Kafka's nodes hold: what nobody could tell a broker is damage, though it is JSON."""

from __future__ import annotations

import pytest

from pybroker.controller import nodes
from pybroker.coordination.store import StoreDamaged
from tests.controller.stage import live_broker


@pytest.mark.parametrize(
    "replicas", ['["1"]', "[3000000000]", "[-1]", "[null]", "[true]", "[1.0]", "[]", "[1,1]", "{}", '"12"', "1"]
)
def test_replicas_are_different_numbers_of_brokers(replicas: str) -> None:
    sound = nodes.dump_assignment(b"t" * 16, [(2, 3), (2147483647, 0)])
    assert nodes.load_topic(sound).replicas == [(2, 3), (2147483647, 0)]
    with pytest.raises(StoreDamaged):
        nodes.load_topic(sound.replace(b"[2,3]", replicas.encode()))


@pytest.mark.parametrize(
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
    assert nodes.load_state(sound, (2, 3), 4) == ((2, 3), 2, 7, (2, 3), 9, 4, ())
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


def test_an_epoch_of_controllers_leaves_room_for_the_next() -> None:
    assert nodes.load_controller_epoch(b"7") == 7
    for damaged in (b"abc", b"", b"-1", b"2147483647", b"1" * 5000):
        with pytest.raises(StoreDamaged):
            nodes.load_controller_epoch(damaged)
