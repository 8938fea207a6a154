"""`pybroker cluster restart`: the order of a rolling restart of this cluster, printed, or run one broker at a time.

    for each broker, the controller last:
        refuse if a partition would go under min ISR  ->  run the command  ->  its connection ends
        ->  it registers again  ->  all its replicas are in sync  ->  the next broker
    then each partition's preferred replica leads again

The restart has happened once the connection that was open before has ended. Then the broker's own metadata is read: it
has none until the controller has sent it, so it cannot be older than the restart.
"""

import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Final

import click

from pybroker import errors
from pybroker.cli import output
from pybroker.cli.each_broker import admin_at
from pybroker.cli.main import EXIT_FAILED, Failure, Misuse, Whole
from pybroker.cli.options import WAIT_S_MAX, Seconds, admin_of, ask, cluster_options
from pybroker.cli.waiting import WaitReport
from pybroker.client.net.metadata import Node
from pybroker.errors import KafkaError
from pybroker.logs import printable
from pybroker.operations import health
from pybroker.operations.health import MIN_ISR, NO_CONTROLLER, ClusterHealth, brokers_named, ids, times

PLACES: Final = ("host", "id", "port")
LOOK_EVERY_S: Final = 0.25
NAMED_MAX: Final = 3
HOST_SHARE_S: Final = 10.0
"""Seconds that one look at a broker may take."""
Lacking = tuple[str, Sequence[int]]
"""What a restart waits for, as words that are empty for nothing; and the brokers elsewhere that are the cause."""


class RestartStopped(Failure):
    """A rolling restart that stopped before its end; the sentence says why, and how to go on."""


class _Stopped(Failure):
    """One broker's restart that stopped; `mend` has the brokers elsewhere that are the cause."""

    def __init__(self, why: str, mend: Sequence[int] = ()) -> None:
        super().__init__(why)
        self.mend = mend


def order(cluster: ClusterHealth, only: Sequence[int] = ()) -> list[Node]:
    """Return the brokers to restart (`only` these, if given) by rack, then by id; the controller is the last."""
    wanted = [node for node in cluster.nodes if not only or node.id in only]
    return sorted(wanted, key=lambda node: (node.id == cluster.controller, node.rack or "", node.id))


def refusals(cluster: ClusterHealth, broker: int, *, allow_pause: bool) -> list[str]:
    """Return the partitions that would go under min ISR without this broker, each with its numbers.

    With `allow_pause` those are left out that could not do without a broker in any state: their replication factor is
    not above min.insync.replicas."""
    found = []
    for topic in cluster.topics:
        least = cluster.least.get(topic.name, 1)
        for p in topic.partitions:
            needed = min(least, len(p.replicas))
            stays = [each for each in p.isr if each != broker]
            if broker not in p.isr or len(stays) >= needed or (allow_pause and len(p.replicas) <= needed):
                continue
            numbers = f"{len(stays)} of {len(p.replicas)} replicas in sync, {MIN_ISR} {needed}"
            found.append(f"{topic.name}-{p.partition} would have {numbers}")
    return found


def refusal(cluster: ClusterHealth, nodes: Sequence[Node], *, allow_pause: bool) -> str:
    """Return why this restart is refused, as a sentence; empty if it may begin.

    The first broker is judged by the replicas in sync now, the others as if all were: each waits for that."""
    for at, node in enumerate(nodes):
        if found := refusals(_in_sync(cluster) if at else cluster, node.id, allow_pause=allow_pause):
            return _refused(node, found, cluster.away())
    return ""


def _in_sync(cluster: ClusterHealth) -> ClusterHealth:
    """The cluster as it is once all replicas are in sync."""
    topics = (t._replace(partitions=tuple(p._replace(isr=p.replicas) for p in t.partitions)) for t in cluster.topics)
    return cluster._replace(topics=tuple(topics))


def _refused(node: Node, partitions: Sequence[str], away: Sequence[int]) -> str:
    others = f"; {brokers_named(away)} {'is' if len(away) == 1 else 'are'} not registered" if away else ""
    return f"broker {node.id} is not restarted: without it {_few(partitions)}{others}"


def _few(texts: Sequence[str]) -> str:
    more = f", and {len(texts) - NAMED_MAX} more partitions" if len(texts) > NAMED_MAX else ""
    return "; ".join(texts[:NAMED_MAX]) + more


@click.command(name="restart")
@click.option("--run", "template", metavar="COMMAND",
              help="Run the procedure with this shell command; it has {host}, {port} or {id} of a broker.")  # fmt: skip
@click.option("--broker", "brokers", multiple=True, type=Whole(0), metavar="ID",
              help="Restart only this broker; repeatable. The order stays.")  # fmt: skip
