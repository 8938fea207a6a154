"""The image, the compose files and the Kubernetes manifest start brokers: their settings, ports, addresses and paths
are those that a broker understands, and they agree with each other. No container runs here."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pybroker.config import BrokerConfig
from tests.cli.conftest import run
from tests.sources import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = sorted((ROOT / "deploy" / "compose").glob("*.yaml"))
KUBERNETES = {
    each["kind"]: each for each in yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "pybroker.yaml").read_text())
}
POD = KUBERNETES["StatefulSet"]["spec"]["template"]["spec"]
BROKER = POD["containers"][0]


def instruction(name: str) -> str:
    """The arguments of the last such instruction of the Dockerfile."""
    return re.findall(rf"^{name} (.+)$", DOCKERFILE, re.M)[-1]


ENTRYPOINT: list[str] = ast.literal_eval(instruction("ENTRYPOINT"))


def settings(command: list[str], monkeypatch: pytest.MonkeyPatch) -> BrokerConfig:
    """The settings with which a broker's command would serve. Every setting is known, and none is without effect."""
    served: list[BrokerConfig] = []
    monkeypatch.setattr("pybroker.server.process.run", lambda config, *_: served.append(config))
    assert command[:2] == ["pybroker", "serve"]
    done = run(*command[1:])
    assert (done.code, done.err) == (0, "")
    (config,) = served
    return config


def port(address: str) -> int:
    return int(address.rpartition(":")[2])


def listened(config: BrokerConfig) -> list[int]:
    """The ports of a broker's listeners."""
    return [port(each) for each in config["listeners"].split(",")]


def brokers(file: Path) -> dict[str, Any]:
    """The services of a compose file that run the image."""
    services = yaml.safe_load(file.read_text())["services"]
    return {name: each for name, each in services.items() if each["image"] == "pybroker"}


def test_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image's command serves on the ports that it exposes; it is no root, and writes to its volume only."""
    config = settings(ENTRYPOINT, monkeypatch)
    ports = [listened(config)[0], port(str(config["metrics.listener"]))]
    assert ports == [int(word) for word in instruction("EXPOSE").split()]
    volume = instruction("VOLUME")
    assert all(path.startswith(f"{volume}/") for path in config.log_dirs)
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", instruction("USER"))
    assert f"http://127.0.0.1:{ports[1]}/healthz" in re.findall(r"^    CMD (.+)$", DOCKERFILE, re.M)[0]


def test_what_the_image_is_built_from_has_all_that_it_copies() -> None:
    """Nothing that a build from the sdist needs is ignored."""
    ignored = (ROOT / ".dockerignore").read_text().split()
    for name in ("pyproject.toml", "setup.py", "README.md", "core/base/crc32c.pyx", "tools/core_facts.py", "pybroker"):
        assert not any(Path(name).match(pattern) or pattern == name.partition("/")[0] for pattern in ignored), name


