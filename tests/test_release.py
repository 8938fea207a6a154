"""`make release` refuses, in one sentence, what is no release."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import ROOT
from tools import release


def git(root: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main", "-c", "tag.gpgSign=false")
    subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of version 1.2.3 that is a release."""
    (tmp_path / "pybroker").mkdir()
    (tmp_path / "pybroker" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n## 1.2.3 - 2026-11-30\n\n- New.\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "all")
    git(tmp_path, "tag", "v1.2.3")
    return tmp_path


def test_a_release(checkout: Path) -> None:
    assert release.refusal(checkout) == ""


def test_changes_that_are_not_committed(checkout: Path) -> None:
    (checkout / "new").touch()
    assert release.refusal(checkout) == "new has changes that are not committed, one of 1 files"


@pytest.mark.parametrize("tag", ["v1.2.2", "1.2.3", "v1.2.3.1"])
def test_a_version_without_its_tag(checkout: Path, tag: str) -> None:
    """The tag has to be the version's, and has to name this commit."""
    git(checkout, "tag", "-d", "v1.2.3")
    git(checkout, "tag", tag)
    assert release.refusal(checkout).startswith("this commit has no tag v1.2.3")
    git(checkout, "tag", "v1.2.3")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "later")
    assert release.refusal(checkout).startswith("this commit has no tag v1.2.3")


@pytest.mark.parametrize(
    "changes",
    ["## Unreleased\n\n- New.\n", "## 1.2.3 - 2026-11-30\n\n## 1.2.2 - 2026-11-01\n\n- Old.\n", "## 1.2.3\n\n- New.\n",
     "## 1x2.3 - 2026-11-30\n\n- New.\n"],
)  # fmt: skip
def test_a_version_without_its_section(checkout: Path, changes: str) -> None:
    (checkout / "CHANGELOG.md").write_text(f"# Changelog\n\n{changes}")
    git(checkout, "commit", "-qam", "changes")
    git(checkout, "tag", "-f", "v1.2.3")
    assert release.refusal(checkout).startswith("CHANGELOG.md has no section '## 1.2.3 - YYYY-MM-DD', or it is empty")


def test_the_version_is_in_one_place() -> None:
    """Only pybroker/__init__.py has the version: pyproject.toml reads it there, and each section of the changelog after
    Unreleased is a version with a date."""
    version = release.version_of(ROOT)
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert version not in re.sub(r'"[^"]*[<>=]=?[^"]*"', "", (ROOT / "pyproject.toml").read_text())
    heads = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert heads[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", head) for head in heads[1:])


def test_smoke_is_for_an_installed_pybroker() -> None:
    """The trial of a wheel refuses to try the checkout instead."""
    python = sys.executable
    done = subprocess.run([python, ROOT / "tools" / "smoke.py"], capture_output=True, text=True)
    assert done.returncode == 1 and "is not an installed pybroker, but the checkout's" in done.stderr
