"""`pybroker produce` against any broker: each test pipes input into it, and checks what another client reads."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from pybroker.cli.records import delimited
from tests.cli.conftest import Command, run, start
from tests.cli.members import stored
from tests.harness import BrokerProcess, Server, until
from tests.rows import with_each


@pytest.fixture
def there(pybroker_: Command, topic: str) -> str:
    """A topic with one partition."""
    pybroker_("topics", "create", topic, "-p", 1)
    return topic


def test_each_line_is_a_record(pybroker_: Command, target: Server, there: str, tmp_path: Path) -> None:
    """Each line of standard input or a file is a record; the last line may lack its newline, and an empty line is an
    empty record."""
    done = pybroker_("produce", there, stdin="one\n\nthree")
    assert (done.code, done.out, done.err) == (0, "", "")
    (tmp_path / "more").write_bytes(b"four\r\n")
    assert pybroker_("produce", there, "--file", tmp_path / "more").code == 0
    assert pybroker_("produce", there, stdin="").code == 0
    assert [m.value() for m in stored(target.bootstrap, there)] == [b"one", b"", b"three", b"four\r"]


def test_keys_headers_and_nulls(pybroker_: Command, target: Server, there: str) -> None:
    """Keys, headers and nulls have the notation of Kafka's console producer; one header set may apply to every
    record."""
    stdin = "a:1,b:NULL\tk1=v=1\nNO_HEADERS\tNULL=NULL\n\tk3=\n"
    done = pybroker_(
        "produce", there, "--headers", "-K", "=", "--null-value", "NULL", "-H", "from=x=y ", stdin=stdin
    )  # fmt: skip
    assert done.code == 0, done.err
    assert [(m.key(), m.value(), m.headers()) for m in stored(target.bootstrap, there)] == [
        (b"k1", b"v=1", [("a", b"1"), ("b", None), ("from", b"x=y ")]),
        (None, None, [("from", b"x=y ")]),
        (b"k3", b"", [("from", b"x=y ")]),
    ]


def test_any_byte_goes(pybroker_: Command, target: Server, there: str) -> None:
    """Any byte can be sent: with another delimiter, or with none, when the input is one record."""
    everything = bytes(range(256)) * 300
    assert pybroker_("produce", there, "-D", "", "-k", r"k\0\x01", stdin=everything).code == 0
    assert pybroker_("produce", there, "-D", r"\0\n", stdin=b"a\nb\0\nc\0\n").code == 0
    assert [(m.key(), m.value()) for m in stored(target.bootstrap, there)] == [
        (b"k\0\x01", everything), (None, b"a\nb"), (None, b"c"),
    ]  # fmt: skip


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec(shared_broker: Server, topic: str, codec: str) -> None:
    """Records of every codec are read here, and are compressed on the disk."""
    run("topics", "create", topic, "-p", 1, "-b", shared_broker.bootstrap)
    line = "x" * 100
    done = run("produce", topic, "-z", codec, "-b", shared_broker.bootstrap, stdin=f"{line}\n" * 1000)
    assert done.code == 0, done.err
    assert [m.value() for m in stored(shared_broker.bootstrap, topic)] == [line.encode()] * 1000
    assert sum(p.stat().st_size for p in shared_broker.partition_dir(topic).glob("*.log")) < 50_000


def test_where_records_go(pybroker_: Command, target: Server, topic: str) -> None:
    """Records go to a named partition, or to that of Java's hash of the key: `coffee` goes to 1 of 3."""
    pybroker_("topics", "create", topic, "-p", 3)
    pybroker_("produce", topic, "-p", 2, "--acks", "1", stdin="fixed\n")
    pybroker_("produce", topic, "-K", ":", "--acks", "0", stdin="coffee:hot\n")
    until("both are there", lambda: len(stored(target.bootstrap, topic, 3)) == 2)
    assert {m.value(): m.partition() for m in stored(target.bootstrap, topic, 3)} == {b"fixed": 2, b"hot": 1}
    missing = pybroker_("produce", topic, "-p", 3, stdin="x\n")
    assert missing.code == 1 and "partitions 0 to 2, not 3" in missing.sentence


