"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, without sockets: each resource is handled on its own."""

from __future__ import annotations

from typing import Any

import pytest

from pybroker import errors
from pybroker.protocol import messages as m
from tests.server.handlers.desk import Desk

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
DESCRIBED = m.DescribeConfigsRequest.Resources
REPLACED = m.AlterConfigsRequest.Resources
CHANGED = m.IncrementalAlterConfigsRequest.Resources


def described(kind: int, name: str, keys: list[str] | None = None) -> Any:
    return DESCRIBED(resource_type=kind, resource_name=name, configuration_keys=keys)


def replaced(kind: int, name: str, **values: str | None) -> Any:
    configs = [REPLACED.Configs(name=key.replace("_", "."), value=value) for key, value in values.items()]
    return REPLACED(resource_type=kind, resource_name=name, configs=configs)


def changed(kind: int, name: str, *changes: tuple[str, int, str | None]) -> Any:
    configs = [CHANGED.Configs(name=key, config_operation=how, value=value) for key, how, value in changes]
    return CHANGED(resource_type=kind, resource_name=name, configs=configs)


async def describe(desk: Desk, *resources: Any, version: int = 4, **more: Any) -> list[Any]:
    return list((await desk.ask("DescribeConfigs", version, resources=list(resources), **more)).results)


async def replace(desk: Desk, *resources: Any, validate_only: bool = False) -> list[int]:
    answer = await desk.ask("AlterConfigs", 2, resources=list(resources), validate_only=validate_only)
    assert all(bool(r.error_code) == bool(r.error_message) for r in answer.responses)
    return [r.error_code for r in answer.responses]


async def change(desk: Desk, *resources: Any, validate_only: bool = False) -> list[int]:
    answer = await desk.ask("IncrementalAlterConfigs", 1, resources=list(resources), validate_only=validate_only)
    assert all(bool(r.error_code) == bool(r.error_message) for r in answer.responses)
    return [r.error_code for r in answer.responses]


async def test_what_is_asked_for_is_described(desk: Desk) -> None:
    """DescribeConfigs returns the named keys, or all if none is named; synonyms and documentation only on request."""
    await desk.topic("t", segment_bytes="2000000")
    [one] = await describe(desk, described(TOPIC, "t", ["segment.bytes", "none"]))
    [config] = one.configs
    assert (config.name, config.value, config.config_source) == ("segment.bytes", "2000000", 1)
    assert (config.synonyms, config.documentation) == ([], None)
    for keys in (None, []):
        [one] = await describe(desk, described(TOPIC, "t", keys), include_synonyms=True, include_documentation=True)
        assert len(one.configs) > 10 and all(config.documentation for config in one.configs)
        [config] = [config for config in one.configs if config.name == "segment.bytes"]
        assert [s.name for s in config.synonyms] == ["segment.bytes", "log.segment.bytes"]


@pytest.mark.parametrize(
    ("resource", "code"),
    [
        (described(TOPIC, "none"), errors.UNKNOWN_TOPIC_OR_PARTITION),
        (described(TOPIC, "a/b"), errors.INVALID_TOPIC_EXCEPTION),
        (described(TOPIC, ""), errors.INVALID_TOPIC_EXCEPTION),
        (described(BROKER, "2"), errors.INVALID_REQUEST),
        (described(BROKER, "one"), errors.INVALID_REQUEST),
        (described(GROUP, "g"), errors.INVALID_REQUEST),
        (described(0, "t"), errors.INVALID_REQUEST),
    ],
)
async def test_a_resource_that_has_no_settings_here(desk: Desk, resource: Any, code: int) -> None:
    await desk.topic("t")
    bad, good = await describe(desk, resource, described(TOPIC, "t"))
    assert (bad.error_code, bad.configs, bool(bad.error_message)) == (code, [], True)
    assert (good.error_code, bool(good.configs)) == (0, True)


async def test_a_resource_that_is_described_twice(desk: Desk) -> None:
    """A resource that is named twice is refused with INVALID_REQUEST at both places."""
    await desk.topic("t")
    asked = [described(TOPIC, "t"), described(BROKER, "1"), described(TOPIC, "t", ["retention.ms"])]
    codes = [errors.INVALID_REQUEST, 0, errors.INVALID_REQUEST]
    assert [result.error_code for result in await describe(desk, *asked)] == codes
    assert await describe(desk) == []


async def test_brokers_have_settings_of_their_own_and_of_all(desk: Desk) -> None:
    """The broker resource with an empty name holds the settings of all brokers."""
    assert await change(desk, changed(BROKER, "", ("log.retention.ms", SET, "5000"))) == [0]
    one, every = await describe(desk, described(BROKER, "1"), described(BROKER, ""))
    assert [c.value for c in one.configs if c.name == "log.retention.ms"] == ["5000"]
    assert [(c.name, c.value) for c in every.configs] == [("log.retention.ms", "5000")]


