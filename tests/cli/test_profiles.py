"""--profile: a cluster and its settings, by name, in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import run
from tests.cli.members import stored
from tests.harness import HOST, Server, free_port

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write the profiles file to the path in PYBROKER_CONFIG."""
    file = tmp_path / "config.toml"
    monkeypatch.setenv("PYBROKER_CONFIG", str(file))

    def write(text: str, mode: int = 0o600) -> Path:
        file.write_text(text)
        file.chmod(mode)
        return file

    return write


def test_a_profile_says_where(
    write: Write, shared_broker: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile, from the command line or the environment, gives the address. An address on the command line wins over
    it, and it wins over PYBROKER_BOOTSTRAP_SERVER."""
    nobody = f"{HOST}:{free_port()}"
    write(f'[profiles.here]\nbootstrap.servers = "{shared_broker.bootstrap}"\n'
          f'[profiles.nowhere]\n"bootstrap.servers" = ["{nobody}"]\n')  # fmt: skip
    assert run("topics", "create", topic, "--profile", "here").code == 0
    assert topic in run("topics", "list", "--profile", "here").out
    gone = run("topics", "list", "--profile", "nowhere", "--timeout", 0.5)
    assert gone.code == 1 and nobody in gone.sentence
    assert run("topics", "list", "--profile", "nowhere", "-b", shared_broker.bootstrap).code == 0
    monkeypatch.setenv("PYBROKER_BOOTSTRAP_SERVER", nobody)
    monkeypatch.setenv("PYBROKER_PROFILE", "here")
    assert run("cluster").code == 0


def test_a_profile_has_settings(write: Write, shared_broker: Server, topic: str) -> None:
    """A profile has settings: produce and consume use their own; options and -X on the command line win."""
    write(f'[profiles.p]\nbootstrap.servers = "{shared_broker.bootstrap}"\ncompression.type = "gzip"\nacks = 1\n'
          'enable.idempotence = false\nfetch.max.bytes = 99999\ngroup.id = "mine"\nauto.offset.reset = "latest"\n'
          "enable.auto.commit = true\n")  # fmt: skip
    run("topics", "create", topic, "-p", 1, "--profile", "p")

    def size() -> int:
        (told,) = run("logdirs", topic, "--profile", "p", "--json").json
        return sum(p["size_bytes"] for p in told["partitions"])

    line = "x" * 5000 + "\n"
    assert run("produce", topic, "--profile", "p", stdin=line).code == 0
    compressed = size()
    assert compressed < 500
    assert run("produce", topic, "--profile", "p", "--compression", "none", stdin=line).code == 0
    assert run("produce", topic, "--profile", "p", "-X", "compression.type=none", stdin=line).code == 0
    assert size() > compressed + 10_000
    assert len(stored(shared_broker.bootstrap, topic)) == 3
    read = run("consume", topic, "--profile", "p", "--from-beginning", "-n", 3, "--exit-at-end")
    assert (read.code, read.out) == (0, line * 3)
    assert "mine" not in run("groups", "list", "--profile", "p").out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no profile 'p': it has none"),
        ("[profiles.q]\n[profiles.a]\n", "has no profile 'p': it has a, q"),
        ("[profiles\n", "is not TOML: "),
        ("profiles = 3\n", "has 'profiles' that is not a table of tables such as [profiles.production]"),
        ("[profiles.p]\nfetch.max.byte = 1\n", "'fetch.max.byte' is no setting of a client; did you mean fetch.max"),
        ("[profiles.p]\nfetch.max.bytes = 'many'\n", "fetch.max.bytes = 'many' (profile p ("),
        ("[profiles.p]\nfetch.max.bytes = 1979-05-27\n", "fetch.max.bytes must be text, a number"),
        ("[profiles.p]\nsecurity.protocol = 'MAGIC'\n", "takes one of PLAINTEXT, SSL, SASL_PLAINTEXT"),
        ("[profiles.p]\nbootstrap.servers = 'a:b'\n", "'a:b'"),
    ],
)  # fmt: skip
def test_a_profile_that_is_none(write: Write, text: str, said: str) -> None:
    """An invalid profile is one sentence with the file, before a broker is asked; code 2."""
    file = write(text)
    done = run("topics", "list", "--profile", "p")
    assert done.code == 2 and said in done.err and (str(file) in done.err or "bootstrap" in done.err)


def test_no_file(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing profiles file is reported with its path: PYBROKER_CONFIG, or the user's configuration directory."""
    done = run("topics", "list", "--profile", "p")
    assert done.code == 2
    assert done.sentence == f"the file of profiles {tmp_path}/config.toml cannot be read: no such file or directory"
    monkeypatch.delenv("PYBROKER_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert f"{tmp_path}/xdg/pybroker/config.toml" in run("topics", "list", "--profile", "p").sentence
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert f"{tmp_path}/.config/pybroker/config.toml" in run("topics", "list", "--profile", "p").sentence


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_secret_is_its_owners_alone(write: Write, mode: int) -> None:
    """A file with a password that others can read is refused, with the command that corrects it."""
    text = "[profiles.p]\nsasl.password = 'hunter2'\n"
    file = write(text, mode)
    done = run("topics", "list", "--profile", "p")
    assert done.code == 2 and "hunter2" not in done.err
    assert done.sentence == (
        f"{file} holds sasl.password, and other users can read it: keep it to yourself with chmod 600 {file}"
    )
    write(text)
    assert "security.protocol is PLAINTEXT" in run("topics", "list", "--profile", "p").sentence
