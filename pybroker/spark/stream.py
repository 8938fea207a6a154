"""A topic as a stream: where it begins, how far a trigger goes, and what Spark's checkpoint says of it.

One process on the driver plans for a query's whole life, and keeps its connection to the cluster. What it knows dies
with it: the checkpoint has the offsets of every batch that was planned, and the group of the query the start of one
that was not (progress_group.py).

    initialOffset -> latestOffset -> partitions(start, end) -> latestOffset -> commit(end) -> partitions ...
"""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pybroker.client.list_offsets import LATEST
from pybroker.errors import INVALID_CONFIG, KafkaError
from pybroker.model import TopicPartition
from pybroker.spark import offsets, planning, schema
from pybroker.spark.losses import judge
from pybroker.spark.offset_reader import OffsetReader
from pybroker.spark.offsets import Offsets, TopicIds
from pybroker.spark.options import SourceOptions
from pybroker.spark.partitions import KafkaInputPartition, input_partitions
from pybroker.spark.planning import Lost
from pybroker.spark.progress_group import ProgressGroup
from pybroker.spark.reader import read_range

if TYPE_CHECKING:
    import pyarrow

logger: Final = logging.getLogger(__name__)

IDLE_S: Final = 0.05
"""While nothing is new the cluster is asked this often: Spark itself would ask a hundred times a second."""
TOPICS_AGE_S_MAX: Final = 1.0
"""How old the list of topics and leaders may be: new partitions are found this much later, leaders when they fail."""

