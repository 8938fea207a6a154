"""The message definitions are consistent, and the table of APIs matches the broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from pybroker.protocol import messages
from pybroker.protocol.apis import KNOWN
from pybroker.protocol.definitions import TEXTS
from pybroker.protocol.schema import OUR_TAGS, VERSION_LAST, Field, Schema, Struct, load
from tests.protocol.values import NAMES
from tests.rows import with_each


def structs(struct: Struct) -> Iterator[Struct]:
    yield struct
    for field in struct.fields:
        if field.struct:
            yield from structs(field.struct)


@with_each("name", NAMES)
def test_a_definition_holds_together(name: str) -> None:
    schema = load(name)
    assert schema.name == name
    assert schema.first <= schema.last
    for struct in structs(schema.root):
        names = [field.name for field in struct.fields]
        assert len(set(names)) == len(names)
        # Capitals are for other members of message classes.
        assert all(field == field.lower() for field in names)
        tags = [field.tag for field in struct.fields if field.tag is not None and field.tag < OUR_TAGS]
        assert tags == list(range(len(tags)))
        for field in struct.fields:
            check_field(field, schema)


def check_field(field: Field, schema: Schema) -> None:
    assert field.versions[0] <= schema.last, f"{field.name} is in no version"
    assert field.versions[1] in (VERSION_LAST, *range(schema.last + 1))
    if field.tag is not None:
        assert field.versions[0] >= schema.flexible_from or schema.first >= schema.flexible_from


def test_requests_and_responses_come_in_pairs_with_the_same_versions() -> None:
    for api in KNOWN.values():
        request, response = load(f"{api.name}Request"), load(f"{api.name}Response")
        assert request[1:5] == response[1:5] == (api.key, api.min_version, api.max_version, api.flexible_from)
    assert len(KNOWN) == sum(name.endswith("Request") for name in TEXTS)


def test_notation() -> None:
    """The notation of definitions covers versions, nulls in some of them, tags, defaults, and arrays of structs."""
    fields = {field.name: field for field in load("MetadataRequest").root.fields}
    topics = fields["topics"]
    assert topics.struct is not None and topics.struct.name == "Topics"
    assert (topics.is_array, topics.nullable(0), topics.nullable(1), topics.default) == (True, False, True, [])
    assert fields["allow_auto_topic_creation"].default is True
    assert [v for v in range(14) if fields["include_cluster_authorized_operations"].exists(v)] == [8, 9, 10]
    fetch = {field.name: field for field in load("FetchRequest").root.fields}
    assert (fetch["replica_state"].tag, fetch["replica_state"].default) == (1, None)
    assert fetch["max_bytes"].default == 0x7FFFFFFF
    assert fetch["cluster_id"].default is None


def test_classes_are_made_of_the_definitions() -> None:
    kind = messages.MetadataResponse
    response = kind(brokers=[kind.Brokers(node_id=1, host="h", port=9092)], topics=[kind.Topics(name="t")])
    assert response.brokers[0].rack is None
    assert response.topics[0].partitions == []
    assert response.topics[0].partitions is not kind.Topics().partitions
    assert response.controller_id == -1
    assert response == kind(brokers=[kind.Brokers(node_id=1, host="h", port=9092)], topics=[kind.Topics(name="t")])
    assert response != kind()
    assert kind() != messages.MetadataRequest()
    assert repr(response) == (
        "MetadataResponse(brokers=[MetadataResponse.Brokers(node_id=1, host='h', port=9092)], "
        "topics=[MetadataResponse.Topics(name='t')])"
    )
    assert (
        repr(messages.SaslAuthenticateRequest(auth_bytes=b"secret")) == "SaslAuthenticateRequest(auth_bytes=<6 bytes>)"
    )


def test_what_no_definition_has_is_an_error() -> None:
    with pytest.raises(AttributeError, match="there is no message named Metadata"):
        _ = messages.Metadata
    with pytest.raises(TypeError, match="topic_name"):
        messages.MetadataRequest(topic_name="t")
    request: Any = messages.MetadataRequest()
    with pytest.raises(AttributeError):
        request.topic_name = "t"


def test_nothing_is_compiled_before_it_is_used() -> None:
    """No reader or writer is compiled before its first use, as all 544 would take most of a start's half second."""
    code = (
        "import sys\n"
        "from pybroker.protocol import apis, codec, messages\n"
        "made = [name for name in vars(messages) if name.endswith(('Request', 'Response'))]\n"
        "heavy = {'asyncio', 'inspect', 'cramjam', 'pybroker.core'} & sys.modules.keys()\n"
        "assert not made and not heavy, (made, heavy)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
