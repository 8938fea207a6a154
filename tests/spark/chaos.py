"""Random kills around `pybroker pipeline` on a standalone Spark cluster, and a check of its table (`ledger`).

    python -m tests.spark.chaos --seconds 600 --seed 7 --table-format delta

A writer writes to a broker, and a pipeline copies the topic into a table. Meanwhile executors, workers, the driver (its
Python, its JVM or both) and the broker are killed and started again. Others are stopped until Spark gives them up, and
then continued. At the end a last run must finish, and each record of the broker's log must be in the table once. A
driver may end only if it was killed, or if it started while the broker was down, and must print why. The last line is a
summary; the exit status is 1 if a rule was broken.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from tests.clients.adapters.confluent import Confluent
from tests.harness import BrokerProcess
from tests.lives.clients import Writer
from tests.lives.history import History
from tests.spark import ledger
from tests.spark.cluster import SparkCluster
from tests.spark.driver import ENDS_S_MAX, LOST_AFTER_S, Driver, alive
from tests.spark.strays import marked
from tests.spark.topics import Topics

TOPIC: Final = "chaos"
PARTITIONS: Final = 4
FORMATS: Final = ("parquet", "delta", "iceberg")
LAST_RUN_S_MAX: Final = 300.0
STARTS_S: Final = 60.0
"""The longest wait for a batch before the next kill."""
KILLS: Final = (
    "executors killed", "workers killed", "executors stopped", "brokers killed", "brokers stopped",
    "drivers killed (both)", "drivers killed (python)", "drivers killed (jvm)",
)  # fmt: skip


class Chaos:
    """One table's campaign, in a directory of its own."""

    def __init__(self, home: Path, cluster: SparkCluster, seed: int, table_format: str, rate: float = 200) -> None:
        self.home = home
        self.cluster = cluster
        self.table_format = table_format
        self.random = random.Random(f"{seed} {table_format}")
        self.history = History()
        self.counts = self.history.counts
        self.verdict = ledger.Verdict(0, [], [], [], [])
        self.broker = BrokerProcess(home / "broker")
        self.broker.start()
        self.topics = Topics(self.broker)
        self.topics.create(TOPIC, PARTITIONS)
        self.writer = Writer(Confluent(self.broker.bootstrap), self.history, TOPIC, PARTITIONS, seed, rate)
        self.driver: Driver | None = None
        self._orphans: dict[int, float] = {}
        self._disturbed_s = 0.0

    def run(self, seconds: float) -> None:
        """Disturb until the time is over, then check the table."""
        self.start()
        until = time.monotonic() + seconds
        executors, rest = (self.kill_executor, self.stop_executor), (self.kill_driver, self.kill_worker)
        doings, often = (*executors, self.kill_broker, self.stop_broker, *rest), (4, 2, 3, 2, 2, 2)
        while time.monotonic() < until:
            if self.random.random() < 0.7:
                self.advance(min(STARTS_S, until - time.monotonic()))
            self.rest(self.random.uniform(0, 5))
            self.random.choices(doings, often)[0]()
        self.end()

    def start(self) -> None:
        self.writer.start()
        self.watch()

    def end(self) -> None:
        """Stop the writer and all disturbances, wait for a last run to end, and check the table."""
        self.writer.ended.set()
        if not self.broker.running:
            self.broker.restart()
        for number, worker in enumerate(self.cluster.workers):
            if worker is None:
                self.cluster.start_worker(number)
        self.writer.join(90)
        if self.writer.is_alive():
            self.history.accuse("client", "the writer does not end")
        self.stop_driver()
        last = self.driver = self._driver("--once")
        code = last.process.wait(LAST_RUN_S_MAX)
        if code:
            self.history.accuse("driver", f"the last run ended with {code}:\n{last.process.output()}")
        self.judge()

    def judge(self) -> None:
        held = self.topics.held(TOPIC)
        for partition in range(PARTITIONS):
            own = [(r.offset, r.value) for r in held if r.partition == partition]
            self.history.check_log(partition, own, 0, own[-1][0] + 1 if own else 0)
        log = {(r.partition, r.offset): r.value for r in held}
        self.verdict = ledger.judge(log, ledger.rows_of(self.table_format, self.home))
        for problem in self.verdict.problems():
            self.history.accuse("table", problem)

    def close(self) -> None:
        self.writer.ended.set()
        if self.driver is not None:
            self.driver.close()
        self.broker.close()

    def count(self, what: str) -> None:
        """Count an event for the summary, and append it with its time to the file `events`."""
        self.counts[what] += 1
        with (self.home / "events").open("a") as events:
            print(f"{time.strftime('%H:%M:%S')} batch {self.batches}: {what}", file=events)

    # -- the driver ------------------------------------------------------------------------------------------------

    def _driver(self, *more: object) -> Driver:
        return Driver(self.cluster, self.broker.bootstrap, TOPIC, self.table_format, self.home, *more)

    def rest(self, seconds: float) -> None:
        """Let the driver work for `seconds`; start it again if it ends."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.watch()
            time.sleep(0.1)

    def advance(self, seconds_max: float) -> None:
        """Wait for one more batch, at most `seconds_max`: kills that follow each other too fast hit only starts."""
        until, done = time.monotonic() + seconds_max, self.batches
        while self.batches == done and time.monotonic() < until:
            self.rest(0.1)

    def watch(self) -> None:
        driver, now = self.driver, time.monotonic()
        for pid, deadline in list(self._orphans.items()):
            if not alive(pid):
                del self._orphans[pid]
            elif now > deadline:
                self.history.accuse("orphan", f"the JVM {pid} runs {ENDS_S_MAX:.0f} s after its Python was killed")
                os.kill(pid, signal.SIGKILL)
        if driver is not None and driver.process.running:
            if driver.killed == "jvm" and now > driver.killed_s + ENDS_S_MAX:
                self.history.accuse("driver", f"it runs {ENDS_S_MAX:.0f} s after its JVM: {driver.process.output()}")
                driver.process.kill()
            return
        if driver is not None:
            self._bury(driver)
        self.count("drivers started")
        self.driver = self._driver("--every", "0.2")

    def _bury(self, driver: Driver) -> None:
        """Record why a driver ended: accuse it if it was not killed or printed no sentence."""
        code, words = driver.process.wait(ENDS_S_MAX), driver.last_words()
        self.count(f"drivers ended with {code}")
        if driver.killed == "python" and driver.jvm is not None:
            self._orphans[driver.jvm] = time.monotonic() + ENDS_S_MAX
        if driver.killed in ("python", "both"):
            return
        if words is None or code <= 0:
            self.history.accuse("silence", f"a driver ended with {code} and no sentence:\n{driver.process.output()}")
        elif driver.killed == "jvm":
            self.count(f"said: {words}")
        elif not driver.batches and self._disturbed_s > driver.started_s:
            self.count("drivers that found no broker")
        else:
            self.history.accuse("driver", f"it ended on its own with {code}: {words}")

    def stop_driver(self) -> None:
        """Send the driver SIGTERM and wait for its end."""
        driver = self.driver
        if driver is None or not driver.process.running or driver.killed:
            if driver is not None:
                driver.close()
            return
        driver.process.signal(signal.SIGTERM)
        code = driver.process.wait(LAST_RUN_S_MAX)
        if code:
            self.history.accuse("driver", f"SIGTERM ended it with {code}:\n{driver.process.output()}")

    # -- disturbances ----------------------------------------------------------------------------------------------

    def kill_driver(self) -> None:
        if self.driver is not None and self.driver.process.running and not self.driver.killed:
            what = self.driver.kill(self.random.choice(("both", "python", "jvm")))
            self.count(f"drivers killed ({what})")

    def kill_executor(self) -> None:
        with suppress(ProcessLookupError, IndexError):
            self.random.choice(self.cluster.executors()).signal(signal.SIGKILL)
            self.count("executors killed")

    def kill_worker(self) -> None:
        """Kill a worker and its executors, as when a machine fails, and start the worker again."""
        number = self.random.randrange(len(self.cluster.workers))
        self.cluster.kill_worker(number)
        self.count("workers killed")
        self.rest(self.random.uniform(0, 6))
        self.cluster.start_worker(number)

    def stop_executor(self) -> None:
        """Stop an executor until the driver gives it up, then continue it. Its worker is stopped too, or it would kill
        the executor."""
        with suppress(IndexError):
            zombie = self.random.choice(self.cluster.executors())
            worker = self.cluster.workers[zombie.worker]
            assert worker is not None
            self.count("executors stopped")
            worker.signal(signal.SIGSTOP)
            try:
                whole = self.random.random() < 0.5
                with zombie.stopped(whole=whole):
                    self.rest(self.random.uniform(LOST_AFTER_S, LOST_AFTER_S + 5))
                self.rest(self.random.uniform(0, 3))
            finally:
                worker.signal(signal.SIGCONT)

    def kill_broker(self) -> None:
        self.broker.kill()
        self.count("brokers killed")
        self.rest(self.random.uniform(0, 5))
        self.broker.restart()
        self._disturbed_s = time.monotonic()

    def stop_broker(self) -> None:
        assert self.broker.process is not None
        self.broker.process.signal(signal.SIGSTOP)
        try:
            self.rest(self.random.uniform(1, 8))
        finally:
            self.broker.process.signal(signal.SIGCONT)
        self.count("brokers stopped")
        self._disturbed_s = time.monotonic()

    # -- results ---------------------------------------------------------------------------------------------------

    @property
    def batches(self) -> int:
        """The number of batches that Spark's checkpoint has."""
        names = [path.name for path in (self.home / "checkpoint/commits").glob("*") if path.name.isdigit()]
        return 1 + max(map(int, names)) if names else 0

    def summary(self) -> str:
        counts = ", ".join(f"{name} {self.counts[name]:,}" for name in (*KILLS, "drivers started"))
        found = self.verdict
        judged = f"{len(found.lost):,} rows lost, {len(found.twice):,} rows twice, {len(found.wrong):,} wrong"
        problems = len(self.history.problems)
        return (
            f"{self.table_format}: {self.counts['acknowledged']:,} records acknowledged, {found.rows:,} rows, "
            f"{self.batches:,} batches; {counts}; {judged}, {problems} rules broken"
        )


