"""`pybroker consume` against any broker: each test runs a command and checks its output."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

import confluent_kafka as ck
import pytest

from tests.cli.conftest import Command, run, start
from tests.cli.members import stored, write
from tests.harness import ROOT, BrokerProcess, Server, until
from tests.rows import with_each


@pytest.fixture
def ten(pybroker_: Command, target: Server, topic: str) -> str:
    """A topic with the records 0 to 9 in partition 0 and no records in partition 1."""
    pybroker_("topics", "create", topic, "-p", 2)
    write(target.bootstrap, topic, 10)
    return topic


def numbers(first: int, end: int) -> str:
    return "".join(f"{n}\n" for n in range(first, end))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--exit-at-end"], numbers(0, 10)),
        (["--from-beginning", "-n", "3"], numbers(0, 3)),
        (["-o", "earliest", "-e"], numbers(0, 10)),
        (["-o", "latest", "-e"], ""),
        (["-o", "7", "-p", "0", "-e"], numbers(7, 10)),
        (["-o", "10", "-p", "0", "-e"], ""),
        (["-o", "-4", "-e"], numbers(6, 10)),
        (["-o", "-99", "-e"], numbers(0, 10)),
        (["--last", "2"], numbers(8, 10)),
        (["--last", "99"], numbers(0, 10)),
        (["--at", "-1h", "-e"], numbers(0, 10)),
        (["--at", "2100-01-01", "-e"], ""),
        (["--from-beginning", "-p", "1", "-e"], ""),
        (["--from-beginning", "-n", "99", "-e"], numbers(0, 10)),
        (["-e", "-X", "max.partition.fetch.bytes=1"], numbers(0, 10)),
        (["-e", "--isolation-level", "read_committed"], numbers(0, 10)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_from_where_to_where(shared_broker: Server, topic: str, options: list[str], expected: str) -> None:
    """consume has several options for where to begin, and where to end."""
    ours = shared_broker.bootstrap
    run("topics", "create", topic, "-p", 2, "-b", ours)
    write(ours, topic, 10)
    done = run("consume", topic, *options, "-b", ours)
    assert (done.code, done.out, done.err) == (0, expected, "")


def test_every_broker_is_read_alike(pybroker_: Command, ten: str) -> None:
    """Every broker is read alike: from the beginning, an offset, a distance from the end, and the newest records."""
    for options, expected in (
        (["-e"], numbers(0, 10)),
        (["-o", "7", "-p", "0", "-e"], numbers(7, 10)),
        (["-o", "-4", "-e"], numbers(6, 10)),
        (["--at", "-1h", "-e"], numbers(0, 10)),
        (["--at", "2100-01-01", "-e"], ""),
        (["--last", "2"], numbers(8, 10)),
    ):
        done = pybroker_("consume", ten, *options)
        assert (done.code, done.out, done.err) == (0, expected, ""), options


def test_times(pybroker_: Command, target: Server, topic: str) -> None:
    """--at begins at the first record at or after a time, in each partition; --last takes the records with the latest
    timestamps."""
    pybroker_("topics", "create", topic, "-p", 2)
    base_ms = int(time.time() * 1000) - 10_000
    for second in range(4):
        write(target.bootstrap, topic, second + 1, partition=second % 2, timestamp_ms=base_ms + second * 1000)
    found = pybroker_("consume", topic, "--at", base_ms + 1001, "-e", "--json").json_lines
    assert sorted((r["partition"], r["timestamp"] - base_ms) for r in found) == [(0, 2000)] * 3 + [(1, 3000)] * 4
    newest = pybroker_("consume", topic, "--last", 6, "--json").json_lines
    assert [(r["timestamp"] - base_ms, r["value"]) for r in newest] == [
        (2000, "1"), (2000, "2"), (3000, "0"), (3000, "1"), (3000, "2"), (3000, "3"),
    ]  # fmt: skip


def test_a_pipe_without_loss(pybroker_: Command, target: Server, topic: str) -> None:
    """`consume --json | produce --json` loses nothing: keys, values, headers, nulls, timestamps and partitions are
    copied byte for byte."""
    copy = f"{topic}-copy"
    for name in (topic, copy):
        pybroker_("topics", "create", name, "-p", 3)
    producer = ck.Producer({"bootstrap.servers": target.bootstrap, "log_level": 0})
    everything = bytes(range(256))
    for number, (key, value, headers) in enumerate(
        [
            (b"k", b"v", None),
            (None, None, [("a", b"1"), ("a", None), ("é", everything), ("", b"")]),
            (b"", b"", []),
            (everything, everything * 50, None),
            ("ключ".encode(), b'{"base64": "x"}', None),
            (b"\x00\x1b[31m\r\n\t", b"null", None),
        ]
    ):
        producer.produce(
            topic, value, key=key, headers=headers, partition=number % 3, timestamp=1_700_000_000_000 + number
        )
    assert producer.flush(30) == 0
    out = pybroker_("consume", topic, "-e", "--json")
    assert out.code == 0 and len(out.json_lines) == 6
    assert pybroker_("produce", copy, "--json", stdin=out.bytes).code == 0

    def facts(name: str) -> list[tuple[object, ...]]:
        found = stored(target.bootstrap, name, 3)
        return [(m.partition(), m.key(), m.value(), m.headers(), m.timestamp()) for m in found]

    assert facts(copy) == facts(topic)


def test_keys_headers_and_nulls(pybroker_: Command, target: Server, topic: str) -> None:
    """Keys, headers and nulls are printed in the notation of Kafka's console consumer, which `produce` can read."""
    pybroker_("topics", "create", topic, "-p", 1)
    producer = ck.Producer({"bootstrap.servers": target.bootstrap, "log_level": 0})
    producer.produce(topic, b"v1", key=b"k1", headers=[("a", b"1"), ("b", None)])
    producer.produce(topic, None, key=b"\xff\x00")
    assert producer.flush(30) == 0
    assert pybroker_("consume", topic, "-e").bytes == b"v1\nnull\n"
    assert pybroker_("consume", topic, "-e", "--key").bytes == b"k1\tv1\n\xff\x00\tnull\n"
    shown = pybroker_("consume", topic, "-e", "--headers", "-K", "|", "--null-value", "~", "-D", r";\n").bytes
    assert shown == b"a:1,b:~\tk1|v1;\nNO_HEADERS\t\xff\x00|~;\n"
    done = pybroker_("produce", topic, "--headers", "-K", "|", "--null-value", "~", "-D", r";\n", stdin=shown)
    assert done.code == 0, done.err
    first, second, third, fourth = stored(target.bootstrap, topic)
    assert (third.key(), third.value(), third.headers()) == (first.key(), first.value(), first.headers())
    assert (fourth.key(), fourth.value(), fourth.headers()) == (second.key(), second.value(), second.headers())


