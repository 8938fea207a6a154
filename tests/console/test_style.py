"""The colours of the console: contrast that WCAG 2.2 asks for at AA, in both colour schemes."""

from __future__ import annotations

import re

import pytest

from tests.harness import ROOT

CSS = (ROOT / "pybroker/console/static/console.css").read_text()
TEXT_MIN, PART_MIN = 4.5, 3.0
TEXTS = [
    ("text", "back"), ("text", "band"), ("quiet", "back"), ("quiet", "band"), ("link", "back"), ("link", "band"),
    ("good", "back"), ("bad", "back"), ("bad", "band"), ("good", "good-back"), ("bad", "bad-back"),
]  # fmt: skip
PARTS = [("quiet", "back"), ("focus", "back"), ("focus", "band")]


def schemes() -> list[dict[str, str]]:
    """The colours by name of the light scheme and of the dark one."""
    blocks = re.findall(r":root \{(.*?)\}", CSS, re.S)
    return [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in blocks]


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", [0, 1])
def test_the_contrast_is_enough(scheme: int) -> None:
    """Text has a contrast of 4.5 to what is behind it, borders and the focus one of 3."""
    colours = schemes()[scheme]
    assert contrast("#" + "0" * 6, "#" + "f" * 6) == pytest.approx(21)
    assert not [pair for pair in TEXTS if contrast(*map(colours.__getitem__, pair)) < TEXT_MIN]
    assert not [pair for pair in PARTS if contrast(*map(colours.__getitem__, pair)) < PART_MIN]


def test_no_colour_is_outside_the_schemes() -> None:
    """Each colour is a named one, so the tests above have seen all."""
    rest = re.sub(r":root \{.*?\}", "", CSS, flags=re.S)
    assert not re.findall(r"#[0-9a-f]{3,8}\b|rgb|hsl", rest) and schemes()[0].keys() == schemes()[1].keys()
