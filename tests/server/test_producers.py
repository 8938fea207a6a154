"""DescribeProducers, and the ACL requests of a broker without an authorizer: every requested entry gets an answer."""

from __future__ import annotations

import pytest

from pybroker import errors
from pybroker.protocol import messages as m
from tests.server.live import Wire, batch


async def test_idempotent_producers_are_told_with_their_last_sequence(wire: Wire) -> None:
    await wire.create("t", 2)
    drawn = await wire.call("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=1000)
    who = {"producer_id": drawn.producer_id, "producer_epoch": 0}
    for sequence in (0, 3):
        sent = batch(b"a", b"b", b"c", base_sequence=sequence, **who)
        assert (await wire.produce("t", sent)).error_code == 0
    kind = m.DescribeProducersRequest.Topics
    asked = [kind(name="t", partition_indexes=[0, 1, 7]), kind(name="none", partition_indexes=[0])]
    known, unknown = (await wire.call("DescribeProducers", 0, topics=asked)).topics
    first, second, third = known.partitions
    [producer] = first.active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (drawn.producer_id, 0, 5)
    assert (producer.coordinator_epoch, producer.current_txn_start_offset) == (-1, -1)
    assert producer.last_timestamp > 0
    assert (second.error_code, second.active_producers) == (0, [])
    for missing in (third, unknown.partitions[0]):
        assert missing.error_code == errors.UNKNOWN_TOPIC_OR_PARTITION and missing.error_message


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_acls_are_answered_one_by_one(wire: Wire, version: int) -> None:
    acl = {"resource_type": 2, "resource_name": "t", "principal": "User:a", "host": "*", "operation": 3}
    disabled = errors.SECURITY_DISABLED
    creations = [m.CreateAclsRequest.Creations(permission_type=3, **acl)] * 2
    answer = await wire.call("CreateAcls", version, creations=creations)
    assert [r.error_code for r in answer.results] == [disabled] * 2
    blank = {"resource_name_filter": None, "principal_filter": None, "host_filter": None}
    some = {"resource_type_filter": 1, "operation": 1, "permission_type": 1}
    filters = [m.DeleteAclsRequest.Filters(**blank, **some)] * 3
    answer = await wire.call("DeleteAcls", version, filters=filters)
    assert [(r.error_code, r.matching_acls) for r in answer.filter_results] == [(disabled, [])] * 3
    answer = await wire.call("DescribeAcls", version, **blank, **some)
    assert (answer.error_code, answer.resources) == (disabled, [])
    assert "no authorizer" in answer.error_message
