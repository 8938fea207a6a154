"""Names of kafka-python, aiokafka and confluent-kafka that have another name here: an error says which.

Settings of the same meaning are in SETTINGS, methods in the table of each client, keyword arguments at their methods.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar, Final, ParamSpec, TypeVar

from pybroker.config.settings import ConfigError

Given = ParamSpec("Given")
Result = TypeVar("Result")

_LOGGED: Final = "the log has errors: see the logger pybroker.client"
_NOTHING: Final = "it has no equivalent here, and can be left out"

SETTINGS: Final[Mapping[str, str]] = {
    # the same under another name
    "metadata_broker_list": "bootstrap_servers",
    "sasl_plain_username": "sasl_username",
    "sasl_plain_password": "sasl_password",
    "sasl_mechanisms": "sasl_mechanism",
    "oauth_cb": "sasl_oauth_token_provider",
    "ssl_ca_location": "ssl_cafile",
    "ssl_certificate_location": "ssl_certfile",
    "ssl_key_location": "ssl_keyfile",
    "socket_timeout_ms": "request_timeout_ms",
    "topic_metadata_refresh_interval_ms": "metadata_max_age_ms",
    "max_batch_size": "batch_size",
    "batch_num_messages": "batch_size",
    "queue_buffering_max_ms": "linger_ms",
    "queue_buffering_max_messages": "buffer_memory",
    "queue_buffering_max_kbytes": "buffer_memory",
    "compression_codec": "compression_type",
    "message_max_bytes": "max_request_size",
    "message_timeout_ms": "delivery_timeout_ms",
    "message_send_max_retries": "retries",
    "request_required_acks": "acks",
    "max_in_flight": "max_in_flight_requests_per_connection",
    "fetch_wait_max_ms": "fetch_max_wait_ms",
    "fetch_message_max_bytes": "max_partition_fetch_bytes",
    "queued_max_messages_kbytes": "fetch_max_bytes",
    "queued_min_messages": "fetch_max_bytes",
    # another way to the same
    "consumer_timeout_ms": "iteration has no end here: poll(timeout_ms=...) returns an empty list after that time",
    "ssl_context": "use ssl_cafile, ssl_certfile and ssl_keyfile",
    "enable_auto_offset_store": "use enable_auto_commit=False, and commit(offsets) for the records that are done",
    "default_offset_commit_callback": "use commit_async(), whose future takes callbacks",
    "on_commit": "use commit_async(), whose future takes callbacks",
    "error_cb": _LOGGED,
    "logger": _LOGGED,
    "debug": _LOGGED,
    "api_version": "versions are agreed with each broker; leave it out",
    "api_version_auto_timeout_ms": "versions are agreed with each broker; leave it out",
    "key_serializer": "producers serialize; a consumer has key_deserializer",
    "value_serializer": "producers serialize; a consumer has value_deserializer",
    "key_deserializer": "consumers deserialize; a producer has key_serializer",
    "value_deserializer": "consumers deserialize; a producer has value_serializer",
    "partitioner": "producers choose partitions; a consumer has partition_assignment_strategy",
    **dict.fromkeys(
        (
            "connections_max_idle_ms", "send_buffer_bytes", "receive_buffer_bytes", "socket_options", "loop",
            "metric_reporters", "metrics_num_samples", "metrics_sample_window_ms", "interceptor_classes", "selector",
            "stats_cb", "statistics_interval_ms", "throttle_cb", "enable_partition_eof", "socket_keepalive_enable",
        ),
        _NOTHING,
    ),
}  # fmt: skip
"""Settings of other libraries, with underscores, and ours of the same meaning, or a sentence."""

_CLOSE: Final = "close(), or `with`"
_TOPICS: Final = "Admin(...).topics()"
_OFFSETS: Final = "beginning_offsets(partitions) and end_offsets(partitions)"

PRODUCER: Final[Mapping[str, str]] = {
    "produce": "send(topic, value, key=..., on_delivery=...)",
    "poll": "nothing: a thread of the producer calls on_delivery",
    "start": "nothing: a producer is ready once it is made",
    "stop": _CLOSE,
    "list_topics": _TOPICS,
    "partitions_for_topic": "partitions_for(topic)",
    "send_batch": "send_columns(topic, values)",
    "create_batch": "send_columns(topic, values)",
    "purge": "close(timeout_s=0)",
}  # fmt: skip
CONSUMER: Final[Mapping[str, str]] = {
    "consume": "poll(timeout_ms, max_records)",
    "getone": "iteration, or poll(timeout_ms, max_records=1)",
    "getmany": "poll(timeout_ms, max_records)",
    "start": "nothing: a consumer is ready once it is made",
    "stop": _CLOSE,
    "partitions_for_topic": "partitions_for(topic)",
    "topics": _TOPICS,
    "list_topics": _TOPICS,
    "get_watermark_offsets": _OFFSETS,
    "highwater": "lag(), or end_offsets(partitions)",
    "last_stable_offset": 'end_offsets(partitions), with isolation_level="read_committed"',
    "store_offsets": "commit(offsets), with enable_auto_commit=False",
    "incremental_assign": "assign(partitions)",
    "incremental_unassign": "assign(partitions)",
    "unassign": "unsubscribe()",
    "seek_to_committed": "committed(partitions) and seek(partition, offset)",
}
ADMIN: Final[Mapping[str, str]] = {
    "create_topics": "create_topic(name, partitions=..., configs=...)",
    "delete_topics": "delete_topic(name)",
    "list_topics": "topics()",
    "describe_topics": "topics(names)",
    "describe_configs": "configs(resource), or topic_configs(names)",
    "incremental_alter_configs": "alter_configs(resource, alterations)",
    "list_consumer_groups": "groups()",
    "list_groups": "groups()",
    "describe_consumer_groups": "describe_groups(ids)",
    "delete_consumer_groups": "delete_group(group)",
    "delete_groups": "delete_group(group)",
    "list_consumer_group_offsets": "group_offsets(ids)",
    "list_group_offsets": "group_offsets(ids)",
    "alter_consumer_group_offsets": "alter_group_offsets(group, offsets)",
    "list_offsets": "offsets(topics, timestamp)",
    "describe_acls": "acls(wanted)",
    "describe_log_dirs": "log_dirs()",
    "perform_leader_election": "elect_leaders(partitions)",
    "describe_user_scram_credentials": "users()",
    "alter_user_scram_credentials": "set_password(user, password)",
    "describe_client_quotas": "quotas(wanted)",
    "alter_client_quotas": "alter_quotas(alterations)",
    "start": "nothing: it connects with its first call",
}
CLASSES: Final[Mapping[str, str]] = {
    "KafkaProducer": "Producer",
    "KafkaConsumer": "Consumer",
    "KafkaAdminClient": "Admin",
    "AdminClient": "Admin",
    "AIOKafkaProducer": "AsyncProducer",
    "AIOKafkaConsumer": "AsyncConsumer",
    "AIOKafkaAdminClient": "AsyncAdmin",
    "SerializingProducer": "Producer",
    "DeserializingConsumer": "Consumer",
    "AIOProducer": "AsyncProducer",
    "AIOConsumer": "AsyncConsumer",
    "ConsumerRecord": "Record",
    "Message": "Record",
    "NewTopic": "Admin.create_topic",
    "SchemaRegistryClient": "SchemaRegistry",
    "AvroSerializer": "Avro",
    "AvroDeserializer": "Avro",
    "ConsumerRebalanceListener": "RebalanceListener",
    "KafkaException": "KafkaError",
}


class OfOtherClients:
    """A client whose missing attributes name ours, if another library has them."""

    _OTHERS: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # a type checker knows that they are missing

        def __getattr__(self, name: str) -> object:
            words = f"{type(self).__name__!r} object has no attribute {name!r}"
            ours = self._OTHERS.get(name)
            raise AttributeError(f"{words}: here it is {ours}" if ours else words)


def setting(name: str, known: Iterable[str]) -> str | None:
    """Say what replaces another library's setting; None if the name is unknown, or of another client."""
    found = SETTINGS.get(name.replace(".", "_"))
    if found is None or (found.isidentifier() and found not in known):
        return None
    return f"use {found}" if found.isidentifier() else found


