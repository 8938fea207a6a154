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
COMMANDS = re.findall(r"^    \$ (?:printf '(.*)' \| )?\.venv/bin/pybroker (.+)$", README, re.M)
SERVE = "serve --data-dir /tmp/tour --port 9092"
Take = Callable[[str | tuple[str, str]], Done]
"""Run one of COMMANDS (what is typed into it, what it is), or the program."""
(PROGRAM,) = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)


@pytest.fixture
def take(start_broker: Callable[..., BrokerProcess], tmp_path: Path) -> Take:
    """Run a command of the tour against a broker of the test's own, where the text has its directory and port."""
    broker = start_broker(data_dir=tmp_path / "tour")

    def command(typed: str, text: str) -> Done:
        here = text.replace("/tmp/tour", str(broker.data_dir))
        here += "" if here.startswith("dump ") else f" -b {broker.bootstrap}"
        return run(*shlex.split(here), stdin=typed.replace("\\n", "\n"))

    def program() -> Done:
        source = PROGRAM.replace("localhost:9092", broker.bootstrap)
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
        return Done(done.returncode, done.stdout, done.stderr)

    def again() -> Done:
        broker.kill()
        broker.restart()
        return program()

    others = {"the program": program, "kill -9 and the program": again}
    return lambda what: command(*what) if isinstance(what, tuple) else others[what]()


def test_the_tour(take: Take) -> None:
    """Create, write, read, look, a program, a group and its reset, dump, kill -9, and read again."""
    assert COMMANDS[0] == ("", SERVE) and HOST == "127.0.0.1"
    create, write, read, described, group, behind, reset, dump = COMMANDS[1:]
    assert take(create).out == "Created topic hello: partitions 3, replicas 1.\n"
    assert take(write).code == 0
    assert sorted(r["value"] for r in take(read).json_lines) == ["one", "three", "two"]
    assert take(described).out.startswith("Topic hello  id ")
    assert take("the program").out == "0 b'greeting' b'world'\n"
    assert sorted(take(group).out.split()) == ["one", "three", "two", "world"]
    assert "Members 0  lag 0" in take(behind).out
    assert take(reset).code == 0 and "Members 0  lag 4" in take(behind).out
    assert "'greeting' = 'world'" in take(dump).out
    assert take("kill -9 and the program").out == "".join(f"{n} b'greeting' b'world'\n" for n in (0, 1))


def test_every_make_target_named_is_there() -> None:
    """The README names no target that the Makefile lacks."""
    named = set(re.findall(r"make ([a-z]+)", README)) | {"lint", "bench", "wheel", "sanitize", "docs", "clean"}
    assert named <= set(re.findall(r"^\.PHONY: (\w+)$", (ROOT / "Makefile").read_text(), re.M))


def test_the_picture_is_of_the_figures() -> None:
    """docs/performance.svg has the workloads and the numbers of docs/performance.md (`make docs` draws it)."""
    drawn = re.sub(r"<[^>]+>", "", (ROOT / "docs/performance.svg").read_text())
    page = (ROOT / "docs/performance.md").read_text()
    rows = re.findall(r"^\| ([WF]\d) \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|", page, re.M)
    assert len(rows) == 11
    for name, shows, *cells in rows:
        assert f"{name}  {shows}" in drawn
        for cell in cells:
            for number in re.findall(r"^([\d.]+ [Mk]) re", cell):
                assert (number if not number.startswith("0.") else f"{float(number[:-2]) * 1000:.1f} k") in drawn
            if "us" in cell:
                times = (float(us.replace(",", "")) / 1000 for us in cell.removesuffix(" us").split(" / "))
                assert " / ".join(f"{ms:,.3f}" for ms in times) + " ms" in drawn
