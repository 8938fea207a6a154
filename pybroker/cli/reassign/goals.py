"""The options that say what a reassignment is to reach."""

import functools
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Final, NamedTuple, TypeVar

import click

from pybroker.cli.main import Misuse, Whole
from pybroker.cli.options import complete_topics
from pybroker.decisions.planning.snapshot import ClusterSnapshot, Goals

F = TypeVar("F", bound=Callable[..., object])
BROKER: Final = Whole(0, (1 << 31) - 1)
THROTTLE: Final = Whole(1, (1 << 63) - 1)
FACTOR: Final = Whole(1, (1 << 15) - 1)


class Wanted(NamedTuple):
    """The goals as options name them."""

    drain: Sequence[int]
    add: Sequence[int]
    spread: bool
    even_disks: bool
    racks: bool
    replication_factor: int | None
    topics: Sequence[str]
    disk_limit: int
    fewer_racks: bool

    @property
    def given(self) -> bool:
        """True if there is a goal."""
        return bool(self.drain or self.add or self.replication_factor or self.topics) or (
            self.spread or self.even_disks or self.racks
        )

    def goals(self, snapshot: ClusterSnapshot) -> Goals:
        """Return the goals for a cluster. Misuse if they are incomplete, or no topic has such a name."""
        if (self.replication_factor is None) != (not self.topics):
            raise Misuse("--replication-factor and --topics belong together")
        known = sorted({partition.partition.topic for partition in snapshot.partitions})
        factors = {}
        for pattern in self.topics:
            matching = [topic for topic in known if fnmatchcase(topic, pattern)]
            if not matching:
                raise Misuse(f"no topic matches {pattern!r}")
            factors.update(dict.fromkeys(matching, self.replication_factor or 0))
        return Goals(
            drain=frozenset(self.drain),
            add=frozenset(self.add),
            spread=self.spread,
            even_disks=self.even_disks,
            racks=self.racks,
            factors=factors,
            disk_limit=self.disk_limit / 100,
            fewer_racks=self.fewer_racks,
        )


def goal_options(function: F) -> F:
    """Add the options for goals, which the function gets together as `wanted`."""

    @functools.wraps(function)
    def run(**given: object) -> object:
        wanted = Wanted(**{name: given.pop(name) for name in Wanted._fields})  # type: ignore[arg-type]
        return function(wanted=wanted, **given)

    changed: Callable[..., object] = run
    for option in (
        limit_options,
        click.option("--topics", multiple=True, metavar="GLOB", shell_complete=complete_topics,
                     help="The topics for --replication-factor, such as 'orders*'; repeatable."),
        click.option("--replication-factor", type=FACTOR, help="Give the partitions of --topics so many replicas."),
        click.option("--racks", is_flag=True,
                     help="Mend partitions that are in fewer racks, or on fewer hosts, than they could be."),
        click.option("--even-disks", is_flag=True, help="Even out the bytes on the brokers' disks, and nothing else."),
        click.option("--spread", is_flag=True, help="Give every broker its share of bytes, leaders and replicas."),
        click.option("--add", multiple=True, type=BROKER, metavar="ID",
                     help="Give this new broker its share, from the others; repeatable."),
        click.option("--drain", multiple=True, type=BROKER, metavar="ID",
                     help="Move all replicas off this broker; repeatable."),
    ):  # fmt: skip
        changed = option(changed)
    return changed  # type: ignore[return-value]


def limit_options(function: F) -> F:
    """Add the options for what a plan must not do."""
    limit = click.option("--disk-limit", type=Whole(1, 100), default=85, show_default=True, metavar="PERCENT",
                         help="Refuse a plan that would use more of a broker's disks.")  # fmt: skip
    fewer = click.option("--fewer-racks", is_flag=True,
                         help="Let partitions be in fewer racks, or on fewer hosts, than they are.")  # fmt: skip
    return limit(fewer(function))


def run_options(function: F) -> F:
    """Add the options for how moves are carried out."""
    throttle = click.option("--throttle", type=THROTTLE, metavar="BYTES",
                            help="Copy at most so many bytes a second, to and from each broker.")  # fmt: skip
    batch = click.option("--batch", type=Whole(1, (1 << 31) - 1), default=1000, show_default=True, metavar="N",
                         help="Move so many partitions at a time.")  # fmt: skip
    return throttle(batch(click.option("--yes", "-y", is_flag=True, help="Do not ask.")(function)))
