"""The settings: parsing, refusals and their words, and the topic settings that come from the broker."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from pybroker import errors
from pybroker.config import BROKER, TOPIC, BrokerConfig, ConfigError, Setting, Source, Synonym, TopicConfig, Type
from pybroker.config.__main__ import document
from pybroker.config.settings import LONG_MAX, Choice, Range, as_text
from tests.rows import with_each

ROOT = Path(__file__).resolve().parent.parent
TABLES = {"broker": BROKER, "topic": TOPIC}
EVERY = [pytest.param(s, id=f"{kind}:{s.name}") for kind, table in TABLES.items() for s in table.values()]
NUMBERS = [
    pytest.param(s, id=f"{kind}:{s.name}")
    for kind, table in TABLES.items()
    for s in table.values()
    if s.type in (Type.INT, Type.SHORT, Type.LONG, Type.DOUBLE) and s.bounds()[0] is not None
]


def config(*sets: str) -> BrokerConfig:
    return BrokerConfig.load(sets=sets)


def refusal(*sets: str) -> str:
    with pytest.raises(ConfigError) as caught:
        config(*sets)
    return caught.value.message


# -- the table --------------------------------------------------------------------------------------------------------


@with_each("setting", EVERY)
def test_a_default_is_a_value_that_the_setting_takes_and_shows_as_it_was_written(setting: Setting) -> None:
    if setting.default is not None:
        value = setting.parse(setting.default, "here")
        assert as_text(value) == setting.default
    assert setting.doc.endswith(".")


@with_each("setting", NUMBERS)
def test_a_number_is_taken_at_its_limits_and_refused_beyond(setting: Setting) -> None:
    low, high = setting.bounds()
    assert low is not None
    for limit, beyond in ((low, low - 1), (high, (high or 0) + 1)):
        if limit is None:
            continue
        assert setting.parse(str(limit), "here") == limit
        if isinstance(setting.valid, Range) and setting.valid.also == beyond:
            beyond -= 1
        with pytest.raises(ConfigError):
            setting.parse(str(beyond), "here")


@with_each("text", ["", "1.5", "1_000", "0x10", "ten", "١٢", "9" * 5000])
def test_what_is_no_integer_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        BROKER["num.partitions"].parse(text, "here")


@with_each("text", ["nan", "inf", "-0.1", "1.01", "half", ""])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        TOPIC["min.cleanable.dirty.ratio"].parse(text, "here")


def test_values_are_typed() -> None:
    broker = config("num.partitions= 6", "log.cleanup.policy=compact , delete", "auto.create.topics.enable=FALSE")
    assert broker["num.partitions"] == 6
    assert broker["log.cleanup.policy"] == ("compact", "delete")
    assert broker["auto.create.topics.enable"] is False
    assert broker["log.cleaner.min.cleanable.ratio"] == 0.5
    assert broker["log.retention.ms"] is None
    assert "num.partitions" in broker
    assert "num.partition" not in broker


# -- words for people -------------------------------------------------------------------------------------------------


@with_each(
    ("given", "sentence"),
    [
        (
            "authorizer.class.name=x",
            "authorizer.class.name = 'x' (--set) is not allowed: it takes kafka.security.authorizer.AclAuthorizer, or "
            "nothing",
        ),
        ("num.partitions=0", "num.partitions = '0' (--set) is not allowed: it takes an integer from 1 to 2147483647"),
        ("log.roll.ms=0", "log.roll.ms = '0' (--set) is not allowed: it takes an integer of at least 1"),
        ("log.retention.bytes=a", "log.retention.bytes = 'a' (--set) is not allowed: it takes an integer of 64 bits"),
        (
            "compression.gzip.level=0",
            "compression.gzip.level = '0' (--set) is not allowed: it takes -1 or an integer from 1 to 9",
        ),
        (
            "log.message.timestamp.type=Now",
            "log.message.timestamp.type = 'Now' (--set) is not allowed: it takes one of CreateTime, LogAppendTime",
        ),
        (
            "log.cleanup.policy=delete,shrink",
            "log.cleanup.policy = 'delete,shrink' (--set) is not allowed: "
            "it takes a comma-separated list out of compact, delete",
        ),
        (
            "delete.topic.enable=yes",
            "delete.topic.enable = 'yes' (--set) is not allowed: it takes true or false",
        ),
        ("listeners=SSL:9093", "listeners = 'SSL:9093' (--set) is not allowed: it takes PLAINTEXT://HOST:PORT"),
        (
            "advertised.listeners=PLAINTEXT://0.0.0.0:9092",
            "advertised.listeners = 'PLAINTEXT://0.0.0.0:9092' (--set) is not allowed: "
            "it takes PLAINTEXT://HOST:PORT with a host that others can reach",
        ),
        ("num.partitions", "--set num.partitions is not name=value"),
        (
            "group.min.session.timeout.ms=1800001",
            "group.min.session.timeout.ms = '1800001' (--set) is not allowed: "
            "it takes at most group.max.session.timeout.ms, which is 1800000 (default)",
        ),
        (
            "replica.fetch.wait.max.ms=30001",
            "replica.fetch.wait.max.ms = '30001' (--set) is not allowed: "
            "it takes at most replica.lag.time.max.ms, which is 30000 (default)",
        ),
        (
            "queued.max.request.bytes=104857599",
            "queued.max.request.bytes = '104857599' (--set) is not allowed: "
            "it takes -1 or at least socket.request.max.bytes, which is 104857600 (default)",
        ),
        (
            "log.dirs=a,b,a",
            "log.dirs = 'a,b,a' (--set) is not allowed: "
            "it takes directories separated by commas, none of them empty or named twice",
        ),
    ],
)
def test_a_wrong_value_says_setting_value_what_is_allowed_and_where(given: str, sentence: str) -> None:
    assert refusal(given) == sentence


def test_a_wrong_value_in_a_file_is_found_by_its_line(tmp_path: Path) -> None:
    """A wrong value in a file is reported with its line; comments, continued lines and Windows line ends count."""
    file = tmp_path / "server.properties"
    file.write_bytes(b"# a comment\r\n\r\nbroker.id=1\r\nlog.dirs=/a,\\\r\n  /b\r\nnum.partitions : three\r\n")
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.load(str(file))
    assert caught.value.message == (
        f"num.partitions = 'three' ({file}:6) is not allowed: it takes an integer from 1 to 2147483647"
    )


def test_a_refusal_is_the_error_invalid_config_and_survives_pickling() -> None:
    with pytest.raises(ConfigError) as caught:
        config("num.partitions=x")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.code, copy.message) == (errors.INVALID_CONFIG, caught.value.message)


def test_an_unknown_name_warns_with_the_nearest_and_is_ignored() -> None:
    """An unknown name warns with the nearest name and is ignored: it may belong to a Kafka plug-in, or to a later
    Kafka."""
    broker = config("zookeeper.connecting=localhost", "confluent.support.metrics.enable=true")
    assert broker.warnings == [
        "zookeeper.connecting (--set) is not a setting of this broker; did you mean zookeeper.connect?",
        "confluent.support.metrics.enable (--set) is not a setting of this broker",
    ]
    assert broker["zookeeper.connect"] is None


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("num.partition", "num.partitions"),
        ("min.insync.replica", "min.insync.replicas"),
        ("log.retention.houres", "log.retention.hours"),
        ("listener", "listeners"),
    ],
)
def test_a_misspelt_name_is_refused_by_name(wrong: str, meant: str) -> None:
    """A misspelt name of an important setting is refused, so that none is ignored because of one letter."""
    assert refusal(f"{wrong}=3") == f"{wrong} (--set) is not a setting of this broker; did you mean {meant}?"


@pytest.mark.parametrize("name", ["absent.properties", "."])
def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"the config file .* cannot be read: (No such file|Is a directory)"):
        BrokerConfig.load(str(tmp_path / name))


def test_a_file_that_is_no_properties_file_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("broker.id=1\nlog.dir=\\u12")
    with pytest.raises(ConfigError, match=r"is not a \.properties file"):
        BrokerConfig.load(str(file))


def test_network_threads_at_their_limit_and_beyond() -> None:
    """num.network.threads has a limit: a number of threads that the broker cannot start is refused in one sentence."""
    assert config("num.network.threads=1024")["num.network.threads"] == 1024
    for wrong in (0, 1025):
        with pytest.raises(ConfigError, match=f"num.network.threads = '{wrong}' .* it takes an integer from 1 to 1024"):
            config(f"num.network.threads={wrong}")


# -- precedence -------------------------------------------------------------------------------------------------------


def test_set_wins_over_the_file_and_both_over_the_programs_defaults(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=2\nnum.io.threads=2\nnum.partitions=3\n")
    defaults = {"num.partitions": "1", "num.io.threads": "1", "background.threads": "1"}
    broker = BrokerConfig.load(str(file), ["num.io.threads=4"], defaults)
    names = ("num.partitions", "num.io.threads", "background.threads", "num.network.threads")
    assert [broker[name] for name in names] == [3, 4, 1, 3]
    assert [broker.where(name) for name in names] == [f"{file}:3", "--set", "set by the program", "default"]
    assert [broker.is_set(name) for name in names] == [True, True, True, False]
    assert broker.warnings == [f"num.partitions is set twice, at {file}:1 and {file}:3; the later one applies"]


def test_log_dirs_wins_over_log_dir() -> None:
    assert config().log_dirs == ["pybroker-data"]
    assert config("log.dir=a").log_dirs == ["a"]
    assert config("log.dir=a", "log.dirs=b, c").log_dirs == ["b", "c"]


def test_listeners_are_endpoints() -> None:
    [local] = config("listeners=PLAINTEXT://[::1]:0").listeners.endpoints
    assert (local, str(local)) == (("PLAINTEXT", "::1", 0), "PLAINTEXT://[::1]:0")
    assert config().listeners.endpoints == (("PLAINTEXT", "", 9092),)
    assert config().listeners.advertised is None
    advertised = config("advertised.listeners=PLAINTEXT://kafka.example:19092").listeners.advertised
    assert advertised == (("PLAINTEXT", "kafka.example", 19092),)


@pytest.mark.parametrize("text", ["PLAINTEXT://:65536", "PLAINTEXT://a b:1", "localhost:9092", "PLAINTEXT://h", ""])
def test_what_is_no_listener_is_refused(text: str) -> None:
    assert "it takes PLAINTEXT://HOST:PORT" in refusal(f"listeners={text}")


# -- topics -----------------------------------------------------------------------------------------------------------


@with_each(
    ("sets", "retention_ms"),
    [
        ([], 604_800_000),
        (["log.retention.hours=1"], 3_600_000),
        (["log.retention.hours=1", "log.retention.minutes=1"], 60_000),
        (["log.retention.hours=1", "log.retention.minutes=1", "log.retention.ms=1"], 1),
        (["log.retention.hours=-1"], -1),
        (["log.retention.minutes=-1"], -1),
    ],
)
def test_the_finest_unit_of_retention_that_is_set_holds(sets: list[str], retention_ms: int) -> None:
    assert TopicConfig(config(*sets), {})["retention.ms"] == retention_ms
    assert TopicConfig(config(*sets), {"retention.ms": "7"})["retention.ms"] == 7


def test_rolling_and_flushing_have_their_alternatives_too() -> None:
    topic = TopicConfig(config("log.roll.hours=2", "log.roll.jitter.hours=1", "log.flush.scheduler.interval.ms=9"), {})
    assert (topic["segment.ms"], topic["segment.jitter.ms"], topic["flush.ms"]) == (7_200_000, 3_600_000, 9)
    assert TopicConfig(config(), {})["flush.ms"] == LONG_MAX


def test_a_topics_default_is_its_brokers_default_read_in_the_topics_unit() -> None:
    """A topic's default is its broker's default, converted to the topic's unit: the two tables agree."""
    topic = TopicConfig(config(), {})
    for name, setting in TOPIC.items():
        assert as_text(topic[name]) == setting.default, name


