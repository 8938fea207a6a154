"""What can be known to be wrong before the first record is read, each in one sentence: the master's address, before
Spark is started; then, by a job that runs on the executors for a moment, their Python, its packages, whether they reach
the brokers at the addresses that these advertise, and whether they share the table's directory with the driver.
"""

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
from typing import TYPE_CHECKING, Any, Final

from pybroker import __version__
from pybroker.client.admin import Admin, ConfigResource, ResourceType
from pybroker.client.security import as_settings
from pybroker.client.tls import ClientTls
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
from pybroker.spark.pipeline.executors import count, is_local, unshared
from pybroker.spark.pipeline.failures import account, failure, missing
from pybroker.spark.pipeline.job import STATE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REACH_S_MAX: Final = 3.0
"""For a connection; those to several brokers are made at the same time."""
WAITING: Final = "spark.scheduler.maxRegisteredResourcesWaitingTime"
"""How long Spark waits for executors, within which a standalone cluster has to have given one. Under YARN and
Kubernetes an application may be queued for as long as it takes."""
WAITING_DEFAULT: Final = "30s"
POLL_S: Final = 0.1
AUTO_CREATE: Final = "auto.create.topics.enable"
GROUP: Final = "pybroker-preflight"
SOURCES_ENVIRONMENT: Final = {"SPARK_SIMPLIFIED_TRACEBACK": "1"}
"""What Spark adds to the environment of a Python source's workers. Workers are kept for who wants the same one again:
those that report read the first batch, too, and need not be started for it."""
TASKS_LISTED: Final = 1000
REPORTS_A_CORE: Final = 2
"""Tasks are handed out as cores are free: a few more of them, so that each executor gets one."""


def check_master(master: str | None) -> None:
    """KafkaError(INVALID_CONFIG) for a standalone master that is none or that nobody listens at."""
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
    """KafkaError where this machine, on which Spark plans reads, cannot reach a broker at its advertised address."""
    for address, why in worker_report.unreachable(addresses, REACH_S_MAX):
        raise KafkaError(NETWORK_EXCEPTION, _unreachable("this machine", address, why))


def check_dead_letters(
    bootstrap: str, topic: str, login: Account | None = None, tls: ClientTls | None = None
) -> None:
    """KafkaError where the topic for dead letters is not there, and no broker makes it for who writes to it. The first
    of them would have to wait for it for a minute, and may come after months."""
    with closing(Admin(bootstrap, **as_settings(login, tls))) as admin:
        (found,) = admin.cluster.metadata([topic])
        if found.error == UNKNOWN_TOPIC_OR_PARTITION:
            broker = ConfigResource(ResourceType.BROKER, str(min(admin.cluster.nodes)))
            try:
                configs = admin.configs(broker, [AUTO_CREATE])
            except KafkaError:  # not everyone may read them
                return
            if any(each.value == "false" for each in configs):
                raise KafkaError(found.error, f"there is no topic {topic} for dead letters: create it first")
        elif found.error:
            raise KafkaError(found.error, f"dead letters, topic {topic}: {lookup(found.error).meaning}")


class Workers:
    """Asks the executors what they have and whom they reach, from now on and in a thread. Nothing is asked of a local
    master.

    table: its directory, where that is one which the executors have to share; OSError where the driver cannot write
    there."""

    def __init__(
        self, spark: "SparkSession", brokers: Sequence[tuple[str, int]], table: str | None = None
    ) -> None:
        self._spark = spark
        self._brokers = brokers
        self._table = table
        self._shared: str | None = None
        self._found: list[dict[str, Any]] = []
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
        """Wait for the answers. KafkaError with one sentence where an executor cannot do the work, or there is none."""
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
) -> list[dict[str, Any]]:
    from pyspark import cloudpickle

    context = spark.sparkContext
    context.setJobGroup(GROUP, "what the executors say of themselves", interruptOnCancel=True)
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
    """The host of a report that failed: the exception of a Python worker does not have it."""
    context = spark.sparkContext
    scheduler: Any = context._jsc.sc()
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
    """Until the job is over that has begun then. KafkaError where the cluster has no executor for it."""
    context = spark.sparkContext
    scheduler: Any = context._jsc.sc()
    patience_s = scheduler.conf().getTimeAsMs(WAITING, WAITING_DEFAULT) / 1000
    deadline = begun + patience_s if str(context.master).startswith(("spark:", "local")) else math.inf
    there = False
    while asking.is_alive():
        asking.join(POLL_S)
        there = there or count(spark) > 0
        if not there and time.monotonic() > deadline:
            context.cancelJobGroup(GROUP)
            wants = ", ".join(
                f"{name}={context.getConf().get(name, default)}"
                for name, default in (("spark.executor.memory", "1g"), ("spark.executor.cores", "all of a worker's"))
            )
            raise KafkaError(
                UNKNOWN_SERVER_ERROR,
                f"{context.master} gave no executor in {patience_s:.0f} s: no worker is free with the memory and cores "
                f"that are asked for ({wants}), or executors end as they start: see their logs; {WAITING} is how long "
                "to wait",
            )


def _judge(told: dict[str, Any]) -> None:
    where = f" on {told['host']} ({told['python']})"
    for package, version in told["packages"].items():
        if version is None:
            raise KafkaError(UNKNOWN_SERVER_ERROR, missing(package, where))
    if (there := told["packages"]["pybroker"]) != __version__:
        raise KafkaError(
            UNKNOWN_SERVER_ERROR, f"Spark's worker{where} has pybroker {there}, and the driver has {__version__}"
        )
    for address, why in told["unreachable"]:
        raise KafkaError(NETWORK_EXCEPTION, _unreachable(f"Spark's worker on {told['host']}", address, why))


def _unreachable(who: str, address: str, why: str) -> str:
    return (
        f"{who} cannot reach the broker at {address} ({why.lower()}), its advertised address: set advertised.listeners "
        "to one that the driver and every worker reach"
    )


def _judge_shared(found: Sequence[dict[str, Any]], there: set[str], table: str) -> None:
    for told in found:
        if (why := told["written"][1]) is not None:
            raise KafkaError(
                UNKNOWN_SERVER_ERROR, f"Spark's worker on {told['host']} cannot write to {table}: {why.lower()}"
            )
    if alone := [told["host"] for told in found if told["written"][0] not in there]:
        raise unshared(alone, table)
