"""The command line as a person uses it, and the brokers of its tests: ours, and Apache Kafka's."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import IO, Any

import pytest
from click.testing import CliRunner

from pybroker.cli import waiting
from pybroker.cli.main import cli
from tests.harness import ROOT, Server
from tests.java.peers import PEERS, each_peer

waiting.QUIET_S = 3600.0  # type: ignore[misc]  # on a busy machine too, the lines of a wait are only in tests about them


class Done:
    """The output and the exit code of a command that has ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    def __repr__(self) -> str:
        return f"Done({self.code}, {self.out[-4000:]!r}, {self.err[-4000:]!r})"

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def bytes(self) -> bytes:
        return self.out.encode(errors="surrogateescape")

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def sentence(self) -> str:
        """The one line that a failed command printed, and nothing else, but what it waited for on a busy machine."""
        said = (self.code, self.out, self.err)
        lines = [line for line in self.err.splitlines() if not line.startswith("pybroker: waiting ")]
        assert self.out == "" and self.code != 0 and len(lines) == 1 and lines[0].startswith("pybroker: "), said
        return lines[0].removeprefix("pybroker: ").strip()


def run(*arguments: object, stdin: str | bytes | IO[bytes] | None = None) -> Done:
    """Run `pybroker` in this process; an exception that no command handles is raised."""
    done = CliRunner().invoke(cli, [str(a) for a in arguments], input=stdin, prog_name="pybroker")
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Done(done.exit_code, done.stdout_bytes.decode(errors="surrogateescape"), done.stderr)


def start(*arguments: object, **how: Any) -> subprocess.Popen[bytes]:
    """Start `pybroker` as a process, with pipes by default."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-m", "pybroker", *map(str, arguments)]
    return subprocess.Popen(command, **{**pipes, "cwd": ROOT, **how})


def run_process(*arguments: object) -> Done:
    """Run `pybroker` as a separate process."""
    command = [sys.executable, "-m", "pybroker", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture(params=["pybroker", *each_peer(long=PEERS)], scope="module")
def target(target: Server) -> Server:
    """The broker that the commands use; `make long` runs them against Kafka."""
    return target


Command = Callable[..., Done]
"""A function that runs `pybroker ARGUMENTS...` with the target's address."""


@pytest.fixture
def pybroker_(target: Server) -> Command:
    """Run `pybroker ... --bootstrap-server` with the target's address."""
    return lambda *arguments, **how: run(*arguments, "-b", target.bootstrap, **how)


@pytest.fixture
def topics(target: Server) -> Iterator[Callable[..., Done]]:
    """Run `pybroker topics ... --bootstrap-server` with the target's address."""
    yield lambda *arguments, **how: run("topics", *arguments, "-b", target.bootstrap, **how)
