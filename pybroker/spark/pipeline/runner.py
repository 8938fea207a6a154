"""Run a pipeline: one streaming query, each batch of which is parsed, staged, and added to the table once.

    records -> parse -> rows that parsed -> staged ----------------> table
          -> records that did not -> dead-letter topic --^ (acknowledged before the batch is committed)

SIGTERM and Ctrl-C stop the query. A batch in progress is dropped; the next start runs it again.
"""

import json
import logging
import threading
import time
from contextlib import redirect_stderr
from typing import TYPE_CHECKING, Any, Final

from pybroker.errors import UNKNOWN_SERVER_ERROR, KafkaError
from pybroker.spark.offsets import from_json
from pybroker.spark.options import parse_source
from pybroker.spark.pipeline import gateway
from pybroker.spark.pipeline.before_spark import check_job
from pybroker.spark.pipeline.error_messages import account, failure
from pybroker.spark.pipeline.executor_watch import Watch, watched
from pybroker.spark.pipeline.executors import hold_against
from pybroker.spark.pipeline.job import Job
from pybroker.spark.pipeline.parsing import formats
from pybroker.spark.pipeline.parsing.partition_values import check_names, placed
from pybroker.spark.pipeline.preflight import WorkerCheck, check_brokers, check_dead_letters, check_master
from pybroker.spark.pipeline.progress import PipelineProgress
from pybroker.spark.pipeline.row_counts import Observed, Remarks
from pybroker.spark.pipeline.stopping import Stopping, ctrl_c_stays
from pybroker.spark.pipeline.tables.hadoop_files import HadoopFiles
from pybroker.spark.pipeline.tables.table import MicroBatch, end_number
from pybroker.spark.pipeline.tables.table_formats import open_table, shared_directory
from pybroker.spark.reading.offset_reader import OffsetReader
from pybroker.spark.reading.progress_group import ProgressGroup
from pybroker.spark.session import LOCAL_CHECKPOINTS, LOG_LEVEL, alive, begin, check_driver, find_spark, with_source
from pybroker.spark.stderr import standard_error
from pybroker.spark.untyped import Document, JavaObject, Told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger: Final = logging.getLogger(__name__)

POLL_S: Final = 0.2
ID_SHOWN: Final = 8
LETTER_BYTES_MAX: Final = 32 << 20
"""The producer's limit for a dead letter, in bytes of memory; the topic's max.message.bytes is lower."""


class GivenUp(Exception):
    """Ends a batch that a stop interrupts. Spark looks for these words in the exception's text; in a long text its
    search overflows the stack."""

    def __init__(self) -> None:
        super().__init__("py4j.protocol.Py4JJavaError: An error occurred while calling java.lang.InterruptedException")


