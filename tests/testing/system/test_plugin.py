"""The pytest plugin in separate test runs: fixtures, marker, modes, workers, failures and interruptions."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import ROOT
from tests.marks import long

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def own_temporary_directory(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for the files of the inner run's brokers, to check that they are removed."""
    path = pytester.path / "tmp"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return path


def left(path: Path) -> list[Path]:
    return list(path.rglob("pybroker-test-*"))


TESTS = """
import pytest

def test_produces(pybroker):
    pybroker.produce("t", "a")
    assert [r.value for r in pybroker.records("t")] == [b"a"]

def test_is_fresh(pybroker):
    with pytest.raises(Exception, match="UNKNOWN_TOPIC"):
        pybroker.records("t")

@pytest.mark.parametrize("n", range(4))
def test_shares(shared_pybroker, n):
    assert shared_pybroker.create_topic("t") == shared_pybroker.topic("t")
    shared_pybroker.produce("t", str(n))
    assert [r.value for r in shared_pybroker.records("t")] == [str(n).encode()]
    assert shared_pybroker.confluent_config("g")["group.id"] == shared_pybroker.group("g")
    assert shared_pybroker.aiokafka_config("g")["group_id"] == shared_pybroker.kafka_python_config("g")["group_id"]

async def test_beside_a_loop(pybroker):
    from aiokafka import AIOKafkaProducer
    async with AIOKafkaProducer(**pybroker.aiokafka_config()) as producer:
        await producer.send_and_wait("t", b"a")
    assert len(pybroker.records("t")) == 1
"""
STRICT = ("--strict-markers", "-Werror", "--asyncio-mode=auto", "-oasyncio_default_fixture_loop_scope=function")
SUBPROCESS = "--pybroker-mode=subprocess"


@pytest.mark.parametrize("options", [[], long([SUBPROCESS]), long(["-n2"]), ["-n2", SUBPROCESS]], ids=" ".join)
def test_fixtures(pytester: pytest.Pytester, own_temporary_directory: Path, options: list[str]) -> None:
    """The fixtures give a fresh broker for each test and a shared one for a session, in both modes, with xdist and
    pytest-asyncio."""
    pytester.makepyfile(TESTS)
    pytester.runpytest_subprocess(*STRICT, *options).assert_outcomes(passed=7)
    assert left(own_temporary_directory) == []


