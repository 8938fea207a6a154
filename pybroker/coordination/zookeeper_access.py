"""How ZooKeeper is reached and what others may do there: TLS, a login, and the ACLs of nodes, by Kafka's settings.

    node                                                  with zookeeper.set.acl          without
    /consumers                                            everybody: all                  everybody: all
    /config/users, /config/brokers,                       who made it: all                everybody: all
    /delegation_token/tokens, and what is below them
    all others                                            who made it: all; everybody:    everybody: all
                                                          read

Who made a node is whom ZooKeeper knows the connection by: sasl:USER of a login, x509:DN of a certificate. All brokers
of a cluster have to be the same to it.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from pybroker.config import BrokerConfig
from pybroker.security import keystores, tls

PREFIX: Final = "zookeeper.ssl."
OPEN: Final = "/consumers"
"""Of consumers that were older than Kafka's groups: each of them wrote below it."""
SENSITIVE: Final = ("/config/users", "/config/brokers", "/delegation_token/tokens")
"""Where secrets are."""
SECURED: Final = (
    "/admin", "/brokers", "/cluster", "/config", "/controller", "/controller_epoch", "/isr_change_notification",
    "/latest_producer_id_block", "/log_dir_event_notification", "/delegation_token", "/feature", "/kafka-acl",
    "/kafka-acl-changes", "/kafka-acl-extended", "/kafka-acl-extended-changes", "/migration",
)  # fmt: skip
"""Kafka's trees: what zookeeper-security-migration goes through, besides the root itself."""


class Login(NamedTuple):
    """Whom ZooKeeper is to know a connection by."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Login({self.user})"


class Access(NamedTuple):
    """How ZooKeeper is reached, and whether nodes are made for their maker."""

    tls: ssl.SSLContext | None = None
    login: Login | None = None
    set_acl: bool = False


def access_of(config: BrokerConfig) -> Access:
    """By the settings. Raises ConfigError in one sentence that names a file or a setting."""
    user, password = config["zookeeper.sasl.client.username"], config["zookeeper.sasl.client.password"]
    login = None if user is None or password is None else Login(user, password)
    return Access(_context(config), login, config["zookeeper.set.acl"])


def acls(path: str, *, secure: bool) -> list[Any]:
    """The ACLs that a node is made with, as kazoo has them; the path is below the chroot."""
    if not secure or path == OPEN:
        return list(OPEN_ACL_UNSAFE)
    if path.startswith(SENSITIVE):
        return list(CREATOR_ALL_ACL)
    return [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]


def _context(config: BrokerConfig) -> ssl.SSLContext | None:
    if not config["zookeeper.ssl.client.enable"]:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = config[f"{PREFIX}endpoint.identification.algorithm"] != ""
    versions: Sequence[str] = config[f"{PREFIX}enabled.protocols"] or [config[f"{PREFIX}protocol"]]
    tls.narrow(context, versions, config[f"{PREFIX}cipher.suites"] or (), f"{PREFIX}cipher.suites")
    kind, location = (config[f"{PREFIX}keystore.{name}"] for name in ("type", "location"))
    password, setting = config[f"{PREFIX}keystore.password"], f"{PREFIX}keystore.password"
    if location is not None and keystores.is_pem(kind, location):  # the password is the key's, as with ZooKeeper's own
        pair = keystores.key_store(
            PREFIX, type=kind, location=location, key_password=password, key_password_setting=setting
        )
    else:
        pair = keystores.key_store(PREFIX, type=kind, location=location, password=password)
    if pair is not None:
        pair.load_into(context)
    _trust(context, config)
    return context


def _trust(context: ssl.SSLContext, config: BrokerConfig) -> None:
    kind, location, password = (config[f"{PREFIX}truststore.{name}"] for name in ("type", "location", "password"))
    if location is not None and keystores.is_pem(kind, location):
        password = None  # Java's clients take one, and have no use for it
    tls.believe(context, keystores.trust_store(PREFIX, type=kind, location=location, password=password))
