"""docs/security.md as a reader would take it: a broker with users, its commands, and the program in Python."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.client.security import security_from
from pybroker.config import BrokerConfig
from pybroker.testing.certificates import Authority
from tests.cli.conftest import start
from tests.harness import HOST, ROOT, free_port, until

PAGE = (ROOT / "docs" / "security.md").read_text()
COMMANDS = [line for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S) for line in block.splitlines()]
BROKER, ALICE, BY_TLS, ALICE_BY_TLS, ENCODER, TOKENS, REPORTS, KEY, ACLS, CLUSTER, ZOOKEEPER = re.findall(
    r"^```properties\n(.*?)^```$", PAGE, re.M | re.S
)
(PROGRAM,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
SERVE, *REST = (command for command in COMMANDS if not command.startswith("pybroker zookeeper-acls"))
FIRST = [command for command in REST if command.startswith(("printf 'in", "pybroker users", "chmod", "pybroker acls"))]
REST = [*FIRST, *(command for command in REST if command not in FIRST)]
"""With the authorizer of its last chapter, which the broker has from the start, the ACLs come before who needs them."""


@pytest.fixture
def ports() -> dict[str, str]:
    return {"9092": str(free_port()), "9093": str(free_port())}


def here(text: str, ports: dict[str, str]) -> str:
    """The text with this test's ports, and no other interfaces."""
    for told, port in ports.items():
        text = text.replace(f":{told}", f":{port}")
    return text.replace("://:", f"://{HOST}:")


@pytest.fixture(params=["plain", "tls"])
def served(request: pytest.FixtureRequest, tmp_path: Path, ports: dict[str, str]) -> Iterator[Path]:
    """The broker of the page, with TLS or without, and the directory of who types."""
    broker, alice = (BROKER, ALICE) if request.param == "plain" else (BY_TLS, ALICE_BY_TLS)
    (tmp_path / "broker.properties").write_text(here(broker + ACLS, ports))
    (tmp_path / "alice.properties").write_text(alice)
    authority = Authority()
    own = authority.sign("localhost")
    (tmp_path / "broker.pem").write_bytes(own.key + own.chain)
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    told = tmp_path / "told"
    with told.open("wb") as out:
        words = SERVE.split()[1:]
        how = {"stdin": None, "stderr": None, "stdout": out}
        process = start(*words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, **how)
        until("it is ready", lambda: b"pybroker ready" in told.read_bytes(), timeout_s=30)
        yield tmp_path
        process.terminate()
        assert process.wait(30) == 0


def test_the_page(served: Path, ports: dict[str, str]) -> None:
    program = served / "pybroker"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m pybroker "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{served}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    said = {}
    for command in REST:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", here(command, ports)],
            capture_output=True, text=True, env=environment, timeout=60, cwd=served,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stderr)
        said[command.split(" -b")[0]] = done.stdout
    assert "alice" in said["pybroker users list"]
    assert "Topic seasons" in said["pybroker acls list --topic seasons-of-2026"]
    assert "seasons" in said["pybroker topics list"]
    assert "request_percentage" in said["pybroker quotas list"]
    assert said["pybroker consume seasons --from-beginning --exit-at-end"] == "spring\n"
    source = here(PROGRAM, ports)
    if "SSL" in (served / "alice.properties").read_text():
        source = source.replace('"SASL_PLAINTEXT",', '"SASL_SSL", "ssl_cafile": "ca.pem",')
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, env=environment, timeout=60,
                          cwd=served)  # fmt: skip
    assert done.returncode == 0 and "value=b'spring'" in done.stdout, done.stderr


def test_the_settings_of_zookeeper_go_together(tmp_path: Path) -> None:
    """tests/brokers/test_secured_zookeeper.py runs such a cluster, and closes one."""
    file = tmp_path / "broker.properties"
    file.write_text(ZOOKEEPER)
    config = BrokerConfig.load(str(file))
    assert config.warnings == [] and all(config[line.partition("=")[0]] for line in ZOOKEEPER.splitlines())


def test_the_settings_of_tokens_go_together(tmp_path: Path) -> None:
    """tests/clients/test_oauthbearer.py has clients that log in so."""
    file = tmp_path / "broker.properties"
    file.write_text(re.sub("sasl.enabled.*", "", BROKER) + TOKENS + ENCODER + KEY)
    config = BrokerConfig.load(str(file))
    oauth = config.sasl["CLIENTS"].oauth
    assert oauth is not None and oauth.audience == ("brokers",) and config.warnings == []
    told = dict(line.split("=", 1) for line in REPORTS.splitlines())
    account, _ = security_from({name.replace(".", "_"): text for name, text in told.items()})
    assert account is not None and account.tokens is not None and account.tokens.url == "https://issuer.example/token"


def test_the_settings_of_a_cluster_go_together(tmp_path: Path) -> None:
    """tests/brokers/test_sasl.py runs one like it."""
    file = tmp_path / "broker.properties"
    file.write_text(CLUSTER)
    config = BrokerConfig.load(str(file))
    assert config.account == ("PLAIN", "broker", "winter", None) and config.warnings == []
    assert config.sasl["CLIENTS"].mechanisms == ("SCRAM-SHA-512",) and config.sasl["BROKERS"].mechanisms == ("PLAIN",)
