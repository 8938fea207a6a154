"""Plans a reassignment: a pure function of a snapshot of the cluster and of goals.

    factors -> drain -> racks -> bytes -> replicas -> leaders

What must move moves first (a larger replication factor, drained brokers, racks). Then replicas move only to make
brokers even, as few bytes as reach that. Leaders are evened out by the order of replicas, which copies nothing.
"""

from collections.abc import Sequence
from typing import Final

from pybroker.decisions.planning import refusing
from pybroker.decisions.planning.balancing import LoadBalance
from pybroker.decisions.planning.draft import Draft
from pybroker.decisions.planning.leaders import even_leaders
from pybroker.decisions.planning.placing import Drain, mend_racks, set_factors
from pybroker.decisions.planning.search import SLACK, Moves, fewest_bytes
from pybroker.decisions.planning.snapshot import ClusterSnapshot, Goals, Plan

ORDER: Final = (
    "each partition in as many racks as it can be",
    "no two of its replicas on one host",
    "disk bytes of each broker within 10 % of its share",
    "preferred leaders within 10 %",
    "replicas within 10 %",
)
"""The goals, the most important first."""


def plan(snapshot: ClusterSnapshot, goals: Goals) -> Plan:
    """Return the moves that reach the goals with few bytes copied, or the sentences that say why they cannot be
    reached."""
    draft = Draft(snapshot, goals)
    before, load = draft.holdings(), dict(draft.load)
    refused = refusing.of_goals(draft, goals)
    if refused:
        return Plan((), before, before, 0, (*refused, *refusing.of_spared(draft)), ())
    homeless = set_factors(draft)
    least = _least_bytes(draft, goals)
    homeless += Drain(draft).homeless
    refused = refusing.of_replicas(draft, homeless)
    refused += refusing.of_spared(draft) if refused else []
    if goals.racks:
        mend_racks(draft)
    notes: Sequence[str] = ()
    if _balances(goals) and not refused:
        notes = _balance(draft, goals)
    changed = [i for i, replicas in enumerate(draft.replicas) if tuple(replicas) != draft.original[i]]
    if not goals.even_disks or goals.spread or goals.add:
        even_leaders(draft, range(len(draft.replicas)) if goals.spread or goals.add else changed)
    return Plan(draft.moves(), before, draft.holdings(load), least, tuple(refused), tuple(notes))


def _least_bytes(draft: Draft, goals: Goals) -> int:
    """The bytes that each plan must copy, before anything is placed: a copy takes bytes from one broker, which may be
    drained, too full or in a rack twice, and fills one broker, which may have too little."""
    drained = sum(draft.sizes[index] for broker in goals.drain for index in draft.on[broker])
    lacking = _lacking_bytes(draft) if goals.racks else 0
    balance = LoadBalance(draft, _receivers(goals))
    over, under = balance.totals() if _balances(goals) else (0.0, 0.0)
    return max(draft.copied_bytes() + drained + max(lacking, int(over)), int(under))


def _receivers(goals: Goals) -> frozenset[int] | None:
    return None if goals.spread or goals.even_disks else goals.add


def _balances(goals: Goals) -> bool:
    return goals.spread or goals.even_disks or bool(goals.add)


def _balance(draft: Draft, goals: Goals) -> Sequence[str]:
    """Even out bytes, and replicas unless the goals are disks alone; return sentences on what is not reached."""
    receivers = _receivers(goals)
    start, balance = draft.copied_bytes(), LoadBalance(draft, receivers)
    bound, replicas = balance.least_bytes(), [list(each) for each in draft.replicas]
    if bound > 0:
        balance.even_bytes()
        reached, copied = balance.least_bytes() <= 0, draft.copied_bytes() - start
        if goals.search and (not reached or copied > SLACK * bound):
            _search(draft, balance, replicas, copied if reached else None)
    if goals.spread or goals.add:
        LoadBalance(draft, receivers).even_counts()
    return refusing.of_balance(draft, draft.targets if receivers is None else receivers)


def _search(draft: Draft, balance: LoadBalance, replicas: list[list[int]], worst: int | None) -> None:
    """Replace the moves made since `replicas` by better ones, where a search finds them."""
    made = [list(each) for each in draft.replicas]
    draft.set_replicas(replicas)
    found: Moves | None = fewest_bytes(balance, worst)
    if found is None:
        draft.set_replicas(made)
    for move in found or ():
        draft.move(*move)


def _lacking_bytes(draft: Draft) -> int:
    """The bytes that must be copied so that each partition is in as many racks, and on as many hosts, as it can be."""
    total = 0
    for index, replicas in enumerate(draft.replicas):
        missing = (
            can - has for can, has in zip(draft.best_distinct(len(replicas)), draft.distinct(replicas), strict=True)
        )
        total += draft.sizes[index] * max(0, *missing)
    return total
