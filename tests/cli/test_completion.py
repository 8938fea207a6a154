"""Shell completion: one command sets it up, and the tab key completes commands, options, topics and groups."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.cli.conftest import run
from tests.cli.members import commit
from tests.harness import ROOT, Server

PATIENT = "from pybroker.cli import options; options.COMPLETION_S_MAX = 30; from pybroker.__main__ import main; main()"
"""A `pybroker` whose completion waits longer for its broker than a person at the tab key would."""


def completed(words: str, **environment: str) -> list[str]:
    """The completions of these words, of which the last is incomplete."""
    asked = {"_PYBROKER_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", PATIENT],
        capture_output=True, text=True, env={**os.environ, **asked, **environment}, cwd=ROOT, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_one_command_sets_it_up(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """completion prints the script for the named shell, or for the current one; it refuses an unsupported shell."""
    named = run("completion", shell)
    assert named.code == 0 and "_PYBROKER_COMPLETE=" in named.out and f"{shell}_complete" in named.out
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    assert run("completion").out == named.out
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    other = run("completion")
    assert other.code == 2 and "'tcsh'" in other.sentence


def test_bash_takes_it() -> None:
    """bash runs the printed script, which registers itself for `pybroker`."""
    script = f'eval "$({sys.executable} -m pybroker completion bash)"; complete -p pybroker'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0 and "_pybroker_completion pybroker" in done.stdout and done.stderr == ""


def test_commands_and_options() -> None:
    """Commands and options are completed without a broker."""
    assert {"produce", "consume", "groups", "configs", "topics"} <= set(completed("pybroker "))
    assert completed("pybroker topics de") == ["delete", "describe"]
    assert completed("pybroker groups reset-offsets --to-e") == ["--to-earliest"]


def test_topics_and_groups(shared_broker: Server, topic: str) -> None:
    """Topics and groups are completed by prefix, from the broker of the option or the environment."""
    there = shared_broker.bootstrap
    for name in (f"{topic}-a", f"{topic}-b"):
        run("topics", "create", name, "-p", 1, "-b", there)
    commit(there, f"{topic}-g", f"{topic}-a", {0: 0})
    in_environment = {"PYBROKER_BOOTSTRAP_SERVER": there}
    both = [f"{topic}-a", f"{topic}-b"]
    assert completed(f"pybroker consume {topic}-", **in_environment) == both
    assert completed(f"pybroker produce -b {there} {topic}-") == both
    assert completed(f"pybroker configs describe --topic {topic}-b", **in_environment) == [f"{topic}-b"]
    assert completed(f"pybroker groups describe {topic}-", **in_environment) == [f"{topic}-g"]
    assert completed(f"pybroker consume -g {topic}-", **in_environment) == [f"{topic}-g"]


def test_nobody_is_there() -> None:
    """An unreachable broker, or an invalid address, gives no completions, quickly and without a message."""
    began_s = time.monotonic()
    for address in ("127.0.0.1:1", "not an address"):
        assert completed("pybroker consume some", PYBROKER_BOOTSTRAP_SERVER=address) == []
    assert time.monotonic() - began_s < 30
