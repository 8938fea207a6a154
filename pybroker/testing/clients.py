"""Configurations for client libraries: the broker's address, login and CA, and settings that keep a test quick.

Clients reconnect fast after a restart; group members notice a rebalance at once and start at the earliest offset.
With a `group_id` the configuration is a consumer's; without one it also works for producers and admin clients.
"""

import ssl
from collections.abc import Mapping
from typing import Any, Final

from pybroker.testing.security import ClientLogin, jaas

Config = dict[str, Any]
"""Keyword arguments or properties; the client library defines the types of the values."""
SESSION_MS: Final = 10_000
HEARTBEAT_MS: Final = 200
BACKOFF_MS: Final = 20
BACKOFF_MAX_MS: Final = 200
UNDERSCORED: Final = ("log_level", "on_commit", "on_delivery")
"""confluent-kafka's names without dots; names of its callbacks end in _cb."""


def confluent(
    bootstrap: str, group_id: str | None, overrides: Mapping[str, object], login: ClientLogin | None = None
) -> Config:
    """Return confluent-kafka's configuration; the caller may write underscores for the dots in names."""
    config: Config = {
        "bootstrap.servers": bootstrap,
        "broker.address.family": "v4",
        "reconnect.backoff.ms": BACKOFF_MS,
        "reconnect.backoff.max.ms": BACKOFF_MAX_MS,
        "retry.backoff.ms": BACKOFF_MS,
        "retry.backoff.max.ms": BACKOFF_MAX_MS,
    }
    if group_id is not None:
        config |= {
            "group.id": group_id,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "allow.auto.create.topics": True,
        }
    if login is not None and login.authority is not None:
        config["ssl.ca.location"] = login.authority
    login_as = {name.replace("_", "."): value for name, value in _login(login, "sasl_").items()}
    return config | login_as | {_confluent_name(name): value for name, value in overrides.items()}


def _confluent_name(name: str) -> str:
    return name if name in UNDERSCORED or name.endswith("_cb") else name.replace("_", ".")


def kafka_python(
    bootstrap: str, group_id: str | None, overrides: Mapping[str, object], login: ClientLogin | None = None
) -> Config:
    """Return kafka-python's keyword arguments."""
    config: Config = {
        "bootstrap_servers": bootstrap,
        "reconnect_backoff_ms": BACKOFF_MS,
        "reconnect_backoff_max_ms": BACKOFF_MAX_MS,
        "retry_backoff_ms": BACKOFF_MS,
    }
    if login is not None and login.authority is not None:
        config["ssl_cafile"] = login.authority
    return config | _group(group_id) | _login(login, "sasl_plain_") | dict(overrides)


def aiokafka(
    bootstrap: str, group_id: str | None, overrides: Mapping[str, object], login: ClientLogin | None = None
) -> Config:
    """Return aiokafka's keyword arguments."""
    config: Config = {"bootstrap_servers": bootstrap, "retry_backoff_ms": BACKOFF_MS}
    if login is not None and login.authority is not None:
        config["ssl_context"] = ssl.create_default_context(cafile=login.authority)
    return config | _group(group_id) | _login(login, "sasl_plain_") | dict(overrides)


def pybroker(
    bootstrap: str, group_id: str | None, overrides: Mapping[str, object], login: ClientLogin | None = None
) -> Config:
    """Return the keyword arguments of pybroker's own clients."""
    config: Config = {"bootstrap_servers": bootstrap}
    if login is not None and login.authority is not None:
        config["ssl_cafile"] = login.authority
    return config | _group(group_id) | _login(login, "sasl_") | dict(overrides)


def java(
    bootstrap: str, group_id: str | None, overrides: Mapping[str, object], login: ClientLogin | None = None
) -> Config:
    """Return properties of Kafka's Java clients and tools; the caller may write underscores for the dots in names."""
    config: Config = {"bootstrap.servers": bootstrap}
    if login is not None:
        config["security.protocol"] = login.protocol
        if login.is_sasl:
            config["sasl.mechanism"] = login.mechanism
            config["sasl.jaas.config"] = jaas(
                login.mechanism, {"username": login.user, "password": login.password}
            )
        if login.authority is not None:
            config |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": login.authority}
    given = _group(group_id) | dict(overrides)
    return config | {name.replace("_", "."): value for name, value in given.items()}


def _login(login: ClientLogin | None, account: str) -> Config:
    """Return the login settings; `account` is the prefix of the names for user and password."""
    if login is None:
        return {}
    config: Config = {"security_protocol": login.protocol}
    if login.is_sasl:
        config |= {
            "sasl_mechanism": login.mechanism,
            f"{account}username": login.user,
            f"{account}password": login.password,
        }
    return config


def _group(group_id: str | None) -> Config:
    if group_id is None:
        return {}
    return {
        "group_id": group_id,
        "auto_offset_reset": "earliest",
        "session_timeout_ms": SESSION_MS,
        "heartbeat_interval_ms": HEARTBEAT_MS,
    }
