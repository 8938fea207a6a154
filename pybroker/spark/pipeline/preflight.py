"""Checks before the first record is read, each with one sentence: the master's address, before Spark is started. Then,
by a short job on the executors: their Python, its packages, whether they reach the brokers at the advertised addresses,
and whether they share the table's directory with the driver."""

import math
import os
import re
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Final

from pybroker import __version__
from pybroker.client.admin import Admin, ConfigResource, ResourceType
from pybroker.client.security.settings import as_settings
from pybroker.client.security.tls import ClientTls
from pybroker.errors import (
    INVALID_CONFIG,
    NETWORK_EXCEPTION,
    UNKNOWN_SERVER_ERROR,
    UNKNOWN_TOPIC_OR_PARTITION,
    KafkaError,
    lookup,
    system_words,
)
from pybroker.model import check_port
from pybroker.security.login import Account
from pybroker.spark.pipeline import worker_report
from pybroker.spark.pipeline.error_messages import account, failure, missing
from pybroker.spark.pipeline.executors import count_executors, is_local, unshared
from pybroker.spark.pipeline.job import STATE
from pybroker.spark.untyped import Document, JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REACH_S_MAX: Final = 3.0
"""Seconds for a connection; connections to several brokers are made in parallel."""
WAITING: Final = "spark.scheduler.maxRegisteredResourcesWaitingTime"
"""How long Spark waits for executors: a standalone cluster must give one within this time. Under YARN and Kubernetes an
application may be queued for any time."""
WAITING_DEFAULT: Final = "30s"
POLL_S: Final = 0.1
AUTO_CREATE: Final = "auto.create.topics.enable"
GROUP: Final = "pybroker-preflight"
SOURCES_ENVIRONMENT: Final = {"SPARK_SIMPLIFIED_TRACEBACK": "1"}
"""Spark's addition to the environment of a Python source's workers. With the same environment, Spark reuses the
reporting workers for the first batch."""
TASKS_LISTED: Final = 1000
REPORTS_A_CORE: Final = 2
"""Reports per core: tasks go to free cores, so a few more ensure one for each executor."""


def check_master(master: str | None) -> None:
    """KafkaError(INVALID_CONFIG) for a standalone master with a malformed address, or where nothing listens."""
    if master is None or not master.startswith("spark:"):
        if master is not None and re.match(r"https?://", master):
            raise KafkaError(INVALID_CONFIG, f"the master is {master}; a standalone cluster's is spark://HOST:PORT")
        return
    addresses = re.fullmatch(r"spark://([^/\s]+)", master)
    named = [re.fullmatch(r"(.+):(\d{1,5})", each) for each in addresses[1].split(",")] if addresses else [None]
    reasons = []
    for each in named:
        if each is None:
            raise KafkaError(INVALID_CONFIG, f"the master is {master}; a standalone cluster's is spark://HOST:PORT")
        try:
            check_port(int(each[2]))
            socket.create_connection((each[1].strip("[]"), int(each[2])), REACH_S_MAX).close()
        except (OSError, ValueError) as error:
            reasons.append(f"{each[0]}: {system_words(error) if isinstance(error, OSError) else error}")
    if len(reasons) == len(named):
        raise KafkaError(INVALID_CONFIG, f"no Spark master at {'; '.join(reasons)}")


def check_brokers(addresses: Sequence[tuple[str, int]]) -> None:
    """KafkaError if this machine, on which Spark plans reads, cannot reach a broker at its advertised address."""
    for address, why in worker_report.unreachable(addresses, REACH_S_MAX):
        raise KafkaError(NETWORK_EXCEPTION, _unreachable("this machine", address, why))


def check_dead_letters(
    bootstrap: str, topic: str, login: Account | None = None, tls: ClientTls | None = None
) -> None:
    """KafkaError if the topic for dead letters does not exist and no broker would create it. The first dead letter
    would otherwise wait a minute for the topic, and may come after months."""
    with closing(Admin(bootstrap, **as_settings(login, tls))) as admin:
        (found,) = admin.cluster.metadata([topic])
        if found.error == UNKNOWN_TOPIC_OR_PARTITION:
            broker = ConfigResource(ResourceType.BROKER, str(min(admin.cluster.nodes)))
            try:
                configs = admin.configs(broker, [AUTO_CREATE])
            except KafkaError:  # the user may not be allowed to read it
                return
            if any(each.value == "false" for each in configs):
                raise KafkaError(found.error, f"there is no topic {topic} for dead letters: create it first")
        elif found.error:
            raise KafkaError(found.error, f"dead letters, topic {topic}: {lookup(found.error).meaning}")


