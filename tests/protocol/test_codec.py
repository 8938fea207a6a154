"""The codec writes the bytes of Kafka's documents, headers and streamed parts, and refuses invalid values."""

from __future__ import annotations

from typing import Any

import pytest

from pybroker.protocol import codec, messages
from pybroker.protocol.apis import APIS, KNOWN
from pybroker.protocol.codec import EncodeError, ProtocolError
from pybroker.protocol.wire import put_uvarint, skip_tags, uvarint
from tests.rows import with_each

UUID = bytes(range(16))


class Slice:
    """Like core's slice of records: a length, and bytes that are stored elsewhere."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def tobytes(self) -> bytes:
        return self.data


@with_each(
    ("value", "text"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (16383, "ff7f"),
        (16384, "808001"),
        ((1 << 32) - 1, "ffffffff0f"),
    ],
)
def test_unsigned_varints(value: int, text: str) -> None:
    data = bytes.fromhex(text)
    assert put_uvarint(value) == data
    if value > 127:
        assert uvarint(data, 1, data[0]) == (value, len(data))
    assert skip_tags(b"\x05\x02hi\x06\x00", 0, 6, 2) == 6


def test_a_request_on_the_wire() -> None:
    """Metadata v9, the first flexible version, has the documented bytes."""
    kind = messages.MetadataRequest
    request = kind(topics=[kind.Topics(name="t")], allow_auto_topic_creation=False)
    data = codec.encode_request(3, 9, 7, "me", request)
    assert data.hex(" ") == "00 03 00 09 00 00 00 07 00 02 6d 65 00 02 02 74 00 00 00 00 00"
    header = codec.decode_request_header(data)
    assert header == (3, 9, 7, "me", 13)
    assert codec.decode(kind, 9, data, header.body_offset) == (request, len(data))


def test_what_a_version_lacks_is_left_out_and_read_as_its_default() -> None:
    kind = messages.MetadataRequest
    data = codec.encode(kind(topics=[], allow_auto_topic_creation=False), 1)
    assert data == bytes(4)
    assert codec.decode(kind, 1, data)[0] == kind(topics=[], allow_auto_topic_creation=True)


def test_bytes_are_views_of_the_frame_whatever_it_is() -> None:
    kind = messages.ProduceRequest
    topic = kind.TopicData(name="t", partition_data=[kind.TopicData.PartitionData(index=1, records=b"batch")])
    data = codec.encode(kind(acks=-1, timeout_ms=5, topic_data=[topic]), 9)
    for frame in (data, bytearray(data), memoryview(data)):
        request, end = codec.decode(kind, 9, frame)
        records = request.topic_data[0].partition_data[0].records
        assert isinstance(records, memoryview)
        assert (records, end) == (b"batch", len(data))
        assert records.obj is (frame.obj if isinstance(frame, memoryview) else frame)


def fetch_response(*records: Any) -> Any:
    kind = messages.FetchResponse
    partitions = [kind.Responses.Partitions(partition_index=i, records=part) for i, part in enumerate(records)]
    return kind(responses=[kind.Responses(topic="t", topic_id=UUID, partitions=partitions)])


@with_each("version", range(4, 19))
def test_slices_go_out_as_they_are_between_bytes(version: int) -> None:
    """Parts in order make up the message, and each slice is a part of its own, to be sent from its file."""
    data = [b"x" * 200, b"", b"y" * 20000]
    slices = [Slice(part) for part in data]
    response = fetch_response(slices[0], None, slices[1], b"inline", slices[2])
    whole = codec.encode(fetch_response(data[0], None, data[1], b"inline", data[2]), version)
    assert codec.encode(response, version) == whole
    parts = codec.encode_parts(response, version)
    assert [part for part in parts if isinstance(part, Slice)] == slices
    assert b"".join(part.tobytes() if isinstance(part, Slice) else part for part in parts) == whole
    answer = codec.encode_response_parts(1, version, 99, response)
    assert sum(map(len, answer)) == len(codec.encode_response(1, version, 99, response))
    assert codec.decode_response(1, version, codec.encode_response(1, version, 99, response))[0] == 99


def test_parts_without_slices_are_one() -> None:
    parts = codec.encode_parts(fetch_response(b"a", memoryview(b"b")), 12)
    assert parts == [codec.encode(fetch_response(b"a", b"b"), 12)]


def test_a_view_of_wider_items_is_counted_in_bytes() -> None:
    wide = memoryview(b"12345678").cast("I")
    assert codec.encode(fetch_response(wide), 12) == codec.encode(fetch_response(b"12345678"), 12)
    assert codec.encode(fetch_response(memoryview(b"1-2-3-")[::2]), 12) == codec.encode(fetch_response(b"123"), 12)


# -- headers ---------------------------------------------------------------------------------------------------------


def test_apiversions_is_answered_with_the_oldest_header_at_every_version() -> None:
    for version in range(5):
        body = codec.encode(messages.ApiVersionsResponse(), version)
        assert codec.encode_response(18, version, 5, messages.ApiVersionsResponse()) == b"\0\0\0\5" + body


def test_an_apiversions_request_of_the_future_is_answered_in_the_oldest_form() -> None:
    """An ApiVersions request of a future version gets UNSUPPORTED_VERSION and this API's versions alone, in version 0.

    Nothing after its client id is read.
    """
    header = codec.decode_request_header(bytes.fromhex("0012 0009 00000003 0002 6d65 ff ff ff ff"))
    assert header == (18, 9, 3, "me", 12)
    answer = codec.encode_unsupported(3)
    assert answer.hex(" ") == "00 00 00 03 00 23 00 00 00 01 00 12 00 00 00 04"
    correlation_id, response = codec.decode_response(18, 4, answer)
    assert (correlation_id, response.error_code) == (3, 35)
    assert [(e.api_key, e.min_version, e.max_version) for e in response.api_keys] == [(18, 0, APIS[18].max_version)]


def test_a_request_of_a_version_of_the_future_still_has_a_header() -> None:
    """A request header of a future version can be decoded, so that the log can name the client before the close."""
    assert codec.decode_request_header(bytes.fromhex("0000 0063 00000003 ffff 00"))[:4] == (0, 99, 3, None)


def test_controlled_shutdown_had_a_header_without_client_id() -> None:
    kind = messages.ControlledShutdownRequest
    request = kind(broker_id=1)
    assert len(KNOWN[7].request.SCHEMA.root.fields) == 2
    assert codec.decode_request_header(bytes.fromhex("0007 0000 00000009 00000001")) == (7, 0, 9, None, 8)
    assert codec.encode_request(7, 0, 9, "me", request) == bytes.fromhex("0007 0000 00000009 00000001")
    header = codec.decode_request_header(codec.encode_request(7, 3, 9, "me", request))
    assert header == (7, 3, 9, "me", 13)


def test_tags_in_headers_are_skipped() -> None:
    header = codec.decode_request_header(bytes.fromhex("0003 0009 00000007 ffff 02 00 01 aa 63 00 01 00 00 00 00"))
    assert header == (3, 9, 7, None, 16)
    assert (
        codec.decode_response(60, 0, b"\0\0\0\1\1\5\2hi" + codec.encode(messages.DescribeClusterResponse(), 0))[0] == 1
    )


@with_each(
    ("frame", "why"),
    [
        ("", "header of at most 0 bytes"),
        ("0003 0009 000000", "header"),
        ("0003 0009 00000007 0005 6d65", "client id of 5 bytes exceeds its frame"),
        ("0003 0009 00000007 0002 c328 00", "header"),
        ("0003 0009 00000007 ffff", "header"),
        ("0003 0009 00000007 ffff 01 00 05", "tagged field exceeds the message"),
        ("03e7 0000 00000007 ffff", "no API has the key 999"),
        ("ffff 0000 00000007 ffff", "no API has the key -1"),
    ],
)
def test_a_bad_header_is_refused(frame: str, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        codec.decode_request_header(bytes.fromhex(frame))


def test_a_response_that_is_too_short_is_refused() -> None:
    for frame in (b"", b"\0\0\0", b"\0\0\0\1"):
        with pytest.raises(ProtocolError):
            codec.decode_response(18, 3, frame)
        with pytest.raises(ProtocolError):
            codec.decode_response(60, 0, frame)


# -- values that cannot be written -----------------------------------------------------------------------------------


def metadata(**values: Any) -> Any:
    kind = messages.MetadataResponse
    return kind(brokers=[kind.Brokers(node_id=1), kind.Brokers(**values)])


@with_each(
    ("values", "why"),
    [
        ({"port": 1 << 31}, "brokers[1].port is 2147483648; i32 takes an int from -2147483648 to 2147483647"),
        ({"port": "9092"}, "brokers[1].port is '9092'; i32 takes an int"),
        ({"port": None}, "brokers[1].port is None, which v12 does not allow"),
        ({"host": None}, "brokers[1].host is None, which v12 does not allow"),
        ({"host": b"h"}, "brokers[1].host is b'h'; str takes a string"),
        ({"host": "\ud800"}, "which cannot be encoded in UTF-8"),
        ({"host": "x" * 32768}, "of 32768 bytes; str takes at most 32767"),
    ],
)
def test_a_wrong_value_is_named(values: dict[str, Any], why: str) -> None:
    with pytest.raises(EncodeError) as error:
        codec.encode(metadata(**values), 12)
    assert str(error.value).startswith("MetadataResponse v12.brokers[1]")
    assert why in str(error.value)


@with_each("version", [0, 8, 12])
@with_each(
    ("message", "why"),
    [
        (lambda m: m(brokers=None), "brokers is None"),
        (lambda m: m(brokers="abc"), "brokers is 'abc', not a list"),
        (lambda m: m(brokers=[None]), "brokers[0] is None, not a Brokers"),
        (lambda m: m(brokers=[m.Topics()]), "brokers[0] is MetadataResponse.Topics(), not a Brokers"),
        (
            lambda m: m(topics=[m.Topics(name="t", partitions=[m.Topics.Partitions(isr_nodes=[1, "2"])])]),
            "isr_nodes[1]",
        ),
    ],
)
def test_a_wrong_struct_is_named(version: int, message: Any, why: str) -> None:
    with pytest.raises(EncodeError) as error:
        codec.encode(message(messages.MetadataResponse), version)
    assert why in str(error.value)


@pytest.mark.parametrize("uuid", [b"", bytes(15), bytes(17), "x" * 16, None])
def test_a_uuid_has_16_bytes(uuid: Any) -> None:
    kind = messages.MetadataResponse
    with pytest.raises(EncodeError, match="topic_id"):
        codec.encode(kind(topics=[kind.Topics(name="t", topic_id=uuid)]), 12)


@pytest.mark.parametrize("records", ["text", 5, [b"a"], 1.5])
def test_records_are_bytes_or_a_slice(records: Any) -> None:
    with pytest.raises(EncodeError, match=r"partitions\[0\].records is .*; records takes bytes"):
        codec.encode_parts(fetch_response(records), 12)


def test_other_wrong_values_are_named() -> None:
    quota = messages.AlterClientQuotasRequest
    entry = quota.Entries(ops=[quota.Entries.Ops(key="k", value="much")])
    with pytest.raises(EncodeError, match=r"entries\[0\].ops\[0\].value is 'much'; f64 takes a number"):
        codec.encode(quota(entries=[entry]), 1)
    with pytest.raises(EncodeError, match="auth_bytes is None"):
        codec.encode(messages.SaslAuthenticateRequest(auth_bytes=None), 2)
    with pytest.raises(EncodeError, match=r"cluster_id is 5; str takes a string"):
        codec.encode(messages.FetchRequest(cluster_id=5), 12)


def test_a_version_that_the_definition_lacks_is_not_written() -> None:
    with pytest.raises(EncodeError, match="ProduceRequest has versions 3 to 13, not 2"):
        codec.encode(messages.ProduceRequest(), 2)
