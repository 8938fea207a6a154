"""The table of what each API is asked for."""

from __future__ import annotations

import pytest

from pybroker import errors
from pybroker.protocol.apis import KNOWN, SERVED
from pybroker.security.acls import Operation, ResourceType
from pybroker.security.matrix import MATRIX, Check, Level, Need
from pybroker.security.operations import OPERATIONS
from tests.rows import with_each

OPEN = {17, 18, 36, 39, 40, 60, 71, 72}
"""APIs that everybody may call: logging in, ApiVersions, DescribeCluster, telemetry; and what only owners may."""


def test_each_api_has_a_row() -> None:
    """Also those that are not served yet; under the name and the key that the protocol has."""
    assert not SERVED.keys() - MATRIX.keys() and not KNOWN.keys() - MATRIX.keys()
    assert {key: MATRIX[key].name for key in KNOWN} == {key: api.name for key, api in KNOWN.items()}
    assert list(MATRIX) == sorted(MATRIX) and all(key == row.key for key, row in MATRIX.items())


def test_an_api_without_checks_is_one_that_everybody_may_call() -> None:
    """None is open because somebody forgot it."""
    assert {key for key, row in MATRIX.items() if not row.checks} == OPEN


CHECKS = [pytest.param(check, id=f"{row.name}-{at}") for row in MATRIX.values() for at, check in enumerate(row.checks)]


@with_each("check", CHECKS)
def test_each_check_can_be_made_and_answered(check: Check) -> None:
    """Its operations are ones of the type; what is filtered has no code, all else one of authorization."""
    for need in (check.need, check.instead):
        assert need is None or OPERATIONS[need.type] >> need.operation & 1
    assert (check.error == errors.NONE) is (check.level is Level.FILTERED)
    assert check.error == errors.NONE or errors.lookup(check.error).name.endswith("AUTHORIZATION_FAILED")


@with_each(
    ("name", "denials"),
    [
        ("Produce", "53 EVERY_PARTITION, 29 PARTITION"),
        ("Fetch", "29 PARTITION, 29 EVERY_PARTITION"),
        ("OffsetCommit", "30 EVERY_PARTITION, 29 PARTITION"),
        ("CreateTopics", "29 TOPIC, 29 TOPIC"),
        ("DescribeConfigs", "29 RESOURCE, 31 RESOURCE"),
        ("ListGroups", "0 FILTERED"),
        ("InitProducerId", "53 TOP, 31 TOP"),
        ("AddPartitionsToTxn", "53 EVERY_PARTITION, 29 PARTITION, 31 TOP"),
        ("TxnOffsetCommit", "53 EVERY_PARTITION, 30 EVERY_PARTITION, 29 PARTITION"),
        ("OffsetDelete", "30 TOP, 29 PARTITION"),
        ("CreateDelegationToken", "65 TOP"),
    ],
)
def test_what_some_are_answered(name: str, denials: str) -> None:
    """Those whose checks differ from each other, told once more."""
    [row] = [row for row in MATRIX.values() if row.name == name]
    assert ", ".join(f"{check.error} {check.level.name}" for check in row.checks) == denials


def test_what_will_do_instead() -> None:
    """InitProducerId is the one API that asks for any topic."""
    instead = {row.name: check.instead for row in MATRIX.values() for check in row.checks if check.instead}
    assert instead["InitProducerId"] == Need(Operation.WRITE, ResourceType.TOPIC, any_of_type=True)
    assert [name for name, need in instead.items() if need.any_of_type] == ["InitProducerId"]
    assert instead.keys() - {"InitProducerId"} == {
        "Metadata", "CreateTopics", "ListGroups", "OffsetForLeaderEpoch", "WriteTxnMarkers", "DescribeDelegationToken",
    }  # fmt: skip


def test_brokers_requests_are_for_brokers() -> None:
    """What only the controller or another broker sends needs ClusterAction, and nothing less will do."""
    for name in ("LeaderAndIsr", "StopReplica", "UpdateMetadata", "ControlledShutdown", "AlterPartition",
                 "AllocateProducerIds", "Envelope"):  # fmt: skip
        [row] = [row for row in MATRIX.values() if row.name == name]
        [check] = row.checks
        assert check[:4] == (
            Need(Operation.CLUSTER_ACTION, ResourceType.CLUSTER), errors.CLUSTER_AUTHORIZATION_FAILED, Level.TOP, None,
        )  # fmt: skip