class Pipeline:
    """The work of one job, batch by batch."""

    def __init__(self, spark: "SparkSession", job: Job, progress: PipelineProgress) -> None:
        self.spark = spark
        self.job = job
        self.progress = progress
        self.stopping = threading.Event()
        self.table = open_table(spark, job)
        self._columns = formats.columns(job)
        self._fields = formats.fields(job)
        self._schemas = formats.job_schemas(job)
        self._remarks = Remarks()
        self._run = ""
        self._done: int | None = None
        check_names(job, self._columns)
        self._make_checkpoint()

    def _make_checkpoint(self) -> None:
        """Create the checkpoint's directory early, as Spark would when the query starts. One in the table is created
        with the table."""
        if self.job.checkpoint is not None:
            try:
                HadoopFiles(self.spark, self.job.checkpoint).make(self.job.checkpoint)
            except OSError as error:
                raise KafkaError(UNKNOWN_SERVER_ERROR, f"the checkpoint: {error}") from error

    def start(self) -> "StreamingQuery":
        """Recover the table and start the query. KafkaError if the job does not fit."""
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
        """Add one batch, unless an earlier run has. GivenUp if it fails after a stop was requested."""
        try:
            self._add(records, number)
        except Exception:
            if self.stopping.is_set():
                raise GivenUp from None
            raise

    def _add(self, records: "DataFrame", number: int) -> None:
        from pyspark.sql import functions as F

        batch = MicroBatch(self._query_id(), number, end_number(self._end_of(number)))
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
            # The count first: no letter has been sent yet if the batch is repeated for this.
            hold_against(self.spark, self.job.table, staged, seen.good)
            if seen.bad and self.job.dead_letters is not None:
                letters = Observed(f"letters {batch.name}", formats.ERROR)
                self._write_dead_letters(letters.watched(rows.where(error.isNotNull())))
                if letters.bad != seen.bad:  # the registry has learnt an id in between
                    raise KafkaError(
                        UNKNOWN_SERVER_ERROR,
                        f"{seen.bad} records of batch {number} did not parse, and later {letters.bad} did "
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
        """Return the end of this run's last batch, as in Spark's checkpoint; None without a batch. Spark's own report
        is later, and a stop may come between."""
        return None if self._done is None else self._end_of(self._done)

    def _end_of(self, number: int) -> str:
        name = f"{self.job.checkpoint_dir}/offsets/{number}"
        _version, _settings, end = HadoopFiles(self.spark, self.job.checkpoint_dir).read(name).splitlines()
        return end

    def _check_before(self, batch: MicroBatch) -> None:
        """KafkaError if the batch before is missing in the table: going on would leave a gap."""
        if batch.number and not self.table.is_done(MicroBatch(batch.query, batch.number - 1)):
            raise KafkaError(
                UNKNOWN_SERVER_ERROR,
                f"the table {self.job.table} lacks batch {batch.number - 1}, which the checkpoint "
                f"{self.job.checkpoint_dir} has: the table was dropped or restored, or is another one; with a new "
                "checkpoint everything is read again",
            )

    def _query_id(self) -> str:
        """Return the start of the checkpoint's query id: with a new checkpoint, batches count from 0 again but are
        different ones."""
        if not self._run:
            held = HadoopFiles(self.spark, self.job.checkpoint_dir)
            self._run = held.document(f"{self.job.checkpoint_dir}/metadata")["id"][:ID_SHOWN]
        return self._run

    def _write_dead_letters(self, rows: "DataFrame") -> None:
        """Write the records unchanged, with their origin and the error in headers: a reader can recognise a repeat,
        from a repeated batch, by its topic, partition and offset."""
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


def run(job: Job, progress: PipelineProgress | None = None, spark: "SparkSession | None" = None) -> Document:
    """Run a pipeline to its end: of the records that are there, or until SIGTERM or Ctrl-C. Return its numbers.

    Raises KafkaError with one sentence, for a job that does not fit and for a query that fails."""
    progress = progress or PipelineProgress()
    own = spark is None
    check_job(job)
    if spark is None:
        check_driver(job.conf)
        find_spark()
        check_master(job.master)
    else:
        alive(spark)
    formats.check_schemas(job)
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
                if spark is None:
                    progress.note("starting Spark")
                    held = begin(job.name, job.master, job.conf, silent=True)
                else:
                    held = spark
            stopping.listen()  # in the JVM too, if it has started only now
            if stopping.asked.is_set():
                progress.say()
                return progress.summary()
            # They start, and answer, while the driver checks its own part.
            if own:
                progress.note("Spark is started, waiting for its workers")
            workers = WorkerCheck(held, brokers, shared_directory(held, job))
            with_source(held)
            if own:
                gateway.hush(held)
                _settle(held, job)
            pipeline = Pipeline(held, job, progress)
            with watched(held) as watch:
                workers.check()
                if not stopping.asked.is_set():
                    begun = True
                    if own:
                        progress.note("waiting for the first batch")
                    _work(pipeline, stopping.asked, watch)
            progress.say()
            return progress.summary()
        except (KafkaError, PySparkException, Py4JError, OSError) as error:
            if stopping.asked.is_set() and not begun:  # a signal to all processes ends a JVM that has no handler yet
                progress.say()
                return progress.summary()
            if gateway.is_gone():  # report this before its consequences
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
    """Quote a column's name for Spark, which may contain dots."""
    return f"`{name.replace('`', '``')}`"


def _settle(spark: "SparkSession", job: Job) -> None:
    """Configure a pipeline's own session, unless the user did: no log, as the pipeline reports its end itself, and
    quick checkpoints on a local disk."""
    if spark.conf.get(LOG_LEVEL, None) is None:
        spark.sparkContext.setLogLevel("OFF")
    for name, value in LOCAL_CHECKPOINTS.items():
        if spark.conf.get(name, None) is None and HadoopFiles(spark, job.checkpoint_dir).scheme == "file":
            spark.conf.set(name, value)


def _work(pipeline: "Pipeline", asked: threading.Event, watch: Watch) -> None:
    """Run the query until it ends or a stop is requested. KafkaError if no executor can be had."""
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
        if asked.is_set():  # Spark's stop cancels the running job, and waits for those that follow
            jobs: JavaObject = pipeline.spark.sparkContext._jsc.sc()
            jobs.cancelJobGroupAndFutureJobs(str(query.runId))
        query.stop()
    pipeline.progress.see(query.lastProgress)
    _commit_end(pipeline.job, pipeline.end() or _reported_end(query.lastProgress))


def _reported_end(told: "Told | None") -> str | None:
    """Return the stream's position after a run without a batch. None before batch 0: the group keeps the start, which
    is committed already."""
    if told is None or not told["batchId"]:
        return None
    [source] = told["sources"]
    return source.get("endOffset")  # type: ignore[no-any-return]


def _commit_end(job: Job, end: str | None) -> None:
    """Commit the group's offsets at the end of the last batch: Spark has the source do so only when it plans the
    next."""
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
    """Check the topics before Spark is started, which takes seconds; return the brokers' advertised addresses.
    KafkaError if a topic does not exist."""
    reader = OffsetReader(parse_source(job.source_options(), streaming=True))
    try:
        reader.partitions()
        return [(node.host, node.port) for node in reader.cluster.nodes.values()]
    finally:
        reader.close()

