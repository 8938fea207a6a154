"""Users, certificates and listeners of a test's broker that uses SASL or TLS.

    CLIENTS    the listener for clients: SASL, TLS or both
    BROKERS    in a cluster: the listener for brokers, secured in the same way; they log in by PLAIN as one user
    LOCAL      the listener for the kit, without login; even with ACLs, its connections may do everything

Users of PLAIN are in the broker's settings. Users of SCRAM are created by the first start and kept in the broker's
data. The certificate of TLS is made at run time, once for all brokers of a process, by an authority for tests only.
"""

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pybroker.testing.lifecycle import HOST

if TYPE_CHECKING:
    from pybroker.client.net.connection import BrokerConnection
    from pybroker.security.acls import AclBinding, Permission

Sasl = bool | str | Mapping[str, object]
"""True, a mechanism, or {"mechanism": ..., "users": {name: password}}."""

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISM: Final = "SCRAM-SHA-256"
USERS: Final[Mapping[str, str]] = {"alice": "alice-secret"}
"""The user of a broker whose test names no users."""
OWN: Final = ("listeners", "listener.security.protocol.map", "inter.broker.listener.name")
"""Settings that the kit sets for a secured broker."""
ANONYMOUS: Final = "User:ANONYMOUS"
BROKER: Final = "pybroker-testing-broker"
"""The user as which the brokers of a cluster log in to each other."""
BROKER_PASSWORD: Final = os.urandom(16).hex()
SALT_BYTES: Final = 16


class ClientLogin(NamedTuple):
    """The listener's protocol, the client's user (with SASL), and the CA file (with TLS)."""

    protocol: str
    mechanism: str
    user: str
    password: str
    authority: str | None
    """The CA file (PEM) of the broker's certificate."""

    @property
    def is_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")


class CertificateFiles(NamedTuple):
    """The files of this process's certificates, PEM each."""

    authority: str
    own: str
    """The broker's key and certificate."""


@functools.cache
def certificates() -> CertificateFiles:
    """Return the certificate files; they are made at the first call and removed when the process exits."""
    from pybroker.testing.certificates import Authority

    home = tempfile.mkdtemp(prefix="pybroker-tls-")
    atexit.register(_remove, home, os.getpid())
    authority = Authority()
    own = authority.sign("localhost")
    files = CertificateFiles(os.path.join(home, "ca.pem"), os.path.join(home, "broker.pem"))
    for path, data in ((files.authority, authority.certificate), (files.own, own.key + own.chain)):
        with open(path, "wb") as file:
            file.write(data)
    return files


def _remove(home: str, maker: int) -> None:
    if os.getpid() == maker:  # in a forked child the files are the parent's
        shutil.rmtree(home, ignore_errors=True)


class Security(NamedTuple):
    """The login, ACLs and TLS that the test asked for."""

    mechanism: str
    """Empty without SASL."""
    users: Mapping[str, str]
    """{name: password}; clients log in as the first one by default."""
    acls: bool
    tls: bool

    @classmethod
    def of(cls, sasl: Sasl | None, acls: bool, tls: bool, settings: Iterable[str]) -> "Security | None":
        """Return the security that a broker's arguments ask for; None without any. ValueError, also for a setting that
        the kit sets itself."""
        if taken := [name for name in OWN if name in settings and (sasl or tls)]:
            raise ValueError(f"{taken[0]} is set by the kit where sasl or tls is given: remove it from settings")
        if sasl is None or sasl is False:
            if acls:
                raise ValueError("acls=True needs sasl: without a login all clients are ANONYMOUS")
            return cls("", {}, False, True) if tls else None
        how = {"mechanism": MECHANISM} if sasl is True else {"mechanism": sasl} if isinstance(sasl, str) else dict(sasl)
        if unknown := sorted(how.keys() - {"mechanism", "users"}):
            raise ValueError(f"sasl has {', '.join(map(repr, unknown))}; the keys are 'mechanism' and 'users'")
        mechanism, users = how.get("mechanism", MECHANISM), how.get("users", USERS)
        if mechanism not in MECHANISMS:
            raise ValueError(f"the mechanism is {mechanism!r}; it can be one of {', '.join(MECHANISMS)}")
        if not isinstance(users, Mapping) or not users or not all(_is_text(*pair) for pair in users.items()):
            raise ValueError("sasl's users are a mapping of at least one name to its password, none of them empty")
        return cls(str(mechanism), dict(users), acls, bool(tls))

    @property
    def protocol(self) -> str:
        """The security protocol of the clients' listener."""
        return ("SASL_" if self.mechanism else "") + ("SSL" if self.tls else "PLAINTEXT")

    @property
    def is_scram(self) -> bool:
        """True if users are created with requests, not set in the broker's settings."""
        return self.mechanism not in ("", "PLAIN")

    def settings(self, port: int, local: int, given: Mapping[str, str], brokers: int | None = None) -> dict[str, str]:
        """Return the broker's settings, with the test's own. `port` is for clients, `local` for the kit, `brokers` for
        the other brokers of a cluster."""
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

    def login(self, user: str | None) -> ClientLogin:
        """Return the login of this user, or of the first one for None. ValueError for an unknown user."""
        authority = certificates().authority if self.tls else None
        if not self.mechanism:
            if user is not None:
                raise ValueError(f"this broker has no login, so there is no user {user!r}: make it with sasl=True")
            return ClientLogin(self.protocol, "", "", "", authority)
        name = next(iter(self.users)) if user is None else user
        if name not in self.users:
            raise ValueError(f"there is no user {name!r}; there are {', '.join(self.users)}")
        return ClientLogin(self.protocol, self.mechanism, name, self.users[name], authority)

    def make_users(self, connection: "BrokerConnection") -> None:
        """Create the users of SCRAM. KafkaError."""
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


    def has_users(self, connection: "BrokerConnection") -> bool:
        """True if a broker knows all users of SCRAM."""
        from pybroker.protocol import messages as m

        told = connection.request(m.DescribeUserScramCredentialsRequest(users=None)).results
        return self.users.keys() <= {result.user for result in told}


def _is_text(*values: object) -> bool:
    return all(isinstance(value, str) and value for value in values)


def jaas(mechanism: str, options: Mapping[str, str]) -> str:
    """Return the text of sasl.jaas.config, as Java's clients and brokers read it."""
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    words = [f"{name if name.isidentifier() else _quoted(name)}={_quoted(value)}" for name, value in options.items()]
    return f"org.apache.kafka.common.security.{module} required {' '.join(words)};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# -- ACLs ----------------------------------------------------------------------------------------------------------


def acls_of(
    user: str, permission: "Permission", operations: Sequence[str], about: Mapping[str, str | Iterable[str]],
    prefixed: bool,
) -> "list[AclBinding]":  # fmt: skip
    """Return the ACLs that allow or deny a user operations on the resources that `about` names by type. ValueError."""
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
        raise ValueError("name the operations and the resources: allow('alice', 'read', topic='orders')")
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


def create_acls(connection: "BrokerConnection", made: "Sequence[AclBinding]") -> None:
    """Create ACLs at a broker. KafkaError."""
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


def has_acls(connection: "BrokerConnection", made: "Iterable[AclBinding]") -> bool:
    """True if a broker knows all of these ACLs."""
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
