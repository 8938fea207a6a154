"""The workflow for GitHub runs targets that the Makefile has, and names the same Pythons as pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import yaml

from tests.sources import ROOT

JOBS: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
CLASSIFIER = "Programming Language :: Python :: 3."


def steps() -> list[dict[str, Any]]:
    return [step for job in JOBS.values() for step in job["steps"]]


def test_the_commands_of_the_workflow() -> None:
    """Each `make` of a job is a target of the Makefile, and the jobs that a job needs are there."""
    makefile = (ROOT / "Makefile").read_text()
    targets = [step["run"].removeprefix("make ") for step in steps() if step.get("run", "").startswith("make ")]
    assert {"lint", "test", "release"} == set(targets)
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    assert all(JOBS.keys() >= set(job.get("needs", ())) for job in JOBS.values())


def test_the_pythons_are_those_of_the_wheels() -> None:
    """The classifiers name the Pythons for which wheels are built; the first of them is the oldest that is allowed."""
    named = [text.removeprefix(CLASSIFIER) for text in PROJECT["project"]["classifiers"] if CLASSIFIER in text]
    built = re.findall(r"cp3(\d+)-", PROJECT["tool"]["cibuildwheel"]["build"])
    assert named == built
    assert PROJECT["project"]["requires-python"] == f">=3.{named[0]}"
    used = {step["with"]["python-version"] for step in steps() if "python-version" in step.get("with", {})}
    assert used <= {f"3.{minor}" for minor in named}
