"""The commands of docs/security.md build a secured cluster from nothing, and its Python program runs."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.client.security.settings import security_from
from pybroker.config import BrokerConfig
from tests.cli.conftest import run
from tests.harness import HOST, ROOT, free_port, until

PAGE = (ROOT / "docs" / "security.md").read_text()
COMMANDS = [
    command for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S)
    for command in re.split(r"(?<!\\)\n", block.strip())
]  # fmt: skip
BROKER, ADMIN, ALONE, TOKENS, REPORTS, PEERS, ZOOKEEPER = re.findall(
    r"^```properties\n(.*?)^```$", PAGE, re.M | re.S
)
ALICE = "\n".join([*ADMIN.splitlines(), *re.findall(r"`(sasl\.(?:username|password)=[^`]+)`", PAGE)[:2]])
"""The page gives only the differences; the last of two lines about a setting wins."""
(PROGRAM,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
START, TEN = COMMANDS[:6], COMMANDS[:10]
MORE = [command for command in COMMANDS[10:] if not command.startswith("pybroker zookeeper-acls")]
WHERE = "localhost:9092"


def three_ports() -> int:
    """The first of three consecutive free ports, as the page uses them."""
    while True:
        first = free_port()
        try:
            for port in (first + 1, first + 2):
                socket.create_server((HOST, port)).close()
        except OSError:
            continue
        return first


class Shell:
    """A reader's shell, in a directory of its own, that runs one command after the other."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.said: dict[str, str] = {}
        first = three_ports()
        self._ports = {"2181": str(free_port()), "9091": str(first - 1)}
        self._ports |= {str(9092 + number): str(first + number) for number in range(3)}
        program = home / "pybroker"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m pybroker "$@"\n')
        program.chmod(0o755)
        environment = {**os.environ, "PATH": f"{home}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        self._shell = subprocess.Popen(
            ["bash", "-o", "pipefail"], stdin=subprocess.PIPE, cwd=home, env=environment, text=True,
            start_new_session=True,
        )  # fmt: skip

    def here(self, text: str) -> str:
        """The text with ports that are free on this machine."""
        return re.sub(r"\b(2181|909\d)\b", lambda found: self._ports[found[0]], text)

    def types(self, command: str) -> None:
        """Run a command, which must succeed, or start one that keeps running."""
        number = len(self.said)
        out, code = self.home / f"{number}.out", self.home / f"{number}.code"
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{{ {self.here(command)}\n}} > {out} 2>&1; echo $? > new; mv new {code}\n")
        self._shell.stdin.flush()
        until(f"it has an end: {command}", code.exists, timeout_s=60)
        self.said[command] = out.read_text()
        assert code.read_text() == "0\n", (command, self.said[command])

    def end(self) -> None:
        """End the shell and every process that it started."""
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.communicate()


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.chdir(tmp_path)
    made = Shell(tmp_path)
    yield made
    made.end()


@pytest.mark.java
def test_the_page(shell: Shell) -> None:
    """The page's ten commands make a cluster that requires TLS, a login and ACLs for every request; then its other
    commands run."""
    for name, text in {"broker": BROKER, "admin": ADMIN, "alice": ALICE}.items():
        (shell.home / f"{name}.properties").write_text(shell.here(text))
    for command in START:
        shell.types(command)
    serving = shell.home / f"{len(START) - 1}.out"
    until("three brokers serve", lambda: serving.read_text().count("pybroker ready") == 3)
    for command in TEN[6:]:
        shell.types(command)
    assert shell.said[TEN[9]] == "spring\n"
    at = shell.here(WHERE)
    as_alice, as_admin = ([*("-b", at, "--command-config", f"{who}.properties")] for who in ("alice", "admin"))
    (seasons,) = run("topics", "describe", "seasons", "--json", *as_admin).json
    assert [sorted(partition["isr"]) for partition in seasons["partitions"]] == [[1, 2, 3]]
    for number in (1, 2):  # with any of the brokers as bootstrap
        as_alice[1] = shell.here(f"localhost:{9092 + number}")
        assert run("consume", "seasons", "--from-beginning", "--exit-at-end", *as_alice).out == "spring\n"
    refused_to_strangers(at, as_alice)
    for command in MORE:
        shell.types(command)
    said = {command.split(" -b")[0].split(" --command")[0]: text for command, text in shell.said.items()}
    assert "Topic seasons" in said["pybroker acls list --topic seasons-of-2026"]
    assert "request_percentage" in said["pybroker quotas list"]
    assert said["pybroker consume seasons --group readers --from-beginning --exit-at-end"] == "spring\n"
    (shell.home / "program.py").write_text(shell.here(PROGRAM))
    shell.types(f"{sys.executable} program.py")
    assert "value=b'spring'" in shell.said[f"{sys.executable} program.py"]


