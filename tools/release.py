"""Build a release in dist/: an sdist and a wheel of the commit that the version's tag names, checked and tried.

It refuses what cannot be a release, in one sentence: changes that are not committed, a version without its tag on this
commit, a version without a section in CHANGELOG.md. `make release` runs it. The version is in pybroker/__init__.py.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
MB: Final = 1_000_000


def refusal(root: Path) -> str:
    """Return in a sentence why the checkout at `root` is no release; empty if it is one."""
    if changed := _output(root, "git", "status", "--porcelain").splitlines():
        return f"{changed[0][3:]} has changes that are not committed, one of {len(changed)} files"
    version = version_of(root)
    if f"v{version}" not in _output(root, "git", "tag", "--points-at", "HEAD").split():
        return f"this commit has no tag v{version}, the version of pybroker/__init__.py: git tag v{version}"
    section = re.search(
        rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$(.*?)(?=^## |\Z)", (root / "CHANGELOG.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )  # fmt: skip
    if section is None or not section[1].strip():
        return f"CHANGELOG.md has no section '## {version} - YYYY-MM-DD', or it is empty: cut it from Unreleased"
    return ""


def version_of(root: Path) -> str:
    found = re.search(r'^__version__ = "([^"]+)"$', (root / "pybroker" / "__init__.py").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def build(root: Path, directory: Path) -> dict[str, str]:
    """Build an sdist from a fresh clone of `root` at HEAD, and a wheel from the sdist, in `directory`; return their
    SHA-256 by name."""
    with tempfile.TemporaryDirectory() as scratch:
        clone = Path(scratch) / "clone"
        _run(root, "git", "clone", "-q", str(root), str(clone))
        _run(clone, sys.executable, "-m", "build", "--no-isolation", "--outdir", str(directory))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


def try_wheel(wheel: Path) -> str:
    """Install a wheel with what it needs into an environment of its own, and run tools/smoke.py there; return its line,
    with the seconds and the size of the installation."""
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch) / "venv"
        venv.create(home, with_pip=False)
        python = home / "bin" / "python"
        begun_s = time.monotonic()
        _run(Path(scratch), sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", str(wheel))
        seconds = time.monotonic() - begun_s
        packages = sum(path.lstat().st_size for path in home.rglob("*") if path.is_file()) / MB
        said = _output(Path(scratch), str(python), "-I", str(ROOT / "tools" / "smoke.py")).strip()
    return f"{said}\nInstalled in {seconds:.1f} s, {packages:.0f} MB with all that it needs"


def main() -> int:
    if problem := refusal(ROOT):
        print(f"release: {problem}", file=sys.stderr)
        return 1
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir()
    print(f"Building pybroker {version_of(ROOT)} twice", flush=True)
    made = build(ROOT, dist)
    with tempfile.TemporaryDirectory() as again:
        if (second := build(ROOT, Path(again))) != made:
            print(f"release: two builds differ: {made} and {second}", file=sys.stderr)
            return 1
    _run(ROOT, sys.executable, "-m", "twine", "check", "--strict", *(str(dist / name) for name in made))
    (wheel,) = dist.glob("*.whl")
    print(try_wheel(wheel))
    for name, digest in made.items():
        print(f"{digest}  dist/{name}  {(dist / name).stat().st_size / MB:.1f} MB")
    return 0


def _output(directory: Path, *command: str) -> str:
    """Run a command, and return its output. A command that fails ends the release with what it wrote."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"release: {' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def _run(directory: Path, *command: str) -> None:
    _output(directory, *command)


if __name__ == "__main__":
    sys.exit(main())
