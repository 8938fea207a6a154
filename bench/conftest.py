"""The fixtures of every benchmark: a directory on the measured disk, and a table at the end."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import chart, figures
from bench.payloads import disk


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raise the tests' time limit: on a busy disk it takes minutes to remove 30,000 files, which the figures do not
    include."""
    for item in items:
        item.add_marker(pytest.mark.timeout(600))


def empty_directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="pybroker-bench-", dir=disk(), ignore_cleanup_errors=True)


@pytest.fixture
def log_dir() -> Iterator[Path]:
    """An empty directory on the measured disk, removed after the benchmark."""
    with empty_directory() as path:
        yield Path(path)


@pytest.fixture(scope="module")
def shared_log_dir() -> Iterator[Path]:
    """The same, for all benchmarks of a module."""
    with empty_directory() as path:
        yield Path(path)


def pytest_configure() -> None:
    figures.machine(disk())  # before the benchmarks load the machine


def pytest_report_header() -> str:
    return f"machine: {figures.machine(disk())}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if figures.FIGURES:
        terminalreporter.section("figures")
        terminalreporter.write_line(figures.machine(disk()))
        for line in figures.table():
            terminalreporter.write_line(line)
    for path in chart.write(figures.machine(disk())):
        terminalreporter.write_line(f"written: {path}")