def test_core_gets_integers() -> None:
    own = {"cleanup.policy": "compact,delete", "message.timestamp.type": "LogAppendTime", "segment.bytes": "1024"}
    assert TopicConfig(config("producer.id.expiration.ms=5"), own).core() == {
        "segment.bytes": 1024,
        "segment.ms": 604_800_000,
        "segment.jitter.ms": 0,
        "segment.index.bytes": 10_485_760,
        "index.interval.bytes": 4096,
        "retention.ms": 604_800_000,
        "retention.bytes": -1,
        "max.message.bytes": 1_048_588,
        "file.delete.delay.ms": 60_000,
        "flush.messages": LONG_MAX,
        "message.timestamp.type": 1,
        "cleanup.policy": 3,
        "producer.id.expiration.ms": 5,
    }
    assert TopicConfig(config(), {}).core()["cleanup.policy"] == 1
    assert TopicConfig(config(), {"cleanup.policy": ""}).core()["cleanup.policy"] == 0


def test_the_older_timestamp_limit_holds_where_the_newer_ones_are_left_alone() -> None:
    def limits(**own: str) -> tuple[int, int]:
        named = {f"message.timestamp.{which}.max.ms": text for which, text in own.items()}
        return TopicConfig(config(), named).timestamp_limits_ms()

    assert limits() == (LONG_MAX, LONG_MAX)
    assert limits(difference="5") == (5, 5)
    assert limits(difference="5", after="9") == (5, 9)
    assert limits(before="1", after="2") == (1, 2)


