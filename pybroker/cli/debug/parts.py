"""The parts of a debug bundle, each a function that yields files: (name, content)."""

import importlib.metadata
import json
import os
import platform
import re
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from pybroker import __version__
from pybroker.cli.cluster import show
from pybroker.cli.debug import redaction
from pybroker.cli.each_broker import Silent, admin_at, ask_each, in_command
from pybroker.cli.files import doctor
from pybroker.cli.main import Failure, failure_of
from pybroker.cli.options import admin_of
from pybroker.cli.output import Document
from pybroker.client.admin import Admin, ConfigResource, ResourceType
from pybroker.client.net.metadata import Node
from pybroker.errors import KafkaError
from pybroker.operations import health, metrics_listener

LOG_BYTES_MAX: Final = 16 << 20
METRICS_BYTES_MAX: Final = 64 << 20
ANSWER_S_MAX: Final = 10.0
Files = Iterator[tuple[str, str]]


class Unasked(Exception):
    """A part has no answer, or only some; the text says why."""


def as_text(document: object) -> str:
    """Return a JSON document, which people read too."""
    return json.dumps(document, indent=2) + "\n"


def versions() -> Files:
    """Yield the versions of pybroker, of what it needs, and of the machine on which the command runs."""
    needs = importlib.metadata.requires("pybroker") or []
    names = sorted({re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in needs if "extra ==" not in each})
    yield "versions.json", as_text(
        {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "pybroker": __version__,
            "python": sys.version, "implementation": platform.python_implementation(), "kernel": platform.release(),
            "machine": platform.machine(), "glibc": " ".join(platform.libc_ver()), "openssl": ssl.OPENSSL_VERSION,
            "cpus": os.cpu_count(), "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "packages": {name: _version(name) for name in names},
        }
    )  # fmt: skip


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


class ClusterParts:
    """The parts that a cluster answers. `read` comes first; without its answer the others are not asked."""

    def __init__(self, bootstrap: str, timeout_s: float) -> None:
        self._bootstrap, self._timeout_s = bootstrap, timeout_s
        self._nodes: Sequence[Node] | None = None
        self._topics: list[str] = []

    @property
    def nodes(self) -> Sequence[Node]:
        """The registered brokers. Raises Unasked."""
        if self._nodes is None:
            raise Unasked("the cluster did not answer")
        return self._nodes

    def _admin(self) -> Admin:
        return admin_of(self._bootstrap, self._timeout_s)

    def read(self) -> Files:
        """Yield the cluster as `pybroker cluster --json` shows it, and why it is degraded."""
        with self._admin() as admin:
            found = health.read(admin)
        self._nodes, self._topics = found.nodes, [topic.name for topic in found.topics]
        told = health.probe(found.nodes, in_command(admin_at))
        problems = health.problems(found, told)
        yield "cluster.json", as_text({**show.document(found, told), "problems": problems})

    def topic_configs(self) -> Files:
        """Yield the settings of topics."""
        assert self.nodes
        with self._admin() as admin:
            found = admin.topic_configs(self._topics)
        yield "configs/topics.json", as_text({name: redaction.document(its) for name, its in found.items()})

    def broker_configs(self) -> Files:
        """Yield the settings of each broker, and the default of all."""

        def of(node: Node) -> Document:
            with admin_at(node, ANSWER_S_MAX) as admin:
                return redaction.document(admin.configs(ConfigResource(ResourceType.BROKER, str(node.id))))

        nodes = self.nodes
        with self._admin() as admin:
            shared = admin.configs(ConfigResource(ResourceType.BROKER, ""))
        yield "configs/brokers-default.json", as_text(redaction.document(shared))
        yield from _each(ask_each(nodes, of), "configs/broker-{}.json", as_text)

    def metrics(self, interval_s: float) -> Files:
        """Yield the metrics of each broker twice, `interval_s` apart: between them one sees rates."""
        first = self._of_listeners("/metrics")
        time.sleep(interval_s if any(isinstance(told, str) for _, told in first) else 0)
        second = self._of_listeners("/metrics")
        yield from _each([each for each in first if isinstance(each[1], str)], "metrics/broker-{}-first.txt", str)
        yield from _each(second, "metrics/broker-{}-second.txt", str)

    def changes(self) -> Files:
        """Yield the last changes of partitions, with their causes, as each broker has them."""
        yield from _each(self._of_listeners("/changes"), "changes/broker-{}.jsonl", str)

    def _of_listeners(self, path: str) -> Sequence[tuple[Node, str | Silent]]:
        def of(where: str) -> str:
            return metrics_listener.text(where, path, METRICS_BYTES_MAX, ANSWER_S_MAX)

        return metrics_listener.answers(self.nodes, in_command(admin_at), of)


def _each(told: Sequence[tuple[Node, object]], file: str, form: Callable[[object], str]) -> Files:
    """Yield the answer of each broker. Raises Unasked after the last, if some did not answer."""
    silent = [f"broker {node.id}: {answer}" for node, answer in told if isinstance(answer, Silent)]
    for node, answer in told:
        if not isinstance(answer, Silent):
            yield file.format(node.id), form(answer)
    if silent:
        raise Unasked("; ".join(silent))


def log(path: Path) -> Files:
    """Yield the last LOG_BYTES_MAX of a log without the passwords in it. Raises Unasked if it is no text."""
    with path.open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(max(0, size - LOG_BYTES_MAX))
        data = opened.read(LOG_BYTES_MAX)
    if size > LOG_BYTES_MAX:
        data = data.partition(b"\n")[2]  # the name before a password may be cut off
    if b"\0" in data:
        raise Unasked(f"{path} is no text: name what the broker wrote to standard error, not a file of a log dir")
    yield f"logs/{path.name}", redaction.redacted(data.decode(errors="replace"))


def examination(directories: Sequence[Path]) -> Files:
    """Yield what `pybroker doctor --json` finds in log dirs."""
    lines = [json.dumps(doctor.line(finding, mended=False)) for finding in doctor.examined(directories)]
    yield "doctor.jsonl", "".join(f"{each}\n" for each in lines)


def reason(problem: Exception) -> str:
    """Return why a part is missing, as one sentence."""
    if isinstance(problem, KafkaError | OSError):
        problem = failure_of(problem)
    if isinstance(problem, Failure):
        return problem.message
    return str(problem) if isinstance(problem, Unasked) else f"{type(problem).__name__}: {problem}"