def test_json_lines(pybroker_: Command, target: Server, topic: str) -> None:
    """A JSON line has every part of a record: text, bytes, null, headers, timestamp and partition."""
    pybroker_("topics", "create", topic, "-p", 2)
    stdin = """\
{"key": "é", "value": {"base64": "AP8="}, "headers": [["h", null], ["h", "x"]], "timestamp": 1700000000000}
{"value": null, "partition": 1, "offset": 99, "topic": "elsewhere", "timestamp_type": "LogAppendTime"}
"""
    assert pybroker_("produce", topic, "--json", "-p", 0, stdin=stdin.splitlines()[0]).code == 0
    assert pybroker_("produce", topic, "--json", stdin=stdin.splitlines()[1]).code == 0
    first, second = stored(target.bootstrap, topic, 2)
    assert (first.key(), first.value(), first.headers()) == ("é".encode(), b"\0\xff", [("h", None), ("h", b"x")])
    assert first.timestamp()[1] == 1700000000000 and first.partition() == 0
    assert (second.partition(), second.key(), second.value()) == (1, None, None)
    assert (
        pybroker_("produce", topic, "--json", "--repartition", "-p", 0, stdin='{"value": "x", "partition": 7}').code
        == 0
    )
    assert len(stored(target.bootstrap, topic, 2)) == 3


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not JSON"),
        ("[1]", 'object with a "value"'),
        ('{"key": "k"}', 'object with a "value"'),
        ('{"value": 5}', "value that is not text"),
        ('{"value": {"base64": "?"}}', "value that is not text"),
        ('{"value": {"base64": "AA==", "x": 1}}', "value that is not text"),
        ('{"value": "\\ud800"}', "value that is not text"),
        ('{"value": "x", "vlaue": "y"}', "'vlaue'"),
        ('{"value": "x", "headers": {"a": "b"}}', "headers"),
        ('{"value": "x", "headers": [["a"]]}', "headers"),
        ('{"value": "x", "headers": [[1, "a"]]}', "header's name"),
        ('{"value": "x", "headers": [["\\ud800", "a"]]}', "header's name"),
        ('{"value": "x", "timestamp": -1}', "timestamp"),
        ('{"value": "x", "timestamp": 1e3}', "timestamp"),
        ('{"value": "x", "partition": true}', "partition"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_json_that_is_no_record(shared_broker: Server, topic: str, line: str, why: str) -> None:
    """A line that is no valid JSON record is reported with its number and the fault; records before it are stored."""
    run("topics", "create", topic, "-p", 1, "-b", shared_broker.bootstrap)
    done = run("produce", topic, "--json", "-b", shared_broker.bootstrap, stdin=f'{{"value": "good"}}\n{line}\n')
    assert done.code == 1 and done.sentence.startswith("line 2 ") and why in done.sentence, done.err
    assert done.sentence.endswith("(stored before it: 1)")
    assert [m.value() for m in stored(shared_broker.bootstrap, topic)] == [b"good"]


def test_text_that_is_no_record(pybroker_: Command, target: Server, there: str) -> None:
    """A line without its key or headers is reported with its number."""
    for options, line, why in (
        (["-K", "="], "no key", "'='"),
        (["--headers"], "no headers", "tab"),
        (["--headers"], "a:1,b\tv", "colon"),
    ):
        good = b"a:1\tk=v\n" if "--headers" in options else b"k=v\n"
        done = pybroker_("produce", there, *options, stdin=good * 2 + line.encode())
        assert done.code == 1 and done.sentence.startswith("line 3 has ") and why in done.sentence
    assert len(stored(target.bootstrap, there)) == 6


def test_a_topic_that_is_not_there(pybroker_: Command, target: Server, topic: str) -> None:
    """A topic that does not exist, as with a typo, is created only on request."""
    done = pybroker_("produce", topic, stdin="x\n")
    assert done.code == 1 and done.sentence == f"topic {topic} does not exist; with --create the broker may make it"
    assert pybroker_("topics", "describe", topic).code == 1
    assert pybroker_("produce", topic, "--create", stdin="x\n").code == 0
    assert [m.value() for m in stored(target.bootstrap, topic)] == [b"x"]
    bad = pybroker_("produce", "bad/name", "--create", stdin="x\n")
    assert bad.code == 1 and bad.sentence


def test_a_record_that_is_too_large(pybroker_: Command, target: Server, there: str) -> None:
    """A record that is too large, for the client or the broker, is reported with its line and the number of stored
    records."""
    done = pybroker_("produce", there, stdin=b"a\nb\n" + bytes(2_000_000) + b"\nc\n")
    assert done.code == 1 and done.sentence.startswith("line 3: a record of 20000")
    assert done.sentence.endswith("(stored before it: 2)")
    pybroker_("configs", "alter", "-t", there, "--set", "max.message.bytes=1000")
    done = pybroker_("produce", there, "-X", "linger.ms=0", stdin=bytes(5000) + b"\n")
    assert done.code == 1 and "1 of 1 records were not stored, the first of them line 1" in done.sentence
    assert [m.value() for m in stored(target.bootstrap, there)] == [b"a", b"b"]


def test_a_line_without_an_end(pybroker_: Command, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line without an end is limited in size."""
    monkeypatch.setattr(delimited, "RECORD_BYTES_MAX", 1 << 20)
    done = pybroker_("produce", there, stdin=b"ok\n" + bytes((1 << 20) + 100_000))
    assert done.code == 1 and done.sentence.startswith("record 2 of the input is longer than 1048576 bytes")


def test_a_record_leaves_as_it_is_typed(target: Server, there: str) -> None:
    """A record is sent as soon as it is typed; Ctrl-C sends the records that were read, and ends with 130."""
    typing = start("produce", there, "-b", target.bootstrap)
    assert typing.stdin
    typing.stdin.write(b"hello\n")
    typing.stdin.flush()
    until("the record is there", lambda: [m.value() for m in stored(target.bootstrap, there)] == [b"hello"])
    typing.stdin.write(b"and more\nhalf a li")
    typing.stdin.flush()
    until("both are there", lambda: len(stored(target.bootstrap, there)) == 2)
    typing.send_signal(signal.SIGINT)
    _, err = typing.communicate(timeout=60)
    assert (typing.returncode, err) == (130, b"")


def test_the_broker_dies(start_broker: Callable[..., BrokerProcess], topic: str) -> None:
    """A broker that dies makes produce count unacknowledged records at the timeout, and end with 1."""
    broker = start_broker()
    run("topics", "create", topic, "-p", 1, "-b", broker.bootstrap)
    sending = start("produce", topic, "-b", broker.bootstrap, "--timeout", "3")
    assert sending.stdin
    sending.stdin.write(b"first\n")
    sending.stdin.flush()
    until("the first is there", lambda: len(stored(broker.bootstrap, topic)) == 1)
    broker.kill()
    _, err = sending.communicate(b"second\nthird\n", timeout=60)
    told, failed = err.splitlines()
    assert sending.returncode == 1 and told.startswith(b"no broker answers, and the client tries again: could not ")
    assert failed.startswith(b"pybroker: 2 of 3 records were not"), err


def test_progress_on_a_terminal(shared_broker: Server, topic: str) -> None:
    """A long run shows its progress on standard error, if that is a terminal; a short one shows none."""
    run("topics", "create", topic, "-p", 1, "-b", shared_broker.bootstrap)
    controller, terminal = os.openpty()
    sending = start("produce", topic, "-b", shared_broker.bootstrap, stderr=terminal)
    os.close(terminal)
    assert sending.stdin
    shown = b""
    while b"records/s" not in shown:  # as the test's own timeout allows
        sending.stdin.write(b"x" * 99 + b"\n")
        sending.stdin.flush()
        os.set_blocking(controller, False)
        try:
            shown += os.read(controller, 4096)
        except BlockingIOError:
            continue
    with sending:
        sending.stdin.close()
        assert sending.wait(60) == 0 and b"records sent" in shown
    os.close(controller)


@with_each(
    "arguments",
    [
        [],
        ["t", "--acks", "2"],
        ["t", "-z", "rar"],
        ["t", "-p", "-1"],
        ["t", "-H", "no-equals"],
        ["t", "-K", ""],
        ["t", "-K", "=", "-k", "x"],
        ["t", "-D", r"\q"],
        ["t", "--json", "-K", "="],
        ["t", "--json", "-D", "x"],
        ["t", "--repartition"],
        ["t", "-X", "linger"],
        ["t", "--file", "/nowhere/at/all"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    """Wrong usage ends with 2 and the usage text, without asking a broker."""
    done = run("produce", *arguments)
    assert done.code == 2 and "\nUsage: pybroker produce" in done.err and done.out == ""


def test_a_secret_is_no_argument() -> None:
    """A secret among the arguments, which every user of the machine can see with ps, is refused with the right place
    for it."""
    for command in (["produce", "t"], ["consume", "t"]):
        done = run(*command, "-X", "sasl.password=hunter2", "-b", "127.0.0.1:1", stdin="")
        assert done.code == 2 and "hunter2" not in done.err
        assert "put sasl.password into a file for --command-config, or a password into PYBROKER_SASL_PASSWORD" in (
            done.sentence
        )


def test_a_wrong_setting_is_2() -> None:
    """A setting that the producer lacks, or a value that it refuses, is one sentence with the nearest name."""
    done = run("produce", "t", "-X", "lingerms=5", "-b", "127.0.0.1:1", stdin="")
    assert done.code == 2 and "did you mean linger.ms?" in done.sentence
    done = run("produce", "t", "-X", "linger.ms=soon", "-b", "127.0.0.1:1", stdin="")
    assert done.code == 2 and done.sentence.startswith("linger.ms = 'soon' (--setting) is not allowed: it takes ")
