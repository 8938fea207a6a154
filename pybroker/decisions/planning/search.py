"""Searches for the moves that copy fewest bytes, in clusters so small that one large replica makes a difference."""

from heapq import heappop, heappush
from typing import Final

from pybroker.decisions.planning.balancing import LoadBalance

SLACK: Final = 1.05
"""A plan is good enough if it copies this many times the least possible."""
CHOICES_MAX: Final = 600
"""Replicas times brokers up to which a search is tried."""
TRIED_MAX: Final = 20_000
"""Moves after which a search gives up."""
Moves = tuple[tuple[int, int, int], ...]


def fewest_bytes(balance: LoadBalance, worst: int | None) -> Moves | None:
    """Return the moves that make the brokers' bytes even and copy at most SLACK times the least possible; None if
    there are none that copy less than `worst`, or TRIED_MAX moves were tried.

    A* by the bytes copied so far and the least bytes that the rest must copy: each state is where the replicas are."""
    draft = balance.draft
    if draft.count * len(draft.targets) > CHOICES_MAX:
        return None
    base = draft.copied_bytes()
    queue: list[tuple[float, int, Moves]] = [(balance.least_bytes() * SLACK, 0, ())]
    seen = {frozenset[tuple[int, frozenset[int]]]()}
    number = 0
    while queue and number < TRIED_MAX:
        _, _, moves = heappop(queue)
        for move in moves:
            draft.move(*move)
        rest = balance.least_bytes()
        if rest > 0:
            for index, source, target in list(balance.moves()):
                number += 1
                draft.move(index, source, target)
                state = frozenset((i, frozenset(draft.replicas[i])) for i in {index, *(m[0] for m in moves)})
                state = frozenset(each for each in state if each[1] != frozenset(draft.original[each[0]]))
                cost = draft.copied_bytes() - base
                rest_then = balance.least_bytes()
                if state not in seen and (worst is None or cost + rest_then < worst):
                    seen.add(state)
                    heappush(queue, (cost + SLACK * rest_then, number, (*moves, (index, source, target))))
                draft.move(index, target, source)
        for index, source, target in reversed(moves):
            draft.move(index, target, source)
        if rest <= 0:
            return moves
    return None
