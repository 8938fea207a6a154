"""ZooKeeper nodes that are damaged under a running cluster: by a tool, by hand, by an older copy.

    sound ──break──> damaged: a new controller may read it at once ──repair──> restored, or as the cluster left it

Each damage is a generator like the faults of disturbances.py. It may stop its own topic, which no client uses; the
cluster, its other topics and its clients go on. Two damages are left for the cluster to repair: a controller epoch and
a block of producer ids that were set back.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress

from kazoo.exceptions import NodeExistsError, NoNodeError

from pybroker.metadata import nodes
from tests.brokers.editor import Editor, editing
from tests.brokers.kit import Cluster

log = logging.getLogger(__name__)

DAMAGES = (
    "break_state", "break_topic", "break_defaults", "set_back_state", "delete_state", "set_back_controller_epoch",
    "set_back_producer_ids", "twin_topic",
)  # fmt: skip
"""The names of these faults."""
VICTIM = "victim"
"""A topic of one partition that no client uses."""
TWIN = "twin"
"""A topic that gets the id of the judged topic."""
NOWHERE = {77, 78}
"""Ids of brokers that do not exist."""
GARBAGE = b'{"version":1,"par'
DEFAULTS = nodes.broker_config(None)
DEPOSED = 0.5
"""The share of damages that are followed by a new controller, which reads everything."""

REIGNS_MAX = 5
"""The most controllers that may be elected during one damage: one after each that was deposed or killed."""

Fault = Iterator[None]


class Damages:
    """The damages to one cluster, whose topic `judged` must go on."""

    def __init__(self, cluster: Cluster, judged: str, chance: random.Random) -> None:
        self.cluster = cluster
        self.judged = judged
        self.chance = chance
        self.older: dict[str, bytes] = {}
        """Nodes as they were when the campaign began."""
        self.wrong: list[str] = []

    def prepare(self) -> None:
        """Create the victim topic and keep a copy of its nodes."""
        self.cluster.create(VICTIM, replicas=[self.cluster.present])
        with self.connected() as client:
            for path in (nodes.state(VICTIM, 0), nodes.CONTROLLER_EPOCH):
                self.older[path] = client.get(path)[0]

    def connected(self) -> AbstractContextManager[Editor]:
        return editing(self.cluster.store, self.cluster.chroot)

    def damage(self, name: str) -> Fault:
        """Run one of DAMAGES. The cluster's controller must stay in office."""
        with self.connected() as client:
            before = self._reigns(client)
        yield from getattr(self, name)()
        with self.connected() as client:
            reigns = self._reigns(client) - before
        if reigns > REIGNS_MAX:
            self.wrong.append(f"{reigns} controllers were elected during {name}")

    def _reigns(self, client: Editor) -> int:
        """A number that increases with each controller."""
        return int(client.get(nodes.CONTROLLER_EPOCH)[1].version)

    # -- repaired by hand --------------------------------------------------------------------------------------------

    def break_state(self) -> Fault:
        """Give the state an ISR of brokers without a replica, read by a new controller. The repair uses a leader epoch
        that the cluster has not seen."""
        path = nodes.state(VICTIM, 0)
        with self.connected() as client:
            sound = json.loads(client.get(path)[0])
            client.set(path, json.dumps({**sound, "isr": [*NOWHERE], "leader": min(NOWHERE)}).encode())
            self._tell_all(client)
        yield
        with self.connected() as client:
            found = json.loads(client.get(path)[0])
            if NOWHERE & set(found["isr"]):
                client.set(path, json.dumps({**sound, "leader_epoch": found["leader_epoch"] + 1}).encode())
            self._tell_all(client)

    def break_topic(self) -> Fault:
        return self._altered(nodes.topic(VICTIM), lambda data: GARBAGE)

    def break_defaults(self) -> Fault:
        """Damage the settings of all brokers, and leave a notification that they changed. The repair keeps what was
        written over the damage: a throttle is noted there."""
        with self.connected() as client:
            sound = client.get(DEFAULTS)[0] if client.exists(DEFAULTS) else None
            client.ensure_path(DEFAULTS)
            client.set(DEFAULTS, GARBAGE)
            said = nodes.dump_config_change(DEFAULTS.removeprefix(f"{nodes.CONFIGS}/"))
            client.create(nodes.CONFIG_CHANGE, said, sequence=True)
            self._depose(client)
        yield
        with self.connected() as client, suppress(NoNodeError):
            if client.get(DEFAULTS)[0] != GARBAGE:
                return
            if sound is None:
                client.delete(DEFAULTS)
            else:
                client.set(DEFAULTS, sound)

    def set_back_state(self) -> Fault:
        """Set the state back to that of the topic's creation; the repair keeps the later of the earlier state and the
        one that the cluster wrote."""
        return self._altered(nodes.state(VICTIM, 0), lambda data: self.older[nodes.state(VICTIM, 0)])

    def delete_state(self) -> Fault:
        path = nodes.state(VICTIM, 0)
        with self.connected() as client:
            data = client.get(path)[0]
            client.delete(path)
            self._depose(client)
        yield
        with self.connected() as client, suppress(NodeExistsError):  # the cluster created it again
            client.create(path, data)
            self._tell_all(client)

    def twin_topic(self) -> Fault:
        """Create a second topic with the judged one's id and other leaders."""
        with self.connected() as client:
            found = json.loads(client.get(nodes.topic(self.judged))[0])
            turned = {number: [*replicas[1:], replicas[0]] for number, replicas in found["partitions"].items()}
            client.create(nodes.topic(TWIN), json.dumps({**found, "partitions": turned}).encode())
            self._depose(client)
        yield
        with self.connected() as client, suppress(NoNodeError):
            client.delete(nodes.topic(TWIN), recursive=True)

    # -- repaired by the cluster -------------------------------------------------------------------------------------

    def set_back_controller_epoch(self) -> Fault:
        """Set the controller epoch back to its first value, from which later elections continue."""
        with self.connected() as client:
            client.set(nodes.CONTROLLER_EPOCH, self.older[nodes.CONTROLLER_EPOCH])
            self._depose(client)
        yield from ()

    def set_back_producer_ids(self) -> Fault:
        """Set the block of producer ids back: no id may be used twice."""
        with self.connected() as client, suppress(NoNodeError):
            client.set(nodes.PRODUCER_IDS, nodes.dump_block(1, 0, 999))
            self._depose(client)
        yield from ()

    # -- the steps ---------------------------------------------------------------------------------------------------

    def _altered(self, path: str, alter: Callable[[bytes], bytes]) -> Fault:
        """Change a node; the repair restores it, unless the cluster has written valid data meanwhile."""
        with self.connected() as client:
            data, _ = client.get(path)
            broken = alter(data)
            client.set(path, broken)
            self._depose(client)
        yield
        with self.connected() as client:
            if client.get(path)[0] == broken:
                client.set(path, data)
            self._tell_all(client)

    def _depose(self, client: Editor) -> None:
        if self.chance.random() < DEPOSED:
            self._tell_all(client)

    def _tell_all(self, client: Editor) -> None:
        """Delete /controller, so that a new controller reads everything."""
        with suppress(NoNodeError):
            client.delete(nodes.CONTROLLER)
