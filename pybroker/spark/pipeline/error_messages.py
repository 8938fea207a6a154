"""Turn Spark's report of a failure, nested stack traces of two languages, into one sentence."""

import re
from collections.abc import Callable
from typing import Final

from pybroker.errors import UNKNOWN_SERVER_ERROR, KafkaError

_WHERE: Final = re.compile(r"\((?:TID \d+\) \()?([^\s()]+) executor (\S+?)\)")
"""`(TID 3) (10.0.0.7 executor 1)`, as the scheduler names the last attempt of a task."""
_RAISED: Final = re.compile(r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Warning|Exit)\b(?:: .*)?$")
"""The last line of a Python traceback."""
_CAUSE: Final = "Caused by: "
CAUSES_MAX: Final = 20
_NO_ACCOUNT: Final = "the query failed, and Spark reports no cause"
WORKERS_PYTHON: Final = "set spark.pyspark.python to a Python that every worker has, with pybroker installed"

_KNOWN: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str], str], str]], ...]] = (
    (
        re.compile(r"Python in worker has different version: (\S+) than that in driver: (\S+?),"),
        lambda found, where: f"the Python of Spark's worker{where} is {found[1]}, and the driver's is {found[2]}; "
        f"they must be the same: {WORKERS_PYTHON}, or start the driver with the workers' version",
    ),
    (
        re.compile(r'Cannot run program "([^"]+)"'),
        lambda found, where: f"Spark's worker{where} has no {found[1]}: {WORKERS_PYTHON}",
    ),
    (
        re.compile(r"ModuleNotFoundError: No module named '([^'.]+)"),
        lambda found, where: missing(found[1], where),
    ),
    (
        re.compile(r"All masters are unresponsive|Could not connect to any of the masters|Failed to connect to master"),
        lambda *_: "the Spark master does not answer: check its address and its log",
    ),
    (
        re.compile(r"java\.lang\.OutOfMemoryError"),
        lambda _, where: f"Spark's executor{where} ran out of memory: raise spark.executor.memory, or read fewer "
        "records at once (--max-records)",
    ),
    (
        re.compile(r"ExecutorLostFailure \((.*?) exited.*?\)? Reason: ([^\n]*)"),
        lambda found, where: f"Spark lost the executor{where} again and again: {found[2].strip()}",
    ),
    (
        re.compile(r"Master removed our application: (\w+)"),
        lambda found, _: f"the Spark master ended the application ({found[1]}): its executors could not start, or "
        "could not reach the driver (spark.driver.host); their logs say why",
    ),
    (
        re.compile(r"System memory (\d+) must be at least (\d+)"),
        lambda found, _: f"Spark's driver has {int(found[1]) >> 20} MiB of memory but needs {int(found[2]) >> 20}: "
        "raise spark.driver.memory",
    ),
    (
        re.compile(r"Executor memory (\d+) must be at least (\d+)"),
        lambda found, _: f"an executor needs {int(found[2]) >> 20} MiB: raise spark.executor.memory",
    ),
    (
        re.compile(r"Could not parse Master URL: '?([^'\n]+)'?"),
        lambda found, _: f"{found[1]!r} is not a Spark master: use local[*], spark://HOST:PORT, yarn or k8s://...",
    ),
    (
        re.compile(r'No FileSystem for scheme "?([\w.-]+)|Class org\.apache\.hadoop\.fs\.(\w+)\.\S+ not found'),
        lambda found, _: f"Spark has no file system for {found[1] or found[2]}://: plain Parquet and checkpoints need "
        "a disk that the driver and all executors share, or HDFS; --table-format delta or iceberg is for object stores",
    ),
    (
        re.compile(r"No space left on device"),
        lambda _, where: f"a disk{where or ' of the driver or of an executor'} is full: the table's, or that of "
        "spark.local.dir, or a worker's (SPARK_LOCAL_DIRS, --work-dir)",
    ),
    (
        re.compile(r"(\S+) \((Permission denied|Read-only file system|No such file or directory)\)"),
        lambda found, where: f"{found[1]}{where}: {found[2].lower()}",
    ),
    (
        re.compile(r"(?:NoSuchFileException|FileNotFoundException): (?:File )?(\S+)(?: does not exist)?"),
        lambda found, where: f"{found[1]} does not exist{where}",
    ),
    (
        re.compile(r"UnknownHostException: ([^\s:]+)"),
        lambda found, where: f"the host name {found[1]} is unknown{where}",
    ),
    (
        re.compile(r"Call From \S+ to (\S+) failed on connection exception: [\w.]+: ([^;\n]+)"),
        lambda found, _: f"could not reach {found[1]}: {found[2].lower()}",
    ),
)


def missing(package: str, where: str) -> str:
    """Return the sentence for a worker that lacks a package."""
    install = {"pybroker": '"$(echo pybroker-*.whl)[spark]"', "pyarrow": "'pyarrow>=18'"}.get(package, package)
    return (
        f"Spark's worker{where} has no {package}: install it in the workers' Python (pip install {install}), or ship "
        "an environment with --archives (docs/spark.md, Starting)"
    )


def account(error: BaseException) -> str:
    """Return the full text of a failure: the JVM's text also has the host of a Python worker, and causes."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is None:
        return str(error)
    causes: list[str] = []
    cause = java.getCause()
    while cause is not None and len(causes) < CAUSES_MAX:
        causes.append(f"{_CAUSE}{cause.toString()}")
        cause = cause.getCause()
    return "\n".join([java.toString(), str(error), *causes])


def failure(told: str, host: str | None = None) -> KafkaError:
    """Return an exception of Spark or its JVM as one sentence, with the host and the remedy if known."""
    return KafkaError(UNKNOWN_SERVER_ERROR, sentence(told, host))


def sentence(told: str, host: str | None = None) -> str:
    """Return our own sentence if the text has it, else one for a known failure, else the last line of the innermost
    traceback, else the first line and the last cause."""
    lines = [line.strip() for line in told.splitlines()]
    for line in lines:
        if "KafkaError: " in line:
            return line.partition("KafkaError: ")[2].partition(": ")[2] or line
    named = _WHERE.search(told)
    host = named[1] if named else host
    where = f" on {host}" if host else ""
    for pattern, say in _KNOWN:
        if found := pattern.search(told):
            return say(found, where)
    raised = [line for line in lines if _RAISED.match(line)]
    if raised and "Traceback (most recent call last)" in told:
        return f"{raised[-1]} (Spark's worker{where})" if where else raised[-1]
    first = next((line for line in lines if line), _NO_ACCOUNT)
    root = next((line.removeprefix(_CAUSE) for line in reversed(lines) if line.startswith(_CAUSE)), "")
    return first if root in first else f"{first} ({root})"
