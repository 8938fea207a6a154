"""`pybroker zookeeper`: a server that a broker can join, and one sentence if it cannot start."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from pathlib import Path

import pytest

from pybroker.config.cluster_settings import check_connect
from pybroker.coordination.zookeeper import ZooKeeperStore
from tests.cli.conftest import run
from tests.harness import Process, free_port

pytestmark = [pytest.mark.java, pytest.mark.zookeeper("the commands that start and close it")]


def test_it_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    """zookeeper serves until it is interrupted: its ready line has the zookeeper.connect to use, Ctrl-C ends it with 0,
    and its data stays."""
    command = [sys.executable, "-m", "pybroker", "zookeeper", "--port", str(free_port()), "--data-dir", str(tmp_path)]
    process = Process(command)
    connect = process.wait_line(r"zookeeper ready: zookeeper\.connect=(\S+)", 90)[1]

    async def use() -> None:
        store = ZooKeeperStore(f"{connect}/a/b")
        await store.open()
        session = await store.session(4000)
        await session.create("/node", b"data")
        await store.close()

    asyncio.run(use())
    beside = run("zookeeper", "--port", str(free_port()), "--data-dir", str(tmp_path))
    assert (beside.code, beside.err) == (1, f"pybroker: another ZooKeeper is using the data directory {tmp_path}\n")
    process.signal(signal.SIGINT)
    assert process.wait(20) == 0
    assert any(tmp_path.rglob("log.*"))


def test_no_other_user_can_read_its_data(tmp_path: Path) -> None:
    """No other user can read ZooKeeper's data, which has SCRAM credentials. Permissions that an earlier release left
    open are corrected, with one line."""
    home = tmp_path / "home"
    (home / "1" / "data" / "version-2").mkdir(parents=True)
    (home / "1" / "data" / "version-2" / "left").write_text("open")
    (home / "of another").write_text("open")
    for path in (home, *home.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    command = [sys.executable, "-m", "pybroker", "zookeeper", "--port", str(free_port()), "--data-dir", str(home)]
    command = ["sh", "-c", 'umask 0; exec "$0" "$@"', *command]
    process = Process(command)
    connect = process.wait_line(r"zookeeper ready: zookeeper\.connect=(\S+)", 90)[1]

    async def use() -> None:
        store = ZooKeeperStore(connect)
        await store.open()
        await (await store.session(4000)).create("/node", b"data")
        await store.close()

    asyncio.run(use())
    process.signal(signal.SIGINT)
    assert process.wait(20) == 0
    found = {str(path.relative_to(home)): path.stat().st_mode & 0o777 for path in (home / "1").rglob("*")}
    assert any(name.startswith("data/version-2/log.") or "/log." in name for name in found)
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}
    assert (home / "1").stat().st_mode & 0o077 == 0
    assert home.stat().st_mode & 0o777 == 0o755, "the directory that was named may hold other things"
    assert (home / "of another").stat().st_mode & 0o777 == 0o644
    assert process.output().count("ZooKeeper data was accessible to other users") == 1


def test_no_jars(tmp_path: Path) -> None:
    done = run("zookeeper", "--jars", str(tmp_path))
    assert done.code == 1
    assert done.err == f"pybroker: ZooKeeper not found: {tmp_path} has no zookeeper-[0-9]*.jar\n"


def test_a_port_that_is_taken() -> None:
    """A port in use is an error: another process that listens there is not mistaken for the new server."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("zookeeper", "--port", at.rpartition(":")[2])
    assert done.code == 1
    why = "the port is in use: stop the program that listens there, or choose another"
    assert done.err == f"pybroker: ZooKeeper could not listen on {at}: {why}\n"


@pytest.mark.parametrize(
    ("java_options", "why"),
    [("-Xmxlots", "Invalid maximum heap size: -Xmxlots"), ("", "its JVM ended without output")],
)
def test_a_server_that_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, java_options: str, why: str) -> None:
    """A server that ends is reported with Java's reason, in one line, and without a remark on a file in its data
    directory."""
    directory = tmp_path / "1" / "data"
    directory.mkdir(parents=True)
    (directory / "version-2").touch(0o600)
    for own in (directory, directory.parent):
        own.chmod(0o700)
    monkeypatch.setenv("JDK_JAVA_OPTIONS", java_options)
    done = run("zookeeper", "--port", str(free_port()), "--data-dir", str(tmp_path))
    assert (done.code, done.err) == (1, f"pybroker: ZooKeeper ended: {why}\n")


@pytest.mark.parametrize("connect", ["", "/kafka", "zk:abc", "zk:2181,", "zk:0", "zk:65536", "zk:2181/a//b", "z k:1"])
def test_what_names_no_zookeeper(tmp_path: Path, connect: str) -> None:
    """A connect string that names no ZooKeeper is refused by every command in one sentence that describes its form."""
    takes = "it takes HOST:PORT,HOST:PORT,... and perhaps a chroot, as in zk1:2181,zk2:2181/kafka"
    for command in (["serve", "--port", "0"], ["migrate-store"]):
        done = run(*command, "--data-dir", str(tmp_path), "--zookeeper", connect)
        assert done.code in (1, 2)
        assert done.err == f"pybroker: zookeeper.connect = {connect!r} (--zookeeper) is not allowed: {takes}\n"


def test_what_a_command_sets_itself_is_told_by_its_name() -> None:
    done = run("zookeeper-acls", "secure", "--zookeeper", "zk:2181")
    assert done.code == 2 and done.sentence.startswith("zookeeper.set.acl = 'true' (pybroker zookeeper-acls) is not")


@pytest.mark.parametrize("connect", ["zk", "zk:2181", "10.0.0.1:1,[::1]:65535/a/b", "zk1:2181, zk2:2181/kafka/"])
def test_what_names_a_zookeeper(connect: str) -> None:
    check_connect(connect)


def test_ports_end_somewhere() -> None:
    done = run("zookeeper", "--servers", "3", "--port", "65534")
    assert done.code == 2 and "there are no 3 ports from 65534 on: 65535 is the last\n" in done.err
