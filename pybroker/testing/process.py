"""A broker in a process of its own: started by a fresh interpreter, told what to do over a socket, killed by SIGKILL.

The socket is the child's standard input. One line of JSON goes each way at a time:

    test  -> child    the Plan                     once, first
    child -> test     {"ok": null}                 it serves; {"failed": sentence} and it is gone
    test  -> child    {"do": "stop"}               end cleanly; the process ends with 0
    test  -> child    {"do": ..., ...}             a command for its Injector
    child -> test     {"ok": ...} or {"error": kind, "code": ..., "message": ...}

When the test's process is gone the socket ends, and the child removes its directory and itself.
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

from pybroker.testing.life import ASK_S_MAX, START_S_MAX, STOP_S_MAX, BrokerFailed, Plan

SHOWN_BYTES: Final = 16 << 10


class Subprocess:
    """See life.Life."""

    def __init__(self, plan: Plan, log_file: str, remove: str | None) -> None:
        """It says what it does in `log_file`; `remove` is the directory that goes with it once it is alone."""
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
        """-1 while it is down."""
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
                start_new_session=True,  # Ctrl-C is for the test run, which then ends the broker
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
        """Freeze it; it has stopped when this returns."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
            # Nothing is reaped: whoever waits for its end is told of that, too.
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let it go on."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def ask(self, command: dict[str, Any]) -> Any:
        if not self.running:
            raise BrokerFailed("the broker does not run")
        return self._exchange(command, ASK_S_MAX)

    def output(self) -> str:
        path = Path(self._log_file)
        if not path.exists():
            return ""
        return path.read_bytes()[-SHOWN_BYTES:].decode(errors="replace")

    # -- the socket ------------------------------------------------------------------------------------------------

    def _send(self, message: dict[str, Any]) -> None:
        assert self._control is not None
        self._control.sendall(json.dumps(message).encode() + b"\n")

    def _exchange(self, message: dict[str, Any], timeout_s: float) -> Any:
        """Send a line and give what the next one back says. Raises BrokerFailed, ValueError, KafkaError."""
        with self._turn:
            assert self._control is not None
            self._control.settimeout(timeout_s)
            try:
                self._send(message)
                line = self._line()
            except OSError as problem:
                raise BrokerFailed(f"the broker's process is silent: {problem}\n{self.output()}") from problem
        answer = json.loads(line) if line else {"failed": "the broker's process ended"}
        if "failed" in answer:
            raise BrokerFailed(f"{answer['failed']}\n{self.output()}".strip())
        if "error" in answer:
            raise _problem(answer)
        return answer["ok"]

    def _line(self) -> bytes:
        """The next line; empty at the end of the stream."""
        assert self._control is not None
        while b"\n" not in self._unread:
            more = self._control.recv(1 << 16)
            if not more:
                return b""
            self._unread += more
        line, self._unread = self._unread.split(b"\n", 1)
        return line


def _problem(answer: dict[str, Any]) -> Exception:
    """The exception that the child's stands for."""
    from pybroker.errors import KafkaError

    if answer["error"] == "KafkaError":
        return KafkaError(answer["code"], answer["message"])
    return (ValueError if answer["error"] == "ValueError" else BrokerFailed)(answer["message"])


def _python_path() -> str:
    """Where the child finds the same pybroker, and what it needs, whatever way this process found them."""
    ours = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(dict.fromkeys([ours, *(path for path in sys.path if path)]))
