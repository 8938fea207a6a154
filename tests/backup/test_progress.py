"""The progress bar of backups: on a terminal only, and advanced by any thread."""

from __future__ import annotations

import sys
import threading

import pytest

from pybroker.cli.backup.progress import bar


def test_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal the bar shows the share and the bytes, summed over threads; elsewhere nothing is printed."""
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the captured stream for a terminal
    for terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        with bar("Backing up") as begin:
            advance = begin(400)
            threads = [threading.Thread(target=advance, args=(100, 2_000_000)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        shown = capsys.readouterr().err
        assert ("75%" in shown and "6.0 MB" in shown and "Backing up" in shown) if terminal else shown == ""
