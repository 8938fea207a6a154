"""The addresses at which a broker listens and that it advertises: four settings, with Kafka's rules."""

from __future__ import annotations

import pytest

from pybroker.config import BrokerConfig, ConfigError, Source
from pybroker.config.listeners import Listeners
from pybroker.model import Endpoint
from tests.rows import with_each

MAP = "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT,PLAINTEXT:PLAINTEXT"
TWO = "listeners=A://:1,B://:2"


def listeners(*sets: str) -> Listeners:
    return BrokerConfig.load(None, sets).listeners


def test_by_default_there_is_one() -> None:
    assert listeners() == ((Endpoint("PLAINTEXT", "", 9092),), None, {"PLAINTEXT": "PLAINTEXT"}, "PLAINTEXT")


def test_several_have_names_addresses_and_protocols() -> None:
    """Several listeners have names, addresses and protocols: case and white space do not matter, and each has its
    advertised address."""
    found = listeners(
        "listeners=inside://:1, Out-side.2://[::1]:2",
        "listener.security.protocol.map=INSIDE:PLAINTEXT, out-side.2:plaintext,OTHER:SSL",
        "advertised.listeners=OUT-SIDE.2://out.example:0,INSIDE://in.example:9",
        "inter.broker.listener.name=Inside",
    )
    assert found.endpoints == (("INSIDE", "", 1), ("OUT-SIDE.2", "::1", 2))
    assert found.advertised == (("OUT-SIDE.2", "out.example", 0), ("INSIDE", "in.example", 9))
    assert found.protocols == {"INSIDE": "PLAINTEXT", "OUT-SIDE.2": "PLAINTEXT"}
    assert found.inter_broker == "INSIDE"


def test_brokers_may_be_told_what_they_speak_instead_of_where() -> None:
    """Brokers may be given a protocol instead of a listener: security.inter.broker.protocol, whose listener has the
    same name."""
    found = listeners("listeners=PLAINTEXT://:1,SSL://:2", "security.inter.broker.protocol=SSL")
    assert found.inter_broker == "SSL"
    with pytest.raises(ConfigError, match=r"security\.inter\.broker\.protocol is set too: set only one of them"):
        listeners(TWO, MAP, "inter.broker.listener.name=B", "security.inter.broker.protocol=PLAINTEXT")


def test_one_may_be_told_to_nobody() -> None:
    """A listener may be left out of advertised.listeners; it still has its protocol, and so its TLS and its logins."""
    found = listeners(TWO, MAP, "advertised.listeners=B://b:0", "inter.broker.listener.name=B")
    assert [e.listener for e in found.endpoints] == ["A", "B"]
    assert found.protocols == {"A": "PLAINTEXT", "B": "PLAINTEXT"}


@with_each(
    ("written", "host"),
    [
        ("0", "0.0.0.0"), ("127.1", "127.0.0.1"), ("2130706433", "127.0.0.1"), ("[0::0]", "::"), ("[0::1]", "::1"),
        ("[FE80::1%25]", "FE80::1%25"), ("1.example", "1.example"), ("LocalHost", "LocalHost"),
    ],
)  # fmt: skip
def test_an_address_is_the_same_however_it_is_written(written: str, host: str) -> None:
    """An address is normalised as a bind does it, so that a listener on every interface is recognised."""
    found = listeners(f"listeners=A://{written}:1,B://127.0.0.2:2", MAP, "inter.broker.listener.name=A")
    assert found.endpoints[0] == ("A", host, 1)


@pytest.mark.parametrize(
    "text",
    ["A://127.0.0.1:7,B://[::1]:7", "A://:0,B://:0", "A://127.0.0.1:0,B://127.0.0.1:0"],
)
def test_one_port_may_be_of_two_protocols_of_the_internet_and_zero_of_any(text: str) -> None:
    assert len(listeners(f"listeners={text}", MAP, "inter.broker.listener.name=A").endpoints) == 2


TAKES = "it takes PLAINTEXT://HOST:PORT"
PORTS = "Each listener must have a different port"
ONE_OF_EACH = "If you have two listeners on the same port then one needs to be IPv4 and the other IPv6"
NOT_ADVERTISED = "it must be a listener name defined in advertised.listeners. The valid options based on currently "


