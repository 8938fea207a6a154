"""Configurations for the clients of others: where the broker is, and what makes a test quick.

Clients come back fast after a restart, members notice a rebalance at once and start at the earliest offset. With a
`group_id` the configuration is a consumer's, without it is good for producers and admin clients, too.
"""

from typing import Any, Final

SESSION_MS: Final = 10_000
HEARTBEAT_MS: Final = 200
BACKOFF_MS: Final = 20
BACKOFF_MAX_MS: Final = 200
UNDERSCORED: Final = ("log_level", "on_commit", "on_delivery")
"""Names of confluent-kafka that have no dots, beside those of its callbacks (error_cb)."""


def confluent(bootstrap: str, group_id: str | None, overrides: dict[str, Any]) -> dict[str, Any]:
    """confluent-kafka's: names with dots, which may be given with underscores."""
    config: dict[str, Any] = {
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
    return config | {_confluent_name(name): value for name, value in overrides.items()}


def _confluent_name(name: str) -> str:
    return name if name in UNDERSCORED or name.endswith("_cb") else name.replace("_", ".")


def kafka_python(bootstrap: str, group_id: str | None, overrides: dict[str, Any]) -> dict[str, Any]:
    """kafka-python's keyword arguments."""
    config: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "reconnect_backoff_ms": BACKOFF_MS,
        "reconnect_backoff_max_ms": BACKOFF_MAX_MS,
        "retry_backoff_ms": BACKOFF_MS,
    }
    return config | _group(group_id) | overrides


def aiokafka(bootstrap: str, group_id: str | None, overrides: dict[str, Any]) -> dict[str, Any]:
    """aiokafka's keyword arguments."""
    return {"bootstrap_servers": bootstrap, "retry_backoff_ms": BACKOFF_MS} | _group(group_id) | overrides


def _group(group_id: str | None) -> dict[str, Any]:
    if group_id is None:
        return {}
    return {
        "group_id": group_id,
        "auto_offset_reset": "earliest",
        "session_timeout_ms": SESSION_MS,
        "heartbeat_interval_ms": HEARTBEAT_MS,
    }
