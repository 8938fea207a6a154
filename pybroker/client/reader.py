"""Takes what was fetched, in order, and moves positions past what it hands out. For the consumer's thread."""

from collections.abc import Iterator

from pybroker import core
from pybroker.client import records
from pybroker.client.fetcher import Chunk, Fetcher
from pybroker.client.positions import Positions
from pybroker.client.records import Record
from pybroker.errors import KafkaError


class Reader:
    """The chunk that is being read, and the way to the next."""

    def __init__(self, fetcher: Fetcher, positions: Positions, *, check_crcs: bool) -> None:
        self._fetcher = fetcher
        self._positions = positions
        self._check_crcs = check_crcs
        self._open: tuple[Chunk, Iterator[Record]] | None = None

    def take(self, most: int) -> list[Record]:
        """Up to so many records of what is there. A batch that does not parse stops its partition with an error."""
        taken: list[Record] = []
        while len(taken) < most and (self._open or self._next()):
            assert self._open is not None
            chunk, found = self._open
            place = chunk.place
            if chunk.stale or not self._positions.holds(place):
                self._end(chunk)
                continue
            try:
                for record in found:
                    taken.append(record)
                    place.position = record.offset + 1
                    if len(taken) == most:
                        break
                else:
                    place.position = max(place.position, chunk.next_offset)
                    self._end(chunk)
            except (core.LogError, KafkaError) as error:
                self._end(chunk)
                place.move(place.position)
                place.error = KafkaError(error.code, f"{place.tp} at offset {place.position}: {error}")
                break
        return taken

    def _next(self) -> bool:
        """Open the next chunk that is of use; False if there is none."""
        chunks = self._fetcher.chunks
        while chunks:
            chunk = chunks.popleft()
            place = chunk.place
            if not chunk.stale and self._positions.holds(place):
                self._open = chunk, records.records(chunk, place.position, self._check_crcs)
                return True
            self._fetcher.taken(chunk)
        return False

    def _end(self, chunk: Chunk) -> None:
        self._open = None
        self._fetcher.taken(chunk)
