"""A cluster of two kinds: a broker of Apache Kafka 3.9.1 beside brokers of ours, under one chroot of a ZooKeeper."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from pybroker.development.zookeeper_server import ZooKeeper
from tests.brokers.kit import Cluster
from tests.harness import HOST, Server, until
from tests.java.peers import TOOLS, ApacheKafka, jars, java

VERSION = "3.9.1"
KAFKA = 3
"""The id of Kafka's broker; brokers 1 and 2 are ours."""
OURS = (1, 2)
TOOL_S_MAX = 60


def tool_command(main: str, *arguments: str) -> list[str]:
    """The command that runs a tool of Kafka 3.9.1."""
    return java(VERSION, main, *arguments, classpath=[jars(VERSION, TOOLS) / "*"])


def run_tool(main: str, *arguments: str) -> str:
    """Run a tool of Kafka, which must succeed, and return its output."""
    done = subprocess.run(tool_command(main, *arguments), capture_output=True, text=True, timeout=TOOL_S_MAX)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class KafkaMember(ApacheKafka):
    """One broker of Kafka 3.9.1 in a cluster that others share."""

    version = VERSION

    def __init__(self, data_dir: Path, connect: str, sets: Mapping[str, object], number: int = KAFKA) -> None:
        super().__init__(data_dir, sets)
        self.connect, self.number = connect, number
        self.ready_line = rf"\[KafkaServer id={number}\] started"
        mode = {"broker.id": number, "listeners": f"PLAINTEXT://{HOST}:{self.port}", "zookeeper.connect": connect}
        self.write_properties({"controlled.shutdown.enable": "true", **mode})

    def begin(self) -> None:
        """Start once the znode of its killed process is gone: Kafka does not start before that."""
        with znodes(self.connect) as client:
            until("the killed broker's session is gone", lambda: not client.exists(f"/brokers/ids/{self.number}"))
        Server.begin(self)

    start = restart = Server.start
    kill = Server.kill
    stop = Server.stop


class Mixed(Cluster):
    """Brokers 1 and 2 are ours, 3 is Kafka's."""

    def __init__(self, home: Path, zookeeper: ZooKeeper, **sets: object) -> None:
        super().__init__(home, zookeeper, 2, **sets)
        given = {name: value for name, value in self.brokers[1].sets.items() if name != "broker.id"}
        self.connect = str(given.pop("zookeeper.connect"))
        self.brokers[KAFKA] = KafkaMember(home / "kafka", self.connect, given)  # type: ignore[assignment]

    def move_controller(self, *to: int) -> None:
        """Delete the controller's znode until one of these brokers has won the election."""
        with znodes(self.connect) as client:

            def there() -> bool:
                with suppress(NoNodeError):
                    if json.loads(client.get("/controller")[0])["brokerid"] in to:
                        return True
                    client.delete("/controller")
                return False

            until(f"one of {to} controls", there, timeout_s=40, every_s=0.5)
        until("all know it", lambda: self.controller() in to)

    # -- Kafka's tools -----------------------------------------------------------------------------------------------

    tool = staticmethod(run_tool)

    def topics(self, *arguments: str) -> str:
        return self.tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.bootstrap, *arguments)

    def znode(self, path: str) -> Any:
        """The JSON of a znode, from ZooKeeper's shell."""
        shell = "org.apache.zookeeper.ZooKeeperMainWithTlsSupportForKafka"
        said = self.tool(shell, "-server", self.connect, "get", path)
        return json.loads(next(line for line in said.splitlines() if line.startswith("{")))


@contextmanager
def znodes(connect: str) -> Iterator[KazooClient]:
    host, slash, chroot = connect.partition("/")
    client = KazooClient(host)
    client.start()
    client.chroot = slash + chroot  # afterwards: kazoo complains of a chroot that does not exist yet
    try:
        yield client
    finally:
        client.stop()
        client.close()
