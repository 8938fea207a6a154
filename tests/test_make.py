"""The Makefile on a machine that lacks something: one sentence names it, before anything is built."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import ROOT

TOOLS = ("sh", "awk", "nproc", "mkdir", "touch", "rm", "find", "cat")
SYSTEM_PYTHON = os.path.join(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that the Makefile reads before it has a .venv, and a `bin` that is the whole PATH."""
    facts = ("tools/core_facts.py", "pybroker/errors.py", "pybroker/protocol/apis.py", "pybroker/protocol/schema.py")
    for name in ("Makefile", "pyproject.toml", "setup.py", "tools/preflight.py", *facts):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or "/nowhere")
    return tmp_path


def make(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [shutil.which("make") or "make", *arguments]
    return subprocess.run(command, cwd=checkout, env={"PATH": str(checkout / "bin")}, capture_output=True, text=True)


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that a failed make printed."""
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    found = re.fullmatch(r"Makefile:\d+: \*\*\* (.+)\.  Stop\.", line)
    assert found, line
    return found[1]


def test_without_python(checkout: Path) -> None:
    """Without a Python that is new enough, the sentence says which is needed."""
    assert "No Python 3.11 or newer on PATH" in sentence(make(checkout, "build"))
    assert not (checkout / ".venv").exists()


@pytest.mark.skipif(not os.path.exists(SYSTEM_PYTHON), reason=f"no {SYSTEM_PYTHON}")
def test_without_compiler(checkout: Path) -> None:
    """Without a C compiler, the sentence names the compiler that was looked for."""
    (checkout / "bin" / "python3").symlink_to(SYSTEM_PYTHON)
    assert re.match(r"No C compiler: \S+ is not on PATH: install it", sentence(make(checkout, "build")))
    assert not (checkout / ".venv").exists()


def test_with_an_old_python(checkout: Path) -> None:
    """A Python that is too old is skipped, and is named if it was asked for."""
    older = "import runpy, sys; sys.version_info = (3, 10); runpy.run_path(sys.argv[1], run_name='__main__')"
    old = checkout / "bin" / "python3"
    old.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit 1\nexec {sys.executable} -c "{older}" "$@"\n')
    old.chmod(0o755)
    assert "No Python 3.11 or newer on PATH" in sentence(make(checkout, "build"))
    assert "is Python 3.10" in sentence(make(checkout, "build", f"PYTHON={old}"))


def test_help_lists_what_there_is(checkout: Path) -> None:
    """`make help` has a line for every target that a person calls, and make without a target shows it."""
    targets = set(re.findall(r"^\.PHONY: (\w+)$", (ROOT / "Makefile").read_text(), re.M))
    done = make(checkout)
    assert targets == set(re.findall(r"^  make (\w+) ", done.stdout, re.M))
    assert {"build", "demo", "test", "bench", "lint", "wheel", "sanitize", "clean"} <= targets
