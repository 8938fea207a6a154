"""A program without NumPy has everything but columns, and these say what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pybroker import extras
from tests.server.live import batch
from tests.sources import ROOT

WITHOUT = "import sys; sys.modules['numpy'] = None; "


def without_numpy(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT + program, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_file_is_dumped(tmp_path: Path) -> None:
    """`pybroker dump --records` reads a segment, which the next one bounds."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    first, second = directory / f"{0:020}.log", directory / f"{1:020}.log"
    first.write_bytes(batch(b"one"))
    second.write_bytes(batch(b"two", base_offset=1))
    program = "from pybroker.__main__ import main; main()"
    done = without_numpy(program, "dump", "--records", str(first), str(second))
    assert (done.returncode, done.stderr) == (0, "")
    assert "one" in done.stdout and "two" in done.stdout


@pytest.mark.parametrize("program", [
    "import pybroker; pybroker.read_index", "import pybroker; pybroker.RecordArrays",
    "import pybroker.client.producing.column_batches",
])  # fmt: skip
def test_columns_name_what_they_need(program: str) -> None:
    done = without_numpy(program)
    assert f"ModuleNotFoundError: columns need numpy: {extras.install('numpy')}" in done.stderr


def test_the_rest_is_imported() -> None:
    """The broker, the client and the commands are imported without it."""
    done = without_numpy(
        "import pybroker; pybroker.Consumer; pybroker.Producer; pybroker.AsyncConsumer; import pybroker.server.process"
    )
    assert (done.returncode, done.stderr) == (0, "")
