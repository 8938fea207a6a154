"""README.md: its pictures have the figures of the pages, its first screen says in three sentences why one should care.

Its commands and programs are run by tests/docs/system/test_pages.py.
"""

import re
from html import unescape

from tests.sources import ROOT
from tools import glance

README = (ROOT / "README.md").read_text()


def test_the_first_screen() -> None:
    """The first screen is a title, three sentences and a picture; then the installation, within 25 lines."""
    title, text, picture, *_ = README.split("\n\n")
    assert title == "# pybroker" and picture.startswith("![")
    assert len(re.findall(r"[.!?](?=\s|$)", text)) == 3
    assert "## Install" in README.splitlines()[:25]


def test_the_picture_at_the_top_is_of_the_figures() -> None:
    """The picture at the top, docs/glance.svg, is drawn from the figures of docs/performance.md and docs/spark.md
    (`make docs` draws it)."""
    assert glance.PICTURE.read_text() == glance.draw(glance.panels())
    shown = unescape(re.sub(r"<[^>]+>", " ", glance.PICTURE.read_text()))
    assert all(panel.title in shown for panel in glance.panels())


def test_the_picture_of_the_measurements_is_of_the_figures() -> None:
    """The picture of the measurements, docs/performance.svg, has the workloads and figures of docs/performance.md
    (`make docs` draws it)."""
    drawn = re.sub(r"<[^>]+>", "", (ROOT / "docs/performance.svg").read_text())
    page = (ROOT / "docs/performance.md").read_text()
    rows = re.findall(r"^\| ([WF]\d) \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|", page, re.M)
    assert len(rows) == 11
    for name, shows, *cells in rows:
        assert f"{name}  {shows}" in drawn
        for cell in cells:
            for number in re.findall(r"^([\d.]+ [Mk]) re", cell):
                assert (number if not number.startswith("0.") else f"{float(number[:-2]) * 1000:.1f} k") in drawn
            if "us" in cell:
                times = (float(us.replace(",", "")) / 1000 for us in cell.removesuffix(" us").split(" / "))
                assert " / ".join(f"{ms:,.3f}" for ms in times) + " ms" in drawn