def refused_to_strangers(at: str, as_alice: list[str]) -> None:
    Path("tls.properties").write_text("security.protocol=SSL\nssl.truststore.location=ca.pem\n")
    plain = run("topics", "list", "-b", at)
    assert "the port may need TLS" in plain.sentence
    without = run("topics", "list", "-b", at, "--command-config", "tls.properties")
    assert "clients log in (security.protocol SASL_PLAINTEXT or SASL_SSL)" in without.sentence
    guess = Path("guess.properties")
    guess.touch(0o600)
    guess.write_text(ADMIN.replace("winter", "guess"))
    assert "refused the login" in run("topics", "list", "-b", at, "--command-config", "guess.properties").sentence
    for command in (["topics", "create", "other"], ["produce", "--create", "other"]):
        denied = run(*command, *as_alice, stdin="x\n").sentence
        assert "topic 'other'" in denied or "topic other" in denied
        assert "not authorized for this operation on the topic" in denied


def test_the_settings_of_zookeeper_go_together(tmp_path: Path) -> None:
    """The settings of ZooKeeper are valid together; tests/brokers/system/test_secured_zookeeper.py runs such a
    cluster."""
    file = tmp_path / "broker.properties"
    file.write_text(ZOOKEEPER)
    config = BrokerConfig.load(str(file))
    assert config.warnings == [] and all(config[line.partition("=")[0]] for line in ZOOKEEPER.splitlines())


def test_the_settings_of_tokens_go_together(tmp_path: Path) -> None:
    """The settings of tokens are valid together; tests/clients/system/test_oauthbearer.py has clients that log in with
    them."""
    file = tmp_path / "broker.properties"
    file.write_text(re.sub("sasl.enabled.*", "", ALONE) + TOKENS)
    config = BrokerConfig.load(str(file))
    oauth = config.sasl["CLIENTS"].oauth
    assert oauth is not None and oauth.audience == ("brokers",) and config.warnings == []
    told = dict(line.split("=", 1) for line in REPORTS.splitlines())
    account, _ = security_from({name.replace(".", "_"): text for name, text in told.items()})
    assert account is not None and account.tokens is not None and account.tokens.url == "https://issuer.example/token"


def test_the_settings_of_brokers_among_themselves_go_together(tmp_path: Path) -> None:
    """The settings between brokers are valid together; tests/brokers/system/test_sasl.py runs such a cluster."""
    file = tmp_path / "broker.properties"
    file.write_text(PEERS)
    config = BrokerConfig.load(str(file))
    assert config.account == ("PLAIN", "broker", "winter", None) and config.warnings == []
    assert config.sasl["CLIENTS"].mechanisms == ("SCRAM-SHA-512",) and config.sasl["BROKERS"].mechanisms == ("PLAIN",)


def test_the_settings_of_a_broker_alone_go_together(tmp_path: Path) -> None:
    """The settings of a single broker are valid together; tests/cli/system/test_users.py runs such a broker."""
    file = tmp_path / "broker.properties"
    file.write_text(ALONE)
    config = BrokerConfig.load(str(file))
    assert config.sasl["CLIENTS"].mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512") and config.warnings == []
