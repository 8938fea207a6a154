"""Access to ZooKeeper by Kafka's settings: TLS, a login, and the ACLs of nodes.

    node                                                  with zookeeper.set.acl          without
    /consumers                                            everybody: all                  everybody: all
    /config/users, /config/brokers,                       creator: all                    everybody: all
    /delegation_token/tokens, and all nodes below them
    all others                                            creator: all; everybody: read   everybody: all

The creator of a node is the identity that ZooKeeper gives the connection: sasl:USER of a login, x509:DN of a
certificate. All brokers of a cluster must have the same identity.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Final, NamedTuple

from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from pybroker.config import BrokerConfig
from pybroker.security import keystores, tls

PREFIX: Final = "zookeeper.ssl."
OPEN: Final = "/consumers"
"""Consumers older than Kafka's group protocol all wrote below this node."""
SENSITIVE: Final = ("/config/users", "/config/brokers", "/delegation_token/tokens")
"""Nodes that hold secrets, and nodes above them."""
SECURED: Final = (
    "/admin", "/brokers", "/cluster", "/config", "/controller", "/controller_epoch", "/isr_change_notification",
    "/latest_producer_id_block", "/log_dir_event_notification", "/delegation_token", "/feature", "/kafka-acl",
    "/kafka-acl-changes", "/kafka-acl-extended", "/kafka-acl-extended-changes", "/migration",
)  # fmt: skip
"""Kafka's trees: the nodes whose subtrees zookeeper-security-migration changes, besides the root itself."""


class ZooKeeperLogin(NamedTuple):
    """The user and password of a connection to ZooKeeper."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"ZooKeeperLogin({self.user})"


class ZooKeeperAccess(NamedTuple):
    """TLS and login for ZooKeeper; `set_acl`: create nodes that only their creator may change."""

    tls: ssl.SSLContext | None = None
    login: ZooKeeperLogin | None = None
    set_acl: bool = False


def access_of(config: BrokerConfig) -> ZooKeeperAccess:
    """Return the access that the settings describe. Raises ConfigError in one sentence that names a file or setting."""
    user, password = config["zookeeper.sasl.client.username"], config["zookeeper.sasl.client.password"]
    login = None if user is None or password is None else ZooKeeperLogin(user, password)
    return ZooKeeperAccess(_context(config), login, config["zookeeper.set.acl"])


def acls(path: str, *, secure: bool) -> list[ACL]:
    """Return the ACLs to create a node with, as kazoo's objects; the path is without the chroot."""
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
    if location is not None and keystores.is_pem(kind, location):  # the password is the key's, as in ZooKeeper's client
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
        password = None  # Java's clients accept one, and ignore it
    tls.believe(context, keystores.trust_store(PREFIX, type=kind, location=location, password=password))
