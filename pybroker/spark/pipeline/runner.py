"""A pipeline at work: one streaming query, each batch of which is parsed, staged, and added to the table once.

    records -> parse -> rows that parsed -> staged ----------------> table
                     -> records that did not -> dead-letter topic --^ (acknowledged before the batch is committed)

SIGTERM and Ctrl-C stop the query. A batch that is under way is given up; the next start runs it again.
"""

import json
import logging
import threading
import time
from collections.abc import Mapping
from contextlib import redirect_stderr
from typing import TYPE_CHECKING, Any, Final

from pybroker.errors import UNKNOWN_SERVER_ERROR, KafkaError
from pybroker.spark.offset_reader import OffsetReader
from pybroker.spark.offsets import from_json
from pybroker.spark.options import parse_source
from pybroker.spark.pipeline import formats, gateway
from pybroker.spark.pipeline.executors import hold_against
from pybroker.spark.pipeline.failures import account, failure
from pybroker.spark.pipeline.files import Files
from pybroker.spark.pipeline.job import Job
from pybroker.spark.pipeline.observed import Observed, Remarks
from pybroker.spark.pipeline.placing import check_names, placed
from pybroker.spark.pipeline.preflight import Workers, check_brokers, check_dead_letters, check_master
from pybroker.spark.pipeline.progress import Progress
from pybroker.spark.pipeline.stopping import Stopping, ctrl_c_stays
from pybroker.spark.pipeline.table import Batch, check_package, end_number, open_table, shared_directory
from pybroker.spark.pipeline.waiting import Watch, watched
from pybroker.spark.pipeline.writer_schemas import writer_schemas
from pybroker.spark.progress_group import ProgressGroup
from pybroker.spark.session import LOCAL_CHECKPOINTS, LOG_LEVEL, alive, begin, find_spark, with_source
from pybroker.spark.streams import standard_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger: Final = logging.getLogger(__name__)

POLL_S: Final = 0.2
ID_SHOWN: Final = 8
LETTER_BYTES_MAX: Final = 32 << 20
"""Of a dead letter, the memory of a producer: what its topic takes is less, by max.message.bytes."""


class GivenUp(Exception):
    """What a batch ends with that a stop interrupts. Spark looks for these words in the account of an exception, and
    with a long one its search overflows the stack."""

    def __init__(self) -> None:
        super().__init__("py4j.protocol.Py4JJavaError: An error occurred while calling java.lang.InterruptedException")


