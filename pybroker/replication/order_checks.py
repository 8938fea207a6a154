"""Checks of what the controller's requests say of partitions and brokers."""

from __future__ import annotations

import logging

from pybroker import errors
from pybroker.decisions.image import LiveBroker, PartitionState
from pybroker.decisions.orders import UncheckedBroker
from pybroker.decisions.topics import check_name
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.model import PORT_MAX, TEXT_BYTES_MAX, HostPort, TopicPartition

log = logging.getLogger(__name__)

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def misnamed(key: TopicPartition) -> int:
    """The error code for a partition whose name is invalid, 0 if it is valid."""
    try:
        check_name(key.topic)
    except KafkaError as problem:
        event(log, logging.WARNING, "partition refused", partition=key, reason=problem)
        return problem.code
    return errors.INVALID_REQUEST if key.partition < 0 else errors.NONE


def wrong(key: TopicPartition, p: PartitionState) -> int:
    """The error code for a role that is invalid on any broker, 0 if it is valid."""
    if code := misnamed(key):
        return code
    if min(p.leader_epoch, p.partition_epoch, *p.replicas) < 0 or len(set(p.replicas)) < len(p.replicas):
        reason = f"leader epoch {p.leader_epoch}, partition epoch {p.partition_epoch}, replicas {list(p.replicas)}"
        event(log, logging.WARNING, "role not taken", partition=key, reason=reason)
        return errors.INVALID_REQUEST
    return errors.NONE


def checked_broker(told: UncheckedBroker, *, new: bool) -> LiveBroker:
    """Convert a live broker of UpdateMetadata. A rack that is too long for answers to clients is dropped, so that the
    request need not fail; it is logged for a `new` broker. Raises INVALID_REQUEST."""
    if told.id < 0:
        raise KafkaError(errors.INVALID_REQUEST, f"the broker id {told.id} is negative")
    for e in told.endpoints:
        known = 0 <= e.security_protocol < len(PROTOCOLS) and 0 <= e.port <= PORT_MAX
        if not known or len(e.host.encode()) > TEXT_BYTES_MAX:
            what = f"{e.host!r:.50} port {e.port} with the security protocol {e.security_protocol}"
            raise KafkaError(errors.INVALID_REQUEST, f"broker {told.id} cannot be reached at {what}")
    endpoints = {e.listener: HostPort(e.host, e.port) for e in told.endpoints}
    protocols = {e.listener: PROTOCOLS[e.security_protocol] for e in told.endpoints}
    rack = told.rack
    if len((rack or "").encode()) > TEXT_BYTES_MAX:
        reason = f"it is longer than {TEXT_BYTES_MAX} bytes"
        if new:
            event(log, logging.ERROR, "rack left out", broker=told.id, reason=reason)
        rack = None
    return LiveBroker(told.id, endpoints, protocols, rack)
