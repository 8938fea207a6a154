"""`make site` builds the documentation without broken links, and the site loads nothing from other hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import ROOT
from tools import site_pages


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a page that is not in the navigation, or a broken link or anchor, fails the build."""
    made = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(made)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return made


def test_it_has_every_page(site: Path) -> None:
    """The site has each page of docs/ and each beside it, and its search index has them."""
    names = {path.stem for path in (ROOT / "docs").glob("*.md")} | {"index", "contributing", "changelog"}
    assert names <= {path.stem for path in site.glob("*.html")}
    index = (site / "search/search_index.json").read_text()
    assert all(f'"{name}.html' in index for name in names)


def test_it_loads_nothing_from_other_hosts(site: Path) -> None:
    """The site loads no script, style, font or picture from other hosts: it works from a disk."""
    assert not list(site_pages.fetched_elsewhere(site))


def test_the_api_is_on_its_page(site: Path) -> None:
    """The API page has every name of `pybroker` with its docstring."""
    text = re.sub(r"<[^>]+>", "", (site / "api.html").read_text())
    for name in ("Producer", "AsyncConsumer", "poll_arrow", "read_log", "create_topic", "BrokerHandle", "full_disk"):
        assert name in text


@pytest.mark.parametrize(
    ("html", "count"),
    [
        ('<script src="https://cdn.example/x.js"></script>', 1),
        ('<link rel="stylesheet" href="//cdn.example/x.css">', 1),
        ('<style>@import "https://cdn.example/x.css"; a { background: url(https://cdn.example/x.png) }</style>', 2),
        ('<a href="https://example.org">there</a><link rel="canonical" href="https://example.org">', 0),
        ('<script src="assets/x.js"></script><img src="x.svg">', 0),
    ],
)
def test_the_rule_of_other_hosts(tmp_path: Path, html: str, count: int) -> None:
    (tmp_path / "page.html").write_text(html)
    assert len(list(site_pages.fetched_elsewhere(tmp_path))) == count
