"""The commands of docs/cli.md run in their order, and do what the text says."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.harness import ROOT, Server

PAGE = (ROOT / "docs" / "cli.md").read_text()
COMMANDS = [line for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S) for line in block.splitlines()]


def test_the_page(target: Server, tmp_path: Path) -> None:
    """The page's commands run in a shell, against any broker."""
    there = tmp_path / "pybroker"
    there.write_text(f'#!/bin/sh\nexec {sys.executable} -m pybroker "$@"\n')
    there.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYBROKER_BOOTSTRAP_SERVER": target.bootstrap,
        "PYTHONPATH": str(ROOT),
    }
    said = {}
    for command in COMMANDS:
        line = command.replace("/tmp/", f"{tmp_path}/")
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, env=environment, timeout=60
        )
        assert done.returncode == 0, (command, done.stderr)
        said[command] = done.stdout
    assert sorted(said["pybroker consume orders --key --exit-at-end"].splitlines()) == ["apple\t3", "pear\t5"]
    assert said["pybroker consume copy --last 1 --headers"] in ("NO_HEADERS\t3\n", "NO_HEADERS\t5\n")
    assert said["pybroker consume copy --at -15m --max-messages 1"] in ("3\n", "5\n")
    of_group = said["pybroker consume orders --group billing --from-beginning --exit-at-end"]
    assert sorted(of_group.splitlines()) == ["3", "5"]
    executed = said["pybroker groups reset-offsets billing --all-topics --shift-by -1 --execute"]
    assert {line.split()[0] for line in executed.splitlines()} == {"TOPIC", "orders"}
    assert "Members 0  lag 0" in said["pybroker groups describe billing"]
    configs = [line.split() for line in said["pybroker configs describe --topic orders"].splitlines()]
    assert ["retention.ms", "86400000", "topic"] in configs
