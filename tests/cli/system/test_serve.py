"""`pybroker serve`: its ready line, how it ends, and why it does not start."""

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Done, run, run_process
from tests.harness import HOST, ROOT, BrokerProcess, Process, free_port, until

READY = re.compile(
    r"pybroker ready on (?P<host>\S+):(?P<port>\d+) "
    r"\(data (?P<data>.+), (?P<topics>\d+) topics, (?P<partitions>\d+) partitions, "
    r"cluster (?P<cluster>[A-Za-z0-9_-]{22}), start (?P<start>\d+\.\d\d) s\)"
)
READY_S_MAX = 20.0


class Serving:
    """`pybroker serve` with separate standard output and error, from its start to its end."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "pybroker", "serve", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = READY.fullmatch(line.rstrip("\n"))
        assert found, (line, self.end(signal.SIGKILL).err)
        self.ready = found

    def end(self, number: signal.Signals) -> Done:
        """Send a signal, and wait until the process has ended."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=30)
        return Done(self.process.returncode, out, err)


def test_one_line_says_where_it_serves(tmp_path: Path) -> None:
    """One line, as soon as serve is ready, has the host, the picked port, the data directory, its contents, and the
    duration."""
    serving = Serving("--data-dir", tmp_path / "data", "--port", 0)
    port = int(serving.ready["port"])
    assert serving.ready["host"] == HOST and port > 0
    assert (serving.ready["data"], serving.ready["topics"]) == (str(tmp_path / "data"), "0")
    assert 0.0 < float(serving.ready["start"]) < READY_S_MAX
    socket.create_connection((HOST, port)).close()
    assert run("topics", "create", "t", "-p", 4, "-b", f"{HOST}:{port}").code == 0
    assert run("topics", "create", "u", "-p", 2, "-b", f"{HOST}:{port}").code == 0
    ended = serving.end(signal.SIGTERM)
    assert (ended.code, ended.out) == (0, "")

    port = free_port()  # another process may have the picked port by now
    again = Serving("--data-dir", tmp_path / "data", "--port", port)
    assert (again.ready["port"], again.ready["topics"], again.ready["partitions"]) == (str(port), "2", "6")
    assert again.ready["cluster"] == serving.ready["cluster"]
    assert again.end(signal.SIGTERM).code == 0


def test_each_data_dir_is_a_log_dir(tmp_path: Path) -> None:
    """--data-dir may be repeated, as in other commands, and may have a list, as log.dirs."""
    a, b, c = (tmp_path / name for name in "abc")
    serving = Serving("--data-dir", a, "--data-dir", f"{b},{c}", "--port", 0)
    assert serving.ready["data"] == f"{a},{b},{c}"
    assert serving.end(signal.SIGTERM).code == 0
    assert all((each / "meta.properties").exists() for each in (a, b, c))


