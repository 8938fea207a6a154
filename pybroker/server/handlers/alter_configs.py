"""AlterConfigs and IncrementalAlterConfigs: the settings of topics and brokers and, by the latter, the levels of a
broker's loggers; each resource by itself."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pybroker import errors
from pybroker.cluster.caller import Call
from pybroker.cluster.config_changes import Change, Operation
from pybroker.controller.broker_loggers import BrokerLoggers
from pybroker.controller.configs import ConfigAdmin
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m

if TYPE_CHECKING:
    from pybroker.controller.cluster_configs import ClusterConfigs

TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8


class AlterConfigs:
    """What a resource is given replaces all that it had (superseded by KIP-339, and still sent)."""

    def __init__(self, admin: "ConfigAdmin | ClusterConfigs") -> None:
        self._admin = admin

    async def __call__(self, request: Any, call: Call) -> Any:
        asked = [[Change(c.name, Operation.SET, c.value) for c in r.configs] for r in request.resources]
        return m.AlterConfigsResponse(
            responses=await _alter(self._admin, request, asked, m.AlterConfigsResponse.Responses, replace=True)
        )


class IncrementalAlterConfigs:
    """What is not named stays as it is."""

    def __init__(self, admin: "ConfigAdmin | ClusterConfigs", loggers: BrokerLoggers) -> None:
        self._admin = admin
        self._loggers = loggers

    async def __call__(self, request: Any, call: Call) -> Any:
        asked = [[Change(c.name, c.config_operation, c.value) for c in r.configs] for r in request.resources]
        kind = m.IncrementalAlterConfigsResponse.Responses
        return m.IncrementalAlterConfigsResponse(
            responses=await _alter(self._admin, request, asked, kind, replace=False, loggers=self._loggers)
        )


async def _alter(
    admin: "ConfigAdmin | ClusterConfigs", request: Any, asked: Iterable[list[Change]], kind: Any, *, replace: bool,
    loggers: BrokerLoggers | None = None,
) -> list[Any]:  # fmt: skip
    """Beside each other, in their order: a store that is silent holds up all resources once."""
    named = Counter((r.resource_type, r.resource_name) for r in request.resources)

    async def alter(resource: Any, changes: list[Change]) -> Any:
        what, name = resource.resource_type, resource.resource_name
        answer = kind(resource_type=what, resource_name=name, error_message=None)
        try:
            if named[what, name] > 1:
                raise KafkaError(errors.INVALID_REQUEST, f"the request names {name!r} {named[what, name]} times")
            if what == BROKER_LOGGER and loggers is not None:
                loggers.alter(name, changes, validate_only=request.validate_only)
                return answer
            if what not in (TOPIC, BROKER):
                words = f"resources of type {what} have no settings to alter here"
                if what == BROKER_LOGGER:
                    words = "log levels are altered by IncrementalAlterConfigs alone"
                raise KafkaError(errors.INVALID_REQUEST, words)
            altered = admin.alter_topic if what == TOPIC else admin.alter_broker
            await altered(name, changes, replace=replace, validate_only=request.validate_only)
        except KafkaError as problem:
            answer.error_code, answer.error_message = problem.code, problem.message
        return answer

    return await asyncio.gather(*map(alter, request.resources, asked))


def _failures(request: Any, kind: Any, code: int, message: str) -> list[Any]:
    return [
        kind(error_code=code, error_message=message, resource_type=r.resource_type, resource_name=r.resource_name)
        for r in request.resources
    ]


def alter_failed(request: Any, code: int, message: str) -> Any:
    kind = m.AlterConfigsResponse
    return kind(responses=_failures(request, kind.Responses, code, message))


def incremental_failed(request: Any, code: int, message: str) -> Any:
    kind = m.IncrementalAlterConfigsResponse
    return kind(responses=_failures(request, kind.Responses, code, message))