def test_the_marker_says_how_the_broker_is_started(pytester: pytest.Pytester) -> None:
    """The marker sets how a broker is started: settings, mode and directory, for one test, or for a class or module."""
    pytester.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.pybroker(mode="subprocess")

        def test_module(pybroker):
            assert pybroker.mode == "subprocess"

        @pytest.mark.pybroker(settings={"num.partitions": 3})
        def test_own(pybroker):
            assert pybroker.mode == "inprocess"
            pybroker.produce("t", "a", partition=2)
        """
    )
    pytester.runpytest_subprocess(*STRICT).assert_outcomes(passed=2)


def test_a_wrong_word_of_a_marker_is_named(pytester: pytest.Pytester) -> None:
    """A wrong argument of the marker is named, with the nearest known one, and not as a TypeError of an inner call; a
    setting is named by its name."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.pybroker(sttings={})
        def test_word(pybroker):
            pass

        @pytest.mark.pybroker(nothing=1)
        def test_no_word(kafka_broker):
            pass

        @pytest.mark.pybroker({"num.partitions": 3})
        def test_place(secured_pybroker):
            pass

        @pytest.mark.pybroker_cluster(stor="memory")
        def test_cluster(pybroker_cluster):
            pass

        @pytest.mark.pybroker(settings={"num.partitons": 3})
        def test_setting(pybroker):
            pass
        """
    )
    result = pytester.runpytest_subprocess(*STRICT)
    result.assert_outcomes(errors=5)
    text = result.stdout.str()
    assert "@pytest.mark.pybroker has no argument sttings: did you mean settings?" in text
    assert "has no argument nothing: it takes mode, settings, data_dir, sasl, acls and tls" in text
    assert "takes keyword arguments only" in text
    assert "@pytest.mark.pybroker_cluster has no argument stor: did you mean store?" in text
    assert "num.partitons (settings of the test) is not a setting of this broker; did you mean num.partitions?" in text
    assert "ignored" not in text and "TypeError" not in text


def test_a_second_name_for_the_fixture(pytester: pytest.Pytester, own_temporary_directory: Path) -> None:
    """`kafka_broker` is a second name for the `pybroker` fixture, for tests that use the module too; the broker's log
    is shown once."""
    pytester.makepyfile(
        """
        import pytest
        import pybroker

        @pytest.mark.pybroker(settings={"num.partitions": 3})
        def test_module(kafka_broker):
            with pybroker.Producer(**kafka_broker.pybroker_config()) as producer:
                producer.send("t", b"a", partition=2).result(10)
            assert [r.value for r in kafka_broker.records("t")] == [b"a"]

        def test_same(kafka_broker, request):
            assert kafka_broker is request.getfixturevalue("pybroker")

        def test_fails(kafka_broker):
            assert False
        """
    )
    result = pytester.runpytest_subprocess(*STRICT, SUBPROCESS)
    result.assert_outcomes(passed=2, failed=1)
    assert result.stdout.str().count("log of the broker at 127.0.0.1:") == 1
    assert left(own_temporary_directory) == []


def test_a_failure_shows_what_the_broker_said(pytester: pytest.Pytester, own_temporary_directory: Path) -> None:
    """A failed test shows its broker's log, and the broker's files are deleted."""
    pytester.makepyfile(
        """
        def test_fails(pybroker):
            pybroker.faults.disconnect("Metadata")
            from confluent_kafka.admin import AdminClient
            AdminClient(pybroker.confluent_config()).list_topics(timeout=10)
            assert False
        """
    )
    result = pytester.runpytest_subprocess(*STRICT, SUBPROCESS)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*log of the broker at 127.0.0.1:*", "*connection closed*a test asked for it*"])
    assert left(own_temporary_directory) == []


def test_the_marker_says_how_the_cluster_is_started(pytester: pytest.Pytester, own_temporary_directory: Path) -> None:
    """The marker sets how a cluster is started: size, settings, mode and store. Without a mode the option decides,
    unless the store is in memory. A failed test shows all brokers' logs."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.pybroker_cluster(2, store="memory", settings={"num.partitions": 3})
        def test_in_memory(pybroker_cluster):
            assert (pybroker_cluster.mode, pybroker_cluster.brokers) == ("inprocess", [1, 2])
            assert pybroker_cluster.zookeeper is None
            pybroker_cluster.produce("t", "a", partition=2)
            assert pybroker_cluster.in_sync("t", 2) == [1, 2]

        @pytest.mark.pybroker_cluster(brokers=1, mode="inprocess", store="zookeeper")
        def test_zookeeper(pybroker_cluster):
            assert pybroker_cluster.zookeeper.connect.startswith("127.0.0.1:")

        @pytest.mark.pybroker_cluster(2, sasl=True, tls=True)
        def test_logins(pybroker_cluster):
            assert pybroker_cluster.java_config()["security.protocol"] == "SASL_SSL"
            pybroker_cluster.produce("t", "a")
            assert pybroker_cluster.in_sync("t") == [1, 2]

        @pytest.mark.pybroker_cluster(data_dir="here")
        def test_mistyped(pybroker_cluster):
            pass

        def test_fails(pybroker_cluster):
            assert (pybroker_cluster.mode, pybroker_cluster.store) == ("subprocess", "zookeeper")
            pybroker_cluster.kill(1)
            pybroker_cluster.wait_in_sync()
            assert False
        """
    )
    result = pytester.runpytest_subprocess(*STRICT, SUBPROCESS)
    result.assert_outcomes(passed=3, failed=1, errors=1)
    words = "brokers, mode, store, settings, sasl, acls and tls"
    result.stdout.fnmatch_lines([f"*pybroker_cluster has no argument data_dir: it takes {words}*"])
    result.stdout.fnmatch_lines(["*log of broker 2*", "*broker registered broker=2 *"])
    assert left(own_temporary_directory) == []


@pytest.mark.parametrize("mode", ["inprocess", "subprocess"])
def test_an_interrupted_run_leaves_nothing(pytester: pytest.Pytester, own_temporary_directory: Path, mode: str) -> None:
    """Ctrl-C in a test ends the run and leaves no broker and no file."""
    pytester.makepyfile(
        """
        import time

        def test_sleeps(pybroker, shared_pybroker):
            print("READY", flush=True)
            while True:  # a signal just before a sleep does not cut it short
                time.sleep(0.1)
        """
    )
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", f"--pybroker-mode={mode}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        assert run.stdout is not None
        lines = iter(run.stdout.readline, "")
        assert any("READY" in line for line in lines)
        assert len(left(own_temporary_directory)) == 2
        os.kill(run.pid, signal.SIGINT)
        assert run.wait(30) == pytest.ExitCode.INTERRUPTED
    assert left(own_temporary_directory) == []


def test_loading_the_plugin_loads_nothing_of_the_broker() -> None:
    """The plugin loads no broker module, so that a run without brokers costs nothing."""
    code = "import sys, pybroker.testing.plugin; print([m for m in sys.modules if m.startswith('pybroker.')])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {name.split(".")[1] for name in eval(run.stdout)}
    small = {"clock", "errors", "fork_safety", "tasks"}  # modules that import no broker
    assert loaded == {"testing", *small}


FAILING = """
import pytest
import pybroker.testing

