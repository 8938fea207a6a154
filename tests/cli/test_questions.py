"""Questions before a command acts: an answer of yes, another one, no more input, and Ctrl-C."""

from __future__ import annotations

import io
from typing import Any

import pytest

from tests.cli.conftest import run
from tests.harness import HOST, Server, free_port
from tests.rows import with_each


class _Terminal(io.RawIOBase):
    """A terminal on which Ctrl-C is pressed."""

    def readable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if len(buffer):
            raise KeyboardInterrupt
        return 0


QUESTIONS = [
    (("topics", "delete", "t"), "nothing was deleted"),
    (("topics", "elect-leaders", "t", "--unclean"), "no leader was elected"),
    (("groups", "delete", "g"), "nothing was deleted"),
    (("acls", "remove", "--allow", "User:alice", "--operation", "read", "--topic", "orders"), "nothing was removed"),
]
"""Commands that ask before they connect, and what did not happen without a yes."""


@with_each(("arguments", "words"), QUESTIONS)
def test_without_a_yes_nothing_happens(arguments: tuple[str, ...], words: str) -> None:
    """Another answer than yes, and the end of the input, are a failure; Ctrl-C is 130. Each is a line about what did
    not happen."""
    nowhere = ("-b", f"{HOST}:{free_port()}")
    for text in ("n\n", ""):
        done = run(*arguments, *nowhere, stdin=text)
        assert done.code == 1 and done.err.endswith(f"\npybroker: {words}: answer yes, or give --yes\n"), done.err
    done = run(*arguments, *nowhere, stdin=_Terminal())
    assert done.code == 130 and done.err.endswith(f"[y/N]: \npybroker: interrupted: {words}\n"), done.err


def test_ctrl_c_at_questions_of_a_cluster(target: Server, topic: str) -> None:
    """Ctrl-C at a question that needs to know the cluster first."""
    address = ("-b", target.bootstrap)
    run("topics", "create", topic, *address)
    done = run("delete-records", topic, "--before", "latest", *address, stdin=_Terminal())
    assert done.code == 130 and done.err.endswith("\npybroker: interrupted: nothing was deleted\n")
    done = run("cluster", "restart", "--allow-pause", "--run", "true {id}", *address, stdin=_Terminal())
    assert done.code == 130 and done.err.endswith("\npybroker: interrupted: nothing was restarted\n")


def test_ctrl_c_at_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C where a password is asked for."""
    monkeypatch.delenv("PYBROKER_USER_PASSWORD", raising=False)
    done = run("users", "set", "ann", "-b", f"{HOST}:{free_port()}", stdin=_Terminal())
    assert done.code == 130 and done.err.endswith("\npybroker: interrupted: no password was set\n")
