"""Shows a plan: what moves, how long it takes, and what each broker will hold."""

from collections.abc import Mapping

import click

from pybroker.cli import output
from pybroker.decisions.planning.planner import ORDER
from pybroker.decisions.planning.snapshot import ClusterSnapshot, Holding, Plan
from pybroker.logs import printable
from pybroker.model import bytes_text, percent_text


def show_plan(snapshot: ClusterSnapshot, plan: Plan, throttle: int | None, *, partitions: bool) -> None:
    """Print the goals in their order, each broker before and after, and what is copied; the sentences of a refused
    plan go to standard error."""
    click.echo("Goals, the most important first: " + "; ".join(ORDER) + ".")
    racks = {broker.id: broker.rack for broker in snapshot.brokers}
    show_holdings(racks, plan.before, plan.after)
    if partitions and plan.moves:
        click.echo()
        rows = [
            (m.partition.topic, m.partition.partition, _ids(m.before), _ids(m.after), output.size(m.copied_bytes))
            for m in plan.moves
        ]
        output.table(("topic", "partition", "replicas", "after", "copied"), rows)
    if not plan.refused:
        click.echo(summary(plan, throttle))
    for note in plan.notes:
        click.echo(f"Not reached: {printable(note)}.")
    for why in plan.refused:
        click.echo(f"pybroker: refused: {printable(why)}", err=True)


def show_holdings(racks: Mapping[int, str | None], before: Mapping[int, Holding], after: Mapping[int, Holding]) -> None:
    """Print a table of brokers with what they hold, as `before -> after` where it changes."""
    rows = [
        (broker, racks.get(broker), *map(_change, _figures(now), _figures(after[broker])))
        for broker, now in before.items()
    ]
    output.table(("broker", "rack", "bytes", "disk", "replicas", "leaders"), rows)


def _figures(held: Holding) -> tuple[str, ...]:
    return tuple(map(output.text, (output.size(held.data_bytes), share(held), held.replicas, held.leaders)))


def _change(now: str, then: str) -> str:
    return now if now == then else f"{now} -> {then}"


def summary(plan: Plan, throttle: int | None) -> str:
    """Return a sentence with the bytes that a plan copies, and the time that this takes at a throttle."""
    if not plan.moves:
        return "Nothing is to be moved."
    copied = bytes_text(plan.copied_bytes)
    words = (
        f"{number(len(plan.moves), 'partition')}: {copied} are copied, at least {bytes_text(plan.least_bytes)} must be"
    )
    if throttle and plan.copied_bytes:
        return f"{words}; at {bytes_text(throttle)}/s a broker this takes {duration(plan.busiest_bytes() / throttle)}."
    return f"{words}."


def number(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def duration(seconds: float) -> str:
    """Return a time for people, in two units at most."""
    whole = max(1, round(seconds))
    for unit, size, smaller, part in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit} {rest} {smaller}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def share(holding: Holding) -> str | None:
    """Return the share of a broker's disks in use; None if it is not known."""
    return None if holding.disk_share is None else percent_text(holding.disk_share)


def _ids(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers))
