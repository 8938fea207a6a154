"""The pages of the documentation for a reader: each command is typed, and does what the page says."""

from __future__ import annotations

import ast
import configparser
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.held import ALONE, NOT_RUN, WITH_JAVA
from tests.docs.pages import blocks
from tests.docs.reader import Reader
from tests.sources import ROOT

ZOOKEEPER = "pybroker zookeeper --port 2181 --data-dir zookeeper &"
BEFORE = {
    "machines.md": ZOOKEEPER,
    "systemd.md": f"{ZOOKEEPER}\nmkdir -p /opt/pybroker/bin && ln -s $(which pybroker) /opt/pybroker/bin/pybroker",
    "cluster.md": f"{ZOOKEEPER}\npybroker serve --data-dir data --port 9092 --zookeeper localhost:2181 &\n"
    "until pybroker topics create orders --replication-factor 1 -b localhost:9092; do sleep 0.5; done",
    "from-kafka.md": "pybroker serve --data-dir old --port 9092 &\npybroker serve --data-dir new --port 9093 &",
}
"""Commands that a page assumes, which the reader runs first."""


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    yield made
    made.end()


def take(reader: Reader, page: str) -> None:
    """Handle a page from its first block to its last."""
    if page in BEFORE:
        reader.types(f"before {page}", BEFORE[page])
    for block in blocks(page):
        if (page, block.first_line) not in NOT_RUN:
            reader.take(block)


@pytest.mark.parametrize("page", ALONE)
def test_pages_without_java(reader: Reader, page: str) -> None:
    """The pages without Java need one broker, or none."""
    take(reader, page)


@pytest.mark.java
@pytest.mark.parametrize("page", [page for page in WITH_JAVA if page != "systemd.md"])
def test_pages_with_java(reader: Reader, page: str) -> None:
    """The pages with Java need a cluster in ZooKeeper, or Spark."""
    take(reader, page)


def test_the_image(reader: Reader) -> None:
    """The image's command starts a broker with the options of docs/container.md, which its check finds healthy and
    SIGTERM ends."""
    image = (ROOT / "Dockerfile").read_text()
    start = ast.literal_eval(re.findall(r"^ENTRYPOINT (.+)$", image, re.M)[0])
    check = ast.literal_eval(re.findall(r"^HEALTHCHECK .+\n +CMD (.+)$", image, re.M)[0])
    (more,) = re.findall(r"^  pybroker (--set .+)$", "\n".join(block.text for block in blocks("container.md")), re.M)
    reader.types("the image", f"{shlex.join(start)} --port 9092 {more} &\necho $! > pid")
    reader.types("its check", f"{shlex.join(check)}\npybroker topics list\nkill $(cat pid)\nwait $(cat pid)")


@pytest.mark.java
def test_the_unit(reader: Reader) -> None:
    """The unit of docs/systemd.md is valid and hardened, starts the broker of docs/machines.md and stops it."""
    reader.types("before", BEFORE["systemd.md"])
    for block in blocks("machines.md"):
        if block.title:
            reader.take(block)
    for block in blocks("systemd.md"):
        if ("systemd.md", block.first_line) not in NOT_RUN:
            reader.take(block)
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(next(block.text for block in blocks("systemd.md") if block.title))
    service = unit["Service"]
    reader.types("ExecStart", f"{service['ExecStart']} &\necho $! > pid")
    reader.types("until it serves", "until curl -sf http://127.0.0.1:9404/readyz; do sleep 0.5; done")
    reader.types("ExecReload", service["ExecReload"].replace("$MAINPID", "$(cat pid)"))
    reader.types("stop", "kill $(cat pid)\nwait $(cat pid)")