async def test_what_is_replaced_is_all_that_there_is(desk: Desk) -> None:
    """AlterConfigs replaces all settings of a topic; IncrementalAlterConfigs keeps those that it does not name."""
    await desk.topic("t", segment_bytes="2000000", retention_ms="7")
    assert await change(desk, changed(TOPIC, "t", ("retention.ms", SET, "8"))) == [0]
    assert desk.stage.topic_configs.topic("t") == {"segment.bytes": "2000000", "retention.ms": "8"}
    assert await replace(desk, replaced(TOPIC, "t", retention_bytes="9")) == [0]
    assert desk.stage.topic_configs.topic("t") == {"retention.bytes": "9"}
    assert desk.replica("t").config["retention.bytes"] == 9
    assert await replace(desk, replaced(TOPIC, "t")) == [0]
    assert desk.stage.topic_configs.topic("t") == {}


async def test_lists_grow_and_shrink(desk: Desk) -> None:
    await desk.topic("t", cleanup_policy="delete")
    assert await change(desk, changed(TOPIC, "t", ("cleanup.policy", APPEND, "compact"))) == [0]
    assert desk.stage.topic_configs.topic("t") == {"cleanup.policy": "delete,compact"}
    assert await change(desk, changed(TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete"))) == [0]
    assert desk.stage.topic_configs.topic("t") == {"cleanup.policy": "compact"}
    assert await change(desk, changed(TOPIC, "t", ("cleanup.policy", DELETE, None))) == [0]
    assert desk.stage.topic_configs.topic("t") == {}


@pytest.mark.parametrize(
    ("resource", "code"),
    [
        (changed(TOPIC, "none", ("retention.ms", SET, "1")), errors.UNKNOWN_TOPIC_OR_PARTITION),
        (changed(TOPIC, "t", ("retention.ms", SET, "soon")), errors.INVALID_CONFIG),
        (changed(TOPIC, "t", ("retention.ms", SET, "-2")), errors.INVALID_CONFIG),
        (changed(TOPIC, "t", ("no.such", SET, "1")), errors.INVALID_CONFIG),
        (changed(TOPIC, "t", ("retention.ms", SET, None)), errors.INVALID_REQUEST),
        (changed(TOPIC, "t", ("retention.ms", APPEND, "1")), errors.INVALID_CONFIG),
        (changed(TOPIC, "t", ("retention.ms", 9, "1")), errors.INVALID_REQUEST),
        (changed(TOPIC, "t", ("retention.ms", SET, "1"), ("retention.ms", SET, "2")), errors.INVALID_REQUEST),
        (changed(BROKER, "7", ("log.retention.ms", SET, "1")), errors.INVALID_REQUEST),
        (changed(BROKER, "1", ("log.dirs", SET, "/a")), errors.INVALID_REQUEST),
        (changed(GROUP, "g", ("retention.ms", SET, "1")), errors.INVALID_REQUEST),
    ],
)
async def test_a_change_that_cannot_be(desk: Desk, resource: Any, code: int) -> None:
    """An invalid change is refused as a whole, and the next resource of the request is changed."""
    await desk.topic("t", segment_bytes="2000000")
    await desk.topic("u")
    assert await change(desk, resource, changed(TOPIC, "u", ("retention.ms", SET, "5"))) == [code, 0]
    assert desk.stage.topic_configs.topic("t") == {"segment.bytes": "2000000"}
    assert desk.stage.topic_configs.topic("u") == {"retention.ms": "5"}


@pytest.mark.parametrize(
    ("resource", "code"),
    [
        (replaced(TOPIC, "none", retention_ms="1"), errors.UNKNOWN_TOPIC_OR_PARTITION),
        (replaced(TOPIC, "t", retention_ms="soon"), errors.INVALID_CONFIG),
        (replaced(TOPIC, "t", retention_ms=None), errors.INVALID_REQUEST),
        (replaced(GROUP, "g", retention_ms="1"), errors.INVALID_REQUEST),
    ],
)
async def test_a_replacement_that_cannot_be(desk: Desk, resource: Any, code: int) -> None:
    await desk.topic("t", segment_bytes="2000000")
    assert await replace(desk, resource) == [code]
    assert desk.stage.topic_configs.topic("t") == {"segment.bytes": "2000000"}


async def test_resources_that_are_named_twice_or_validated_only_stay(desk: Desk) -> None:
    await desk.topic("t")
    one, other = changed(TOPIC, "t", ("retention.ms", SET, "1")), changed(TOPIC, "t", ("retention.ms", SET, "2"))
    assert await change(desk, one, other) == [errors.INVALID_REQUEST] * 2
    assert await change(desk, one, validate_only=True) == [0]
    assert await replace(desk, replaced(TOPIC, "t", retention_ms="1"), validate_only=True) == [0]
    assert await change(desk) == [] and await replace(desk) == []
    assert desk.stage.topic_configs.topic("t") == {} and desk.replica("t").config["retention.ms"] == 604800000
