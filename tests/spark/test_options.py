"""The options of the source and the sink: meaning, precedence, and the errors for wrong values."""

from typing import Any

import pytest

from pybroker.errors import INVALID_CONFIG, KafkaError
from pybroker.spark import offsets, options
from pybroker.spark.offsets import AT_EARLIEST, AT_LATEST, OffsetBound
from tests.rows import with_each

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
NAMED = {**SERVERS, "subscribe": "events"}


def source(streaming: bool = False, **given: str) -> options.SourceOptions:
    return options.parse_source({**NAMED, **given}, streaming=streaming)


def refusal(given: dict[str, str], *, streaming: bool = False) -> str:
    with pytest.raises(KafkaError) as caught:
        options.parse_source(given, streaming=streaming)
    assert caught.value.code == INVALID_CONFIG
    return caught.value.message


def test_the_defaults_are_those_of_sparks_connector() -> None:
    """The defaults are those of Spark's connector: a batch reads every record, a stream only new ones, nothing is
    limited, and lost data is an error."""
    batch, stream = source(), source(streaming=True)
    assert (batch.start, batch.end, stream.start) == (AT_EARLIEST, AT_LATEST, AT_LATEST)
    assert batch.fail_on_data_loss and not batch.include_headers and not batch.read_committed
    assert batch.max_offsets is batch.min_offsets is batch.min_partitions is batch.max_records_per_partition is None
    assert batch.max_trigger_delay_ms == 15 * 60 * 1000


def test_names_are_told_in_any_case() -> None:
    """Option names match in any case, as Spark passes them in lower case; values keep their case."""
    given = {
        "KAFKA.bootstrap.servers": "h:1",
        "SUBSCRIBE": "Events",
        "MaxOffsetsPerTrigger": "7",
        "includeheaders": "TRUE",
    }
    parsed = options.parse_source(given, streaming=True)
    assert parsed.bootstrap == "h:1" and parsed.subscription.topics == ("Events",)
    assert parsed.max_offsets == 7 and parsed.include_headers


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"subscribe": "a, b,a,"}, options.Subscription(topics=("a", "b"))),
        ({"subscribePattern": "a.*"}, options.Subscription(pattern="a.*")),
        ({"assign": '{"a":[0,2]}'}, options.Subscription(partitions=frozenset({("a", 0), ("a", 2)}))),
    ],
)
def test_three_ways_to_say_what_is_read(given: dict[str, str], expected: options.Subscription) -> None:
    """A read names its topics in one of three ways: a list, a pattern, or partitions."""
    assert options.parse_source({**SERVERS, **given}, streaming=False).subscription == expected


