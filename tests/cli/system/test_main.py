"""The `pybroker` command: its subcommands, its failures, and the time it takes to start."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pybroker import __version__
from pybroker.cli import main, output
from pybroker.errors import KafkaError
from tests.cli.conftest import run, run_process
from tests.harness import ROOT

PROBE = """
import sys
from pybroker.cli.main import cli
try:
    cli({arguments!r}, prog_name="pybroker")
except SystemExit:
    pass
print(sorted(name for name in {names!r} if name in sys.modules), file=sys.stderr)
"""


def loaded(arguments: list[str], *names: str) -> list[str]:
    """The given modules that a command has imported by its end."""
    code = PROBE.format(arguments=arguments, names=names)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    found: list[str] = json.loads(done.stderr.splitlines()[-1].replace("'", '"'))
    return found


def test_every_command_is_listed_and_helps() -> None:
    """Every command has a line in the list of commands, and a help text with its exit codes."""
    listed = run("--help").out
    for name, command in main.COMMANDS.items():
        assert f"  {name} " in listed and command.summary in listed
        helped = run(name, "--help")
        assert helped.code == 0 and helped.out.startswith(f"Usage: pybroker {name}")
        assert "Exit codes" in helped.out or name == "version"
    assert "Exit codes" in listed and "pybroker completion" in listed


def test_version() -> None:
    assert run("version").out.startswith(f"pybroker {__version__} (Python ")
    assert run("version", "--json").json["pybroker"] == __version__
    assert run("--version").out == f"pybroker {__version__}\n"


def test_a_reader_that_leaves_is_no_failure(tmp_path: Path) -> None:
    """A reader that closes the pipe, as in `pybroker ... | head -1`, is no failure: exit code 0 and no message."""
    checkpoint = tmp_path / "leader-epoch-checkpoint"
    checkpoint.write_text("0\n100000\n" + "".join(f"{n} {n}\n" for n in range(100_000)))
    command = f"{sys.executable} -m pybroker dump {checkpoint} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "epoch 0  start_offset 0\n", "")


def test_failures_become_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of a broker or the system becomes one sentence; a bug of pybroker keeps its traceback."""

    def fail(error: BaseException) -> None:
        raise error

    for error, said in (
        (KafkaError(3, "no such topic"), "no such topic"),
        (OSError(28, "No space left on device"), "no space left on device"),
        (FileNotFoundError(2, "No such file or directory", "x"), "x: no such file or directory"),
    ):
        monkeypatch.setattr(output.json, "dumps", lambda _, error=error: fail(error))
        done = run("version", "--json")
        assert done.code == 1 and done.sentence == said
    monkeypatch.setattr(output.json, "dumps", lambda _: fail(KeyboardInterrupt()))
    assert run("version", "--json").code == 130
    monkeypatch.setattr(output.json, "dumps", lambda _: fail(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        run("version", "--json")


def test_the_nearest_command_is_named() -> None:
    """An unknown command is answered with the nearest command or subcommand, if one is like it."""
    for words, sentence in (
        (["topic", "list"], "no such command 'topic'. Did you mean 'topics'?"),
        (["topics", "lst"], "no such command 'lst'. Did you mean 'list'?"),
        (["xyz"], "no such command 'xyz'"),
    ):
        done = run(*words)
        assert done.code == 2 and done.err.startswith(f"pybroker: {sentence}\n")


def test_a_command_pays_only_for_itself() -> None:
    """A command imports only its own modules: serve no tables and no client, version neither broker nor core."""
    heavy = ("rich", "confluent_kafka", "kafka", "numpy", "pybroker.client", "pybroker.cli.topics", "javaproperties")
    assert loaded(["serve", "--data-dir", "/dev/null/x", "--port", "0"], *heavy) == []
    assert loaded(["version"], *heavy, "asyncio", "pybroker.core", "pybroker.protocol", "pybroker.server") == []
    assert loaded(["topics", "list", "-b", "127.0.0.1:1"], "rich", "asyncio", "pybroker.core", "pybroker.server") == []


def test_tables_are_aligned_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """A table aligns numbers to the right, cuts nothing, and shows None as a dash."""
    output.table(("name", "count"), [("a" * 200, 5), ("b", None), ("c", 1234)])
    head, first, second, third = capsys.readouterr().out.splitlines()
    assert head == "NAME" + " " * 198 + "COUNT" and first == "a" * 200 + "      5"
    assert second.endswith("    -") and third.endswith(" 1234")


def test_a_terminal_gets_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets rich's table, and text that looks like rich's markup is shown unchanged."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    output.table(("name", "count"), [("[bold]x[/bold]", 5)])
    out = capsys.readouterr().out
    assert "[bold]x[/bold]" in out and "─" in out


def test_a_process_ends_with_the_code() -> None:
    """A process ends with the command's exit code, and prints nothing else to standard output."""
    done = run_process("dump", "/nowhere/1.log")
    assert done.code == 1 and done.sentence == "/nowhere/1.log: no such file or directory"
    assert run_process("dump", "x.txt").code == 2


INTERRUPTED_AT = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
signal.signal(signal.SIGINT, {handler})
from pybroker.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("handler", "code"),
    [("signal.default_int_handler", -signal.SIGINT), ("signal.SIG_IGN", 0)],
    ids=["heard", "ignored"],
)
@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("click", "version"),
        ("pybroker.cli.version", "version"),
        ("concurrent.futures.thread", "topics --help"),
        ("pybroker.server.broker", "serve --data-dir /dev/null/x"),
        ("pybroker.coordination.store", "migrate-store --data-dir /nowhere --zookeeper x:1"),
        ("pybroker.development.zookeeper_server", "zookeeper --jars /nowhere"),
    ],
)
def test_ctrl_c_while_modules_are_imported(module: str, command: str, handler: str, code: int, tmp_path: Path) -> None:
    """Ctrl-C while modules are imported ends the process without a traceback, unless SIGINT is ignored. An extension
    module may lose the exception, as core does while it imports concurrent.futures."""
    source = INTERRUPTED_AT.format(handler=handler, module=module)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", source, *command.split()], capture_output=True, text=True, cwd=tmp_path, timeout=60,
        env=environment,
    )  # fmt: skip
    if code:
        assert (done.returncode, done.stderr) == (code, "")
    else:
        assert done.returncode >= 0 and "Traceback" not in done.stderr