def test_each_line_of_a_json_log_is_an_object(tmp_path: Path) -> None:
    """With --log-format json each line on standard error is an object: events, warnings about the configuration, and
    the sentence of a broker that does not start. The ready line on standard output stays as it is."""
    arguments = ("--data-dir", tmp_path, "--set", "log.cleaner.io.buffer.load.factor=0.8", "--log-format", "json")
    serving = Serving("--port", 0, *arguments)
    second = run_process("serve", "--port", 0, *arguments)
    ended = serving.end(signal.SIGTERM)
    assert (ended.code, ended.out, second.code) == (0, "", 1)
    lines = [json.loads(line) for line in ended.err.splitlines()]
    assert all(list(line)[:4] == ["time", "level", "logger", "event"] for line in lines)
    told = {line["event"]: line for line in lines}
    assert told["stopped"]["logger"] == "pybroker.server.process"
    assert told["default changed"]["group.initial.rebalance.delay.ms"] == 0
    assert "log.cleaner.io.buffer.load.factor" in told["command warning"]["reason"]
    *_, last = [json.loads(line) for line in second.err.splitlines()]
    assert (last["level"], last["event"]) == ("ERROR", "command failed") and str(tmp_path) in last["reason"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_both_signals_end_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """SIGTERM and Ctrl-C both end serve cleanly: code 0, no traceback, and the clean shutdown file."""
    serving = Serving("--data-dir", tmp_path, "--port", 0)
    ended = serving.end(number)
    assert ended.code == 0 and "Traceback" not in ended.err
    assert list(tmp_path.rglob(".kafka_cleanshutdown"))


def test_settings_come_from_everywhere(tmp_path: Path) -> None:
    """Settings come from a file, the options and --set, of which the last wins. An unknown name is ignored with a
    warning; settings that only Kafka uses are listed in one line."""
    file = tmp_path / "broker.properties"
    lines = (f"log.dirs={tmp_path / 'from-file'}", "num.partitions=3", "zookeeper.connecting=9", "process.roles=broker")
    file.write_text("\n".join(lines))
    jaas = "listener.name.plaintext.plain.sasl.jaas.config"
    key = "delegation.token.secret.key"
    passwords = [word for name in (jaas, key) for word in ("--set", f"{name}=hunter2")]
    serving = Serving("--config", file, "--port", 0, "--set", "num.partitions=5", "--set",
                      "log.preallocate=true", *passwords)  # fmt: skip
    try:
        assert serving.ready["data"] == str(tmp_path / "from-file")
        made = run("topics", "create", "t", "--json", "-b", f"{HOST}:{serving.ready['port']}").json
        assert made["partitions"] == 5
    finally:
        ended = serving.end(signal.SIGTERM)
    assert f"pybroker: warning: zookeeper.connecting ({file}:3) is not a setting" in ended.err
    assert "did you mean zookeeper.connect?" in ended.err
    idle = f"process.roles ({file}:4), log.preallocate (--set)"
    assert f"pybroker: warning: settings of Kafka that have no effect here: {idle}\n" in ended.err
    for name in (jaas, key):
        words = f"warning: every user of this machine can read arguments: put {name} into the file of --config\n"
        assert words in ended.err
    assert "hunter2" not in ended.err


def test_a_name_that_is_misspelt_ends_the_start(tmp_path: Path) -> None:
    """A misspelt setting ends the start with its name, and not with an error that follows from it."""
    sets = ("listeners=C://:0,P://:0", "listener.security.protocol.map=C:SASL_PLAINTEXT,P:PLAINTEXT",
            "inter.broker.listener.name=P", "sasl.enabled.mechanism=PLAIN")  # fmt: skip
    done = run("serve", "--data-dir", tmp_path, *(word for pair in sets for word in ("--set", pair)))
    wrong = "sasl.enabled.mechanism (--set) is not a setting of this broker"
    assert (done.code, done.sentence) == (2, f"{wrong}; did you mean sasl.enabled.mechanisms?")


def test_it_is_quiet(tmp_path: Path) -> None:
    """serve prints only the ready line to standard output, and one line for each event to standard error, few at
    INFO."""
    serving = Serving("--data-dir", tmp_path, "--port", 0)
    ended = serving.end(signal.SIGTERM)
    lines = ended.err.splitlines()
    assert len(lines) <= 8
    assert all(
        re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING) pybroker\S* \S+", line) for line in lines
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no data directory is given: add --data-dir DIR, or set log.dirs"),
        (["--data-dir", "d", "--set", "num.partitions=many"], "num.partitions = 'many' (--set) is not allowed"),
        (["--data-dir", "d", "--set", "num.partitions"], "--set num.partitions is not name=value"),
        (["--data-dir", "d", "--config", "no-such-file"], "the config file no-such-file cannot be read"),
        (["--data-dir", "d", "--host", "not a host"], "listeners = "),
        (["--data-dir", "a,,b"], "log.dirs = "),
        (["--data-dir", "d\udcff"], "log.dirs = 'd\\udcff' (--set) is not allowed"),
        (["--data-dir", "d", "--config", sys.executable], "is not a .properties file, see line "),
    ],
)
def test_a_wrong_configuration_is_2(arguments: list[str], said: str) -> None:
    """A wrong configuration ends with 2 and one sentence with the setting, the value, the allowed values and the
    source; nothing is started."""
    done = run("serve", *arguments)
    assert done.code == 2 and said in done.sentence


@pytest.mark.parametrize("arguments", [["--port", "65536"], ["--port", "x"], ["--log-level", "loud"], ["extra"]])
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    done = run("serve", "--data-dir", "d", *arguments)
    assert done.code == 2 and "\nUsage: pybroker serve" in done.err


def test_a_port_in_use(tmp_path: Path) -> None:
    """A port in use ends serve with one sentence with the address, and 1."""
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        done = run_process("serve", "--data-dir", tmp_path, "--port", port)
    assert done.code == 1 and done.sentence == (
        f"could not listen on {HOST}:{port}: the port is in use: stop the program that listens there, or choose another"
    )


def test_too_few_open_files_are_allowed(tmp_path: Path) -> None:
    """serve refuses a limit of open files that leaves none for clients, and says how many it needs."""
    serve = f"ulimit -n 64; exec {sys.executable} -m pybroker serve --data-dir {tmp_path} --port 0"
    done = subprocess.run(["bash", "-c", serve], capture_output=True, text=True, timeout=60)
    sentence = "pybroker: 64 open files are allowed (ulimit -n), but a broker needs 256 or more\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", sentence)


@pytest.mark.parametrize("name", ["no-such-host.invalid"])
def test_a_host_that_is_none(tmp_path: Path, name: str) -> None:
    """A host that does not exist, of a listener or of the metrics, is named, with exit code 1."""
    done = run_process("serve", "--data-dir", tmp_path, "--port", 0, "--host", name)
    assert done.code == 1 and done.sentence == f"could not listen on {name}:0: the name is not known"
    done = run_process("serve", "--data-dir", tmp_path, "--port", 0, "--set", f"metrics.listener={name}:0")
    assert done.sentence == f"metrics.listener = {name}:0: cannot listen there: the name is not known"