@with_each(
    ("given", "sentence"),
    [
        ({"subscribe": "a"}, "kafka.bootstrap.servers is missing"),
        (SERVERS, "none is given"),
        ({**NAMED, "assign": '{"a":[0]}'}, "assign and subscribe are given"),
        ({**SERVERS, "subscribe": " , "}, "subscribe has no topic"),
        ({**SERVERS, "subscribePattern": "a("}, "not a regular expression"),
        ({**SERVERS, "assign": '{"a":[-1]}'}, "assign is"),
        ({**SERVERS, "assign": "{}"}, "at least one partition"),
        ({**NAMED, "startingOffsets": "latest"}, "nothing to read"),
        ({**NAMED, "startingOffsets": '{"a":{"0":-1}}'}, "nothing to read"),
        ({**NAMED, "startingOffsets": '{"a":{"0":-3}}'}, "from -2 on"),
        ({**NAMED, "startingOffsets": '{"a":{"0":true}}'}, "from -2 on"),
        ({**NAMED, "startingOffsets": '{"a":'}, "JSON by topic"),
        ({**NAMED, "startingOffsets": "[1]"}, "JSON by topic"),
        ({**NAMED, "startingOffsetsByTimestamp": '{"a":{"0":-1}}'}, "from 0 on"),
        ({**NAMED, "startingTimestamp": "soon"}, "milliseconds"),
        ({**NAMED, "endingOffsets": "earliest"}, "nothing to read"),
        ({**NAMED, "endingOffsets": '{"a":{"0":-2}}'}, "nothing to read"),
        ({**NAMED, "failOnDataLoss": "perhaps"}, "true or false"),
        ({**NAMED, "maxOffsetsPerTrigger": "0"}, "above 0"),
        ({**NAMED, "maxOffsetsPerTrigger": "1e6"}, "whole number"),
        ({**NAMED, "maxOffsetsPerTrigger": "9", "minOffsetsPerTrigger": "10"}, "10 is above maxOffsetsPerTrigger 9"),
        ({**NAMED, "maxTriggerDelay": "soon"}, "such as 15m"),
        ({**NAMED, "kafka.isolation.level": "dirty"}, "read_uncommitted or read_committed"),
        ({**NAMED, "kafka.auto.offset.reset": "latest"}, "set startingOffsets"),
        ({**NAMED, "kafka.isolation.levle": "read_committed"}, "levle: did you mean kafka.isolation.level"),
        ({**NAMED, "kafka.isolation_level": "read_committed"}, "did you mean kafka.isolation.level"),
        ({**NAMED, "kafka.sasl.mechansim": "PLAIN"}, "did you mean kafka.sasl.mechanism"),
        ({**NAMED, "kafka.max.poll.record": "5"}, "did you mean kafka.max.poll.records"),
        ({**NAMED, "kafka.compresion.type": "lz4"}, "compresion.type: did you mean kafka.compression.type"),
        ({**NAMED, "kafka.metadata.max.idel.ms": "5"}, "did you mean kafka.metadata.max.idle.ms"),
        ({**NAMED, "fetch.max.bytes": "5"}, "a client setting: name it kafka.fetch.max.bytes"),
        ({**NAMED, "Max.Poll.Records": "5"}, "name it kafka.max.poll.records"),
        ({**NAMED, "linger.ms": "5"}, "linger.ms is a setting of producers and has no effect here: remove it"),
        ({**NAMED, "isolation.level": "read_committed"}, "a client setting: name it kafka.isolation.level"),
        ({**NAMED, "group.id": "g"}, "name it kafka.group.id"),
        ({**NAMED, "maxBytesPerTrigger": "5"}, "maxbytespertrigger is not supported: use maxOffsetsPerTrigger"),
        ({**NAMED, "maxRatePerPartition": "5"}, "use maxOffsetsPerTrigger"),
        ({**NAMED, "kafka.security.protocol": "MAGIC"}, "takes one of PLAINTEXT, SSL, SASL_PLAINTEXT"),
        ({**NAMED, "kafka.security.protocol": "SASL_PLAINTEXT"}, "and sasl_mechanism is not given"),
        ({**NAMED, "kafka.sasl.jaas.config": "com.sun.x.JndiLoginModule required;"}, "must be one of org"),
        ({**NAMED, "startingOfsets": "latest"}, "did you mean startingOffsets?"),
    ],
)
def test_a_wrong_option_is_told_in_one_sentence(given: dict[str, str], sentence: str) -> None:
    """A wrong option is a configuration error of one sentence, with the option and its allowed values."""
    message = refusal(given)
    assert sentence in message and "\n" not in message


@pytest.mark.parametrize(
    ("option", "value"),
    [("endingOffsets", "latest"), ("endingOffsetsByTimestamp", '{"events":{"0":1}}'), ("endingTimestamp", "1")],
)
def test_a_stream_has_no_end(option: str, value: str) -> None:
    """A stream refuses every option that sets an end."""
    assert "a stream has no end" in refusal({**NAMED, option: value}, streaming=True)


def test_one_time_for_all_wins_over_times_and_they_over_offsets() -> None:
    """One starting timestamp for all wins over timestamps by partition, and these over offsets, as in Spark."""
    every: dict[str, Any] = {
        "startingTimestamp": "5",
        "startingOffsetsByTimestamp": '{"events":{"0":6}}',
        "startingOffsets": '{"events":{"0":7}}',
    }
    assert source(**every).start == OffsetBound("timestamps", 5, {})
    del every["startingTimestamp"]
    assert source(**every).start == OffsetBound("timestamps", None, {("events", 0): 6})
    del every["startingOffsetsByTimestamp"]
    assert source(**every).start == OffsetBound("offsets", None, {("events", 0): 7})


@pytest.mark.parametrize(
    ("text", "expected_ms"), [("15m", 900_000), ("2 h", 7_200_000), ("30s", 30_000), ("500ms", 500), ("7", 7)]
)
def test_times_are_written_as_spark_writes_them(text: str, expected_ms: int) -> None:
    """A duration is a number and a unit, and milliseconds without a unit."""
    assert source(maxTriggerDelay=text).max_trigger_delay_ms == expected_ms


