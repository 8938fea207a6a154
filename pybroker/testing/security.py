"""How a broker of a test is secured: who may log in, by what settings it is started, and how its clients log in.

    CLIENTS    the listener that clients are sent to: they log in
    LOCAL      the kit's own, without a login; with ACLs, whoever comes by it may do everything

Users of PLAIN stand in the broker's settings. Those of SCRAM are made by the first start, and kept in its data.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pybroker.testing.life import HOST

if TYPE_CHECKING:
    from pybroker.client.connection import Connection
    from pybroker.security.acls import Permission

Sasl = bool | str | Mapping[str, object]
"""True, a mechanism, or {"mechanism": ..., "users": {name: password}}."""

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISM: Final = "SCRAM-SHA-256"
USERS: Final[Mapping[str, str]] = {"alice": "alice-secret"}
"""Who may log in where nobody is named."""
OWN: Final = ("listeners", "listener.security.protocol.map", "inter.broker.listener.name")
"""Settings that a secured broker of a test is given by the kit."""
ANONYMOUS: Final = "User:ANONYMOUS"
SALT_BYTES: Final = 16


class Login(NamedTuple):
    """Who a client logs in as, and what the listener speaks."""

    protocol: str
    mechanism: str
    user: str
    password: str


class Security(NamedTuple):
    """What the test asked for."""

    mechanism: str
    users: Mapping[str, str]
    """{name: password}; clients log in as the first one, if nothing else is said."""
    acls: bool

    @classmethod
    def of(cls, sasl: Sasl | None, acls: bool, settings: Iterable[str]) -> "Security | None":
        """What the arguments of a broker say; None for one that asks nobody to log in. ValueError, also for a setting
        that is the kit's."""
        if sasl is None or sasl is False:
            if acls:
                raise ValueError("acls=True needs sasl: without a login everybody is the same")
            return None
        how = {"mechanism": MECHANISM} if sasl is True else {"mechanism": sasl} if isinstance(sasl, str) else dict(sasl)
        if unknown := sorted(how.keys() - {"mechanism", "users"}):
            raise ValueError(f"sasl has {', '.join(map(repr, unknown))}; it takes 'mechanism' and 'users'")
        mechanism, users = how.get("mechanism", MECHANISM), how.get("users", USERS)
        if mechanism not in MECHANISMS:
            raise ValueError(f"the mechanism is {mechanism!r}; it can be one of {', '.join(MECHANISMS)}")
        if not isinstance(users, Mapping) or not users or not all(_is_text(*pair) for pair in users.items()):
            raise ValueError("sasl's users are a mapping of at least one name to its password, none of them empty")
        if taken := [name for name in OWN if name in settings]:
            raise ValueError(f"{taken[0]} is the kit's where sasl is given: leave it out of settings")
        return cls(str(mechanism), dict(users), acls)

    @property
    def protocol(self) -> str:
        """What the listener of clients speaks."""
        return "SASL_PLAINTEXT"

    def settings(self, port: int, local: int, given: Mapping[str, str]) -> dict[str, str]:
        """The broker's settings, with those that the test gave; clients come by `port`, the kit by `local`."""
        made = {
            "listeners": f"CLIENTS://{HOST}:{port},LOCAL://{HOST}:{local}",
            "listener.security.protocol.map": f"CLIENTS:{self.protocol},LOCAL:PLAINTEXT",
            "inter.broker.listener.name": "LOCAL",
            "listener.name.clients.sasl.enabled.mechanisms": self.mechanism,
            "connection.failed.authentication.delay.ms": "0",
        }
        if self.mechanism == "PLAIN":
            made["listener.name.clients.plain.sasl.jaas.config"] = jaas(
                self.mechanism, {f"user_{name}": password for name, password in self.users.items()}
            )
        if self.acls:
            made["authorizer.class.name"] = "kafka.security.authorizer.AclAuthorizer"
        made |= given
        if self.acls:
            made["super.users"] = ";".join(filter(None, [given.get("super.users"), ANONYMOUS]))
        return made

    def login(self, user: str | None) -> Login:
        """How this user logs in, or with None the first one. ValueError for nobody."""
        name = next(iter(self.users)) if user is None else user
        if name not in self.users:
            raise ValueError(f"there is no user {name!r}; there are {', '.join(self.users)}")
        return Login(self.protocol, self.mechanism, name, self.users[name])

    def make_users(self, connection: "Connection") -> None:
        """Let the users of SCRAM log in. KafkaError."""
        if self.mechanism == "PLAIN":
            return
        from pybroker.client.admin.base import raise_for
        from pybroker.protocol import messages as m
        from pybroker.security.scram import HASHES, ITERATIONS_MIN, salted

        kind, number = m.AlterUserScramCredentialsRequest, 1 + list(HASHES).index(self.mechanism)
        made = []
        for name, password in self.users.items():
            salt = os.urandom(SALT_BYTES)
            key = salted(self.mechanism, password, salt, ITERATIONS_MIN)
            made.append(kind.Upsertions(
                name=name, mechanism=number, iterations=ITERATIONS_MIN, salt=salt, salted_password=key
            ))  # fmt: skip
        for result in connection.request(kind(deletions=[], upsertions=made)).results:
            raise_for(result.error_code, f"the user {result.user}", result.error_message)


def _is_text(*values: object) -> bool:
    return all(isinstance(value, str) and value for value in values)


def jaas(mechanism: str, options: Mapping[str, str]) -> str:
    """The text of sasl.jaas.config, as Java's clients and brokers read it."""
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    words = [f"{name if name.isidentifier() else _quoted(name)}={_quoted(value)}" for name, value in options.items()]
    return f"org.apache.kafka.common.security.{module} required {' '.join(words)};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# -- who may do what --------------------------------------------------------------------------------------------------


def create_acls(
    connection: "Connection", user: str, permission: "Permission", operations: Sequence[str],
    about: Mapping[str, str | Iterable[str]], prefixed: bool,
) -> None:  # fmt: skip
    """Let a user do operations, or not, with what `about` names by its type. ValueError; KafkaError."""
    from pybroker.client.admin.base import raise_for
    from pybroker.protocol import messages as m
    from pybroker.security.acls import WILDCARD, Operation, PatternType, ResourceType

    if not operations or not about:
        raise ValueError("say what may be done, and with what: allow('alice', 'read', topic='orders')")
    done = [Operation.of(name.replace("-", "").replace("_", "")) for name in operations]
    pattern, kind = PatternType.PREFIXED if prefixed else PatternType.LITERAL, m.CreateAclsRequest
    made = [
        kind.Creations(
            resource_type=ResourceType.of(of_type.replace("_", "")), resource_name=name, resource_pattern_type=pattern,
            principal=user if ":" in user else f"User:{user}", host=WILDCARD, operation=operation,
            permission_type=permission,
        )
        for of_type, names in about.items()
        for name in ([names] if isinstance(names, str) else names)
        for operation in done
    ]  # fmt: skip
    for asked, result in zip(made, connection.request(kind(creations=made)).results, strict=True):
        raise_for(result.error_code, f"the ACL for {asked.resource_name}", result.error_message)
