"""A broker in a process of its own: started by a fresh interpreter, controlled over a socket, killed by SIGKILL.

The socket is the child's standard input. One line of JSON goes each way at a time:

    test  -> child    the BrokerPlan               once, first
    child -> test     {"ok": null}                 it serves; {"failed": sentence} and it is gone
    test  -> child    {"do": "stop"}               end cleanly; the process ends with 0
    test  -> child    {"do": ..., ...}             a command for its Injector
    child -> test     {"ok": ...} or {"error": kind, "code": ..., "message": ...}

When the test's process ends the socket closes; the child then removes its directory and exits.
"""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

from pybroker.testing.lifecycle import ASK_S_MAX, START_S_MAX, STOP_S_MAX, BrokerFailed, BrokerPlan, Command

SHOWN_BYTES: Final = 16 << 10


class Subprocess:
    """See lifecycle.Life."""

    def __init__(self, plan: BrokerPlan, log_file: str, remove: str | None) -> None:
        """The child logs to `log_file`; it removes the directory `remove` if the test's process ends first."""
        self._plan = plan
        self._log_file = log_file
        self._remove = remove
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._unread = b""
        self._turn = threading.Lock()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id; -1 while the broker is down."""
        return -1 if self._process is None else self._process.pid

    def start(self) -> None:
        ours, theirs = socket.socketpair()
        self._control, self._unread = ours, b""
        with theirs, open(self._log_file, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pybroker.testing.child"],
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": _python_path()},
                start_new_session=True,  # Ctrl-C goes to the test run only, which then ends the broker
            )
        try:
            self._exchange({**dataclasses.asdict(self._plan), "remove": self._remove}, START_S_MAX)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        if self._process is None:
            return
        try:
            self._send({"do": "stop"})
            code = self._process.wait(STOP_S_MAX)
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise BrokerFailed(f"the broker did not stop: {problem}\n{self.output()}") from problem
        finally:
            self.kill()
        if code:
            raise BrokerFailed(f"the broker did not stop cleanly: exit code {code}\n{self.output()}")

    def kill(self) -> None:
        process, self._process = self._process, None
        control, self._control = self._control, None
        if process is not None:
            process.kill()
            process.wait(STOP_S_MAX)
        if control is not None:
            control.close()

    discard = kill

    def pause(self) -> None:
        """Freeze the broker; return once it has stopped."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
            # WNOWAIT leaves the process for the Popen object to reap.
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Resume the broker."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def ask(self, command: Command) -> object:
        if not self.running:
            raise BrokerFailed("the broker does not run")
        return self._exchange(command, ASK_S_MAX)

    def output(self) -> str:
        path = Path(self._log_file)
        if not path.exists():
            return ""
        return path.read_bytes()[-SHOWN_BYTES:].decode(errors="replace")

    # -- the socket ------------------------------------------------------------------------------------------------

    def _send(self, message: Command) -> None:
        assert self._control is not None
        self._control.sendall(json.dumps(message).encode() + b"\n")

    def _exchange(self, message: Command, timeout_s: float) -> object:
        """Send a line and return what the next line back says. Raises BrokerFailed, ValueError, KafkaError."""
        with self._turn:
            assert self._control is not None
            self._control.settimeout(timeout_s)
            try:
                self._send(message)
                line = self._line()
            except OSError as problem:
                raise BrokerFailed(f"the broker's process does not answer: {problem}\n{self.output()}") from problem
        answer = json.loads(line) if line else {"failed": "the broker's process ended"}
        if "failed" in answer:
            raise BrokerFailed(f"{answer['failed']}\n{self.output()}".strip())
        if "error" in answer:
            raise _problem(answer)
        return answer["ok"]

    def _line(self) -> bytes:
        """Read the next line; empty at the end of the stream."""
        assert self._control is not None
        while b"\n" not in self._unread:
            more = self._control.recv(1 << 16)
            if not more:
                return b""
            self._unread += more
        line, self._unread = self._unread.split(b"\n", 1)
        return line


def _problem(answer: dict[str, Any]) -> Exception:
    """Return the exception that the child's answer describes."""
    from pybroker.errors import KafkaError

    if answer["error"] == "KafkaError":
        return KafkaError(answer["code"], answer["message"])
    return (ValueError if answer["error"] == "ValueError" else BrokerFailed)(answer["message"])


def _python_path() -> str:
    """The PYTHONPATH with which the child imports the same pybroker and its dependencies as this process."""
    ours = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(dict.fromkeys([ours, *(path for path in sys.path if path)]))