def test_the_group_is_named_itself_or_after_the_query() -> None:
    """The group is kafka.group.id, or else the query's name with the prefix."""
    assert source().group is None
    assert source(queryName="q").group == "spark-kafka-source-q"
    assert source(queryName="q", groupIdPrefix="p").group == "p-q"
    assert source(queryName="q", **{"kafka.group.id": "g"}).group == "g"


def test_an_option_that_is_nothing_like_ours_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """An option of another system is ignored; a kafka. option without effect is ignored with a warning."""
    source(**{"checkpointLocation": "/x", "somebodyElses": "1", "kafka.max.poll.records": "5000", "kafka.own.x": "1"})
    assert "kafka.max.poll.records has no effect here: it tunes the Java client" in caplog.text
    assert "kafka.own.x has no effect: no known Kafka client has this setting" in caplog.text


OF_BOTH = options.CLIENT_SETTINGS - options.REFUSED.keys() - options.SECURITY_CLIENT - {"bootstrap.servers"}


@with_each("name", sorted(OF_BOTH - options.SOURCE_CLIENT))
def test_a_source_takes_each_name_that_kafkas_clients_have(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The source accepts each option of Kafka's clients and logs those without effect: one set may serve a source and a
    sink."""
    caplog.clear()
    source(**{f"kafka.{name}": "1"})
    assert f"kafka.{name} has no effect here: it " in caplog.text


@with_each("name", sorted(OF_BOTH - options.SINK_CLIENT))
def test_a_sink_takes_each_name_that_kafkas_clients_have(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    options.parse_sink({**SERVERS, f"kafka.{name}": "1"})
    assert f"kafka.{name} has no effect here: it " in caplog.text


def test_a_setting_of_the_other_client_is_said_to_be_one(caplog: pytest.LogCaptureFixture) -> None:
    source(**{"kafka.metadata.max.idle.ms": "1", "kafka.acks": "all"})
    options.parse_sink({**SERVERS, "kafka.isolation.level": "read_committed", "kafka.max.poll.records": "1"})
    assert [record.message for record in caplog.records] == [
        "kafka.metadata.max.idle.ms has no effect here: it is a setting of producers",
        "kafka.acks has no effect here: it is a setting of producers",
        "kafka.isolation.level has no effect here: it is a setting of consumers",
        "kafka.max.poll.records has no effect here: it is a setting of consumers",
    ]


def test_the_sink_hands_the_producer_its_settings() -> None:
    """The sink passes settings to the Producer by the Producer's names, and refuses acks other than all."""
    given = {**SERVERS, "topic": "t", "repeatHeaders": "true", "kafka.linger.ms": "20", "kafka.compression.type": "lz4"}
    sink = options.parse_sink(given)
    assert sink.topic == "t" and sink.repeat_headers
    assert sink.client == {"linger_ms": "20", "compression_type": "lz4"}
    with pytest.raises(KafkaError, match="only acks=all is supported"):
        options.parse_sink({**SERVERS, "kafka.acks": "1"})
    for slip, right in {
        "kafka.compresion.type": "did you mean kafka.compression.type",
        "compression.type": "name it kafka.compression.type",
        "max.block.ms": "name it kafka.max.block.ms",
        "fetch.max.bytes": "a setting of consumers and has no effect here",
        "kafka.max.poll.record": "did you mean kafka.max.poll.records",
        "kafka.isolation.levle": "did you mean kafka.isolation.level",
        "kafka.transactional.id": "without transactions",
    }.items():
        with pytest.raises(KafkaError, match=right):
            options.parse_sink({**SERVERS, "topic": "t", slip: "x"})


def test_a_checkpoint_of_sparks_connector_is_read() -> None:
    """A checkpoint of Spark's connector can be read: the JSON of offsets is the same, malformed JSON is an error, and
    partitions have one order."""
    read = offsets.from_json({"b": {"0": 1}, "a": {"10": 3, "2": 4}})
    assert read == {("b", 0): 1, ("a", 10): 3, ("a", 2): 4}
    assert str(offsets.to_json(read)) == "{'a': {'2': 4, '10': 3}, 'b': {'0': 1}}"
    with pytest.raises(KafkaError, match="the offsets in the checkpoint"):
        offsets.from_json({"a": {"0": -1}})
