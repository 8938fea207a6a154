"""A reader that types a page's commands, one block after the other, in a directory of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import FILES, OUTPUT, PROGRAM, SHELL, Block
from tests.harness import HOST, ROOT, free_port, until

PLACES = (
    "/var/lib/pybroker", "/var/backups/pybroker", "/etc/pybroker", "/etc/systemd/system", "/opt/pybroker", "/tmp/tour"
)  # fmt: skip
"""Directories on the pages; the reader has them below its own directory."""
NAMES = {"zk1:2181,zk2:2181,zk3:2181": "127.0.0.1:2181", "broker1.example.org": "localhost"}
"""Other hosts on the pages, all replaced by this machine."""
SINGLE, RUNS = ("2181", "2182", "8080"), (("9092", 4), ("9404", 4))
"""Ports on the pages: single ones, and runs of consecutive ones."""
SERVES = re.compile(r"^(?!\s*#).*?\bpybroker serve\b(?:[^\n]*\\\n)*[^\n]*&", re.M)
LOOP = re.compile(r"^for \w+ in ([^;\n]+); do", re.M)
SECONDS_MAX = 300


def free_run(count: int) -> int:
    """The first of this many consecutive free ports."""
    while True:
        first = free_port()
        try:
            for port in range(first + 1, first + count):
                socket.create_server((HOST, port)).close()
        except OSError:
            continue
        return first


def served_by(text: str) -> int:
    """The number of brokers that a block starts in the background."""
    loop = LOOP.search(text)
    return len(SERVES.findall(text)) * (len(loop[1].split()) if loop else 1)


class Reader:
    """One bash for a whole page, so that variables and background jobs of a block are there in the next one."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.said: list[str] = []
        self._ports = {port: str(free_port()) for port in SINGLE}
        for first, count in RUNS:
            free = free_run(count)
            self._ports |= {str(int(first) + n): str(free + n) for n in range(count)}
            self._ports[str(int(first) - 1)] = str(free - 1)  # the pages count from it: $((9091 + i))
        programs = home / "bin"
        programs.mkdir()
        for name, arguments in {"pybroker": "-m pybroker", "pytest": "-m pytest", "python": ""}.items():
            (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
            (programs / name).chmod(0o755)
        for place in PLACES:
            Path(self.here(place)).mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "HOME": str(home),
            "PYBROKER_BOOTSTRAP_SERVER": self.here("localhost:9092"),
        }  # fmt: skip
        self._shell = subprocess.Popen(
            ["bash", "-o", "pipefail"], stdin=subprocess.PIPE, cwd=home, env=environment, text=True,
            start_new_session=True,
        )  # fmt: skip

    def here(self, text: str) -> str:
        """The text with ports that are free here and the reader's own directories."""
        for name, local in NAMES.items():
            text = text.replace(name, local)
        for place in PLACES:
            text = text.replace(place, f"{self.home}{place}")
        ports = r"(?<![\d.])(2181|2182|909\d|940\d)(?!\d)"
        return re.sub(ports, lambda found: self._ports.get(found[0], found[0]), text)

    def outputs(self) -> str:
        """All output so far, of background programs as well."""
        return "".join((self.home / f"{number}.out").read_text() for number in range(len(self.said)))

    def take(self, block: Block) -> None:
        """Handle a block as a reader does: type it, run it, save it, or compare it with the output."""
        if block.language == SHELL and not block.title:
            self.types(block.place, block.text)
        elif block.language == PROGRAM and (not block.title or block.title.startswith("cell")):
            program = self.home / "program.py"
            program.write_text(self.here(block.text))
            starter = ROOT / "tests/docs/cell.py" if block.title else ""
            self.types(block.place, f"PYTHONPATH=$PYTHONPATH:. python -W error {starter} {program}")
        elif block.language in FILES | {PROGRAM, SHELL} and block.title:
            path = Path(self.here(block.title))
            path = path if path.is_absolute() else self.home / path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.here(block.text))
            path.chmod(0o600)
        else:
            assert block.language == OUTPUT, f"{block.place}: a reader does not know what to do with this block"
            missing = [line for line in block.text.splitlines() if line.strip() and not self._was_printed(line)]
            assert not missing, f"{block.place}: not printed: {missing}\nprinted:\n{self.outputs()[-4000:]}"

    def _was_printed(self, line: str) -> bool:
        """True if a line was printed as a page shows it: "…" stands for any text, a blank for any blanks."""
        pattern = r"\s+".join(re.escape(self.here(word)).replace("…", r".*?") for word in line.split())
        return re.search(rf"^\s*{pattern}\s*$", self.outputs(), re.M) is not None

    def types(self, place: str, text: str) -> None:
        """Type the commands of a block, which must succeed, and wait until the brokers that it starts serve."""
        number, ready = len(self.said), self.outputs().count("pybroker ready")
        out, code = self.home / f"{number}.out", self.home / f"{number}.code"
        self.said.append(text)
        out.touch()
        assert self._shell.stdin is not None
        body = f"set -e\n{self.here(text)}\nset +e"
        self._shell.stdin.write(f"{{ {body}\n}} > {out} 2>&1; echo $? > .ended; mv .ended {code}\n")
        self._shell.stdin.flush()
        ended = lambda: code.exists() or self._shell.poll() is not None  # noqa: E731
        until(f"{place} has an end", ended, timeout_s=SECONDS_MAX)
        assert code.exists() and code.read_text() == "0\n", f"{place}: {text}\n{out.read_text()[-4000:]}"
        expected = ready + served_by(text)
        serve = lambda: self.outputs().count("pybroker ready") >= expected or self._shell.poll() is not None  # noqa: E731
        try:
            until(f"{place}: {expected - ready} brokers serve", serve)
        except AssertionError as problem:
            raise AssertionError(f"{problem}\n{self.outputs()[-4000:]}") from None

    def end(self) -> None:
        """End the shell and every process that it started."""
        with contextlib.suppress(ProcessLookupError):  # a failed command ended the shell, which was the last
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.communicate()