@click.option("--in-sync-timeout", "sync_s", type=Seconds(1, WAIT_S_MAX), default=600.0, show_default=True,
              metavar="SECONDS", help="How long a broker may take until its replicas are in sync again.")  # fmt: skip
@click.option("--allow-pause", is_flag=True,
              help="Restart brokers although partitions pause whose replication factor is not above their "
              "min.insync.replicas.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask before the first broker.")
@cluster_options
def command(
    template: str | None, brokers: Sequence[int], sync_s: float, allow_pause: bool, yes: bool, bootstrap_server: str,
    timeout_s: float, as_json: bool,
) -> None:  # fmt: skip
    """Show how to restart this cluster without a pause, one broker after the other and the controller last; with --run,
    do it.

    For example --run 'ssh {host} systemctl restart pybroker'. Before each broker the command looks whether a partition
    would go under min ISR, and refuses then. After each it waits until the broker has registered again and its replicas
    are in sync. It stops at the first failure, and says how to go on. At the end the preferred replicas lead again.

    Exit codes: 0 done; 1 refused, stopped, or the cluster could not be reached; 2 an option is wrong; 130 interrupted.
    """
    if template is not None and not any(f"{{{place}}}" in template for place in PLACES):
        raise Misuse(
            f"--run {template!r} has none of {{host}}, {{id}} and {{port}}: it would restart one broker each time"
        )
    cluster = _read(bootstrap_server, timeout_s)
    if unknown := sorted(set(brokers) - {node.id for node in cluster.nodes}):
        raise Misuse(f"the cluster has no registered broker {ids(unknown)}: it has {ids(n.id for n in cluster.nodes)}")
    nodes = order(cluster, brokers)
    refused = refusal(cluster, nodes, allow_pause=allow_pause)
    if template is None:
        _show(cluster, nodes, sync_s, refused, as_json)
        click.get_current_context().exit(EXIT_FAILED if refused else 0)
    if refused:
        raise Failure(refused)
    if not as_json:
        _show(cluster, nodes, sync_s, refused, as_json)
    ask(f"Restart {times(len(nodes), 'broker')}?", yes, "nothing was restarted")
    _Restart(bootstrap_server, timeout_s, template, sync_s, allow_pause, as_json).run(nodes)


def _read(bootstrap: str, timeout_s: float) -> ClusterHealth:
    with admin_of(bootstrap, timeout_s) as admin:
        return health.read(admin, least_of_all=True)


def _show(cluster: ClusterHealth, nodes: Sequence[Node], sync_s: float, refused: str, as_json: bool) -> None:
    led, held = cluster.led(), cluster.held()
    if as_json:
        shown = [
            {"id": n.id, "host": n.host, "port": n.port, "rack": n.rack, "leaders": led[n.id], "replicas": held[n.id]}
            for n in nodes
        ]
        output.as_json(
            {"cluster": cluster.id, "controller": cluster.controller, "order": shown, "refused": refused or None}
        )
        return
    click.echo(f"Restart in this order, one at a time; the controller is {output.text(cluster.controller)}.")
    rows = [(at, n.id, n.host, n.port, n.rack, led[n.id], held[n.id]) for at, n in enumerate(nodes, 1)]
    output.table(("step", "broker", "host", "port", "rack", "leaders", "replicas"), rows)
    click.echo("Before each: pybroker cluster check")
    click.echo("Each: stop the broker with SIGTERM, and start it; its leaders move to other brokers first.")
    click.echo(f"After each: pybroker cluster check --wait in-sync --timeout {sync_s:g}")
    click.echo("At the end: pybroker topics elect-leaders")
    if refused:
        click.echo(printable(f"Not now: {refused}."))


