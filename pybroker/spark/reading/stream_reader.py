"""A topic as a stream: its start, the limits of a trigger, and the offsets in Spark's checkpoint.

One process on the driver plans for a query's whole life, and keeps its connection to the cluster. Its state is lost
with it: the checkpoint has the offsets of every planned batch, and the query's group the start of a batch that was not
planned (progress_group.py).

    initialOffset -> latestOffset -> partitions(start, end) -> latestOffset -> commit(end) -> partitions ...
"""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pybroker.client.net.list_offsets import LATEST
from pybroker.errors import INVALID_CONFIG, KafkaError
from pybroker.model import TopicPartition
from pybroker.spark import offsets, schema
from pybroker.spark.offsets import Offsets, TopicIds
from pybroker.spark.options import SourceOptions
from pybroker.spark.reading import planning
from pybroker.spark.reading.data_loss import check_data_loss
from pybroker.spark.reading.input_partitions import KafkaInputPartition, input_partitions
from pybroker.spark.reading.offset_reader import OffsetReader
from pybroker.spark.reading.planning import Lost
from pybroker.spark.reading.progress_group import ProgressGroup
from pybroker.spark.reading.reader import read_range
from pybroker.spark.untyped import Document
from pybroker.spark.worker_errors import sentence_only

if TYPE_CHECKING:
    import pyarrow

logger: Final = logging.getLogger(__name__)

IDLE_S: Final = 0.05
"""Seconds between requests while nothing is new: Spark itself would ask a hundred times a second."""
TOPICS_AGE_S_MAX: Final = 1.0
"""Maximum age in seconds of the topics and leaders: new partitions are found this much later, leaders when they
fail."""

JsonOffsets = dict[str, Document]


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one streaming query."""

    def __init__(self, given: SourceOptions, wanted: StructType) -> None:
        self.options = given
        self.columns = schema.selected(wanted)
        if given.group is None and moves(given):
            raise KafkaError(
                INVALID_CONFIG,
                "a stream that starts at the latest offsets needs a group for its start, or a crash in its "
                "first batch would skip records: set kafka.group.id or queryName, or startingOffsets=earliest",
            )
        self._asker: OffsetReader | None = None  # made only in the process that plans; the others read
        self._group: ProgressGroup | None = None
        self._begins: JsonOffsets | None = None
        self._target: Offsets | None = None  # with Trigger.AvailableNow: the end of the run
        self._known: Offsets = {}
        self._there: frozenset[TopicPartition] = frozenset()
        self._idle = False
        self._asked_s = self._topics_s = self._last_trigger_s = -math.inf

    # -- Spark's calls while it plans ----------------------------------------------------------------------------------

    @sentence_only
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

    @sentence_only
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._latest()

    @sentence_only
    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> JsonOffsets:
        read = offsets.from_json(start)
        now = self._new_since(read)
        if self._target is not None:
            now = planning.bounded(now, self._target)
        ids = self._cluster().topic_ids()
        was, gone = self._without_other_topics(start, ids)
        lost = [Lost(tp, f"was read up to offset {at}, but {planning.ANEW}") for tp, at in sorted(gone.items())]
        check_data_loss(self.options, lost + planning.vanished(was, now))
        begin = planning.with_new_partitions(was, now)
        if not isinstance(limit, ReadAllAvailable):  # otherwise the trigger takes everything, despite the options
            if self._target is None and self._holds_back(begin, now):
                return start
            if self.options.max_offsets is not None:
                now = planning.limit(begin, now, self.options.max_offsets)
        if now != read or gone:
            self._last_trigger_s = time.monotonic()
        told = offsets.to_json(now, ids)
        if told == {key: value for key, value in start.items() if key != offsets.BEGINS}:
            return start  # unchanged: Spark runs no batch for equal text
        return {**told, offsets.BEGINS: offsets.to_json(read)} if start == self._begins else told

    def reportLatestOffset(self) -> JsonOffsets | None:
        return offsets.to_json(self._known) if self._known else None

    @sentence_only
    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> Sequence[InputPartition]:
        there = self._topics()
        until, gone = self._without_other_topics(end, self._cluster().topic_ids())
        lost = [Lost(tp, f"was to be read up to offset {at}, but {planning.ANEW}") for tp, at in sorted(gone.items())]
        check_data_loss(self.options, lost + planning.vanished(until, dict.fromkeys(there, offsets.OFFSET_MAX)))
        was = offsets.begins_from_json(end)  # not the current start, which retention may have moved
        if was is None:
            was, _ = self._without_other_topics(start, offsets.ids_from_json(end))
        begin = planning.with_new_partitions(was, until)
        return input_partitions(self.options, self._cluster(), begin, {tp: until[tp] for tp in until if tp in there})

    def commit(self, end: JsonOffsets) -> None:
        """Publish a finished batch's offsets for tools that watch the group's lag. A failure must not end the query."""
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

    @sentence_only
    def read(self, partition: InputPartition) -> "Iterator[pyarrow.RecordBatch]":
        if isinstance(partition, KafkaInputPartition):
            yield from read_range(self.options, self.columns, partition)

    # -- offsets ---------------------------------------------------------------------------------------------------

    def _start(self) -> Offsets:
        """Return the start of a stream without a checkpoint: its committed start, if it did not get beyond it. Offsets
        of a topic that was deleted are ignored."""
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
        """Return the offsets of topics with these ids or without one, and those of topics that have another id now."""
        every = offsets.from_json(told)
        gone = planning.of_another_topic(every, offsets.ids_from_json(told), ids)
        return {tp: at for tp, at in every.items() if tp not in gone}, gone

    def _new_since(self, was: Offsets) -> Offsets:
        """Return the latest offsets. If nothing was new a moment ago, wait a moment before asking again."""
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


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream whose options are wrong: the first call of Spark's raises the error. PySpark would hide an error of the
    constructor behind one of its own, because it stops a reader that it does not have."""

    def __init__(self, error: KafkaError) -> None:
        self._error = error

    @sentence_only
    def _refuse(self) -> NoReturn:
        raise self._error

    def initialOffset(self) -> NoReturn:
        self._refuse()

    def getDefaultReadLimit(self) -> NoReturn:
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> NoReturn:
        self._refuse()

    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> NoReturn:
        self._refuse()

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> NoReturn:
        self._refuse()

    def read(self, partition: InputPartition) -> NoReturn:
        self._refuse()


def moves(given: SourceOptions) -> bool:
    """True if the start depends on the time: some partition starts at its latest offset."""
    if given.start.kind == "timestamps":
        return given.timestamp_strategy == "latest"
    return given.start.says(LATEST)
