"""The loggers of a broker (KIP-412): described with their effective level, altered at run time, reset at the stop."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from pybroker import errors
from pybroker.config import Source
from pybroker.security.acls import Operation
from tests.rows import with_each
from tests.server.cast import CLUSTER, CLUSTER_DENIED, Cast
from tests.server.live import Live, Wire
from tests.server.test_alter_configs import APPEND, DELETE, SET, SUBTRACT, alter, described, replace
from tests.server.test_describe import configs

LOGGERS = 8
PART, MODULE = "pybroker.metadata", "pybroker.metadata.configs"


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """Restore the process's log levels after each test."""
    names = ("pybroker", PART, MODULE)
    before = {name: logging.getLogger(name).level for name in names}
    logging.getLogger("pybroker").setLevel(logging.INFO)
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


def me(live: Live) -> str:
    assert live.broker is not None
    return str(live.broker.broker_id)


async def test_each_logger_is_shown_with_the_level_that_it_goes_by(live: Live, wire: Wire) -> None:
    """A logger is shown with its own level or that of its parent; the top one is called root, as in Kafka. Loggers of
    other packages are not shown."""
    logging.getLogger("elsewhere")
    shown = await described(wire, LOGGERS, me(live))
    assert {shown[name] for name in ("root", "pybroker", PART, MODULE)} == {("INFO", Source.DYNAMIC_BROKER_LOGGER)}
    assert "elsewhere" not in shown and all(name == "root" or name.startswith("pybroker") for name in shown)
    [one] = (await configs(wire, LOGGERS, me(live), keys=[MODULE, "none"])).configs
    assert (one.name, one.value, one.read_only, one.is_sensitive) == (MODULE, "INFO", False, False)


async def test_a_level_holds_at_once_for_what_is_below_and_until_it_is_taken_back(
    live: Live, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await alter(wire, LOGGERS, me(live), (PART, SET, "DEBUG"))).error_code == 0
    shown = await described(wire, LOGGERS, me(live))
    assert [shown[name][0] for name in ("root", PART, MODULE)] == ["INFO", "DEBUG", "DEBUG"]
    assert logging.getLogger(MODULE).isEnabledFor(logging.DEBUG)
    assert "log levels altered" in caplog.text and f'own="{PART}=DEBUG"' in caplog.text
    assert (await alter(wire, LOGGERS, me(live), (PART, DELETE, None), ("root", SET, "ERROR"))).error_code == 0
    shown = await described(wire, LOGGERS, me(live))
    assert {shown[name][0] for name in ("root", "pybroker", PART, MODULE)} == {"ERROR"}
    assert not logging.getLogger(MODULE).isEnabledFor(logging.WARNING)


@with_each("level", ["FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE"])
async def test_the_levels_are_kafkas(live: Live, wire: Wire, level: str) -> None:
    assert (await alter(wire, LOGGERS, me(live), (MODULE, SET, level))).error_code == 0
    assert (await described(wire, LOGGERS, me(live)))[MODULE][0] == level


@with_each(
    ("change", "code", "said"),
    [
        ((MODULE, SET, "LOUD"), errors.INVALID_CONFIG, "it takes FATAL, ERROR, WARN, INFO, DEBUG, TRACE"),
        ((MODULE, SET, "debug"), errors.INVALID_CONFIG, "'debug'"),
        ((MODULE, SET, "OFF"), errors.INVALID_CONFIG, "'OFF'"),
        ((MODULE, SET, ""), errors.INVALID_CONFIG, "''"),
        ((MODULE, SET, None), errors.INVALID_REQUEST, "no value"),
        (("kafka.server", SET, "INFO"), errors.INVALID_CONFIG, "Logger 'kafka.server' does not exist"),
        (("pybroker.none", DELETE, None), errors.INVALID_CONFIG, "does not exist"),
        (("root", DELETE, None), errors.INVALID_REQUEST, "root logger"),
        (("pybroker", DELETE, None), errors.INVALID_REQUEST, "root logger"),
        ((MODULE, APPEND, "INFO"), errors.INVALID_REQUEST, "APPEND operation is not allowed"),
        ((MODULE, SUBTRACT, "INFO"), errors.INVALID_REQUEST, "SUBTRACT operation is not allowed"),
        ((MODULE, 9, "INFO"), errors.INVALID_REQUEST, "unknown operation 9"),
    ],
)
async def test_what_is_refused_changes_no_level(
    live: Live, wire: Wire, change: tuple[str, int, str | None], code: int, said: str
) -> None:
    """A refused change leaves all levels as they were, also those of changes before it in the request."""
    before = await described(wire, LOGGERS, me(live))
    refused = await alter(wire, LOGGERS, me(live), (PART, SET, "TRACE"), change)
    assert (refused.error_code, said in refused.error_message) == (code, True), refused.error_message
    assert await described(wire, LOGGERS, me(live)) == before


async def test_to_validate_is_not_to_alter_and_the_old_call_has_no_loggers(live: Live, wire: Wire) -> None:
    before = await described(wire, LOGGERS, me(live))
    assert (await alter(wire, LOGGERS, me(live), (MODULE, SET, "TRACE"), validate_only=True)).error_code == 0
    old = await replace(wire, LOGGERS, me(live), root="TRACE")
    assert old.error_code == errors.INVALID_REQUEST and "IncrementalAlterConfigs" in old.error_message
    after = await described(wire, LOGGERS, me(live))
    assert [after[name][0] for name in ("root", "pybroker", MODULE)] == ["INFO"] * 3
    assert after == {**after, **before}  # more loggers appear as modules are imported


@pytest.mark.parametrize("name", ["", "7", "x"])
async def test_they_are_of_one_broker(wire: Wire, name: str) -> None:
    for answer in (await configs(wire, LOGGERS, name), await alter(wire, LOGGERS, name, ("root", SET, "DEBUG"))):
        assert answer.error_code == errors.INVALID_REQUEST and repr(name) in answer.error_message


async def test_who_may_not_alter_the_cluster_may_not_alter_levels(cast: Cast) -> None:
    """Levels need DESCRIBE_CONFIGS and ALTER_CONFIGS on the cluster, like settings of a broker."""
    name = me(cast.live)

    async def codes(wire: Wire) -> tuple[int, int]:
        altered = await alter(wire, LOGGERS, name, (MODULE, SET, "DEBUG"), validate_only=True)
        return (await configs(wire, LOGGERS, name)).error_code, altered.error_code

    assert await codes(cast.root) == (0, 0)
    assert await codes(cast.ann) == (CLUSTER_DENIED, CLUSTER_DENIED)
    await cast.give((CLUSTER, "kafka-cluster", Operation.DESCRIBE_CONFIGS))
    assert await codes(cast.ann) == (0, CLUSTER_DENIED)
    await cast.give((CLUSTER, "kafka-cluster", Operation.ALTER_CONFIGS))
    assert await codes(cast.ann) == (0, 0)
