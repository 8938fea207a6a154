"""Settings change: checked first, then written with a notification, then sent to brokers and applied."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Awaitable

import pytest

from pybroker import errors
from pybroker.config import BrokerConfig, Source
from pybroker.decisions.config_changes import AlterOperation, ConfigChange
from pybroker.errors import KafkaError
from pybroker.metadata import configs, nodes
from pybroker.metadata.configs import CHANGES_KEPT_MS, load
from pybroker.metadata.planning import NewTopic
from tests.controller.stage import Stage

KEEP = ConfigChange("retention.ms", AlterOperation.SET, "7000")
BROKER_KEEP = ConfigChange("log.retention.ms", AlterOperation.SET, "9000")


async def refused(work: Awaitable[object]) -> int:
    with pytest.raises(KafkaError) as told:
        await work
    return told.value.code


async def topic(stage: Stage, *changes: ConfigChange, replace: bool = False, validate_only: bool = False) -> None:
    await stage.configs.alter_topic("t", list(changes), replace=replace, validate_only=validate_only)


async def broker(stage: Stage, name: str, *changes: ConfigChange, validate_only: bool = False) -> None:
    await stage.configs.alter_broker(name, list(changes), replace=False, validate_only=validate_only)


async def notices(stage: Stage) -> list[str]:
    names = (await stage.session.children(nodes.CONFIG_CHANGES))[0]
    found = [json.loads(await stage.there(f"{nodes.CONFIG_CHANGES}/{name}") or b"") for name in names]
    return [notice["entity_path"] for notice in found]


async def test_a_topics_settings(stage: Stage) -> None:
    """Altered settings are added to the topic's own, or replace them."""
    await stage.topics.create(NewTopic("t", config={"segment.bytes": "1048576"}))
    await topic(stage, KEEP)
    after = {"segment.bytes": "1048576", "retention.ms": "7000"}
    assert stage.topic_configs.topic("t") == after
    assert nodes.load_config(await stage.there(nodes.topic_config("t")) or b"") == after
    assert stage.replicas.configured[-1] == "t"
    assert await notices(stage) == ["topics/t"]
    await topic(stage, KEEP, replace=True)
    assert stage.topic_configs.topic("t") == {"retention.ms": "7000"}


async def test_settings_that_a_topic_cannot_have(stage: Stage) -> None:
    """Invalid settings are not written, sent or applied."""
    await stage.topics.create(NewTopic("t"))
    before = await stage.tree()
    soon = ConfigChange("retention.ms", AlterOperation.SET, "soon")
    assert await refused(topic(stage, soon)) == errors.INVALID_CONFIG
    unknown = stage.configs.alter_topic("none", [KEEP], replace=False, validate_only=False)
    assert await refused(unknown) == errors.UNKNOWN_TOPIC_OR_PARTITION
    await topic(stage, KEEP, validate_only=True)
    assert await stage.tree() == before and stage.topic_configs.topic("t") == {}


async def test_a_brokers_settings_and_those_of_all(stage: Stage) -> None:
    """A broker's own setting comes before that of all; every topic gets the new one, and listeners are called."""
    await stage.topics.create(NewTopic("t"))
    stage.replicas.configured.clear()
    stage.heard.clear()
    await broker(stage, "1", BROKER_KEEP)
    await broker(stage, "", BROKER_KEEP._replace(value="5000"))
    assert set(stage.heard) == {9000} and set(stage.replicas.configured) == {"t"}
    assert stage.config.dynamic(Source.DYNAMIC_DEFAULT_BROKER) == {"log.retention.ms": "5000"}
    assert await notices(stage) == ["brokers/1", "brokers/<default>"]
    await broker(stage, "1", ConfigChange("log.retention.ms", AlterOperation.DELETE, None))
    assert stage.config["log.retention.ms"] == 5000


@pytest.mark.parametrize(
    ("name", "change", "code"),
    [
        ("2", BROKER_KEEP, errors.INVALID_REQUEST),
        ("1", ConfigChange("num.partitions", AlterOperation.SET, "3"), errors.INVALID_REQUEST),
        ("1", ConfigChange("no.such.setting", AlterOperation.SET, "3"), errors.INVALID_CONFIG),
        ("1", ConfigChange("log.retention.ms", AlterOperation.SET, "soon"), errors.INVALID_CONFIG),
        ("", ConfigChange("advertised.listeners", AlterOperation.SET, "PLAINTEXT://h:1"), errors.INVALID_REQUEST),
    ],
)
async def test_settings_that_a_broker_cannot_have(stage: Stage, name: str, change: ConfigChange, code: int) -> None:
    before = await stage.tree()
    assert await refused(broker(stage, name, change)) == code
    assert await stage.tree() == before and stage.config.dynamic(Source.DYNAMIC_BROKER) == {}


async def test_old_notices_are_removed_by_the_next_write(stage: Stage) -> None:
    """A write removes notifications older than 15 minutes by the controller's clock."""
    await stage.topics.create(NewTopic("t"))
    await topic(stage, KEEP)
    await broker(stage, "1", BROKER_KEEP)
    stage.now_ms += CHANGES_KEPT_MS // 2
    await topic(stage, KEEP)
    assert await notices(stage) == ["topics/t", "brokers/1", "topics/t"]
    stage.now_ms += CHANGES_KEPT_MS // 2
    await broker(stage, "", BROKER_KEEP)
    assert await notices(stage) == ["topics/t", "brokers/<default>"]


async def test_settings_of_earlier_lives_are_loaded(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """Settings of the broker and of all brokers are loaded; one that is no longer valid is left out and logged."""
    await broker(stage, "1", BROKER_KEEP)
    old = nodes.dump_config({"log.retention.ms": "5000", "num.partitions": "9", "log.segment.bytes": "1048576"})
    await stage.session.create(nodes.broker_config(None), old)
    config = BrokerConfig.load()
    await load(stage.session, config, 1)
    assert (config["log.retention.ms"], config["log.segment.bytes"], config["num.partitions"]) == (9000, 1 << 20, 1)
    [line] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "setting ignored setting=num.partitions" in line


async def test_what_cannot_be_used_stays_stored(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """Other settings can be altered, and the unusable one stays stored until it is deleted."""
    old = {"num.partitions": "9", "log.segment.bytes": "1048576"}
    await stage.session.create(nodes.broker_config(1), nodes.dump_config(old))
    await load(stage.session, stage.config, 1)
    await broker(stage, "1", BROKER_KEEP)
    assert nodes.load_config(await stage.there(nodes.broker_config(1)) or b"") == old | {"log.retention.ms": "9000"}
    assert stage.config.dynamic(Source.DYNAMIC_BROKER) == {"log.segment.bytes": "1048576", "log.retention.ms": "9000"}
    await broker(stage, "1", ConfigChange("num.partitions", AlterOperation.DELETE, None))
    assert "num.partitions" not in nodes.load_config(await stage.there(nodes.broker_config(1)) or b"")


async def test_settings_are_judged_beside_the_event_loop(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings are checked on another thread, as a key store may take a second to open."""
    threads, judge = list[threading.Thread](), configs.rehearse

    def noted(*given: object) -> object:
        threads.append(threading.current_thread())
        return judge(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(configs, "rehearse", noted)
    await broker(stage, "1", BROKER_KEEP)
    assert threads and threads[0] is not threading.current_thread()