def test_waits(pybroker):
    pybroker.produce("orders", "14", key="ann")
    pybroker.records("orders", count=2, timeout_s=0)

def test_misspelt(pybroker):
    pybroker.produce("orders", "14")
    pybroker.records("order", count=1, timeout_s=0)

def test_no_value(pybroker):
    pybroker.produce("orders", 14)

def test_no_topic(shared_pybroker):
    shared_pybroker.records("orders")

def test_no_api(pybroker):
    pybroker.faults.fail("Produces", 3)

def test_no_setting():
    with pybroker.testing.broker(settings={"log.segment.byte": 1}):
        pass

@pytest.mark.pybroker(mode="subprocess")
def test_down(pybroker):
    pybroker.kill()
    pybroker.create_topic("t")

async def test_awaited():
    async with pybroker.testing.async_broker() as broker:
        await broker.records("orders")
"""


def test_a_failure_ends_at_the_line_of_the_test(pytester: pytest.Pytester) -> None:
    """A failure's traceback ends at the line of the test: no frame of the kit or the client comes between that line and
    the sentence."""
    pytester.makepyfile(FAILING)
    run = pytester.runpytest_subprocess(*STRICT)
    run.assert_outcomes(failed=8)
    assert not re.findall(r"^\S*pybroker/\S+\.py:\d+:", run.stdout.str(), re.MULTILINE)
    run.stdout.re_match_lines_random(
        [
            r"E +TimeoutError: orders has 1 of 2 records after 0 s: 0@0 key=b'ann' value=b'14'",
            r"E +TimeoutError: order has 0 of 1 records after 0 s: the broker has the topics orders",
            r"E +TypeError: a record's value is bytes, str or None, not int",
            r"E +pybroker.errors.KafkaError: UNKNOWN_TOPIC_OR_PARTITION: .*orders.*",
            r"E +ValueError: 'Produces' is no API of this broker: .*",
            r"E +pybroker.testing.lifecycle.BrokerFailed: .*log.segment.byte.*",
            r"E +pybroker.errors.KafkaError: NETWORK_EXCEPTION: could not reach .*",
        ]
    )
