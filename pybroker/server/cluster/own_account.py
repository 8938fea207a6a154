"""Warns if other brokers would not accept this broker's login or certificate."""

from __future__ import annotations

import logging

from pybroker.config import BrokerConfig, ConfigError
from pybroker.logs import event
from pybroker.security.credentials import Credentials
from pybroker.security.scram import HASHES
from pybroker.security.tls import check_believed

log = logging.getLogger(__name__)


def look_for_user(config: BrokerConfig, credentials: Credentials) -> None:
    """Warn if the user that this broker logs in as has no password in ZooKeeper, or another one."""
    own = config.account
    if own is None or own.mechanism not in HASHES:
        return
    held = credentials.look_up(own.mechanism, own.user)
    if held is None:
        why = "the user has no credential in ZooKeeper"
    elif not held.is_of(own.mechanism, own.password):
        why = "the password in this broker's configuration differs from the one in ZooKeeper"
    else:
        return
    why += ": set it with pybroker users set --config FILE"
    event(log, logging.WARNING, "brokers cannot log in", user=own.user, mechanism=own.mechanism, reason=why)


def look_at_certificates(config: BrokerConfig) -> None:
    """Warn if other brokers will not accept this broker's certificate."""
    try:
        check_believed(config)
    except ConfigError as problem:
        event(log, logging.WARNING, "brokers cannot connect", reason=problem.message)