class Pipeline:
    """The work of one job, batch by batch."""

    def __init__(self, spark: "SparkSession", job: Job, progress: Progress) -> None:
        self.spark = spark
        self.job = job
        self.progress = progress
        self.stopping = threading.Event()
        self.table = open_table(spark, job)
        self._columns = formats.columns(job)
        self._fields = formats.fields(job)
        self._schemas = writer_schemas(job)
        self._remarks = Remarks()
        self._run = ""
        self._done: int | None = None
        check_names(job, self._columns)
        self._make_checkpoint()

    def _make_checkpoint(self) -> None:
        """Spark would make it as well, when it starts the query. In the table it is made with that."""
        if self.job.checkpoint is not None:
            try:
                Files(self.spark, self.job.checkpoint).make(self.job.checkpoint)
            except OSError as error:
                raise KafkaError(UNKNOWN_SERVER_ERROR, f"the checkpoint: {error}") from error

    def start(self) -> "StreamingQuery":
        """Recover the table and start the query. KafkaError where the job does not fit."""
        self.table.recover()
        stream = self.spark.readStream.format("pybroker").options(**self.job.source_options()).load()
        writer = stream.writeStream.foreachBatch(self.batch).queryName(self.job.name)
        writer = writer.option("checkpointLocation", self.job.checkpoint_dir)
        if self.job.trigger_s is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{int(self.job.trigger_s * 1000)} milliseconds")
        return writer.start()

    def batch(self, records: "DataFrame", number: int) -> None:
        """Add one batch, unless a run before this one has. GivenUp if it fails once the query is to stop."""
        try:
            self._add(records, number)
        except Exception:
            if self.stopping.is_set():
                raise GivenUp from None
            raise

    def _add(self, records: "DataFrame", number: int) -> None:
        from pyspark.sql import functions as F

        batch = Batch(self._query_id(), number, end_number(self._end_of(number)))
        if self.table.is_done(batch):
            self._done = number
            return
        self._check_before(batch)
        started = time.monotonic()
        seen = Observed(f"batch {batch.name}", formats.ERROR, self._fields)
        error = F.col(formats.ERROR)
        rows = placed(self.job, formats.parsed(self.job, records, self._schemas))
        times = [name for name in self.job.partition_by if name not in self._columns]
        good = seen.watched(rows).where(error.isNull()).select(*map(_quoted, self._columns), *times)

        def check(staged: int) -> None:
            # The count first: a batch that is run again for its sake has no letters to repeat.
            hold_against(self.spark, self.job.table, staged, seen.good)
            if seen.bad and self.job.dead_letters is not None:
                letters = Observed(f"letters {batch.name}", formats.ERROR)
                self._write_dead_letters(letters.watched(rows.where(error.isNotNull())))
                if letters.bad != seen.bad:  # the registry has learnt of an id in between
                    raise KafkaError(
                        UNKNOWN_SERVER_ERROR,
                        f"{seen.bad} records of batch {number} did not parse, and then {letters.bad} did "
                        "not: the batch is not committed, and the next start reads it again",
                    )

        self.table.add(batch, good, check)
        self._done = number
        self.progress.batch(number, seen.good, seen.bad, time.monotonic() - started)
        self._remarks.say(number, seen)
        every = self.job.compact_files
        if every and number % every == every - 1:
            self.table.compact(batch)

    def end(self) -> str | None:
        """Where the last batch of this run ends, as Spark's checkpoint has it; None without a batch. Spark's report of
        a batch is later than the batch, and a stop may come between."""
        return None if self._done is None else self._end_of(self._done)

    def _end_of(self, number: int) -> str:
        name = f"{self.job.checkpoint_dir}/offsets/{number}"
        _version, _settings, end = Files(self.spark, self.job.checkpoint_dir).read(name).splitlines()
        return end

    def _check_before(self, batch: Batch) -> None:
        """KafkaError where the batch before is not in the table: the checkpoint would go on, and leave a hole."""
        if batch.number and not self.table.is_done(Batch(batch.query, batch.number - 1)):
            raise KafkaError(
                UNKNOWN_SERVER_ERROR,
                f"the table {self.job.table} does not have batch {batch.number - 1}, which the checkpoint "
                f"{self.job.checkpoint_dir} has: the table was dropped or restored, or is another one; with a new "
                "checkpoint everything is read again",
            )

    def _query_id(self) -> str:
        """Of the checkpoint, the beginning: with a new one batches count from 0 again, and are others all the same."""
        if not self._run:
            held = Files(self.spark, self.job.checkpoint_dir)
            self._run = held.document(f"{self.job.checkpoint_dir}/metadata")["id"][:ID_SHOWN]
        return self._run

    def _write_dead_letters(self, rows: "DataFrame") -> None:
        """The records as they were, with where they come from and what was wrong in headers: a reader that meets one
        twice, for a batch that was run again, knows it by its topic, partition and offset."""
        from pyspark.sql import functions as F

        def header(name: str, column: str) -> Any:
            return F.struct(
                F.lit(f"pybroker.{name}").alias("key"), F.encode(F.col(column).cast("string"), "UTF-8").alias("value")
            )

        headers = F.array(
            header("topic", "kafka_topic"),
            header("partition", "kafka_partition"),
            header("offset", "kafka_offset"),
            header("error", formats.ERROR),
        )
        letters = rows.select(
            F.col("kafka_key").alias("key"), F.col("kafka_value").alias("value"), headers.alias("headers")
        )
        options = {
            "kafka.bootstrap.servers": self.job.bootstrap,
            "topic": self.job.dead_letters,
            "includeHeaders": "true",
            "kafka.max.request.size": str(LETTER_BYTES_MAX),
            **self.job.security_options(),
        }
        letters.write.format("pybroker").options(**options).mode("append").save()