JsonOffsets = dict[str, dict[str, Any]]


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query's source."""

    def __init__(self, given: SourceOptions, wanted: StructType) -> None:
        self.options = given
        self.columns = schema.selected(wanted)
        if given.group is None and moves(given):
            raise KafkaError(
                INVALID_CONFIG,
                "a stream that starts at the latest offsets needs a name to keep its start under, or a crash in its "
                "first batch would skip records: say kafka.group.id or queryName, or startingOffsets=earliest",
            )
        self._asker: OffsetReader | None = None  # made in the process that plans; the others only read
        self._group: ProgressGroup | None = None
        self._begins: JsonOffsets | None = None
        self._target: Offsets | None = None  # with Trigger.AvailableNow: where the run ends
        self._known: Offsets = {}
        self._there: frozenset[TopicPartition] = frozenset()
        self._idle = False
        self._asked_s = self._topics_s = self._last_trigger_s = -math.inf

    # -- what Spark asks while it plans ----------------------------------------------------------------------------

    def initialOffset(self) -> JsonOffsets:
        if self._begins is None:
            self._begins = offsets.to_json(self._start(), self._cluster().topic_ids())
        return self._begins

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.max_offsets is not None:
            return ReadMaxRows(self.options.max_offsets)
        if self.options.min_offsets is not None:
            return ReadMinRows(self.options.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._latest()

    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> JsonOffsets:
        read = offsets.from_json(start)
        now = self._new_since(read)
        if self._target is not None:
            now = planning.bounded(now, self._target)
        ids = self._cluster().topic_ids()
        was, gone = self._without_other_topics(start, ids)
        lost = [Lost(tp, f"was read up to offset {at}, and {planning.ANEW}") for tp, at in sorted(gone.items())]
        judge(self.options, lost + planning.vanished(was, now))
        begin = planning.with_new_partitions(was, now)
        if not isinstance(limit, ReadAllAvailable):  # else the trigger takes all there is, whatever the options say
            if self._target is None and self._holds_back(begin, now):
                return start
            if self.options.max_offsets is not None:
                now = planning.limit(begin, now, self.options.max_offsets)
        if now != read or gone:
            self._last_trigger_s = time.monotonic()
        told = offsets.to_json(now, ids)
        if told == {key: value for key, value in start.items() if key != offsets.BEGINS}:
            return start  # with all that is in it: Spark runs no batch for the same text
        return {**told, offsets.BEGINS: offsets.to_json(read)} if start == self._begins else told

    def reportLatestOffset(self) -> JsonOffsets | None:
        return offsets.to_json(self._known) if self._known else None

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> Sequence[InputPartition]:
        there = self._topics()
        until, gone = self._without_other_topics(end, self._cluster().topic_ids())
        lost = [Lost(tp, f"was to be read up to offset {at}, and {planning.ANEW}") for tp, at in sorted(gone.items())]
        judge(self.options, lost + planning.vanished(until, dict.fromkeys(there, offsets.OFFSET_MAX)))
        was = offsets.begins_from_json(end)  # not where a first batch would begin now: retention may have moved that
        if was is None:
            was, _ = self._without_other_topics(start, offsets.ids_from_json(end))
        begin = planning.with_new_partitions(was, until)
        return input_partitions(self.options, self._cluster(), begin, {tp: until[tp] for tp in until if tp in there})

    def commit(self, end: JsonOffsets) -> None:
        """A batch is done: those who watch the group's lag may know. Its failure must not end the query."""
        if self.options.group is None:
            return
        try:
            self._progress().progress(offsets.from_json(end))
        except KafkaError as error:
            logger.warning("the progress of the stream was not committed: %s", error.message)

    def stop(self) -> None:
        if self._asker is not None:
            self._asker.close()
        if self._group is not None:
            self._group.close()

    def read(self, partition: InputPartition) -> "Iterator[pyarrow.RecordBatch]":
        if isinstance(partition, KafkaInputPartition):
            yield from read_range(self.options, self.columns, partition)

    # -- offsets ---------------------------------------------------------------------------------------------------

    def _start(self) -> Offsets:
        """Where a stream without a checkpoint begins: where it began before, if it got no further than that. What the
        group holds of a topic goes with the topic: it is never of another one."""
        there = self._topics()
        movable = moves(self.options)
        if movable and (anchored := self._progress().anchored({tp.topic for tp in there})) is not None:
            return anchored
        begins = self._cluster().at(self.options.start, there, "startingOffsets", is_end=False)
        begins = self._cluster().within(self.options.start, begins, "startingOffsets")
        if movable:
            self._progress().start(begins)
        return begins

    @staticmethod
    def _without_other_topics(told: JsonOffsets, ids: TopicIds) -> tuple[Offsets, Offsets]:
        """Offsets of topics that have these ids or none, and those of topics that are other ones now."""
        every = offsets.from_json(told)
        gone = planning.of_another_topic(every, offsets.ids_from_json(told), ids)
        return {tp: at for tp, at in every.items() if tp not in gone}, gone

    def _new_since(self, was: Offsets) -> Offsets:
        """The latest offsets. Where nothing was new a moment ago, that moment is waited for before they are asked."""
        if self._idle:
            time.sleep(max(0.0, self._asked_s + IDLE_S - time.monotonic()))
        now = self._latest()
        self._idle = now == was
        return now

    def _latest(self) -> Offsets:
        there = self._there
        if time.monotonic() - self._topics_s > TOPICS_AGE_S_MAX:
            there = self._topics()
        self._known = self._cluster().latest(there)
        self._asked_s = time.monotonic()
        return dict(self._known)

    def _topics(self) -> frozenset[TopicPartition]:
        self._there = self._cluster().partitions()
        self._topics_s = time.monotonic()
        return self._there

    def _holds_back(self, begin: Offsets, now: Offsets) -> bool:
        return self.options.min_offsets is not None and planning.waits_for_more(
            begin,
            now,
            min_offsets=self.options.min_offsets,
            since_last_s=time.monotonic() - self._last_trigger_s,
            max_trigger_delay_s=self.options.max_trigger_delay_ms / 1000,
        )

    def _cluster(self) -> OffsetReader:
        if self._asker is None:
            self._asker = OffsetReader(self.options)
        return self._asker

    def _progress(self) -> ProgressGroup:
        options = self.options
        assert options.group is not None, "asked for only where there is a group"
        if self._group is None:
            self._group = ProgressGroup(options.bootstrap, options.group, options.account, options.tls)
        return self._group


def moves(given: SourceOptions) -> bool:
    """Whether the start would be another if it were asked for later: it is the latest offset of some partition."""
    if given.start.kind == "timestamps":
        return given.timestamp_strategy == "latest"
    return given.start.says(LATEST)
