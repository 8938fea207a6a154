"""`pybroker debug bundle`: what the file holds, what it leaves out, and that a missing part costs no other."""

from __future__ import annotations

import json
import os
import re
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pybroker.cli.debug import parts, redaction
from pybroker.client.admin import ConfigEntry, ConfigSource
from pybroker.config.broker import BROKER
from pybroker.config.security_settings import MECHANISMS
from tests.cli.conftest import Command, Done, run
from tests.harness import HOST, BrokerProcess, Server, free_port
from tests.rows import with_each

PLANTED = "hunter2"
MODULE = f'org.example.Module required username="u" password="{PLANTED}" user_alice="{PLANTED}";'


def opened(file: Path) -> dict[str, str]:
    """The files of a bundle, by their path below its directory."""
    with tarfile.open(file) as archive:
        members = {member.name: archive.extractfile(member) for member in archive.getmembers()}
    assert len({name.partition("/")[0] for name in members}) == 1
    with tarfile.open(file) as archive:
        return {
            member.name.partition("/")[2]: read.read().decode()
            for member in archive.getmembers()
            if (read := archive.extractfile(member)) is not None
        }


def bundle(file: Path, bootstrap: str, *arguments: object) -> tuple[Done, dict[str, str], dict[str, str | None]]:
    """Write a bundle; return the command, the files, and why each part is incomplete."""
    done = run("debug", "bundle", "-o", file, "--interval", 0, "-b", bootstrap, "--json", *arguments)
    return done, opened(file), {each["part"]: each["missing"] for each in done.json["parts"]}


def test_what_a_bundle_holds(pybroker_: Command, target: Server, topic: str, tmp_path: Path) -> None:
    """Versions, the cluster and settings come from any broker; what only ours report is named as missing. Only the
    owner may read the file, and README.txt lists the contents."""
    pybroker_("topics", "create", topic, "--config", "retention.ms=12345")
    done, files, missing = bundle(tmp_path / "b.tar.gz", target.bootstrap)
    assert done.code == 0 and stat.S_IMODE(os.stat(tmp_path / "b.tar.gz").st_mode) == 0o600
    assert json.loads(files["versions.json"])["packages"]["click"]
    shown = json.loads(files["cluster.json"])
    assert shown["brokers"][0]["port"] == target.port and shown["problems"] == []
    own = json.loads(files["configs/topics.json"])[topic]["configs"]
    assert {"name": "retention.ms", "value": "12345", "source": "topic"} in own
    broker = json.loads(files[f"configs/broker-{shown['brokers'][0]['id']}.json"])
    assert {each["name"] for each in broker["configs"]} & {"listeners", "log.dirs", "log.dir"}
    assert [part for part, why in missing.items() if why] == ["metrics", "changes"]
    assert str(missing["metrics"]).endswith("it has no metrics.listener")
    assert "  versions: versions.json\n" in files["README.txt"] and "  metrics: missing (broker" in files["README.txt"]
    said = pybroker_("debug", "bundle", "-o", tmp_path / "again.tar.gz", "--interval", 0).out
    assert said.startswith(f"Wrote {tmp_path}/again.tar.gz, ") and "  cluster: cluster.json\n" in said
    assert sorted(each.name for each in tmp_path.iterdir()) == ["again.tar.gz", "b.tar.gz"]