def test_what_is_not_there(pybroker_: Command, ten: str) -> None:
    """A topic, partition or offset that does not exist is one sentence, and 1."""
    for arguments, why in (
        ([f"{ten}-2"], "does not exist"),
        ([ten, f"{ten}-2"], "does not exist"),
        ([ten, "-p", "7"], "no partition 7"),
        ([ten, "-p", "0", "-o", "11"], "holds 0 to 10"),
    ):
        done = pybroker_("consume", *arguments, "-e")
        assert done.code == 1 and why in done.sentence, arguments


def test_several_topics(pybroker_: Command, target: Server, ten: str) -> None:
    """Each record of several topics names its topic in JSON."""
    other = f"{ten}-other"
    pybroker_("topics", "create", other, "-p", 1)
    write(target.bootstrap, other, 3)
    found = pybroker_("consume", ten, other, ten, "-e", "--json").json_lines
    assert sorted(r["topic"] for r in found) == [ten] * 10 + [other] * 3
    assert found[0].keys() == {
        "topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers",
    }  # fmt: skip


# -- ends -------------------------------------------------------------------------------------------------------------


def test_it_waits_for_what_comes(target: Server, ten: str) -> None:
    """consume without an end prints each record as it arrives; Ctrl-C ends it with 130, SIGTERM with 143."""
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        with start("consume", ten, "-o", "-1", "-b", target.bootstrap) as reading:
            assert reading.stdout and reading.stderr
            assert reading.stdout.readline() == b"9\n"
            write(target.bootstrap, ten, 1)
            assert reading.stdout.readline() == b"0\n"
            reading.send_signal(number)
            assert reading.wait(60) == code and reading.stderr.read() == b""
        write(target.bootstrap, ten, 10)


def test_a_broker_that_goes_and_comes_back(broker: BrokerProcess, topic: str) -> None:
    """A consume that waits while the broker restarts prints once that no broker answers, and once that one does; then
    it reads on."""
    run("topics", "create", topic, "-b", broker.bootstrap)
    write(broker.bootstrap, topic, 1)
    with start("consume", topic, "--from-beginning", "-n", 2, "-b", broker.bootstrap) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == b"0\n"
        broker.kill()
        told = process.stderr.readline().decode()
        assert told.startswith("no broker answers, and the client tries again: could not ") and broker.bootstrap in told
        broker.start()
        assert process.stderr.readline() == b"a broker answers again\n"
        write(broker.bootstrap, topic, 1)
        assert process.stdout.read() == b"0\n" and process.wait(30) == 0
        assert process.stderr.read() == b""