def test_ctrl_c_while_the_command_line_is_read(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """Ctrl-C while the command line is parsed ends with 130, as later, and no message."""

    def interrupted(*_: object) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(main.Commands, "parse_args", interrupted)
    with pytest.raises(SystemExit) as ended:
        main.cli(["version"], prog_name="pybroker")
    assert (ended.value.code, tuple(capfd.readouterr())) == (130, ("", ""))


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("version >&-", 0, ""),
        ("dump nowhere.log >&-", 1, "pybroker: nowhere.log: no such file or directory\n"),
        ("dump nowhere.log 2>&-", 1, ""),
        ("--help >/dev/full", 1, "pybroker: no space left on device\n"),
        ("version >/dev/full", 1, "pybroker: no space left on device\n"),
        ("groups reset-offsets g --from-file - --all-topics <&-", 2, "pybroker: "),
    ],
)
def test_streams_that_are_closed_or_full(command: str, code: int, said: str) -> None:
    """A closed stream acts like /dev/null; a full one is an error."""
    script = f"{sys.executable} -m pybroker {command}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == code and done.stderr.startswith(said) and "Traceback" not in done.stderr
    assert said or done.stderr == ""


def test_a_closed_stream_is_no_file_of_the_program() -> None:
    """A closed stream's file descriptor is reserved, so that no file opened later receives its output."""
    source = 'from pybroker.__main__ import _open_streams; _open_streams(); print(open("/dev/zero").fileno())'
    script = f"{sys.executable} -c {shlex.quote(source)}"
    for closed in ("", "<&-", "2>&-", "<&- 2>&-"):
        done = subprocess.run(
            ["bash", "-c", f"{script} {closed}"], capture_output=True, text=True, cwd=ROOT, timeout=60
        )
        assert int(done.stdout) > 2, closed


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e300", "0", "86400.1"])
def test_no_time_to_wait_for(seconds: str) -> None:
    """A time that no clock can wait for is refused like any invalid option."""
    for command in (("topics", "list", "--timeout"), ("bench", "--seconds"), ("bench", "--warm")):
        if command[-1] != "--warm" or seconds != "0":
            done = run(*command, seconds)
            assert done.code == 2 and "pybroker: invalid value for '--" in done.err
    for command in (("create", "--max-lifetime"), ("renew", "x", "--for"), ("expire", "x", "--in")):
        if seconds in ("nan", "inf", "1e300"):
            done = run("tokens", *command, seconds)
            assert done.code == 2 and "pybroker: invalid value for '--" in done.err


def test_what_others_said_is_shown_and_not_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker's error text is printed on one line, with its control characters escaped."""
    sentence = main.Failure("a\x1b[2Jb\nc")
    monkeypatch.setattr(output.json, "dumps", lambda _: (_ for _ in ()).throw(sentence))
    assert run("version", "--json").sentence == "a\\x1b[2Jb\\nc"