def test_no_secret_is_in_a_bundle(start_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    """Each setting that is a password is planted, and so are login modules of listeners, dynamic passwords and a log
    with all of them: no file of the bundle has a planted value. Metrics and changes of the broker are there."""
    secrets = {name: PLANTED for name, setting in BROKER.items() if setting.sensitive}
    secrets |= {f"listener.name.plaintext.{m.lower()}.sasl.jaas.config": MODULE for m in MECHANISMS if m[0] != "O"}
    secrets |= {f"listener.name.plaintext.{name}": PLANTED for name in secrets if name.startswith("ssl.")}
    assert len(secrets) > 20
    port = free_port()
    others = {"metrics.listener": f"{HOST}:{port}", "zookeeper.sasl.client.username": "u", "etcd.user": "u"}
    broker = start_broker(sets={**secrets, **others})
    dynamic = tmp_path / "dynamic.properties"
    dynamic.write_text(f"listener.name.plaintext.ssl.keystore.password={PLANTED}3\n")
    at = f"{HOST}:{broker.port}"
    assert run("topics", "create", "t", "-b", at).code == 0
    described = json.loads(run("cluster", "--json", "-b", at).out)
    (number,) = [each["id"] for each in described["brokers"]]
    assert run("configs", "alter", "--broker", number, "--set-file", dynamic, "-b", at).code == 0
    log = tmp_path / "broker.log"
    log.write_text("started\n" + "".join(f"{name}={value}\n" for name, value in secrets.items()))
    _, files, missing = bundle(tmp_path / "b.tar.gz", at, "--log", log)
    assert not any(missing.values()) and not [name for name, text in files.items() if PLANTED in text]
    own = json.loads(files[f"configs/broker-{number}.json"])
    assert not {name for name in secrets if name in BROKER} - set(own["left_out"])
    assert "metrics.listener" in {each["name"] for each in own["configs"]}
    first, second = (files[f"metrics/broker-{number}-{which}.txt"] for which in ("first", "second"))
    assert "pybroker_" in first and "pybroker_" in second
    assert f"changes/broker-{number}.jsonl" in files
    assert files["logs/broker.log"].startswith("started\n")


def test_a_missing_part_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a cluster, with files that are not there and a part that has a defect, all else is written."""
    (tmp_path / "a").mkdir()
    for path in (tmp_path / "x.log", tmp_path / "a" / "x.log"):
        path.write_text(f"{path}\n")
    (tmp_path / "segment").write_bytes(b"\0" * 100)
    monkeypatch.setattr(parts, "_version", lambda _: 1 // 0)
    done, files, missing = bundle(
        tmp_path / "b.tar.gz", f"{HOST}:{free_port()}", "--timeout", 1, "--log", tmp_path / "x.log", "--log",
        tmp_path / "a" / "x.log", "--log", tmp_path / "gone", "--log", tmp_path / "segment", "--data-dir", tmp_path,
    )  # fmt: skip
    assert done.code == 0
    assert missing.pop("versions") == "ZeroDivisionError: integer division or modulo by zero"
    assert "Traceback" in files["errors/versions.txt"]
    assert str(missing.pop("cluster")).startswith("could not reach ")
    assert {missing.pop(part) for part in ("configs of topics", "configs of brokers", "metrics", "changes")} == {
        "the cluster did not answer"
    }
    assert str(missing.pop("doctor")).startswith(f"{tmp_path} is not a log dir")
    assert missing.pop(f"log {tmp_path}/gone") == f"{tmp_path}/gone: no such file or directory"
    assert "is no text" in str(missing.pop(f"log {tmp_path}/segment"))
    assert not any(missing.values())
    logs = [text for name, text in files.items() if name.startswith("logs/")]
    assert logs == [f"{tmp_path}/x.log\n", f"{tmp_path}/a/x.log\n"]


def test_doctor_is_in_a_bundle(start_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    """A log dir in use is named as such; that of a stopped broker is examined."""
    broker = start_broker()
    arguments = (tmp_path / "b.tar.gz", f"{HOST}:{broker.port}", "--data-dir", broker.data_dir)
    assert bundle(*arguments)[2]["doctor"] == f"a broker is using {broker.data_dir}: stop it first"
    broker.stop()
    (broker.data_dir / "meta.properties").write_text("nonsense")
    _, files, missing = bundle(*arguments, "--timeout", 1)
    found = [json.loads(line) for line in files["doctor.jsonl"].splitlines()]
    assert missing["doctor"] is None and any("meta.properties" in each["file"] for each in found)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    done = run("debug", "bundle", "-o", tmp_path / "no" / "b.tar.gz", "-b", f"{HOST}:1", "--timeout", 1)
    assert done.code == 1 and re.search(r"no/b\.tar\.gz\.part: no such file", done.sentence)


@with_each(
    ("text", "shown"),
    [
        ("password=x y", "password=(hidden) y"),
        ('username="u" password="x y" user_bob="z";', 'username="u" password=(hidden) user_bob=(hidden);'),
        ('reason="password=\\"x y\\" z"', 'reason="password=(hidden) z"'),
        ('{"client_secret": "x", "n": 1}', '{"client_secret": (hidden), "n": 1}'),
        ("ssl.keystore.password = x", "ssl.keystore.password = (hidden)"),
        ("Authorization: Basic", "Authorization: (hidden)"),
        ("a\n-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\nb", "a\n(hidden)\nb"),
        ("a\n-----BEGIN RSA PRIVATE KEY-----\nx", "a\n(hidden)"),
        ("x\n-----END PRIVATE KEY-----\nb", "(hidden)\nb"),
        ("rebalance group=g members=2 user=alice", "rebalance group=g members=2 user=alice"),
    ],
)
def test_passwords_in_a_line(text: str, shown: str) -> None:
    assert redaction.redacted(text) == shown


def test_a_long_log_is_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the end of a long log is taken, from the first whole line on: the rest of a line may be half a password."""
    monkeypatch.setattr(parts, "LOG_BYTES_MAX", 20)
    (tmp_path / "log").write_text(f"password={PLANTED}{PLANTED}\nthe end\n")
    assert list(parts.log(tmp_path / "log")) == [("logs/log", "the end\n")]


def test_settings_of_other_brokers() -> None:
    """Settings that sound like a secret are left out although the broker does not call them sensitive; defaults too."""
    entries = [
        ConfigEntry(name, PLANTED, source, False, False)
        for name, source in (
            ("their.own.password", ConfigSource.STATIC_BROKER), ("x.sasl.jaas.config", ConfigSource.DYNAMIC_BROKER),
            ("password.encoder.iterations", ConfigSource.STATIC_BROKER), ("broker.rack", ConfigSource.DEFAULT),
        )
    ]  # fmt: skip
    told = redaction.document(entries)
    assert [each["name"] for each in told["configs"]] == ["password.encoder.iterations"]
    assert told["left_out"] == ["their.own.password", "x.sasl.jaas.config"]