def test_a_data_directory_in_use(start_broker: Callable[..., BrokerProcess]) -> None:
    """A second broker on a data directory in use refuses to start and says why; the first is not affected."""
    broker = start_broker()
    done = run_process("serve", "--data-dir", broker.data_dir, "--port", 0)
    assert done.code == 1 and str(broker.data_dir) in done.sentence
    assert run("topics", "list", "-b", broker.bootstrap).code == 0


@pytest.mark.parametrize(("below", "why"), [("", "it is not a directory"), ("/data", "not a directory")])
def test_a_directory_that_cannot_be(tmp_path: Path, below: str, why: str) -> None:
    """A data directory that cannot be made, as a file is in its place or its parent's, is reported in one sentence."""
    (tmp_path / "file").touch()
    done = run_process("serve", "--data-dir", f"{tmp_path}/file{below}", "--port", 0)
    assert done.code == 1
    assert done.sentence == f"no log directory can be used ({tmp_path}/file{below}: {why})"


def children(pid: int) -> list[str]:
    """The states of a process's children: Z means ended."""
    pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] for child in pids]


def test_a_reader_that_leaves_does_not_stop_the_broker(tmp_path: Path) -> None:
    """A reader that leaves, as in `pybroker serve | head -1`, does not stop the broker: the ready line is its only
    standard output."""
    serve = f"{sys.executable} -m pybroker serve --data-dir {tmp_path} --port 0"
    process = Process(["bash", "-c", f"exec {serve} > >(head -1)"])
    port = int(process.wait_line(READY.pattern, READY_S_MAX)["port"])
    until("standard output has no reader any more", lambda: all(state == "Z" for state in children(process.pid)))
    assert run("topics", "list", "-b", f"{HOST}:{port}").code == 0
    process.signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_the_page_on_durability(tmp_path: Path) -> None:
    """docs/durability.md's commands start a broker that flushes by time, and create its two kinds of topics."""
    page = (ROOT / "docs" / "durability.md").read_text()
    serve, *creations = (shlex.split(line.removesuffix(" &")) for line in re.findall(r"^pybroker (.+)$", page, re.M))
    assert serve[:5] == ["serve", "--data-dir", "data", "--port", "9092"]
    serving = Serving("--data-dir", tmp_path, "--port", 0, *serve[5:])
    there = f"{HOST}:{serving.ready['port']}"
    try:
        assert [run(*create, "-b", there).code for create in creations] == [0, 0]
        found = {d["name"]: d["configs"] for d in run("topics", "describe", "--json", "-b", there).json}
        assert found["orders"]["flush.ms"] == {"value": "5000", "source": "topic"}
        assert found["payments"]["flush.messages"] == {"value": "1", "source": "topic"}
        (told,) = run(
            "configs", "describe", "--broker", 1001, "log.flush.scheduler.interval.ms", "--json", "-b", there
        ).json
        assert told["value"] == "1000"
    finally:
        assert serving.end(signal.SIGTERM).code == 0


def test_a_port_and_the_listeners_of_a_file(tmp_path: Path) -> None:
    """--port and --host change a file's single PLAINTEXT listener; with other listeners they are refused."""
    file = tmp_path / "broker.properties"
    file.write_text("listeners=PLAINTEXT://localhost:1\n")
    serving = Serving("--data-dir", tmp_path / "data", "--config", file, "--port", 0)
    ended = serving.end(signal.SIGTERM)
    assert serving.ready["host"] == "localhost" and ended.code == 0

    for listeners in ("SASL_SSL://:9094", "PLAINTEXT://:1,SSL://:2", "CLIENTS://:9092"):
        file.write_text(f"num.partitions=3\nlisteners={listeners}\n")
        for option, value in (("--port", 9093), ("--host", "localhost")):
            done = run("serve", "--data-dir", tmp_path, "--config", file, option, value)
            assert done.code == 2 and done.sentence == (
                f"{option} stands for one PLAINTEXT listener, and listeners = '{listeners}' ({file}:2) is another "
                f"one: remove {option}, or change the setting"
            )


def test_a_groups_first_read_does_not_wait(tmp_path: Path) -> None:
    """serve sets group.initial.rebalance.delay.ms to 0 instead of Kafka's 3 s and logs it in one line; a user's setting
    wins, without a line."""
    setting = "group.initial.rebalance.delay.ms"
    for sets, delay in (([], "0"), (["--set", f"{setting}=2000"], "2000")):
        serving = Serving("--data-dir", tmp_path / delay, "--port", 0, *sets)
        there = ("-b", f"{HOST}:{serving.ready['port']}")
        try:
            (told,) = run("configs", "describe", "--broker", 1001, setting, "--json", *there).json
            assert told["value"] == delay
            assert run("produce", "t", "--create", *there, stdin="x\n").code == 0
            began = time.monotonic()
            read = run("consume", "t", "--group", "g", "--exit-at-end", *there)
            taken = time.monotonic() - began
        finally:
            ended = serving.end(signal.SIGTERM)
        assert (read.code, read.out) == (0, "x\n")
        assert taken < 2 if delay == "0" else taken >= 2
        assert (f"default changed {setting}=0 " in ended.err) == (delay == "0")
