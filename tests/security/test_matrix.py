"""The table of the authorization checks of each API."""

from __future__ import annotations

import pytest

from pybroker import errors
from pybroker.protocol.apis import KNOWN, SERVED
from pybroker.security.acls import Operation, ResourceType
from pybroker.security.matrix import MATRIX, AuthorizerQuestion, DenialPlace, Need
from pybroker.security.operations import OPERATIONS
from tests.rows import with_each

OPEN = {17, 18, 36, 39, 40, 60, 71, 72}
"""APIs without checks: login, ApiVersions, DescribeCluster, telemetry; and those for a delegation token's owner."""


def test_each_api_has_a_row() -> None:
    """Each API has a row, also one not served yet, under the protocol's name and key."""
    assert not SERVED.keys() - MATRIX.keys() and not KNOWN.keys() - MATRIX.keys()
    assert {key: MATRIX[key].name for key in KNOWN} == {key: api.name for key, api in KNOWN.items()}
    assert list(MATRIX) == sorted(MATRIX) and all(key == row.key for key, row in MATRIX.items())


def test_an_api_without_checks_is_one_that_everybody_may_call() -> None:
    """An API without checks is open on purpose: the list of open APIs is complete."""
    assert {key for key, row in MATRIX.items() if not row.checks} == OPEN


CHECKS = [pytest.param(check, id=f"{row.name}-{at}") for row in MATRIX.values() for at, check in enumerate(row.checks)]


@with_each("check", CHECKS)
def test_each_check_can_be_made_and_answered(check: AuthorizerQuestion) -> None:
    """Each check has an operation of its resource type; a filtering check has no error code, and the others an
    authorization code."""
    for need in (check.need, check.instead):
        assert need is None or OPERATIONS[need.type] >> need.operation & 1
    assert (check.error == errors.NONE) is (check.level is DenialPlace.FILTERED)
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
    """APIs with several checks have these errors, repeated here."""
    [row] = [row for row in MATRIX.values() if row.name == name]
    assert ", ".join(f"{check.error} {check.level.name}" for check in row.checks) == denials


def test_what_will_do_instead() -> None:
    """InitProducerId is the only API that accepts a right to any topic instead."""
    instead = {row.name: check.instead for row in MATRIX.values() for check in row.checks if check.instead}
    assert instead["InitProducerId"] == Need(Operation.WRITE, ResourceType.TOPIC, any_of_type=True)
    assert [name for name, need in instead.items() if need.any_of_type] == ["InitProducerId"]
    assert instead.keys() - {"InitProducerId"} == {
        "Metadata", "CreateTopics", "ListGroups", "OffsetForLeaderEpoch", "WriteTxnMarkers", "DescribeDelegationToken",
    }  # fmt: skip


def test_brokers_requests_are_for_brokers() -> None:
    """Requests of brokers are for brokers: those that only the controller or another broker sends need
    ClusterAction."""
    for name in ("LeaderAndIsr", "StopReplica", "UpdateMetadata", "ControlledShutdown", "AlterPartition",
                 "AllocateProducerIds", "Envelope"):  # fmt: skip
        [row] = [row for row in MATRIX.values() if row.name == name]
        [check] = row.checks
        assert check[:4] == (
            Need(Operation.CLUSTER_ACTION, ResourceType.CLUSTER), errors.CLUSTER_AUTHORIZATION_FAILED,
            DenialPlace.TOP, None,
        )  # fmt: skip
