"""The answers of the APIs of transactions to a user without any ACL, as rows of `denials.TABLE`."""

from __future__ import annotations

from typing import Any

from pybroker import errors
from pybroker.protocol import messages as m

ID_DENIED = errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
ADDED = m.AddPartitionsToTxnRequest
MARKERS = m.WriteTxnMarkersRequest.Markers
TRANSACTIONS: list[tuple[str, tuple[int, int], dict[str, Any], Any]] = [
    ("AddPartitionsToTxn", (0, 3), {
        "v3_and_below_transactional_id": "x", "v3_and_below_topics": [ADDED.V3AndBelowTopics(name="t", partitions=[0])],
    }, lambda a: a.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == ID_DENIED),
    ("AddPartitionsToTxn", (4, 5), {"transactions": [ADDED.Transactions(transactional_id="x")]},
     lambda a: a.error_code == errors.CLUSTER_AUTHORIZATION_FAILED),
    ("AddOffsetsToTxn", (0, 4), {"transactional_id": "x", "group_id": "g"}, lambda a: a.error_code == ID_DENIED),
    ("EndTxn", (0, 5), {"transactional_id": "x"}, lambda a: a.error_code == ID_DENIED),
    ("TxnOffsetCommit", (0, 5), {"transactional_id": "x", "group_id": "g", "topics": [m.TxnOffsetCommitRequest.Topics(
        name="t", partitions=[m.TxnOffsetCommitRequest.Topics.Partitions(committed_offset=1)])]},
     lambda a: a.topics[0].partitions[0].error_code == ID_DENIED),
    ("WriteTxnMarkers", (1, 1), {"markers": [MARKERS(
        producer_id=1, topics=[MARKERS.Topics(name="t", partition_indexes=[0])])]},
     lambda a: a.markers[0].topics[0].partitions[0].error_code == errors.CLUSTER_AUTHORIZATION_FAILED),
    ("DescribeTransactions", (0, 0), {"transactional_ids": ["x"]},
     lambda a: a.transaction_states[0].error_code == ID_DENIED),
    ("ListTransactions", (0, 1), {}, lambda a: (a.error_code, a.transaction_states) == (0, [])),
]  # fmt: skip
