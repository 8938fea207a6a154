"""The store that a broker's settings for etcd describe."""

from __future__ import annotations

import ssl
from typing import Final

from pybroker.config import BrokerConfig
from pybroker.config.etcd_settings import split_connect
from pybroker.coordination.addresses import are_here
from pybroker.model import HostPort
from pybroker.security import keystores, tls

from .gateway import EtcdAccess, EtcdLogin
from .link import Servers
from .store import EtcdStore

PREFIX: Final = "etcd.ssl."


def store_of(config: BrokerConfig) -> EtcdStore:
    """Return the store for the etcd in a broker's settings. Raises ConfigError."""
    timeout_ms = config["zookeeper.connection.timeout.ms"] or config["zookeeper.session.timeout.ms"]
    return EtcdStore(servers_of(config), connection_timeout_ms=timeout_ms)


def servers_of(config: BrokerConfig) -> Servers:
    """Return the servers of etcd.connect, and how to reach them. Raises ConfigError in one sentence."""
    with_tls, hosts, prefix = split_connect(config["etcd.connect"])
    addresses = []
    for each in hosts.split(","):
        host, _, port = each.strip().rpartition(":")
        addresses.append(HostPort(host.strip("[]"), int(port)))
    user, password = config["etcd.user"], config["etcd.password"]
    login = None if user is None or password is None else EtcdLogin(user, password)
    return Servers(addresses, prefix, EtcdAccess(_context(config) if with_tls else None, login))


def is_here(config: BrokerConfig) -> bool:
    """True if all servers are at localhost or a loopback address."""
    return are_here(at.host for at in servers_of(config).addresses)


def _context(config: BrokerConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = config[f"{PREFIX}endpoint.identification.algorithm"] != ""
    context.set_alpn_protocols(["http/1.1"])  # a Go server would speak HTTP/2 otherwise
    location, password = config[f"{PREFIX}keystore.location"], config[f"{PREFIX}keystore.password"]
    setting = f"{PREFIX}keystore.password"
    if location is not None and keystores.is_pem(None, location):
        pair = keystores.key_store(
            PREFIX, type=None, location=location, key_password=password, key_password_setting=setting
        )
    else:
        pair = keystores.key_store(PREFIX, type=None, location=location, password=password)
    if pair is not None:
        pair.load_into(context)
    location, password = config[f"{PREFIX}truststore.location"], config[f"{PREFIX}truststore.password"]
    tls.believe(context, keystores.trust_store(PREFIX, type=None, location=location, password=password))
    return context
