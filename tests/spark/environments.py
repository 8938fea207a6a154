"""Python environments for Spark's workers: pybroker installed from a wheel, and others with something missing.

The wheel is packed in a second from the checkout's built files; tests/system/test_packaging.py shows that a real build
holds the same files.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Collection
from importlib import metadata
from pathlib import Path
from typing import Final

from tests.harness import ROOT

PACKAGES: Final = Path(sysconfig.get_paths()["purelib"])
ENDING: Final = str(sysconfig.get_config_var("EXT_SUFFIX"))


def pack_wheel(directory: Path) -> Path:
    """A wheel of this checkout, with the extensions that were built in place."""
    held = metadata.distribution("pybroker")
    info = f"pybroker-{held.version}.dist-info"
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    wheel = directory / f"pybroker-{held.version}-{tag}-{tag}-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for package in ("pybroker", "pyspark_pybroker"):
            for path in sorted((ROOT / package).rglob("*.py")):  # core/ is a symbolic link, which rglob does not follow
                if "core" not in path.relative_to(ROOT).parts:
                    archive.write(path, path.relative_to(ROOT))
        for path in sorted((ROOT / "core").rglob("*")):
            if path.suffix == ".py" or path.name.endswith(ENDING):
                archive.write(path, "pybroker" / path.relative_to(ROOT))
        told = f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: false\nTag: {tag}-{tag}-linux_x86_64\n"
        archive.writestr(f"{info}/WHEEL", told)
        for name in ("METADATA", "entry_points.txt", "top_level.txt"):
            archive.writestr(f"{info}/{name}", held.read_text(name) or "")
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*archive.namelist(), f"{info}/RECORD"]))
    return wheel


class WorkerPython:
    """A virtual environment that uses this environment's packages, except those that it must lack."""

    def __init__(self, path: Path, lacks: Collection[str] = ()) -> None:
        venv.create(path, with_pip=False)
        self.path = path
        self.python = path / "bin" / "python"
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        self.packages = path / "lib" / version / "site-packages"
        borrowed = PACKAGES
        if lacks:
            borrowed = path / "borrowed"
            borrowed.mkdir()
            for found in PACKAGES.iterdir():
                if found.name.partition("-")[0].partition(".")[0] not in lacks:
                    (borrowed / found.name).symlink_to(found)
        # Python ignores .pth files in a directory that a .pth file adds: pybroker, editable there, is not importable.
        (self.packages / "borrowed.pth").write_text(f"{borrowed}\n")

    def install(self, wheel: Path) -> None:
        """Install a wheel as pip does, in a tenth of the time, and without commands in bin/."""
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.packages)

    def run(self, *arguments: object) -> str:
        """Run code with this Python away from the checkout, and return its standard output."""
        command = [str(self.python), *map(str, arguments)]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(command, cwd=self.path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
