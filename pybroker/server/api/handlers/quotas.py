"""DescribeClientQuotas and AlterClientQuotas (KIP-546): quotas of users, client ids and IP addresses.

Each entry of a request is altered on its own. If an entry names a quota twice the last value counts, as in Kafka.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from pybroker import errors
from pybroker.config.settings import shown
from pybroker.decisions.caller import Call
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
"""Match types of a filter component, on the wire."""

Change = Callable[[Mapping[str, str]], dict[str, str]]


class QuotaWriter(Protocol):
    """Writes the quotas of an entity."""

    async def alter_entity(self, entity: Entity, change: Change, *, validate_only: bool = False) -> None: ...


class DescribeQuotas:
    def __init__(self, quotas: ClientQuotas) -> None:
        self._quotas = quotas

    def __call__(self, request: m.DescribeClientQuotasRequest, call: Call) -> m.DescribeClientQuotasResponse:
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


def _wanted(component: m.DescribeClientQuotasRequest.Components) -> ClientQuotaFilterComponent:
    """Decode a filter component. Raises INVALID_REQUEST."""
    number, name = component.match_type, component.match
    if number not in (EXACT, DEFAULT, ANY) or (number == EXACT) != (name is not None):
        words = f"the filter for {shown(component.entity_type)} has match type {number} and name {name!r:.100}"
        raise KafkaError(errors.INVALID_REQUEST, f"{words}: use 0 with a name, or 1 (default) or 2 (any) without")
    return ClientQuotaFilterComponent(component.entity_type, name, number == ANY)


class AlterQuotas:
    def __init__(self, admin: QuotaWriter) -> None:
        self._admin = admin

    async def __call__(self, request: m.AlterClientQuotasRequest, call: Call) -> m.AlterClientQuotasResponse:
        # Concurrently, so that a store that does not respond delays the request by one timeout.
        told = await asyncio.gather(*(self._answer(entry, request.validate_only) for entry in request.entries))
        return m.AlterClientQuotasResponse(entries=told)

    async def _answer(
        self, entry: m.AlterClientQuotasRequest.Entries, validate_only: bool
    ) -> m.AlterClientQuotasResponse.Entries:
        try:
            await self._alter(entry, validate_only)
        except KafkaError as problem:
            return _told(entry, problem.code, problem.message)
        return _told(entry, errors.NONE, None)

    async def _alter(self, entry: m.AlterClientQuotasRequest.Entries, validate_only: bool) -> None:
        entity = entity_of((each.entity_type, each.entity_name) for each in entry.entity)
        if entity[0][0] == IP:
            _check_address(entity[0][1])
        # Check the request before the store is read.
        texts = {op.key: text_of(entity, op.key, 0 if op.remove else op.value) for op in entry.ops}
        gone = {op.key: op.remove for op in entry.ops}

        def change(held: Mapping[str, str]) -> dict[str, str]:
            return {key: text for key, text in (dict(held) | texts).items() if not gone.get(key)}

        await self._admin.alter_entity(entity, change, validate_only=validate_only)
        for op in entry.ops:
            if not op.remove and op.value == 0 and not validate_only:
                words = "a quota of 0 blocks nearly all requests: remove the quota to lift the limit"
                event(log, logging.WARNING, "quota is zero", of=entity, quota=op.key, reason=words)


def _check_address(address: str | None) -> None:
    """Raise INVALID_REQUEST if this is no IP address. Clients are matched by address, so names are not resolved."""
    if address is not None and not is_address(address):
        raise KafkaError(errors.INVALID_REQUEST, f"{shown(address)} is not an IP address: host names are not allowed")


def _told(
    entry: m.AlterClientQuotasRequest.Entries, code: int, message: str | None
) -> m.AlterClientQuotasResponse.Entries:
    kind = m.AlterClientQuotasResponse.Entries
    named = [kind.Entity(entity_type=each.entity_type, entity_name=each.entity_name) for each in entry.entity]
    return kind(error_code=code, error_message=message, entity=named)


def describe_failed(request: m.DescribeClientQuotasRequest, code: int, message: str) -> m.DescribeClientQuotasResponse:
    return m.DescribeClientQuotasResponse(error_code=code, error_message=message, entries=None)


def alter_failed(request: m.AlterClientQuotasRequest, code: int, message: str) -> m.AlterClientQuotasResponse:
    return m.AlterClientQuotasResponse(entries=[_told(entry, code, message) for entry in request.entries])
