"""Keeps elements with the same name in one slice, if a request that is executed in slices repeats a name.

    survey   note the name of each element, and which names are repeated
    slices   keep back elements with a repeated name; execute them last, all elements of one name in one slice

So a handler sees the repeated name, and answers as it does for a small request.
"""

from collections.abc import Iterator, Sequence

from pybroker.protocol.bounds import RESOURCES
from pybroker.protocol.wire import refuse_many


class Twice:
    """The elements of one request. `by`: the fields that form a name; empty if the API allows repeated names."""

    def __init__(self, by: tuple[str, ...]) -> None:
        self._by = by
        self._seen: set[tuple[object, ...]] = set()
        self._held: dict[tuple[object, ...], list[object]] = {}

    def see(self, elements: Sequence[object]) -> None:
        """Note the names of elements. Raises TooMany above RESOURCES names."""
        for element in elements if self._by else ():
            name = self._name(element)
            if name in self._seen:
                self._held[name] = []
            self._seen.add(name)
        if len(self._seen) > RESOURCES:
            refuse_many("names", RESOURCES)

    def keep_back(self, elements: Sequence[object]) -> Sequence[object]:
        """Return the elements that can be executed now."""
        self._seen.clear()
        if not self._held:
            return elements
        others: list[object] = []
        for element in elements:
            held = self._held.get(self._name(element))
            (others if held is None else held).append(element)
        return others

    def slices(self, at_once: int) -> Iterator[list[object]]:
        """Yield the elements that were kept back, about `at_once` in each slice. A name with more elements is split,
        with at least two of them in each slice."""
        share: list[object] = []
        for held in self._held.values():
            while held:
                count = len(held) if len(held) <= at_once + 1 else at_once
                share += held[:count]
                del held[:count]
                if len(share) >= at_once:
                    yield share
                    share = []
        if share:
            yield share

    def _name(self, element: object) -> tuple[object, ...]:
        return tuple(getattr(element, field) for field in self._by)
