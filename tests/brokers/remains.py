"""Finds what moves of replicas have left behind in a cluster in which nothing moves any more.

/brokers/topics/*    replicas that are being added, removed or given up; /admin/reassign_partitions
/config/*/*          throttles, and the note of the command that set them
log dirs             a log of a partition that the broker is no replica of, or in two log dirs; any other directory
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from kazoo.exceptions import NoNodeError

from pybroker.cli.reassign.throttle import NOTE
from pybroker.metadata import nodes
from tests.brokers.editor import Editor, editing
from tests.brokers.kit import Cluster

FIELDS = (nodes.ADDING, nodes.REMOVING, nodes.GIVEN_UP)


def remains(cluster: Cluster) -> list[str]:
    """Return a sentence for each thing that moves have left behind."""
    assigned: dict[str, set[int]] = {}
    with editing(cluster.store, cluster.chroot) as client:
        found = [*_in_topics(client, assigned), *_in_configs(client)]
    return [*found, *_on_disk(cluster, assigned)]


def _in_topics(client: Editor, assigned: dict[str, set[int]]) -> Iterator[str]:
    """Find half-done reassignments; add the brokers of each partition to `assigned`, by the name of its directory."""
    if client.exists(nodes.REASSIGNMENTS):
        yield f"{nodes.REASSIGNMENTS} exists"
    for topic in client.get_children(nodes.TOPICS):
        with suppress(NoNodeError):  # it is deleted meanwhile
            node = json.loads(client.get(nodes.topic(topic))[0])
            assigned.update({f"{topic}-{index}": {*replicas} for index, replicas in node["partitions"].items()})
            for field in FIELDS:
                for index, brokers in node.get(field, {}).items():
                    if brokers:
                        yield f"{topic}-{index} has {field} {brokers}"


def _in_configs(client: Editor) -> Iterator[str]:
    for kind in ("brokers", "topics"):
        for name in client.get_children(f"{nodes.CONFIGS}/{kind}"):
            with suppress(NoNodeError):
                config = json.loads(client.get(f"{nodes.CONFIGS}/{kind}/{name}")[0])["config"]
                for key, value in config.items():
                    if "throttled" in key or key == NOTE:
                        yield f"{kind}/{name} has the config {key}={value}"


def _on_disk(cluster: Cluster, assigned: dict[str, set[int]]) -> Iterator[str]:
    for number in cluster.brokers:
        seen: set[str] = set()
        for log_dir in map(Path, cluster.log_dirs(number)):
            for path in log_dir.iterdir() if log_dir.exists() else ():
                if path.is_dir() and (number not in assigned.get(path.name, ()) or path.name in seen):
                    yield f"broker {number} has {path}"
                seen.add(path.name)
        for name, brokers in assigned.items():
            if number in brokers and name not in seen:
                yield f"broker {number} lacks {name}"
