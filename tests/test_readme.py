"""The tour in README.md, as a reader would take it: every command in it runs, and shows what the text says."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Done, run
from tests.harness import HOST, ROOT, BrokerProcess

README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^    \$ \.venv/bin/pybroker (.+)$", README, re.M)
SERVE = "serve --data-dir /tmp/tour --port 9092"
(PROGRAM,) = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)


@pytest.fixture
def take(start_broker: Callable[..., BrokerProcess], tmp_path: Path) -> Callable[[str], Done]:
    """Run a command of the tour against a broker of the test's own, where the text has its directory and port."""
    broker = start_broker(data_dir=tmp_path / "tour")

    def command(text: str) -> Done:
        here = text.replace("/tmp/tour", str(broker.data_dir))
        here += f" -b {broker.bootstrap}" if here.startswith("topics ") else ""
        return run(*shlex.split(here))

    def program() -> Done:
        source = PROGRAM.replace("localhost:9092", broker.bootstrap)
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
        return Done(done.returncode, done.stdout, done.stderr)

    def again() -> Done:
        broker.kill()
        broker.restart()
        return program()

    return lambda text: {"the program": program, "kill -9 and the program": again}.get(text, lambda: command(text))()


def test_the_tour(take: Callable[[str], Done]) -> None:
    """Create, look, write and read with a real client, dump, kill -9, and read again."""
    assert COMMANDS[0] == SERVE and HOST == "127.0.0.1"
    create, listed, described, dump = COMMANDS[1:]
    assert take(create).out == "Created topic hello: partitions 3, replicas 1.\n"
    assert "hello" in take(listed).out
    assert take(described).out.startswith("Topic hello  id ")
    assert take("the program").out == "b'world'\n"
    assert "'greeting' = 'world'" in take(dump).out
    assert take("kill -9 and the program").out == "b'world'\n"


def test_every_make_target_named_is_there() -> None:
    """The README names no target that the Makefile lacks."""
    named = set(re.findall(r"make ([a-z]+)", README)) | {"lint", "bench", "wheel", "sanitize", "docs", "clean"}
    assert named <= set(re.findall(r"^\.PHONY: (\w+)$", (ROOT / "Makefile").read_text(), re.M))
