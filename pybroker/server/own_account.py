"""Warnings about a broker's own account: other brokers must accept its login and its certificate."""

from __future__ import annotations

import logging

from pybroker.config import BrokerConfig, ConfigError
from pybroker.logs import event
from pybroker.security.credentials import Credentials
from pybroker.security.scram import HASHES
from pybroker.security.tls import check_believed

log = logging.getLogger(__name__)


def look_for_user(config: BrokerConfig, credentials: Credentials) -> None:
    """Warn if this broker logs in at others as a user without a password, or with another password."""
    own = config.account
    if own is None or own.mechanism not in HASHES:
        return
    held = credentials.look_up(own.mechanism, own.user)
    if held is None:
        why = "ZooKeeper has no such user"
    elif not held.is_of(own.mechanism, own.password):
        why = "its password in this broker's file is not the one that ZooKeeper has"
    else:
        return
    why += ": pybroker users set, with a broker's file by --config, gives a password"
    event(log, logging.WARNING, "brokers cannot log in", user=own.user, mechanism=own.mechanism, reason=why)


def look_at_certificates(config: BrokerConfig) -> None:
    """Warn if other brokers will not accept this broker's certificate."""
    try:
        check_believed(config)
    except ConfigError as problem:
        event(log, logging.WARNING, "brokers cannot connect", reason=problem.message)