def run(job: Job, progress: Progress | None = None, spark: "SparkSession | None" = None) -> dict[str, Any]:
    """Run a pipeline to its end: of what is there, or until SIGTERM or Ctrl-C. What it did, in numbers.

    Raises KafkaError with one sentence, for a job that does not fit and for a query that fails."""
    progress = progress or Progress()
    own = spark is None
    check_package(job)
    formats.check_package(job)
    formats.check_schemas(job)
    if spark is None:
        find_spark()
        check_master(job.master)
    else:
        alive(spark)
    brokers = _look(job)
    check_brokers(brokers)
    if job.dead_letters is not None:
        options = parse_source(job.source_options(), streaming=True)
        check_dead_letters(job.bootstrap, job.dead_letters, options.account, options.tls)
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    with redirect_stderr(standard_error()), gateway.quiet(), Stopping() as stopping:
        stopping.listen()
        held, begun = spark, False
        try:
            with ctrl_c_stays():
                held = begin(job.name, job.master, job.conf, silent=True) if spark is None else spark
            stopping.listen()  # in the JVM too, if that has begun only now
            if stopping.asked.is_set():
                progress.say()
                return progress.summary()
            # They start, and answer, while the driver looks at its own part.
            workers = Workers(held, brokers, shared_directory(held, job))
            with_source(held)
            if own:
                gateway.hush(held)
                _settle(held, job)
            pipeline = Pipeline(held, job, progress)
            with watched(held) as watch:
                workers.check()
                if not stopping.asked.is_set():
                    begun = True
                    _work(pipeline, stopping.asked, watch)
            progress.say()
            return progress.summary()
        except (KafkaError, PySparkException, Py4JError, OSError) as error:
            if stopping.asked.is_set() and not begun:  # a signal to all processes ends a JVM that does not listen yet
                progress.say()
                return progress.summary()
            if gateway.is_gone():  # before what followed from it
                raise KafkaError(UNKNOWN_SERVER_ERROR, gateway.GONE) from error
            if isinstance(error, KafkaError):
                raise
            if isinstance(error, OSError):
                raise KafkaError(UNKNOWN_SERVER_ERROR, f"the table: {error}") from error
            raise failure(account(error)) from error
        finally:
            if own and held is not None:
                gateway.stop(held)


def _quoted(name: str) -> str:
    """A column's name as Spark takes it for one, with points in it too."""
    return f"`{name.replace('`', '``')}`"


def _settle(spark: "SparkSession", job: Job) -> None:
    """What a pipeline's own session has unless the user says otherwise: a quiet log, as how it ends is told in a
    sentence, and quick checkpoints where they are on a local disk."""
    if spark.conf.get(LOG_LEVEL, None) is None:
        spark.sparkContext.setLogLevel("OFF")
    for name, value in LOCAL_CHECKPOINTS.items():
        if spark.conf.get(name, None) is None and Files(spark, job.checkpoint_dir).scheme == "file":
            spark.conf.set(name, value)


def _work(pipeline: "Pipeline", asked: threading.Event, watch: Watch) -> None:
    """The query from its start to its end, or until a stop is asked for. KafkaError where no executor is to be had."""
    pipeline.stopping = asked
    query = pipeline.start()
    try:
        while query.isActive and not asked.is_set():
            pipeline.progress.see(query.lastProgress)
            if watch.problem is not None:
                asked.set()
                raise watch.problem
            asked.wait(POLL_S)
        if not asked.is_set():
            query.awaitTermination()
    finally:
        if asked.is_set():  # Spark's own stop gives up the job that runs, and waits for those that follow it
            jobs: Any = pipeline.spark.sparkContext._jsc.sc()
            jobs.cancelJobGroupAndFutureJobs(str(query.runId))
        query.stop()
    pipeline.progress.see(query.lastProgress)
    _commit_end(pipeline.job, pipeline.end() or _reported_end(query.lastProgress))


def _reported_end(told: "Mapping[str, Any] | None") -> str | None:
    """Where a run without a batch has found the stream. None before batch 0: the group keeps where the stream begins,
    which is committed already."""
    if told is None or not told["batchId"]:
        return None
    [source] = told["sources"]
    return source.get("endOffset")  # type: ignore[no-any-return]


def _commit_end(job: Job, end: str | None) -> None:
    """Commit the group's offsets at the end of the last batch: Spark has the source do it when it plans a next one."""
    options = parse_source(job.source_options(), streaming=True)
    if options.group is None or end is None:
        return
    group = ProgressGroup(options.bootstrap, options.group, options.account, options.tls)
    try:
        group.progress(from_json(json.loads(end)))
    except KafkaError as error:  # the offsets that count are in the checkpoint
        logger.warning("the progress of the stream was not committed: %s", error.message)
    finally:
        group.close()


def _look(job: Job) -> list[tuple[str, int]]:
    """Whether what is to be read is there, before Spark is started, which takes seconds, and the addresses that the
    brokers advertise. KafkaError if it is not."""
    reader = OffsetReader(parse_source(job.source_options(), streaming=True))
    try:
        reader.partitions()
        return [(node.host, node.port) for node in reader.cluster.nodes.values()]
    finally:
        reader.close()

