"""Files with secrets that other users can read: `serve` and the commands warn of each, in one line."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path

import pytest

from pybroker.cli.file_permissions import warn_of_config
from tests.cli.conftest import run
from tests.cli.system.test_serve import Serving
from tests.rows import with_each

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SECRETS = {
    "ssl.keystore.password": "changeit",
    "ssl.keystore.key": "x",
    "listener.name.clients.plain.sasl.jaas.config": f'{MODULE} required user_a="b";',
    "delegation.token.secret.key": "in winter",
    "zookeeper.sasl.client.password": "z",
    "password.encoder.secret": "p",
}
PLAIN_KEY = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
ENCRYPTED_KEY = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n-----END RSA PRIVATE KEY-----\n"


def written(path: Path, text: str, mode: int) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def line(file: Path, what: str, mode: int) -> str:
    fix = f"chmod 600 {shlex.quote(str(file))}"
    return f"pybroker: warning: {file} holds {what}, and its mode {mode:04o} lets other users read it: {fix}"


@with_each("mode", [0o644, 0o640, 0o602, 0o600, 0o400])
@with_each("name", SECRETS)
def test_a_file_with_a_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, mode: int) -> None:
    (tmp_path / "a broker.properties").unlink(missing_ok=True)
    file = written(tmp_path / "a broker.properties", f"num.partitions=3\n{name}={SECRETS[name]}\n", mode)
    warn_of_config(str(file))
    assert capsys.readouterr().err.splitlines() == ([line(file, name, mode)] if mode & 0o077 else [])


@pytest.mark.parametrize("text", ["num.partitions=3", "ssl.keystore.password=", "ssl.truststore.location=/x"])
def test_a_file_without_a_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    warn_of_config(str(written(tmp_path / "broker.properties", text, 0o644)))
    assert capsys.readouterr().err == ""


def test_files_of_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A key file is not warned of if it is encrypted, private to its owner, missing, or no regular file."""
    plain = written(tmp_path / "plain.pem", PLAIN_KEY, 0o644)
    others = [
        written(tmp_path / "encrypted.pem", ENCRYPTED_KEY, 0o644), written(tmp_path / "own.pem", PLAIN_KEY, 0o600),
        written(tmp_path / "ca.pem", "-----BEGIN CERTIFICATE-----\n", 0o644), tmp_path / "missing.pem", tmp_path,
    ]  # fmt: skip
    names = [f"listener.name.l{n}.ssl.keystore.location" for n in range(len(others))]
    lines = [f"{name}={path}" for name, path in zip(names, others, strict=True)]
    lines += [f"ssl.keystore.location={plain}", f"zookeeper.ssl.keystore.location={plain}"]
    warn_of_config(str(written(tmp_path / "broker.properties", "\n".join(lines), 0o644)))
    assert capsys.readouterr().err.splitlines() == [line(plain, "a private key without a password", 0o644)]


def test_serve_warns(tmp_path: Path) -> None:
    text = f"log.dirs={tmp_path / 'data'}\nlisteners=PLAINTEXT://127.0.0.1:0\ndelegation.token.secret.key=in winter\n"
    file = written(tmp_path / "broker.properties", text, 0o640)
    ended = Serving("--config", file).end(signal.SIGTERM)
    assert ended.code == 0
    assert [each for each in ended.err.splitlines() if "chmod" in each] == [
        line(file, "delegation.token.secret.key", 0o640)
    ]
    assert "in winter" not in ended.err


def test_users_warns_of_the_broker_s_file(tmp_path: Path) -> None:
    file = written(tmp_path / "broker.properties", "password.encoder.secret=p\n", 0o644)
    warning, problem = run("users", "list", "--config", file).err.splitlines()
    assert warning == line(file, "password.encoder.secret", 0o644)
    assert "zookeeper.connect" in problem


def test_users_warns_of_the_file_of_a_password(tmp_path: Path) -> None:
    """users warns of a password file that others can read; standard input has no mode to warn of."""
    file = written(tmp_path / "password", "in spring\n", 0o604)
    where = ("--bootstrap-server", "127.0.0.1:1", "--timeout", "0.1")
    done = run("users", "set", "ann", "--password-file", file, *where)
    assert done.err.splitlines()[0] == line(file, "a password", 0o604)
    assert "chmod" not in run("users", "set", "ann", "--password-file", "-", *where, stdin="in spring\n").err


def test_a_client_s_file(tmp_path: Path) -> None:
    """A client file with a password is still refused; a key that it names is warned of."""
    key = written(tmp_path / "key.pem", PLAIN_KEY, 0o644)
    text = f"security.protocol=SSL\nssl.keystore.location={key}\nssl.keystore.type=PEM\n"
    file = written(tmp_path / "client.properties", text, 0o644)
    arguments = ("topics", "list", "-b", "127.0.0.1:1", "--command-config", file)
    assert run(*arguments).err.splitlines()[0] == line(key, "a private key without a password", 0o644)
    written(file, f"{text}ssl.key.password=x\n", 0o644)
    done = run(*arguments)
    assert done.code == 2 and f"chmod 600 {file}" in done.err
