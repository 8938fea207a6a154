"""The test of each page of the documentation, and the blocks that no test runs, each with its reason."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

ALONE: Final = (
    "README.md", "install.md", "first-broker.md", "dataframes.md", "arrow.md", "errors.md", "container.md",
    "monitoring.md", "console.md", "backup.md", "frames.md", "disk-full.md", "troubleshooting.md", "sizing.md",
    "metrics.md", "durability.md", "tracing.md",
)  # fmt: skip
"""Pages that `tests/docs/system/test_pages.py` runs from their first block to their last, with one broker or none."""
WITH_JAVA: Final = (
    "first-cluster.md", "machines.md", "systemd.md", "brokers.md", "upgrade.md", "cluster.md", "from-kafka.md",
    "one-to-three.md", "spark.md", "etcd.md",
)  # fmt: skip
"""Pages that it runs with ZooKeeper or Spark."""
OWN_TESTS: Final = {
    "cli.md": "tests/cli/system/test_docs.py",
    "client.md": "tests/client/system/test_docs.py",
    "security.md": "tests/cli/system/test_security_page.py",
    "testing.md": "tests/testing/system/test_docs.py",
}
"""Pages with a test of their own, by its path."""
NO_COMMANDS: Final = (
    "api.md", "architecture.md", "compare.md", "config.md", "logs.md", "missing.md", "on-disk.md", "promises.md",
    "protocol.md", "scale.md",
)  # fmt: skip
"""Pages without commands. Their `text` blocks are pictures and log lines."""
DEVELOPERS: Final = ("CONTRIBUTING.md", "performance.md")
"""Pages with commands for a checkout: builds, debuggers, benchmarks. They take minutes or need a running process; a
test checks that their targets and files exist."""

NOT_RUN: Final = {
    (page, first_line): str(reason)
    for page, reasons in tomllib.loads((Path(__file__).parent / "not_run.toml").read_text()).items()
    for first_line, reason in reasons.items()
}
"""Blocks that no reader of the tests takes, by page and first line: why, and which test does the same."""
