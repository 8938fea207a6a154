"""A real browser: headless Chromium, driven by Playwright. Both are had apart from the packages of a checkout."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Chromium
    from playwright.sync_api import Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
WAIT_MS_MAX = 120_000


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    """A headless Chromium."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium is on PATH: apt install chromium")
    driver = pytest.importorskip("playwright.sync_api", reason="no Playwright is installed: pip install playwright")
    flags = [*FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags, timeout=WAIT_MS_MAX)
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Chromium) -> Iterator[Callable[..., Page]]:
    """Open a page of a browser session of its own: `opened(port, width=390, color_scheme="dark")`. At the end of the
    test no page may have had an error, such as a breach of the content security policy, or have opened a dialog."""
    errors: list[str] = []
    contexts = []

    def note(message: Any) -> None:
        if message.type == "error" and "status of 4" not in message.text:  # of a page that is refused as it should be
            errors.append(message.text)

    def open_(port: int, *, width: int = 1280, **how: Any) -> Page:
        context = chromium.new_context(
            viewport={"width": width, "height": 800}, base_url=f"http://127.0.0.1:{port}", **how
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT_MS_MAX)
        page.on("console", note)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: (errors.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not errors
