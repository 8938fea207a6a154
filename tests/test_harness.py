"""The test harness: it waits, it reports, and it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.harness import Process, Server, free_port, until


class Sleeper(Server):
    """The smallest server: it prints its ready line and sleeps; it ends with 0 on SIGTERM."""

    name = "sleeper"
    ready_line = r"ready (\d+)"
    script = "import signal as s; s.pthread_sigmask(s.SIG_BLOCK, [15]); print('ready 1', flush=True); s.sigwait([15])"

    def command(self) -> list[str]:
        return [sys.executable, "-c", self.script]


@pytest.mark.xdist_group("harness")
def test_groups_stay_together(request: pytest.FixtureRequest) -> None:
    """Groups stay together: pytest-xdist knows this test's group; with a pytest that is too new it drops the marks
    silently."""
    assert not request.config.getoption("loadgroup", False) or request.node.nodeid.endswith("@harness")


def test_a_server_is_stopped_killed_and_restarted(tmp_path: Path) -> None:
    """A server is stopped, killed and restarted: stop() requires exit code 0, kill() is SIGKILL, and the output of each
    run is kept."""
    with Sleeper(tmp_path, 0) as server:
        server.stop()
        server.restart()
        server.kill()
        assert "ended with 0" in server.output() and "ended with -9" in server.output()
        server.restart()
        assert server.running
    assert not server.running


def test_a_server_that_ends_badly_fails_its_stop(tmp_path: Path) -> None:
    """A server that ends badly fails its stop: another exit code than 0 on SIGTERM is a failure that shows the
    output."""

    class Bad(Sleeper):
        script = Sleeper.script + "; raise SystemExit('lost my marbles')"

    with Bad(tmp_path, 0) as server, pytest.raises(AssertionError, match=r"(?s)ended with 1 .*lost my marbles"):
        server.stop()


def test_a_server_that_never_gets_ready_says_why(tmp_path: Path) -> None:
    """A server that never gets ready fails its start with its output as soon as the process ends, not after the
    deadline."""

    class Broken(Sleeper):
        script = "raise SystemExit('no such config')"

    server = Broken(tmp_path, 0)
    with pytest.raises(AssertionError, match=r"(?s)it ended .*no such config"):
        server.start()
    server.close()


def test_no_process_outlives_a_killed_test_run(tmp_path: Path) -> None:
    """No process outlives a killed test run: even SIGKILL of pytest ends its brokers."""
    code = (
        "from tests.test_harness import Path, Sleeper, signal\n"
        "print('child', Sleeper(Path('.'), 0).start().process.pid, flush=True)\n"
        "signal.pause()\n"
    )
    run = Process([sys.executable, "-c", code])
    child = int(run.wait_line(r"child (\d+)", 90)[1])
    os.kill(child, 0)
    run.signal(signal.SIGKILL)
    run.wait(60)
    until("the child is gone", lambda: not _alive(child))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_ctrl_c_closes_the_servers(tmp_path: Path) -> None:
    """Ctrl-C closes the servers: SIGINT to pytest ends the run, and its fixtures end their brokers."""
    test = tmp_path / "test_it.py"
    test.write_text(
        "import time\n"
        "from tests.test_harness import Sleeper\n"
        "def test_it(tmp_path):\n"
        "    with Sleeper(tmp_path, 0) as s:\n"
        "        print('child', s.process.pid, flush=True)\n"
        "        while True:\n"
        "            time.sleep(0.01)\n"  # not pause(): a signal just before it would not end it
    )
    # Without its own base it would delete the directories of earlier runs, which may take long.
    base = f"--basetemp={tmp_path / 'base'}"
    quiet = ["-p", "no:cacheprovider", "-p", "no:asyncio", "-c", "/dev/null", base]
    run = Process([sys.executable, "-m", "pytest", "-s", *quiet, str(test)])
    child = int(run.wait_line(r"child (\d+)", 100)[1])
    run.signal(signal.SIGINT)
    assert run.wait(100) == pytest.ExitCode.INTERRUPTED
    assert not _alive(child)


def test_free_ports_are_below_the_range_that_the_kernel_picks_from() -> None:
    """Free ports are below the kernel's own range, so a retrying client never gets its broker's port as its own end."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        assert free_port() < s.getsockname()[1]
