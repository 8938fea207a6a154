"""`pybroker zookeeper`: a server that a broker can join, and one sentence where there is none."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from pybroker.coordination.zookeeper import ZooKeeperStore
from tests.cli.conftest import run
from tests.harness import Process, free_port

pytestmark = pytest.mark.java


def test_it_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    """Its line says what zookeeper.connect is to be; Ctrl-C ends it with 0, and its data stays where it was told to."""
    command = [sys.executable, "-m", "pybroker", "zookeeper", "--port", str(free_port()), "--data-dir", str(tmp_path)]
    process = Process(command)
    connect = process.wait_line(r"zookeeper ready: zookeeper\.connect=(\S+)", 30)[1]

    async def use() -> None:
        store = ZooKeeperStore(f"{connect}/a/b")
        await store.open()
        session = await store.session(4000)
        await session.create("/node", b"data")
        await store.close()

    asyncio.run(use())
    process.signal(signal.SIGINT)
    assert process.wait(20) == 0
    assert any(tmp_path.rglob("log.*"))


def test_no_jars(tmp_path: Path) -> None:
    done = run("zookeeper", "--jars", str(tmp_path))
    assert done.code == 1
    assert done.err == f"pybroker: {tmp_path} has no zookeeper-[0-9]*.jar: it holds no ZooKeeper\n"