def campaign(home: Path, seconds: float, seed: int, formats: tuple[str, ...]) -> list[Chaos]:
    """Run one campaign for each format in turn, on one cluster."""
    done = []
    with marked(home), ExitStack() as stack:
        cluster = SparkCluster(home / "cluster")
        stack.callback(cluster.close)
        cluster.start()
        for table_format in formats:
            chaos = Chaos(home / table_format, cluster, seed, table_format)
            stack.callback(chaos.close)
            chaos.run(seconds / len(formats))
            chaos.close()
            done.append(chaos)
            for problem in chaos.history.problems:
                print(problem)
            print(chaos.summary(), flush=True)
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description="A pipeline on a cluster that is killed at random, and its table.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--table-format", choices=(*FORMATS, "all"), default="all", help="all: each has its share")
    asked = parser.parse_args()
    formats = FORMATS if asked.table_format == "all" else (asked.table_format,)
    home = Path(tempfile.mkdtemp(prefix="pybroker-chaos-"))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    began = time.monotonic()
    try:
        done = campaign(home, asked.seconds, asked.seed, formats)
    except KeyboardInterrupt:
        shutil.rmtree(home)
        return 130
    lost, twice = (sum(len(getattr(chaos.verdict, kind)) for chaos in done) for kind in ("lost", "twice"))
    records, batches = sum(chaos.verdict.rows for chaos in done), sum(chaos.batches for chaos in done)
    broken = sum(len(chaos.history.problems) for chaos in done)
    kills = ", ".join(f"{name} {n:,}" for name in KILLS if (n := sum(chaos.counts[name] for chaos in done)))
    print(
        f"seed {asked.seed}, {time.monotonic() - began:.0f} s: {'FAILED, ' if broken else ''}{records:,} records in "
        f"{batches:,} batches; {kills}; {lost:,} rows lost, {twice:,} rows twice, {broken} rules broken"
    )
    if broken:
        print(f"its directory is kept: {home}")
        return 1
    shutil.rmtree(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
