"""How a broker of a test is secured: who may log in, by what settings it is started, and how its clients reach it.

    CLIENTS    the listener that clients are sent to: they log in, or speak TLS, or both
    BROKERS    of a cluster: brokers reach each other as clients do, and log in by PLAIN as one user of their own
    LOCAL      the kit's own, without either; with ACLs, whoever comes by it may do everything

Users of PLAIN stand in the broker's settings. Those of SCRAM are made by the first start, and kept in its data. The
certificate of TLS is made on the spot, once for all brokers of a process, by an authority that nobody knows.
"""

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pybroker.testing.life import HOST

if TYPE_CHECKING:
    from pybroker.client.connection import Connection
    from pybroker.security.acls import AclBinding, Permission

Sasl = bool | str | Mapping[str, object]
"""True, a mechanism, or {"mechanism": ..., "users": {name: password}}."""

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISM: Final = "SCRAM-SHA-256"
USERS: Final[Mapping[str, str]] = {"alice": "alice-secret"}
"""Who may log in where nobody is named."""
OWN: Final = ("listeners", "listener.security.protocol.map", "inter.broker.listener.name")
"""Settings that a secured broker of a test is given by the kit."""
ANONYMOUS: Final = "User:ANONYMOUS"
BROKER: Final = "pybroker-testing-broker"
"""Whom the brokers of a cluster log in as, at each other alone."""
BROKER_PASSWORD: Final = os.urandom(16).hex()
SALT_BYTES: Final = 16


class Login(NamedTuple):
    """What the listener speaks, who a client logs in as (with SASL), and whom it believes (with TLS)."""

    protocol: str
    mechanism: str
    user: str
    password: str
    authority: str | None
    """The file (PEM) of who signed the broker's certificate."""

    @property
    def is_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")


class Files(NamedTuple):
    """Where the certificates of this process are, PEM each."""

    authority: str
    own: str
    """The broker's key and certificate."""


@functools.cache
def certificates() -> Files:
    """They are made when they are first asked for, and gone with the process."""
    from pybroker.testing.certificates import Authority

    home = tempfile.mkdtemp(prefix="pybroker-tls-")
    atexit.register(_remove, home, os.getpid())
    authority = Authority()
    own = authority.sign("localhost")
    files = Files(os.path.join(home, "ca.pem"), os.path.join(home, "broker.pem"))
    for path, data in ((files.authority, authority.certificate), (files.own, own.key + own.chain)):
        with open(path, "wb") as file:
            file.write(data)
    return files


def _remove(home: str, maker: int) -> None:
    if os.getpid() == maker:     # in a forked child they are the parent's
        shutil.rmtree(home, ignore_errors=True)


