"""AlterConfigs and IncrementalAlterConfigs: change settings of topics and brokers; the latter also changes the levels
of a broker's loggers. Each resource is changed on its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from pybroker import errors
from pybroker.decisions.caller import Call
from pybroker.decisions.config_changes import AlterOperation, ConfigChange
from pybroker.errors import KafkaError
from pybroker.metadata.broker_loggers import BrokerLoggers
from pybroker.metadata.config_admin import ConfigAdmin
from pybroker.protocol import messages as m

if TYPE_CHECKING:  # both APIs have the same fields
    Request = m.AlterConfigsRequest | m.IncrementalAlterConfigsRequest
    Resource = m.AlterConfigsRequest.Resources | m.IncrementalAlterConfigsRequest.Resources

Answer = TypeVar("Answer", "m.AlterConfigsResponse.Responses", "m.IncrementalAlterConfigsResponse.Responses")
TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8


class AlterConfigs:
    """Replaces all settings of a resource (superseded by KIP-339, but clients still send it)."""

    def __init__(self, admin: ConfigAdmin) -> None:
        self._admin = admin

    async def __call__(self, request: m.AlterConfigsRequest, call: Call) -> m.AlterConfigsResponse:
        asked = [[ConfigChange(c.name, AlterOperation.SET, c.value) for c in r.configs] for r in request.resources]
        return m.AlterConfigsResponse(
            responses=await _alter(self._admin, request, asked, m.AlterConfigsResponse.Responses, replace=True)
        )


class IncrementalAlterConfigs:
    """Changes the settings that are named, and keeps the others."""

    def __init__(self, admin: ConfigAdmin, loggers: BrokerLoggers) -> None:
        self._admin = admin
        self._loggers = loggers

    async def __call__(
        self, request: m.IncrementalAlterConfigsRequest, call: Call
    ) -> m.IncrementalAlterConfigsResponse:
        asked = [[ConfigChange(c.name, c.config_operation, c.value) for c in r.configs] for r in request.resources]
        kind = m.IncrementalAlterConfigsResponse.Responses
        return m.IncrementalAlterConfigsResponse(
            responses=await _alter(self._admin, request, asked, kind, replace=False, loggers=self._loggers)
        )


async def _alter(
    admin: ConfigAdmin, request: Request, asked: Iterable[list[ConfigChange]], kind: type[Answer], *,
    replace: bool, loggers: BrokerLoggers | None = None,
) -> list[Answer]:  # fmt: skip
    """Alter all resources concurrently, so that a store that does not respond delays the request by one timeout."""
    named = Counter((r.resource_type, r.resource_name) for r in request.resources)

    async def alter(resource: Resource, changes: list[ConfigChange]) -> Answer:
        what, name = resource.resource_type, resource.resource_name
        answer = kind(resource_type=what, resource_name=name, error_message=None)
        try:
            if named[what, name] > 1:
                raise KafkaError(errors.INVALID_REQUEST, f"the request names {name!r} {named[what, name]} times")
            if what == BROKER_LOGGER and loggers is not None:
                loggers.alter(name, changes, validate_only=request.validate_only)
                return answer
            if what not in (TOPIC, BROKER):
                words = f"resource type {what} has no settings: use 2 (topic), 4 (broker) or 8 (broker logger)"
                if what == BROKER_LOGGER:
                    words = "AlterConfigs does not change log levels: use IncrementalAlterConfigs"
                raise KafkaError(errors.INVALID_REQUEST, words)
            altered = admin.alter_topic if what == TOPIC else admin.alter_broker
            await altered(name, changes, replace=replace, validate_only=request.validate_only)
        except KafkaError as problem:
            answer.error_code, answer.error_message = problem.code, problem.message
        return answer

    return await asyncio.gather(*map(alter, request.resources, asked))


def _failures(request: Request, kind: type[Answer], code: int, message: str) -> list[Answer]:
    return [
        kind(error_code=code, error_message=message, resource_type=r.resource_type, resource_name=r.resource_name)
        for r in request.resources
    ]


def alter_failed(request: m.AlterConfigsRequest, code: int, message: str) -> m.AlterConfigsResponse:
    kind = m.AlterConfigsResponse
    return kind(responses=_failures(request, kind.Responses, code, message))


def incremental_failed(
    request: m.IncrementalAlterConfigsRequest, code: int, message: str
) -> m.IncrementalAlterConfigsResponse:
    kind = m.IncrementalAlterConfigsResponse
    return kind(responses=_failures(request, kind.Responses, code, message))
