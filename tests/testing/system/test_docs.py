"""The examples of docs/testing.md pass as tests, word for word."""

from __future__ import annotations

import re

import pytest

from tests.harness import ROOT
from tests.marks import long
from tests.testing.system.test_plugin import STRICT

pytest_plugins = ["pytester"]

EXAMPLES = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/testing.md").read_text(), re.DOTALL | re.MULTILINE)


def test_there_are_seven() -> None:
    """The page has seven examples, extracted unchanged."""
    assert len(EXAMPLES) == 7
    assert all("def test_" in example for example in EXAMPLES)


@pytest.mark.parametrize("mode", ["inprocess", long("subprocess")])
def test_the_examples_pass(pytester: pytest.Pytester, mode: str) -> None:
    """The examples pass, each as a separate test module."""
    for number, example in enumerate(EXAMPLES):
        pytester.makepyfile(**{f"test_example_{number}": example})
    pytester.runpytest_subprocess(*STRICT, f"--pybroker-mode={mode}").assert_outcomes(
        passed=sum(example.count("def test_") for example in EXAMPLES)
    )