class WorkerCheck:
    """Asks the executors, in a thread, about their environment and the addresses they reach. Does nothing for a local
    master.

    table: its directory, if the executors must share it; OSError if the driver cannot write there."""

    def __init__(
        self, spark: "SparkSession", brokers: Sequence[tuple[str, int]], table: str | None = None
    ) -> None:
        self._spark = spark
        self._brokers = brokers
        self._table = table
        self._shared: str | None = None
        self._found: list[Document] = []
        self._problem: BaseException | None = None
        self._begun = time.monotonic()
        self._asking = threading.Thread(target=self._ask, name="asking executors", daemon=True)
        if is_local(spark):
            return
        if table is not None:
            self._shared = f"{table}/{STATE}/staging/probe-{uuid.uuid4().hex}"
            os.makedirs(self._shared)
        self._asking.start()

    def _ask(self) -> None:
        try:
            self._found = _ask(self._spark, self._brokers, self._shared)
        except BaseException as error:
            self._problem = error

    def check(self) -> None:
        """Wait for the answers. KafkaError with one sentence if an executor cannot do the work, or there is none."""
        try:
            if self._asking.ident is not None:
                _wait(self._spark, self._asking, self._begun)
            there = set(os.listdir(self._shared)) if self._shared is not None else set()
        finally:
            if self._shared is not None:
                shutil.rmtree(self._shared, ignore_errors=True)
        if self._problem is not None:
            raise failure(account(self._problem), _failed_on(self._spark)) from self._problem
        for told in self._found:
            _judge(told)
        if self._table is not None:
            _judge_shared(self._found, there, self._table)


def _ask(
    spark: "SparkSession", brokers: Sequence[tuple[str, int]], directory: str | None
) -> list[Document]:
    from pyspark import cloudpickle

    context = spark.sparkContext
    context.setJobGroup(GROUP, "reports of the executors", interruptOnCancel=True)
    tasks = REPORTS_A_CORE * max(2, context.defaultParallelism)
    cloudpickle.register_pickle_by_value(worker_report)  # type: ignore[no-untyped-call]
    environment, context.environment = context.environment, dict(SOURCES_ENVIRONMENT)
    try:
        work = partial(
            worker_report.report, addresses=list(brokers), timeout_s=REACH_S_MAX, directory=directory
        )
        return context.parallelize(range(tasks), tasks).mapPartitions(work).collect()
    finally:
        context.environment = environment
        cloudpickle.unregister_pickle_by_value(worker_report)  # type: ignore[no-untyped-call]


def _failed_on(spark: "SparkSession") -> str | None:
    """Return the host of a failed report, which the Python worker's exception lacks."""
    context = spark.sparkContext
    scheduler: JavaObject = context._jsc.sc()
    scheduler.listenerBus().waitUntilEmpty()
    tracker = context.statusTracker()
    for job in tracker.getJobIdsForGroup(GROUP):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            tasks = scheduler.statusStore().taskList(stage, 0, TASKS_LISTED)
            for task in map(tasks.apply, range(tasks.size())):
                if task.status() == "FAILED":
                    return str(task.host())
    return None


def _wait(spark: "SparkSession", asking: threading.Thread, begun: float) -> None:
    """Wait for the job that began at `begun`. KafkaError if the cluster has no executor for it."""
    context = spark.sparkContext
    scheduler: JavaObject = context._jsc.sc()
    patience_s = scheduler.conf().getTimeAsMs(WAITING, WAITING_DEFAULT) / 1000
    deadline = begun + patience_s if str(context.master).startswith(("spark:", "local")) else math.inf
    there = False
    while asking.is_alive():
        asking.join(POLL_S)
        there = there or count_executors(spark) > 0
        if not there and time.monotonic() > deadline:
            context.cancelJobGroup(GROUP)
            wants = ", ".join(
                f"{name}={context.getConf().get(name, default)}"
                for name, default in (("spark.executor.memory", "1g"), ("spark.executor.cores", "all of a worker's"))
            )
            raise KafkaError(
                UNKNOWN_SERVER_ERROR,
                f"{context.master} gave no executor in {patience_s:.0f} s: no worker is free with the memory and cores "
                f"that are requested ({wants}), or executors end as they start: see their logs; {WAITING} is how long "
                "to wait",
            )


def _judge(told: Document) -> None:
    where = f" on {told['host']} ({told['python']})"
    for package, version in told["packages"].items():
        if version is None:
            raise KafkaError(UNKNOWN_SERVER_ERROR, missing(package, where))
    if (there := told["packages"]["pybroker"]) != __version__:
        raise KafkaError(
            UNKNOWN_SERVER_ERROR, f"Spark's worker{where} has pybroker {there}, but the driver has {__version__}"
        )
    for address, why in told["unreachable"]:
        raise KafkaError(NETWORK_EXCEPTION, _unreachable(f"Spark's worker on {told['host']}", address, why))


def _unreachable(who: str, address: str, why: str) -> str:
    return (
        f"{who} cannot reach the broker at {address} ({why.lower()}), its advertised address: set advertised.listeners "
        "to an address that the driver and every worker reach"
    )


def _judge_shared(found: Sequence[Document], there: set[str], table: str) -> None:
    for told in found:
        if (why := told["written"][1]) is not None:
            raise KafkaError(
                UNKNOWN_SERVER_ERROR, f"Spark's worker on {told['host']} cannot write to {table}: {why.lower()}"
            )
    if alone := [told["host"] for told in found if told["written"][0] not in there]:
        raise unshared(alone, table)
