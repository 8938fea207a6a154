"""Counts of a batch's rows, made by Spark while it writes them, and the warnings based on them.

    column without a value    a column of the schema is NULL in every row: most likely the records use another name
    records did not parse     the reason of one of them

The first is logged once for each column in a run, the second once.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pybroker.spark.untyped import Document

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger: Final = logging.getLogger(__name__)
REASON_MAX: Final = 200


class Observed:
    """The counts of one batch. Reading them waits until a query over `watched` rows has run.

    error: the column with the reason why a record did not parse. columns: those of the schema."""

    def __init__(self, name: str, error: str, columns: Sequence[str] = ()) -> None:
        from pyspark.sql import Observation

        self._seen = Observation(name)
        self._error = error
        self._columns = tuple(columns)

    def watched(self, rows: "DataFrame") -> "DataFrame":
        """Return the same rows, counted as they pass."""
        from pyspark.sql import functions as F

        error = F.col(self._error)
        quoted = (f"`{name.replace('`', '``')}`" for name in self._columns)
        values = [F.count(F.col(name)).alias(f"v{at}") for at, name in enumerate(quoted)]
        counted = [F.count(F.lit(1)).alias("all"), F.count(error).alias("bad"), F.max(error).alias("why")]
        return rows.observe(self._seen, *counted, *values)

    @property
    def bad(self) -> int:
        return int(self._told["bad"])

    @property
    def good(self) -> int:
        return int(self._told["all"]) - self.bad

    @property
    def why(self) -> str | None:
        """The reason of one record that did not parse."""
        return self._told["why"]  # type: ignore[no-any-return]

    @property
    def empty(self) -> list[str]:
        """The columns that are NULL in every row that parsed; empty if no row did."""
        return [name for at, name in enumerate(self._columns) if self.good and not self._told[f"v{at}"]]

    @property
    def _told(self) -> Document:
        return self._seen.get


class Remarks:
    """Warns about batches, each warning once in a run."""

    def __init__(self) -> None:
        self._columns: set[str] = set()
        self._reason = False

    def say(self, number: int, seen: Observed) -> None:
        """Log the new warnings of batch `number`."""
        if seen.bad and not self._reason:
            self._reason = True
            why = (seen.why or "")[:REASON_MAX]
            logger.warning("records did not parse batch=%d records=%d reason=%s", number, seen.bad, why)
        for name in seen.empty:
            if name not in self._columns:
                self._columns.add(name)
                logger.warning(
                    "column without a value batch=%d column=%s rows=%d: it is NULL in every row; do the records use "
                    "another name?",
                    number,
                    name,
                    seen.good,
                )