def test_a_reader_that_leaves_is_no_failure(target: Server, ten: str) -> None:
    """A reader that leaves, as in `consume ... | head -1`, ends consume with 0, both among many records and while none
    arrives."""
    write(target.bootstrap, ten, 50_000, partition=1)
    for options in ("--from-beginning", "-p 0 --from-beginning"):
        command = f"{sys.executable} -m pybroker consume {ten} {options} -b {target.bootstrap} | head -1 | wc -l"
        done = subprocess.run(
            ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True, cwd=ROOT, timeout=60
        )
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "1", "")


def test_a_terminal_is_not_steered(shared_broker: Server, topic: str) -> None:
    """Control characters of a record are escaped on a terminal, and written unchanged with --raw or into a pipe."""
    ours = shared_broker.bootstrap
    run("topics", "create", topic, "-p", 1, "-b", ours)
    run("produce", topic, "-D", "", "-b", ours, stdin=b"\x1b[31mred\xff\ttab")
    for options, expected in (([], rb"\x1b[31mred\xff" + b"\ttab"), (["--raw"], b"\x1b[31mred\xff\ttab")):
        controller, terminal = os.openpty()
        with start("consume", topic, "-e", *options, "-b", ours, stdout=terminal) as reading:
            os.close(terminal)
            assert reading.wait(60) == 0
            assert os.read(controller, 4096).rstrip() == expected
        os.close(controller)
    assert run("consume", topic, "-e", "-b", ours).bytes == b"\x1b[31mred\xff\ttab\n"


def test_progress_on_a_terminal(shared_broker: Server, topic: str) -> None:
    """A long run that writes to a file shows its progress on standard error, if that is a terminal."""
    ours = shared_broker.bootstrap
    run("topics", "create", topic, "-p", 1, "-b", ours)
    controller, terminal = os.openpty()
    with start("consume", topic, "--from-beginning", "-b", ours, stderr=terminal) as reading:
        os.close(terminal)
        shown = b""
        while b"records/s" not in shown:  # as the test's own timeout allows
            write(ours, topic, 10)
            if select.select([controller], [], [], 0.05)[0]:
                shown += os.read(controller, 4096)
        reading.send_signal(signal.SIGINT)
        code = reading.wait(60)
    if select.select([controller], [], [], 0)[0]:
        with contextlib.suppress(OSError):  # the terminal's other end is closed
            shown += os.read(controller, 4096)
    assert code == 130 and b"records read" in shown, shown
    os.close(controller)


# -- groups -----------------------------------------------------------------------------------------------------------


def test_a_group_goes_on_where_it_was(pybroker_: Command, target: Server, ten: str) -> None:
    """A group resumes where it was: exactly the printed records are committed, however many were fetched."""

    def read(*options: object) -> str:
        done = pybroker_("consume", ten, "--group", ten, *options)
        assert done.code == 0, done.err
        return done.out

    assert read("--from-beginning", "-n", 4) == numbers(0, 4)
    (described,) = pybroker_("groups", "describe", ten, "--json").json
    assert described["state"] == "Empty" and described["lag"] == 6
    write(target.bootstrap, ten, 2)
    assert read("-e") == numbers(4, 10) + numbers(0, 2)
    (described,) = pybroker_("groups", "describe", ten, "--json").json
    assert [p["committed"] for p in described["partitions"] if p["partition"] == 0] == [12]


def test_a_member_that_is_ended_leaves_at_once(target: Server, ten: str) -> None:
    """A member that gets SIGTERM commits and leaves at once, so that the group need not wait for a session timeout."""
    with start("consume", ten, "-g", ten, "--from-beginning", "-b", target.bootstrap) as reading:
        assert reading.stdout
        assert [reading.stdout.readline() for _ in range(10)] == [b"%d\n" % n for n in range(10)]
        reading.send_signal(signal.SIGTERM)
        assert reading.wait(60) == 143

    def state() -> tuple[str, int]:
        (described,) = run("groups", "describe", ten, "--json", "-b", target.bootstrap).json
        return described["state"], described["lag"]

    until("the group is empty, and has read all", lambda: state() == ("Empty", 0))


