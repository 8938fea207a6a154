"""A topic's rules for records decide which batches are checked, what is refused, and in which codec they are stored."""

from __future__ import annotations

from typing import Any

import pytest

from pybroker import core, errors
from pybroker.config import BrokerConfig, TopicConfig
from pybroker.errors import KafkaError
from pybroker.model import CODECS
from pybroker.protocol.compression import compress, open_batch
from pybroker.replication.validation import RecordRules, RefusedRecords, apply
from tests.rows import with_each

NOW_MS = 1_700_000_000_000


def rules(**settings: str) -> RecordRules:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return RecordRules.of(TopicConfig(BrokerConfig.load(None, []), named))


def batch(*records: tuple[int, bytes | None], codec: str = "none", **how: Any) -> bytes:
    """Build a batch of (ms after NOW_MS, key) records."""
    number = CODECS.index(codec)
    made = [(NOW_MS + after, key, b"v" * 50, ()) for after, key in records]
    if number:
        how["compress"] = lambda data: compress(number, data)
    return core.build_batch(made, attributes=number, **how)


@with_each(
    ("settings", "plain", "gzip"),
    [
        ({}, False, True),
        ({"record_validation": "envelope"}, False, False),
        ({"compression_type": "gzip"}, True, True),
        ({"compression_type": "gzip", "record_validation": "envelope"}, True, False),
        ({"compression_type": "uncompressed", "record_validation": "envelope"}, False, True),
        ({"cleanup_policy": "compact", "record_validation": "envelope"}, True, True),
        ({"message_timestamp_after_max_ms": "5", "record_validation": "envelope"}, True, True),
        ({"message_timestamp_type": "LogAppendTime", "message_timestamp_after_max_ms": "5"}, False, True),
    ],
)
def test_which_batches_are_looked_into(settings: dict[str, str], plain: bool, gzip: bool) -> None:
    """Batches that core cannot check are looked into, and all batches of a topic with rules for records."""
    made = rules(**settings)
    assert made.concern(batch((0, b"k"))) is plain
    assert made.concern(batch((0, b"k"), codec="gzip")) is gzip


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_without_fault_stays_as_it_is(codec: str) -> None:
    made = batch((0, b"k"), (1, None), codec=codec)
    assert apply(rules(), made, NOW_MS, "t-0") is made


@with_each("codec", ["uncompressed", *CODECS[1:]])
@with_each("came", CODECS)
def test_records_are_kept_in_the_codec_of_their_topic(codec: str, came: str) -> None:
    """Records are stored in the topic's codec, with unchanged content and an otherwise unchanged header."""
    made = batch((0, b"k"), (1, b"l"), codec=came, producer_id=7, producer_epoch=1, base_sequence=3)
    kept = apply(rules(compression_type=codec), made, NOW_MS, "t-0")
    header, before = core.check_batch(kept), core.check_batch(made)
    assert CODECS[header.codec] == ("none" if codec == "uncompressed" else codec)
    assert (header.producer_id, header.base_sequence, header.count) == (7, 3, 2)
    walked = [list(core.walk_records(open_batch(data, head), head)) for data, head in ((kept, header), (made, before))]
    assert walked[0] == walked[1]


@with_each("codec", ["none", "lz4"])
@with_each(
    ("settings", "faults", "code"),
    [
        ({"cleanup_policy": "compact"}, [1], errors.INVALID_RECORD),
        ({"message_timestamp_before_max_ms": "10"}, [2], errors.INVALID_TIMESTAMP),
        ({"message_timestamp_after_max_ms": "20"}, [3], errors.INVALID_TIMESTAMP),
        ({"message_timestamp_before_max_ms": "11", "message_timestamp_after_max_ms": "21"}, [], 0),
        ({"message_timestamp_after_max_ms": "0", "cleanup_policy": "compact"}, [1, 3], errors.INVALID_TIMESTAMP),
    ],
)
def test_faults_name_their_records(codec: str, settings: dict[str, str], faults: list[int], code: int) -> None:
    """Faulty records are named by their index in the batch; a timestamp at the limit is accepted."""
    made = batch((0, b"k"), (0, None), (-11, b"k"), (21, b"k"), codec=codec)
    if not faults:
        assert apply(rules(**settings), made, NOW_MS, "t-0") is made
        return
    with pytest.raises(RefusedRecords) as refused:
        apply(rules(**settings), made, NOW_MS, "t-0")
    assert refused.value.code == code
    assert [fault.batch_index for fault in refused.value.faults] == faults
    assert "t-0" in refused.value.faults[0].message or "out of range" in refused.value.faults[0].message


def rebuilt(made: bytes, payload: bytes) -> bytes:
    header = core.check_batch(made)
    return core.rebuild_batch(made, payload, header.attributes)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (rebuilt(batch((0, b"k"), codec="gzip"), b"no gzip"), "decompressed"),
        (rebuilt(batch((0, b"k"), codec="gzip"), compress(1, b"\x02")), "record 0 of 1 cannot be read"),
        (rebuilt(batch((0, b"k")), batch((0, b"k"))[61:] + b"x"), "bytes follow the last of 1 records"),
    ],
    ids=["no gzip", "no record", "more bytes"],
)
def test_what_cannot_be_read_is_no_damage_on_the_way(made: bytes, says: str) -> None:
    """Unreadable records with a right CRC get INVALID_RECORD, as a client would resend after CORRUPT_MESSAGE."""
    with pytest.raises(KafkaError) as refused:
        apply(rules(), made, NOW_MS, "t-0")
    assert refused.value.code == errors.INVALID_RECORD and says in refused.value.message


def test_what_is_no_batch_is_left_to_core() -> None:
    """Data that is no batch is left to core, so that one place names the fault."""
    made = batch((0, b"k"), codec="gzip")
    for data in (made + b"x", made + made):
        assert apply(rules(), data, NOW_MS, "t-0") is data
    for data in (made[:-1], b"", bytes(61)):
        with pytest.raises(core.LogError):
            apply(rules(), data, NOW_MS, "t-0")
