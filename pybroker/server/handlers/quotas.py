"""DescribeClientQuotas and AlterClientQuotas (KIP-546): what users, client ids and addresses may use.

Each entry of a request is altered by itself; of a quota that one names twice the last counts, as with Kafka.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pybroker import errors
from pybroker.cluster.caller import Call
from pybroker.config.settings import shown
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.protocol import messages as m
from pybroker.security.quotas import (
    IP,
    ClientQuotaFilterComponent,
    ClientQuotas,
    Entity,
    entity_of,
    is_address,
    matching,
    text_of,
)

log = logging.getLogger(__name__)

EXACT, DEFAULT, ANY = range(3)
"""How a component is asked for, on the wire."""

Change = Callable[[Mapping[str, str]], dict[str, str]]


class Altered(Protocol):
    """Who writes what an entity has."""

    async def alter_entity(self, entity: Entity, change: Change, *, validate_only: bool = False) -> None: ...


class DescribeQuotas:
    def __init__(self, quotas: ClientQuotas) -> None:
        self._quotas = quotas

    def __call__(self, request: Any, call: Call) -> Any:
        kind = m.DescribeClientQuotasResponse
        wanted = [_wanted(component) for component in request.components]
        found = matching(self._quotas.all(), wanted, strict=request.strict)
        return kind(
            error_message=None,
            entries=[
                kind.Entries(
                    entity=[kind.Entries.Entity(entity_type=type_, entity_name=name) for type_, name in entity],
                    values=[kind.Entries.Values(key=key, value=value) for key, value in values.items()],
                )
                for entity, values in found.items()
            ],
        )


def _wanted(component: Any) -> ClientQuotaFilterComponent:
    """Raises INVALID_REQUEST."""
    number, name = component.match_type, component.match
    if number not in (EXACT, DEFAULT, ANY) or (number == EXACT) != (name is not None):
        words = f"{shown(component.entity_type)} is asked for by the match type {number} and the name {name!r:.100}"
        raise KafkaError(errors.INVALID_REQUEST, f"{words}: it is 0 with a name, 1 for the default, 2 for any")
    return ClientQuotaFilterComponent(component.entity_type, name, number == ANY)


class AlterQuotas:
    def __init__(self, admin: Altered) -> None:
        self._admin = admin

    async def __call__(self, request: Any, call: Call) -> Any:
        # Beside each other: a store that is silent holds up all entries once.
        told = await asyncio.gather(*(self._answer(entry, request.validate_only) for entry in request.entries))
        return m.AlterClientQuotasResponse(entries=told)

    async def _answer(self, entry: Any, validate_only: bool) -> Any:
        try:
            await self._alter(entry, validate_only)
        except KafkaError as problem:
            return _told(entry, problem.code, problem.message)
        return _told(entry, errors.NONE, None)

    async def _alter(self, entry: Any, validate_only: bool) -> None:
        entity = entity_of((each.entity_type, each.entity_name) for each in entry.entity)
        if entity[0][0] == IP:
            _check_address(entity[0][1])
        # Before the store is asked for anything: what is wrong with a request is wrong whatever is there.
        texts = {op.key: text_of(entity, op.key, 0 if op.remove else op.value) for op in entry.ops}
        gone = {op.key: op.remove for op in entry.ops}

        def change(held: Mapping[str, str]) -> dict[str, str]:
            return {key: text for key, text in (dict(held) | texts).items() if not gone.get(key)}

        await self._admin.alter_entity(entity, change, validate_only=validate_only)
        for op in entry.ops:
            if not op.remove and op.value == 0 and not validate_only:
                words = "hardly anything may pass any more: to lift a quota, remove it"
                event(log, logging.WARNING, "quota of zero", of=entity, quota=op.key, reason=words)


def _check_address(address: str | None) -> None:
    """Raises INVALID_REQUEST. Names of hosts are not looked up: who connects has an address and no name."""
    if address is not None and not is_address(address):
        raise KafkaError(errors.INVALID_REQUEST, f"{shown(address)} is no IP address")


def _told(entry: Any, code: int, message: str | None) -> Any:
    kind = m.AlterClientQuotasResponse.Entries
    named = [kind.Entity(entity_type=each.entity_type, entity_name=each.entity_name) for each in entry.entity]
    return kind(error_code=code, error_message=message, entity=named)


def describe_failed(request: Any, code: int, message: str) -> Any:
    return m.DescribeClientQuotasResponse(error_code=code, error_message=message, entries=None)


def alter_failed(request: Any, code: int, message: str) -> Any:
    return m.AlterClientQuotasResponse(entries=[_told(entry, code, message) for entry in request.entries])
