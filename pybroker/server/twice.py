"""Keeps elements with one name together, if a request that is executed in slices names something more than once.

    survey   note the name of each element, and which names are repeated
    slices   keep back elements with a repeated name; execute them last, all elements of one name in one slice

So a handler sees that something is named twice, and answers as it does for a small request.
"""

from collections.abc import Iterator
from typing import Any

from pybroker.protocol.bounds import RESOURCES
from pybroker.protocol.wire import refuse_many


class Twice:
    """The elements of one request. `by`: the fields that form a name; empty if the API may name things twice."""

    def __init__(self, by: tuple[str, ...]) -> None:
        self._by = by
        self._seen: set[tuple[Any, ...]] = set()
        self._held: dict[tuple[Any, ...], list[Any]] = {}

    def see(self, elements: list[Any]) -> None:
        """Note the names of elements, which are kept until the request is answered. Raises TooMany above RESOURCES."""
        for element in elements if self._by else ():
            name = self._name(element)
            if name in self._seen:
                self._held[name] = []
            self._seen.add(name)
        if len(self._seen) > RESOURCES:
            refuse_many("names", RESOURCES)

    def keep_back(self, elements: list[Any]) -> list[Any]:
        """Return the elements that can be executed now."""
        self._seen.clear()
        if not self._held:
            return elements
        others: list[Any] = []
        for element in elements:
            held = self._held.get(self._name(element))
            (others if held is None else held).append(element)
        return others

    def slices(self, at_once: int) -> Iterator[list[Any]]:
        """Yield the elements that were kept back, about `at_once` in each slice; a name with more gets at least two in
        its slice."""
        share: list[Any] = []
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

    def _name(self, element: Any) -> tuple[Any, ...]:
        return tuple(getattr(element, field) for field in self._by)
