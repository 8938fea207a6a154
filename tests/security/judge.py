"""Apache Kafka 3.9.1's AclAuthorizer in a process of its own: the Python end of Judge.java."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pybroker.security import acl_nodes
from pybroker.security.acls import (
    Acl,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from tests.harness import ROOT, die_with_parent
from tests.java import driver, peers

VERSION = "3.9.1"
SOURCE = Path(__file__).with_name("Judge.java")
Question = tuple[str, str, ResourceType, str | None]
"""(principal, host, type, name); a name of None means any resource of the type."""


class Judge:
    """One JVM, with a ZooKeeper in it at `port`."""

    def __init__(self, data: Path) -> None:
        data.mkdir(parents=True)
        command = peers.java(VERSION, "Judge", str(data), classpath=[driver.compiled(VERSION, SOURCE)])
        with (data / "log").open("wb") as log:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self._log = data / "log"
        self.port = int(self._line())

    def _line(self) -> bytes:
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        assert line, f"the JVM ended:\n{self._log.read_text(errors='replace')}"
        return line

    def call(self, op: str, **arguments: object) -> Any:
        assert self._popen.stdin is not None
        self._popen.stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
        self._popen.stdin.flush()
        return json.loads(self._line())

    def read(self, what: str, data: bytes) -> Any:
        """Kafka's reading of a node: of `acls`, a `change` or an `extended` change; None if Kafka throws."""
        return self.call("read", what=what, data=base64.b64encode(data).decode())

    def close(self) -> None:
        assert self._popen.stdin is not None and self._popen.stdout is not None
        self._popen.stdin.close()
        self._popen.wait(30)
        self._popen.stdout.close()


class Authorizer:
    """An AclAuthorizer with its own settings and its own root in ZooKeeper, which it loads at its first call."""

    def __init__(self, judge: Judge, root: str = "", super_users: str = "", allow_everyone: bool = False) -> None:
        self._judge = judge
        self._settings = {
            "root": root, "super_users": super_users, "allow_everyone": str(allow_everyone).lower(),
        }  # fmt: skip

    def call(self, op: str, **arguments: object) -> Any:
        return self._judge.call(op, **self._settings, **arguments)

    def starts(self) -> bool:
        return bool(self.call("starts"))

    def judge(
        self, rules: Mapping[ResourcePattern, Iterable[Acl]], questions: list[Question], filters: list[AclFilter]
    ) -> tuple[list[int], list[list[AclBinding]]]:
        """For each question the allowed operations, as bits; for each filter the ACLs that it finds; under these rules
        only."""
        nodes = [[*resource, acl_nodes.dump_acls(acls).decode()] for resource, acls in rules.items()]
        answer = self.call("judge", nodes=nodes, questions=questions, filters=filters)
        return answer["verdicts"], [[binding(acl) for acl in found] for found in answer["found"]]

    def ask(self, questions: list[Question]) -> list[int]:
        return list(self.call("ask", questions=questions))

    def acls(self, wanted: AclFilter) -> list[AclBinding]:
        return [binding(acl) for acl in self.call("acls", filter=wanted)]

    def create(self, bindings: Iterable[AclBinding]) -> list[bool]:
        """For each ACL, True if it was refused."""
        return list(self.call("create", acls=[[*resource, *acl] for resource, acl in bindings]))

    def delete(self, filters: list[AclFilter]) -> list[int]:
        """The number of ACLs that each filter deleted."""
        return list(self.call("delete", filters=filters))


def binding(acl: list[Any]) -> AclBinding:
    kind, name, pattern, principal, host, operation, permission = acl
    return AclBinding(
        ResourcePattern(ResourceType(kind), name, PatternType(pattern)),
        Acl(principal, host, Operation(operation), Permission(permission)),
    )