class _Restart:
    """One run of the procedure."""

    def __init__(
        self, bootstrap: str, timeout_s: float, template: str, sync_s: float, allow_pause: bool, as_json: bool
    ) -> None:
        self._bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._template = template
        self._sync_s = sync_s
        self._allow_pause = allow_pause
        self._as_json = as_json

    def run(self, nodes: Sequence[Node]) -> None:
        """Restart brokers in this order. Raises RestartStopped at the first failure."""
        for at, node in enumerate(nodes):
            try:
                self._say(f"Broker {node.id} ({node.host}:{node.port}), {at + 1} of {len(nodes)}")
                self._one(node)
            except (Failure, KafkaError) as problem:
                why = problem.message.rstrip(".")
                mend = problem.mend if isinstance(problem, _Stopped) else ()
                raise RestartStopped(f"{why}. {self._go_on(nodes, at, mend)}") from problem
            except KeyboardInterrupt:
                raise KeyboardInterrupt(f"interrupted at broker {node.id}. {self._go_on(nodes, at, ())}") from None
        self._elect()
        if self._as_json:
            output.as_json({"restarted": [node.id for node in nodes]})
        else:
            click.echo(f"Restarted {times(len(nodes), 'broker')}.")

    def _say(self, sentence: str) -> None:
        click.echo(printable(sentence), err=self._as_json)

    def _go_on(self, nodes: Sequence[Node], at: int, mend: Sequence[int]) -> str:
        """The sentence that says what is done, and with which command the rest is."""
        left = " ".join(f"--broker {node.id}" for node in nodes[at:])
        done = f"Restarted before it: {ids(node.id for node in nodes[:at])}" if at else "It was the first"
        pause = " --allow-pause" if self._allow_pause else ""
        again = f"pybroker cluster restart {left}{pause} --run {shlex.quote(self._template)}"
        return f"{done}; to go on, mend {brokers_named(mend or [nodes[at].id])}, then: {again}"

    # -- one broker ----------------------------------------------------------------------------------------------------

    def _one(self, node: Node) -> None:
        """Restart one broker, and wait until it is in sync. Raises Failure, KafkaError."""
        before = _read(self._bootstrap, self._timeout_s)
        if refused := refusals(before, node.id, allow_pause=self._allow_pause):
            raise _Stopped(_refused(node, refused, before.away()), before.away())
        with admin_at(node, self._timeout_s) as held:
            connection = held.cluster.connect(node.host, node.port)
            began_s = time.monotonic()
            self._command(node)
            stands = "a connection from before still stands"
            stop = f"broker {node.id} to stop: {stands}"
            if self._until(lambda: ("" if connection.has_ended() else stop, []))[0]:
                raise Failure(f"broker {node.id} was not restarted: {stands}")
        troubled = {(p.topic, p.partition) for p in before.troubled()}

        def look() -> Lacking:
            try:
                with admin_at(node, min(self._sync_s, HOST_SHARE_S)) as admin:
                    return lacking(health.read(admin), node.id, troubled)
            except KafkaError as problem:
                return f"broker {node.id}: {problem.message}", []

        words, away = self._until(look)
        if words:
            end = f"after {self._sync_s:g} s the cluster still waits for {words}"
            raise _Stopped(f"broker {node.id} was restarted, but {end}", away)
        self._say(f"Broker {node.id} is in sync again after {time.monotonic() - began_s:.1f} s.")

    def _command(self, node: Node) -> None:
        line = self._template
        for place, value in zip(PLACES, (node.host, str(node.id), str(node.port)), strict=True):
            line = line.replace(f"{{{place}}}", shlex.quote(value))
        self._say(f"$ {line}")
        done = subprocess.run(["/bin/sh", "-c", line], check=False, stdin=subprocess.DEVNULL)
        if done.returncode:
            how = f"exit code {done.returncode}" if done.returncode > 0 else f"signal {-done.returncode}"
            raise Failure(f"the command for broker {node.id} ended with {how}")

    def _until(self, look: Callable[[], Lacking]) -> Lacking:
        """Wait until nothing is lacking, and say on standard error what is. Return what is lacking after the time."""
        deadline = time.monotonic() + self._sync_s
        with WaitReport() as wait:
            while (lacks := look())[0] and time.monotonic() <= deadline:
                wait.on(f"for {lacks[0]}")
                time.sleep(LOOK_EVERY_S)
        return lacks

    def _elect(self) -> None:
        """Have the preferred replicas lead again; a refusal is reported, as the brokers are restarted all the same."""
        try:
            with admin_of(self._bootstrap, self._timeout_s) as admin:
                told = admin.elect_leaders()
        except KafkaError as problem:
            self._say(f"Preferred replicas were not elected: {problem.message}")
            return
        failed = {tp: why for tp, why in told.items() if why is not None and why.code != errors.ELECTION_NOT_NEEDED}
        for tp, why in sorted(failed.items())[:NAMED_MAX]:
            self._say(f"{tp.topic}-{tp.partition} keeps its leader: {why.message}")
        self._say("Preferred replicas lead again." if not failed else f"{len(failed)} partitions keep their leaders.")


def lacking(cluster: ClusterHealth, broker: int, before: set[tuple[str, int]]) -> Lacking:
    """Return what is not yet as it was before the broker's restart; partitions of `before` lacked a replica then."""
    if broker not in {node.id for node in cluster.nodes}:
        return f"broker {broker} to register", []
    if cluster.controller is None:
        return NO_CONTROLLER, []
    lacks = [
        p for p in cluster.troubled()
        if (p.topic, p.partition) not in before or (broker in p.replicas and broker not in p.isr)
    ]  # fmt: skip
    if not lacks:
        return "", []
    away = health.absent(lacks) & set(cluster.away())
    return health.wait_words(cluster, lacks), sorted(away)
