"""SCRAM users (KIP-554): listed, and their passwords set; a password never leaves this process."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pybroker import errors
from pybroker.client import arguments
from pybroker.client.admin.base import AdminBase, raise_for
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from pybroker.security.scram import HASHES, ITERATIONS_MIN, SALT_BYTES, salted

REQUEST: Final = m.AlterUserScramCredentialsRequest
_NUMBERS: Final = {mechanism: number for number, mechanism in enumerate(HASHES, 1)}
_NAMES: Final = {number: mechanism for mechanism, number in _NUMBERS.items()}


class ScramUser(NamedTuple):
    """A user, and the iterations of each mechanism by which the user can log in."""

    name: str
    iterations: Mapping[str, int]


class UsersAdmin(AdminBase):
    """Operations on users."""

    def users(self, names: Sequence[str] | None = None) -> list[ScramUser]:
        """These users, or all SCRAM users. KafkaError(RESOURCE_NOT_FOUND) for a user without SCRAM credentials."""
        kind = m.DescribeUserScramCredentialsRequest
        asked = None if names is None else [kind.Users(name=name) for name in arguments.names(names, "names")]
        answer = self.cluster.any().request(kind(users=asked))
        raise_for(answer.error_code, "the users", answer.error_message)
        found = []
        for result in answer.results:
            raise_for(result.error_code, f"user {result.user}", result.error_message)
            held = {_NAMES.get(info.mechanism, "unknown"): info.iterations for info in result.credential_infos}
            found.append(ScramUser(result.user, held))
        return found

    def set_password(
        self, user: str, password: str, mechanisms: Sequence[str] = tuple(HASHES), iterations: int = ITERATIONS_MIN
    ) -> None:
        """Let a user log in by these mechanisms with this password from now on. Raises KafkaError.

        The broker is sent the salted password, and not the password itself."""
        made = []
        for mechanism in _known(mechanisms):
            salt = secrets.token_bytes(SALT_BYTES)
            key, number = salted(mechanism, password, salt, iterations), _NUMBERS[mechanism]
            made.append(REQUEST.Upsertions(
                name=user, mechanism=number, iterations=iterations, salt=salt, salted_password=key
            ))  # fmt: skip
        self._alter(user, [REQUEST(upsertions=[each]) for each in made], REQUEST(upsertions=made))

    def remove_password(self, user: str, mechanisms: Sequence[str] | None = None) -> None:
        """Remove a user's credentials of these mechanisms, or of all. Raises KafkaError."""
        gone = list(self.users([user])[0].iterations) if mechanisms is None else _known(mechanisms)
        made = [REQUEST.Deletions(name=user, mechanism=_NUMBERS[mechanism]) for mechanism in gone]
        self._alter(user, [REQUEST(deletions=[each]) for each in made], REQUEST(deletions=made))

    def _alter(
        self,
        user: str,
        singly: "Sequence[m.AlterUserScramCredentialsRequest]",
        together: "m.AlterUserScramCredentialsRequest",
    ) -> None:
        """Alter all mechanisms of a user in one request, or one by one: Kafka's KRaft brokers take one of a user at a
        time."""
        try:
            self._request(user, together)
        except KafkaError as problem:
            if problem.code != errors.DUPLICATE_RESOURCE:
                raise
            for request in singly:
                self._request(user, request)

    def _request(self, user: str, request: "m.AlterUserScramCredentialsRequest") -> None:
        for result in self.cluster.controller().request(request).results:
            raise_for(result.error_code, f"user {user}", result.error_message)


def _known(mechanisms: Sequence[str]) -> Sequence[str]:
    for each in arguments.names(mechanisms, "mechanisms"):
        if each not in HASHES:
            raise KafkaError(errors.UNSUPPORTED_SASL_MECHANISM, f"{each!r} is none of {', '.join(HASHES)}")
    return mechanisms
