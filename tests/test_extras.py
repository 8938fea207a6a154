"""An optional part's requirements are named as packages that pip finds: pybroker itself is in no package index."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata

import pytest

from pybroker import extras
from tests.sources import ROOT, files, text_of

PARTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", ["arrow", "numpy", "otel", "chart", "spark", "avro", "delta", "iceberg"])
def test_the_packages_of_a_part(extra: str) -> None:
    """The packages of a part include those of its parts, and never pybroker; each is one shell word."""
    said = extras.install(extra)
    assert said.startswith("pip install ") and "pybroker" not in said
    for requirement in PARTS[extra]:
        if not requirement.startswith("pybroker"):
            name = re.match(r"[\w-]+", requirement)
            assert name and re.search(rf"(?:^|[ ']){name[0]}\b", said), said
    assert ("pyspark" in said) == (extra in ("spark", "avro", "delta", "iceberg"))


def test_a_checkout_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout that is not installed names the wheel, as docs/install.md does."""

    def missing(_: str) -> None:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "requires", missing)
    assert extras.install("spark") == 'pip install "$(echo dist/pybroker-*.whl)[spark]"'


def test_no_message_sends_to_an_index_for_pybroker() -> None:
    """No message suggests pip with an index for pybroker: pip would find nothing, or another project's package."""
    for path in files(".py", under="pybroker"):
        assert not re.search(r"pip install '?pybroker", text_of(path)), path