@with_each(
    ("own", "sentence"),
    [
        ({"retention.m": "5"}, "'retention.m' is no setting of a topic; did you mean retention.ms?"),
        ({"colour": "red"}, "'colour' is no setting of a topic"),
        ({"retention.ms": None}, "retention.ms has no value; it takes an integer of at least -1"),
        (
            {"retention.ms": "-2"},
            "retention.ms = '-2' (the topic's own) is not allowed: it takes an integer of at least -1",
        ),
        (
            {"remote.storage.enable": "true"},
            "remote.storage.enable = 'true' (the topic's own) is not allowed: it takes only false",
        ),
        (
            {"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"},
            "min.compaction.lag.ms = 6 is above max.compaction.lag.ms = 5",
        ),
    ],
)
def test_a_topic_is_refused_in_one_sentence(own: dict[str, str | None], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TopicConfig(config(), own)
    assert caught.value.message == sentence


def test_a_refusal_fits_into_an_answer_whatever_a_client_sent() -> None:
    """A refusal fits into an answer for any request: a name and a value of 30,000 characters are cut in the error
    message."""
    long = "x" * 30_000
    for own in ({long: "1"}, {"retention.ms": long}):
        with pytest.raises(ConfigError) as caught:
            TopicConfig(config(), own)
        assert len(caught.value.message) < 300


# -- DescribeConfigs --------------------------------------------------------------------------------------------------


def test_a_brokers_entry_says_where_its_value_comes_from() -> None:
    entries = {entry.name: entry for entry in config("log.retention.minutes=10").entries()}
    assert list(entries) == list(BROKER)
    names = ("log.retention.ms", "log.retention.minutes", "log.retention.hours", "min.insync.replicas")
    ms, minutes, hours, least = (entries[name] for name in names)
    assert (minutes.value, minutes.source, minutes.type) == ("10", Source.STATIC_BROKER, Type.INT)
    assert (hours.value, hours.source) == ("168", Source.DEFAULT)
    assert (ms.value, ms.source, ms.synonyms) == (None, Source.DEFAULT, ())
    by_default = Synonym("log.retention.hours", "168", Source.DEFAULT)
    assert minutes.synonyms == (Synonym("log.retention.minutes", "10", Source.STATIC_BROKER), by_default)
    assert hours.synonyms == (by_default,)
    assert (minutes.read_only, least.read_only) == (True, False)
    hidden = {n for n in BROKER if BROKER[n].sensitive} | {"super.users", "allow.everyone.if.no.acl.found"}
    assert {n for n, entry in entries.items() if entry.sensitive} == hidden
    assert all(entry.value is None for entry in entries.values() if entry.sensitive)


def test_a_topics_entry_names_every_place_that_has_a_value() -> None:
    entries = {e.name: e for e in TopicConfig(config("log.retention.ms=8"), {"retention.ms": "7"}).entries()}
    assert list(entries) == list(TOPIC)
    kept, cleaned = entries["retention.ms"], entries["cleanup.policy"]
    assert (kept.value, kept.source, kept.type, kept.read_only) == ("7", Source.DYNAMIC_TOPIC, Type.LONG, False)
    assert kept.synonyms == (
        Synonym("retention.ms", "7", Source.DYNAMIC_TOPIC),
        Synonym("log.retention.ms", "8", Source.STATIC_BROKER),
        Synonym("log.retention.hours", "168", Source.DEFAULT),
    )
    assert (cleaned.value, cleaned.source, cleaned.type) == ("delete", Source.DEFAULT, Type.LIST)
    assert entries["preallocate"].synonyms == (Synonym("log.preallocate", "false", Source.DEFAULT),)
    assert entries["remote.storage.enable"].synonyms == ()


# -- the page and the price -------------------------------------------------------------------------------------------


def test_the_page_of_settings_is_current() -> None:
    """The page of settings is current; `python -m pybroker.config > docs/config.md` writes it."""
    assert (ROOT / "docs/config.md").read_text() == document()


def test_every_choice_is_documented() -> None:
    page = document()
    for setting in (*BROKER.values(), *TOPIC.values()):
        assert f"| `{setting.name}` |" in page
        if isinstance(setting.valid, Choice):
            assert all(word in setting.allowed for word in setting.valid.words)


def test_importing_the_settings_is_cheap() -> None:
    """Importing the settings is cheap: a broker without a config file never imports the .properties reader, which takes
    longer than the rest."""
    code = (
        "import pybroker.config, sys; pybroker.config.BrokerConfig.load(sets=['num.partitions=2']); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"javaproperties", "asyncio", "dataclasses"} & set(done.stdout.split())


def test_a_compacted_topic_rolls_in_time_to_be_compacted() -> None:
    """A compacted topic rolls its active segment, which is not compacted, after max.compaction.lag.ms if that is less
    than segment.ms."""
    broker = config()
    for policy, expected in (("compact", 5000), ("compact,delete", 5000), ("delete", 604800000)):
        compacted = TopicConfig(broker, {"cleanup.policy": policy, "max.compaction.lag.ms": "5000"})
        assert compacted.core()["segment.ms"] == expected


def test_who_may_do_everything_is_hidden() -> None:
    """super.users is hidden, as Kafka hides settings that only its authorizer defines: a client that may describe a
    broker should not learn the super users."""
    given = config("super.users=User:boss;User:ann")
    (entry,) = [entry for entry in given.entries() if entry.name == "super.users"]
    assert (entry.value, entry.sensitive) == (None, True)
    assert entry.synonyms == (Synonym("super.users", None, Source.STATIC_BROKER),)
    assert "boss" not in repr(given.entries())