@pytest.mark.parametrize("file", COMPOSE, ids=lambda path: path.stem)
def test_compose(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each broker of a compose file listens on the port that it publishes and advertises it; ids, ports and volumes are
    its own, and it is as closed as a container can be."""
    whole = yaml.safe_load(file.read_text())
    found = brokers(file)
    assert len(found) == (1 if file.stem == "one" else 3)
    ids, published, volumes = set(), set(), set()
    for name, service in found.items():
        config = settings([*ENTRYPOINT, *service["command"]], monkeypatch)
        (mapping,) = service["ports"]
        host, outside, inside = mapping.split(":")
        assert host == "127.0.0.1", "there is no authentication: only this machine may connect"
        assert int(inside) in listened(config)
        advertised = config["advertised.listeners"].split(",")
        assert any(each.endswith(f"://localhost:{outside}") for each in advertised), advertised
        (volume,) = service["volumes"]
        source, _, target = volume.partition(":")
        assert target == instruction("VOLUME") and source in whole["volumes"]
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        ids.add(config["broker.id"])
        published.add(outside)
        volumes.add(source)
        if len(found) > 1:
            store = config["etcd.connect"] or config["zookeeper.connect"]
            assert re.sub(r"^http://", "", str(store)).partition(":")[0] in whole["services"]
            assert any(each == f"INSIDE://{name}:9092" for each in advertised), advertised
            assert config["inter.broker.listener.name"] == "INSIDE"
    assert len(ids) == len(published) == len(volumes) == len(found)
    assert (ROOT / "deploy" / "compose" / found.popitem()[1]["build"]).resolve() == ROOT


def test_kubernetes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A broker of the StatefulSet takes its id from its pod's number; its ports, probes, volumes and its file of
    settings are those of the other objects."""
    file = tmp_path / "broker.properties"
    file.write_text(KUBERNETES["ConfigMap"]["data"]["broker.properties"])
    variables = {"BROKER_ID": "2", "POD": "pybroker-2", "NAMESPACE": "default"}
    assert {each["name"] for each in BROKER["env"]} == set(variables)
    command = [re.sub(r"\$\((\w+)\)", lambda v: variables[v[1]], each) for each in BROKER["command"] + BROKER["args"]]
    mounts = {each["name"]: each["mountPath"] for each in BROKER["volumeMounts"]}
    command = [each.replace(f"{mounts['config']}/", f"{tmp_path}/") for each in command]
    config = settings(command, monkeypatch)
    service = KUBERNETES["Service"]
    assert config["broker.id"] == 2
    name = f"{variables['POD']}.{service['metadata']['name']}.default.svc.cluster.local"
    assert config["advertised.listeners"].split(",") == [f"PLAINTEXT://{name}:9092"]
    ports = {each["name"]: each["containerPort"] for each in BROKER["ports"]}
    assert ports == {each["name"]: each["port"] for each in service["spec"]["ports"]}
    assert ports["kafka"] == listened(config)[0]
    assert ports["metrics"] == port(str(config["metrics.listener"]))
    assert all(path.startswith(f"{mounts['data']}/") for path in config.log_dirs)
    assert POD["volumes"][0]["configMap"]["name"] == KUBERNETES["ConfigMap"]["metadata"]["name"]
    assert KUBERNETES["StatefulSet"]["spec"]["volumeClaimTemplates"][0]["metadata"]["name"] in mounts
    assert f"{POD['securityContext']['runAsUser']}:{POD['securityContext']['runAsGroup']}" == instruction("USER")
    for probe, path in (("startupProbe", "/readyz"), ("livenessProbe", "/healthz")):
        assert BROKER[probe]["httpGet"] == {"path": path, "port": "metrics"}


def test_the_objects_select_the_pods() -> None:
    """The Service, the budget, the StatefulSet and its affinity select the labels of the pods."""
    spec = KUBERNETES["StatefulSet"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    (affinity,) = POD["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    budget = KUBERNETES["PodDisruptionBudget"]["spec"]["selector"]
    assert spec["selector"] == budget == affinity["labelSelector"] == {"matchLabels": labels}
    assert KUBERNETES["Service"]["spec"]["selector"] == labels
    assert spec["serviceName"] == KUBERNETES["Service"]["metadata"]["name"]


def test_the_readiness_command_is_one() -> None:
    """The readiness probe's command is understood: without a broker it ends with 2, as for a cluster that is away."""
    command = BROKER["readinessProbe"]["exec"]["command"]
    assert command[0] == "pybroker"
    timeout = [each for each in command if each.startswith("--timeout=")]
    assert float(timeout[0].partition("=")[2]) < BROKER["readinessProbe"]["timeoutSeconds"]
    replaced = {"--bootstrap-server=localhost:9092": "--bootstrap-server=127.0.0.1:1", timeout[0]: "--timeout=0.2"}
    done = run(*(replaced.get(each, each) for each in command[1:]))
    assert done.code == 2 and "127.0.0.1:1" in done.sentence