def no_settings_first(client: str, given: tuple[object, ...], *, topics: bool = False, addresses: bool = False) -> None:
    """Refuse a dict of settings as the first argument, and addresses among topics; `addresses` may come first."""
    if not given:
        return
    first = given[0]
    if isinstance(first, Mapping):
        names = dict.fromkeys(_ours(str(name)) for name in first)
        call = f"{client}({', '.join(f'{name}=...' for name in names)})"
        raise ConfigError(f"{client} takes settings as keyword arguments with underscores, not as a dict: {call}")
    if addresses:
        return
    if not topics:
        raise TypeError(f"{client} takes keyword arguments alone, like bootstrap_servers='localhost:9092'")
    for topic in given:
        if not isinstance(topic, str):
            raise TypeError(f"{client} takes names of topics, each a str, and settings by keyword, not {topic!r}")
        if ":" in topic:
            raise ConfigError(f"{topic!r} is no name of a topic; for an address, use bootstrap_servers={topic!r}")


def _ours(name: str) -> str:
    plain = name.replace(".", "_")
    other = SETTINGS.get(plain, plain)
    return other if other.isidentifier() else plain


def renamed(**ours: str) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """Have a method refuse keyword arguments of other libraries with a TypeError that names ours."""

    def decorate(call: Callable[Given, Result]) -> Callable[Given, Result]:
        @functools.wraps(call)
        def checked(*arguments: Given.args, **named: Given.kwargs) -> Result:
            for name in named:
                if name in ours:
                    raise TypeError(f"{call.__qualname__}() has no argument {name!r}: here it is {ours[name]}")
            return call(*arguments, **named)

        return checked

    return decorate