@pytest.mark.java
@pytest.mark.xdist_group("kafka391")
def test_aborted_transactions(kafka391: Server, topic: str) -> None:
    """Aborted transactions are hidden by read_committed, and the end behind their markers is reached."""
    there = kafka391.bootstrap
    run("topics", "create", topic, "-p", 1, "-b", there)
    producer = ck.Producer({"bootstrap.servers": there, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(60)
    for value, end in ((b"kept", producer.commit_transaction), (b"gone", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(30)
        end(60)
    assert run("consume", topic, "-e", "-b", there).out == "kept\ngone\n"
    assert run("consume", topic, "-e", "--isolation-level", "read_committed", "-b", there).out == "kept\n"


@with_each(
    "arguments",
    [
        [],
        ["t", "--offset", "middle"],
        ["t", "--offset", "9" * 30],
        ["t", "--at", "noon"],
        ["t", "--from-beginning", "--at", "-1h"],
        ["t", "--last", "3", "--offset", "3"],
        ["t", "--last", "3", "-n", "3"],
        ["t", "--last", "0"],
        ["t", "-n", "0"],
        ["t", "-p", "-1"],
        ["t", "-g", "g", "-p", "0"],
        ["t", "-g", "g", "--offset", "3"],
        ["t", "-g", "g", "--last", "3"],
        ["t", "--delimiter", r"\q"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    """Wrong usage ends with 2 and the usage text, without asking a broker."""
    done = run("consume", *arguments)
    assert done.code == 2 and "\nUsage: pybroker consume" in done.err and done.out == ""


def test_a_wrong_setting_is_2() -> None:
    """A setting that the consumer lacks is one sentence with the nearest name, and 2."""
    done = run("consume", "t", "-X", "fetch.max.byte=5", "-b", "127.0.0.1:1")
    assert done.code == 2 and done.sentence.startswith("'fetch.max.byte' is no setting of a consumer; did you mean ")
    assert done.sentence.endswith("fetch.max.bytes?")


FORMATS = [
    ("%t %p %o %k %s", "T 0 0 k1 one\nT 0 1 null null\nT 0 2 \x00 \n"),
    (r"%o|%k:%s|%h\n", "0|k1:one|a=1,b=null\n1|null:null|\n2|\x00:|\n"),
    (r"%K\t%S\x21\\%%", "2\t3!\\%\n-1\t-1!\\%\n1\t0!\\%\n"),
    ("%T", "1700000000000\n" * 3),
    ("%R%s", "\0\0\0\3one\n\xff\xff\xff\xffnull\n\0\0\0\0\n"),
    ("", "\n" * 3),
]


@pytest.mark.parametrize(("form", "expected"), FORMATS, ids=[form for form, _ in FORMATS])
def test_a_record_by_a_format(shared_broker: Server, topic: str, form: str, expected: str) -> None:
    """A record is printed by a format of kcat's letters and escapes; the delimiter ends a record only once."""
    ours = shared_broker.bootstrap
    run("topics", "create", topic, "-p", 1, "-b", ours)
    producer = ck.Producer({"bootstrap.servers": ours, "log_level": 0})
    for key, value, headers in ((b"k1", b"one", [("a", b"1"), ("b", None)]), (None, None, []), (b"\0", b"", [])):
        producer.produce(topic, value, key, timestamp=1_700_000_000_000, headers=headers)
    assert producer.flush(30) == 0
    done = run("consume", topic, "--exit-at-end", "-f", form, "-b", ours)
    assert (done.code, done.err) == (0, "")
    assert done.bytes == expected.replace("T 0", f"{topic} 0").encode("latin-1")
    bare = run("consume", topic, "--exit-at-end", "-f", "%o", "-D", "", "--null-value", "", "-b", ours)
    assert bare.out == "012"


@pytest.mark.parametrize(
    ("form", "said"),
    [("%t %q", "%q is not a format letter: the letters are %t %p %o %T %k %s %h %K %S %R %%"),
     ("%", "% is not a format letter"), (r"%t\q", r"the escapes are \n, \t")],
)  # fmt: skip
def test_a_format_that_is_none(form: str, said: str) -> None:
    """An unknown letter or escape in a format is wrong usage, before a broker is asked."""
    done = run("consume", "t", "-f", form, "-b", "127.0.0.1:1")
    assert done.code == 2 and said in " ".join(done.err.split())


@pytest.mark.parametrize("other", [["--key"], ["-K", ":"], ["--headers"], ["--json"]])
def test_one_way_to_write_a_record(other: list[str]) -> None:
    done = run("consume", "t", "-f", "%s", *other, "-b", "127.0.0.1:1")
    assert done.code == 2 and "both define how a record is written" in done.err