class Security(NamedTuple):
    """What the test asked for."""

    mechanism: str
    """Empty without SASL."""
    users: Mapping[str, str]
    """{name: password}; clients log in as the first one, if nothing else is said."""
    acls: bool
    tls: bool

    @classmethod
    def of(cls, sasl: Sasl | None, acls: bool, tls: bool, settings: Iterable[str]) -> "Security | None":
        """What the arguments of a broker say; None for one that asks for nothing. ValueError, also for a setting that
        is the kit's."""
        if taken := [name for name in OWN if name in settings and (sasl or tls)]:
            raise ValueError(f"{taken[0]} is the kit's where sasl or tls is given: leave it out of settings")
        if sasl is None or sasl is False:
            if acls:
                raise ValueError("acls=True needs sasl: without a login everybody is the same")
            return cls("", {}, False, True) if tls else None
        how = {"mechanism": MECHANISM} if sasl is True else {"mechanism": sasl} if isinstance(sasl, str) else dict(sasl)
        if unknown := sorted(how.keys() - {"mechanism", "users"}):
            raise ValueError(f"sasl has {', '.join(map(repr, unknown))}; it takes 'mechanism' and 'users'")
        mechanism, users = how.get("mechanism", MECHANISM), how.get("users", USERS)
        if mechanism not in MECHANISMS:
            raise ValueError(f"the mechanism is {mechanism!r}; it can be one of {', '.join(MECHANISMS)}")
        if not isinstance(users, Mapping) or not users or not all(_is_text(*pair) for pair in users.items()):
            raise ValueError("sasl's users are a mapping of at least one name to its password, none of them empty")
        return cls(str(mechanism), dict(users), acls, bool(tls))

    @property
    def protocol(self) -> str:
        """What the listener of clients speaks."""
        return ("SASL_" if self.mechanism else "") + ("SSL" if self.tls else "PLAINTEXT")

    @property
    def is_scram(self) -> bool:
        """Are users made, rather than set?"""
        return self.mechanism not in ("", "PLAIN")

    def settings(self, port: int, local: int, given: Mapping[str, str], brokers: int | None = None) -> dict[str, str]:
        """The broker's settings, with those that the test gave; clients come by `port`, the kit by `local`, and other
        brokers by `brokers`, if it is one of a cluster."""
        made = {
            "listeners": f"CLIENTS://{HOST}:{port},LOCAL://{HOST}:{local}",
            "listener.security.protocol.map": f"CLIENTS:{self.protocol},LOCAL:PLAINTEXT",
            "inter.broker.listener.name": "LOCAL",
            "connection.failed.authentication.delay.ms": "0",
        }
        if self.mechanism:
            made["listener.name.clients.sasl.enabled.mechanisms"] = self.mechanism
        if self.tls:
            made["ssl.keystore.type"], made["ssl.keystore.location"] = "PEM", certificates().own
        if self.mechanism == "PLAIN":
            made["listener.name.clients.plain.sasl.jaas.config"] = jaas(
                self.mechanism, {f"user_{name}": password for name, password in self.users.items()}
            )
        if self.acls:
            made["authorizer.class.name"] = "kafka.security.authorizer.AclAuthorizer"
        if brokers is not None:
            self._add_listener_of_brokers(made, brokers)
        made |= given
        if self.acls:
            made["super.users"] = ";".join(filter(None, [given.get("super.users"), ANONYMOUS]))
        return made

    def _add_listener_of_brokers(self, made: dict[str, str], port: int) -> None:
        made["listeners"] += f",BROKERS://{HOST}:{port}"
        made["listener.security.protocol.map"] += f",BROKERS:{self.protocol}"
        made["inter.broker.listener.name"] = "BROKERS"
        if self.mechanism:
            who = {"username": BROKER, "password": BROKER_PASSWORD, f"user_{BROKER}": BROKER_PASSWORD}
            made["sasl.mechanism.inter.broker.protocol"] = "PLAIN"
            made["listener.name.brokers.sasl.enabled.mechanisms"] = "PLAIN"
            made["listener.name.brokers.plain.sasl.jaas.config"] = jaas("PLAIN", who)
        if self.tls:
            made["ssl.truststore.type"], made["ssl.truststore.location"] = "PEM", certificates().authority
            made["listener.name.brokers.ssl.client.auth"] = "required"

    def login(self, user: str | None) -> Login:
        """How this user logs in, or with None the first one. ValueError for nobody."""
        authority = certificates().authority if self.tls else None
        if not self.mechanism:
            if user is not None:
                raise ValueError(f"this broker asks nobody to log in, {user!r} neither: make it with sasl=True")
            return Login(self.protocol, "", "", "", authority)
        name = next(iter(self.users)) if user is None else user
        if name not in self.users:
            raise ValueError(f"there is no user {name!r}; there are {', '.join(self.users)}")
        return Login(self.protocol, self.mechanism, name, self.users[name], authority)

    def make_users(self, connection: "Connection") -> None:
        """Let the users of SCRAM log in. KafkaError."""
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


    def has_users(self, connection: "Connection") -> bool:
        """Does a broker know of all users of SCRAM?"""
        from pybroker.protocol import messages as m

        told = connection.request(m.DescribeUserScramCredentialsRequest(users=None)).results
        return self.users.keys() <= {result.user for result in told}


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


def acls_of(
    user: str, permission: "Permission", operations: Sequence[str], about: Mapping[str, str | Iterable[str]],
    prefixed: bool,
) -> "list[AclBinding]":  # fmt: skip
    """The ACLs that let a user do operations, or not, with what `about` names by its type. ValueError."""
    from pybroker.security.acls import (
        WILDCARD,
        Acl,
        AclBinding,
        Operation,
        PatternType,
        ResourcePattern,
        ResourceType,
    )

    if not operations or not about:
        raise ValueError("say what may be done, and with what: allow('alice', 'read', topic='orders')")
    done = [Operation.of(name.replace("-", "").replace("_", "")) for name in operations]
    pattern, who = PatternType.PREFIXED if prefixed else PatternType.LITERAL, user if ":" in user else f"User:{user}"
    return [
        AclBinding(
            ResourcePattern(ResourceType.of(of_type.replace("_", "")), name, pattern),
            Acl(who, WILDCARD, operation, permission),
        )
        for of_type, names in about.items()
        for name in ([names] if isinstance(names, str) else names)
        for operation in done
    ]


def create_acls(connection: "Connection", made: "Sequence[AclBinding]") -> None:
    """Have a broker make ACLs. KafkaError."""
    from pybroker.client.admin.base import raise_for
    from pybroker.protocol import messages as m

    kind = m.CreateAclsRequest
    asked = [
        kind.Creations(
            resource_type=at.type, resource_name=at.name, resource_pattern_type=at.pattern, principal=acl.principal,
            host=acl.host, operation=acl.operation, permission_type=acl.permission,
        )
        for at, acl in made
    ]  # fmt: skip
    for (at, _), result in zip(made, connection.request(kind(creations=asked)).results, strict=True):
        raise_for(result.error_code, f"the ACL for {at.name}", result.error_message)


def has_acls(connection: "Connection", made: "Iterable[AclBinding]") -> bool:
    """Does a broker know of all of these ACLs?"""
    from pybroker.protocol import messages as m
    from pybroker.security.acls import Operation, PatternType, Permission, ResourceType

    told = connection.request(m.DescribeAclsRequest(
        resource_type_filter=ResourceType.ANY, resource_name_filter=None, pattern_type_filter=PatternType.ANY,
        principal_filter=None, host_filter=None, operation=Operation.ANY, permission_type=Permission.ANY,
    ))  # fmt: skip
    there = {
        ((at.resource_type, at.resource_name, at.pattern_type), (a.principal, a.host, a.operation, a.permission_type))
        for at in told.resources
        for a in at.acls
    }
    return there.issuperset(made)
