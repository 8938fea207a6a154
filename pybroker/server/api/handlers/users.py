"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554): the SCRAM credentials of users.

No request has a plain password: it is salted by the client, and responses have only the numbers of iterations.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from pybroker import errors
from pybroker.config.settings import shown
from pybroker.decisions.caller import Call
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from pybroker.security.credentials import Credentials, check_new_user, check_user
from pybroker.security.quotas import USER, Entity
from pybroker.security.scram import HASHES, ITERATIONS_MAX, ITERATIONS_MIN, Credential

NUMBERS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""SCRAM mechanisms by their number on the wire."""
SALT_BYTES_MAX = 1024

Change = Callable[[Mapping[str, str]], dict[str, str]]


class CredentialWriter(Protocol):
    """Writes the credentials of a user."""

    async def alter_entity(self, entity: Entity, change: Change) -> None: ...


class DescribeUsers:
    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def __call__(
        self, request: m.DescribeUserScramCredentialsRequest, call: Call
    ) -> m.DescribeUserScramCredentialsResponse:
        users = self._credentials.users()
        asked = Counter(user.name for user in request.users or ())
        kind = m.DescribeUserScramCredentialsResponse.Results
        results = []
        for name in asked or users:
            result = kind(user=name, error_message=None)
            if asked[name] > 1:
                result.error_code = errors.DUPLICATE_RESOURCE
                result.error_message = f"the request names {shown(name)} {asked[name]} times"
            elif name not in users:
                result.error_code = errors.RESOURCE_NOT_FOUND
                result.error_message = f"the user {shown(name)} has no SCRAM credential"
            else:
                held = users[name]
                result.credential_infos = [
                    kind.CredentialInfos(mechanism=number, iterations=held[mechanism])
                    for number, mechanism in NUMBERS.items()
                    if mechanism in held
                ]
            results.append(result)
        return m.DescribeUserScramCredentialsResponse(error_message=None, results=results)


class AlterUsers:
    def __init__(self, admin: CredentialWriter) -> None:
        self._admin = admin

    async def __call__(
        self, request: m.AlterUserScramCredentialsRequest, call: Call
    ) -> m.AlterUserScramCredentialsResponse:
        asked = Counter((each.name, each.mechanism) for each in request.deletions)
        asked.update((each.name, each.mechanism) for each in request.upsertions)
        names = dict.fromkeys(name for name, _ in asked)
        # Concurrently, so that a store that does not respond delays the request by one timeout.
        results = await asyncio.gather(*(self._alter(name, request, asked) for name in names))
        return m.AlterUserScramCredentialsResponse(results=results)

    async def _alter(
        self, name: str, request: m.AlterUserScramCredentialsRequest, asked: Counter[tuple[str, int]]
    ) -> m.AlterUserScramCredentialsResponse.Results:
        result = m.AlterUserScramCredentialsResponse.Results(user=name, error_message=None)
        try:
            await self._admin.alter_entity(((USER, name),), _change(name, request, asked))
        except KafkaError as problem:
            result.error_code, result.error_message = problem.code, problem.message
        return result


def _change(user: str, request: m.AlterUserScramCredentialsRequest, asked: Counter[tuple[str, int]]) -> Change:
    """All changes of one user. Raises UNSUPPORTED_SASL_MECHANISM, DUPLICATE_RESOURCE, UNACCEPTABLE_CREDENTIAL."""
    check_user(user)
    for (name, number), times in asked.items():
        if name == user and number not in NUMBERS:
            raise KafkaError(errors.UNSUPPORTED_SASL_MECHANISM, f"unknown SCRAM mechanism {number}: use {NUMBERS}")
        if name == user and times > 1:
            words = f"the request names {shown(user)} with {NUMBERS[number]} {times} times"
            raise KafkaError(errors.DUPLICATE_RESOURCE, words)
    gone = [NUMBERS[each.mechanism] for each in request.deletions if each.name == user]
    made = {NUMBERS[each.mechanism]: _credential(each) for each in request.upsertions if each.name == user}
    if made:
        check_new_user(user)

    def change(held: Mapping[str, str]) -> dict[str, str]:
        for mechanism in gone:
            if mechanism not in held:
                raise KafkaError(errors.RESOURCE_NOT_FOUND, f"the user {shown(user)} has no {mechanism} credential")
        return {name: text for name, text in held.items() if name not in gone} | made

    return change


def _credential(asked: m.AlterUserScramCredentialsRequest.Upsertions) -> str:
    """The text to store for one upsertion. Raises UNACCEPTABLE_CREDENTIAL."""
    if not ITERATIONS_MIN <= asked.iterations <= ITERATIONS_MAX:
        words = f"{asked.iterations} iterations; allowed are {ITERATIONS_MIN} to {ITERATIONS_MAX}"
        raise KafkaError(errors.UNACCEPTABLE_CREDENTIAL, words)
    mechanism = NUMBERS[asked.mechanism]
    size = hashlib.new(HASHES[mechanism]).digest_size
    if len(asked.salted_password) != size:
        words = f"a salted password of {len(asked.salted_password)} bytes; {mechanism} has {size}"
        raise KafkaError(errors.UNACCEPTABLE_CREDENTIAL, words)
    if not 0 < len(asked.salt) <= SALT_BYTES_MAX:
        words = f"a salt of {len(asked.salt)} bytes; allowed are 1 to {SALT_BYTES_MAX}"
        raise KafkaError(errors.UNACCEPTABLE_CREDENTIAL, words)
    return Credential.of_salted(mechanism, bytes(asked.salted_password), bytes(asked.salt), asked.iterations).text()


def describe_failed(
    request: m.DescribeUserScramCredentialsRequest, code: int, message: str
) -> m.DescribeUserScramCredentialsResponse:
    return m.DescribeUserScramCredentialsResponse(error_code=code, error_message=message)


def alter_failed(
    request: m.AlterUserScramCredentialsRequest, code: int, message: str
) -> m.AlterUserScramCredentialsResponse:
    kind = m.AlterUserScramCredentialsResponse
    names = dict.fromkeys([each.name for each in request.deletions] + [each.name for each in request.upsertions])
    return kind(results=[kind.Results(user=name, error_code=code, error_message=message) for name in names])
