"""The loggers of a broker and their levels, which can change while it runs (KIP-412).

Levels belong to the process and are not stored: a restart resets them. pybroker's top logger has two names: root, as in
Kafka, and pybroker, as in log lines. If a broker is embedded in a program, the program's own loggers are not shown and
do not change.
"""

import logging
from collections.abc import Iterable
from typing import Final

from pybroker import errors
from pybroker.config import ConfigError, DescribedConfig, Source, Type
from pybroker.config.settings import shown
from pybroker.decisions.config_changes import AlterOperation, ConfigChange, check
from pybroker.errors import KafkaError
from pybroker.logs import event

log = logging.getLogger(__name__)

ROOT: Final = "root"
OURS: Final = "pybroker"
LEVELS: Final = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": 5,
}
"""Kafka's levels and Python's numbers, the highest first."""
_DOC: Final = f"The level from which on this logger writes: one of {', '.join(LEVELS)}."


class BrokerLoggers:
    """The loggers of one broker, by its id."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id

    def entries(self, name: str) -> list[DescribedConfig]:
        """Every logger with its effective level, its own or inherited. Raises INVALID_REQUEST for another broker."""
        self._check_broker(name)
        source = Source.DYNAMIC_BROKER_LOGGER
        return [
            DescribedConfig(logger, level_of(logger), source, False, False, Type.STRING, _DOC, ())
            for logger in sorted(_names())
        ]

    def alter(self, name: str, changes: list[ConfigChange], *, validate_only: bool) -> None:
        """Set or delete levels of loggers, all or none. Raises INVALID_REQUEST, INVALID_CONFIG."""
        self._check_broker(name)
        check(changes)
        names = _names()
        for change in changes:
            _check(change, names)
        if validate_only:
            return
        words = ",".join(f"{c.name}={c.value if c.operation == AlterOperation.SET else 'inherited'}" for c in changes)
        event(log, logging.INFO, "log levels altered", of=f"broker-loggers/{name}", own=words)
        for logger, operation, value in changes:
            _logger(logger).setLevel(LEVELS[value or ""] if operation == AlterOperation.SET else logging.NOTSET)

    def _check_broker(self, name: str) -> None:
        if name != str(self._broker_id):
            words = f"these are the loggers of broker {self._broker_id}, not of {shown(name)}"
            raise KafkaError(errors.INVALID_REQUEST, words)


def level_of(name: str) -> str:
    """The effective level of a logger: the lowest of Kafka's levels that it writes."""
    level = _logger(name).getEffectiveLevel()
    return next((word for word, number in LEVELS.items() if number <= level), "TRACE")


def _names() -> set[str]:
    """The loggers of this package, including parents that write nothing themselves."""
    known = logging.Logger.manager.loggerDict
    return {ROOT, OURS, *(name for name in list(known) if name.startswith(f"{OURS}."))}


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(OURS if name == ROOT else name)


def _check(change: ConfigChange, names: Iterable[str]) -> None:
    """Raise KafkaError, with Kafka's code, for a change that cannot be made."""
    name, operation, value = change
    if operation not in (AlterOperation.SET, AlterOperation.DELETE):
        words = f"{AlterOperation(operation).name} operation is not allowed for the BROKER_LOGGER resource"
        raise KafkaError(errors.INVALID_REQUEST, f"{words}: a level is set or deleted")
    if name not in names:
        raise ConfigError(f"Logger {shown(name)} does not exist")
    if operation == AlterOperation.DELETE and name in (ROOT, OURS):
        raise KafkaError(errors.INVALID_REQUEST, "Removing the log level of the root logger is not allowed: set it")
    if operation == AlterOperation.SET and value not in LEVELS:
        raise ConfigError(f"the logger {name} cannot have the level {shown(value or '')}: it takes {', '.join(LEVELS)}")