@with_each(
    ("sets", "setting", "why"),
    [
        (["listeners=PLAINTEXT://:1,"], "listeners", TAKES),
        (["listeners=PLAINTEXT://kafka..example.com:1"], "listeners", TAKES),
        (["advertised.listeners=PLAINTEXT://" + "k" * 64 + ".com:1"], "advertised.listeners", TAKES),
        (["advertised.listeners=PLAINTEXT://" + "k." * 130 + "com:1"], "advertised.listeners", TAKES),
        (["broker.rack=" + "r" * 256], "broker.rack", "it takes text of at most 255 bytes"),
        (["listeners=A://:1"], "listeners", "No security protocol defined for listener A: name it in listener.sec"),
        ([MAP + ",C:MAGIC"], MAP.split("=")[0], "it takes NAME:PROTOCOL separated by commas, with one of PLAINTEXT, "),
        (["listeners=A://:1,a://:2", MAP], "listeners", "Each listener must have a different name"),
        (["listeners=A://:1,B://:1", MAP], "listeners", f"{PORTS}, but 2 have 1"),
        (["listeners=A://a:1,B://b:1", MAP], "listeners", f"{PORTS}, but 2 have 1"),
        (["listeners=A://127.0.0.1:1,B://127.0.0.2:1", MAP], "listeners", f"{ONE_OF_EACH}, port: 1"),
        (["listeners=A://127.0.0.1:1,B://[::1]:1,PLAINTEXT://:1", MAP], "listeners", f"{ONE_OF_EACH}, port: 1"),
        (["advertised.listeners=PLAINTEXT://a:1,PLAINTEXT://b:1"], "advertised.listeners", "Each listener must have"),
        (
            ["advertised.listeners=B://b:1", MAP],
            "advertised.listeners",
            "listener names must be equal to or a subset of the ones defined in listeners. Found B. The valid options "
            "based on the current configuration are PLAINTEXT",
        ),
        (["inter.broker.listener.name=c"], "inter.broker.listener.name", NOT_ADVERTISED),
        ([TWO, MAP], "inter.broker.listener.name is not set", NOT_ADVERTISED + "configured listeners are A,B"),
        (
            [TWO, MAP, "advertised.listeners=B://b:1", "inter.broker.listener.name=A"],
            "inter.broker.listener.name",
            NOT_ADVERTISED + "configured listeners are B",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_in_kafkas_words(sets: list[str], setting: str, why: str) -> None:
    """Settings that contradict each other are refused in Kafka's words, with the setting, its value and its source."""
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.load(None, sets)
    message = refused.value.message
    given, _, reason = message.partition(" (--set) is not allowed: " if "(--set)" in message else ": ")
    assert given.split(" = ")[0] == setting and reason.startswith(why)


def test_what_is_advertised_later_is_held_to_the_same_rules() -> None:
    """A change of advertised.listeners while the broker runs has the same rules: an invalid one is refused, and changes
    nothing."""
    config = BrokerConfig.load(None, [TWO, MAP, "inter.broker.listener.name=A"])
    for text in ("C://c:1", "B://b:1", "A://0.0.0.0:1", "A://0:1", "A://[0::0]:1"):
        with pytest.raises(ConfigError):
            config.overlay(Source.DYNAMIC_BROKER, {"advertised.listeners": text})
    assert config.listeners.advertised is None
    config.overlay(Source.DYNAMIC_BROKER, {"advertised.listeners": "A://a:1"})
    assert config.listeners.advertised == (("A", "a", 1),)


@pytest.mark.parametrize("name", ["A", "c"])
def test_a_setting_of_no_listener_is_told(name: str) -> None:
    """A setting of an unknown listener is reported; listener names are lower case there, as in Kafka."""
    sets = [TWO, MAP, "inter.broker.listener.name=A", f"listener.name.{name}.ssl.client.auth=required"]
    [told] = BrokerConfig.load(None, sets).warnings
    assert told == (
        f"listener.name.{name}.ssl.client.auth (--set) has no effect: there is no such listener; "
        "settings of the listeners begin with listener.name.a. and listener.name.b."
    )
