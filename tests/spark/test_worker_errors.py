"""Source errors as Spark receives them from its Python processes: our sentence comes first."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("pyspark")

from pyspark.serializers import SpecialLengths, read_int
from pyspark.util import handle_worker_exception

from pybroker.errors import INVALID_CONFIG, KafkaError
from pybroker.spark import schema
from pybroker.spark.source import KafkaSource
from pybroker.spark.worker_errors import HIDDEN, sentence_only

SLIP = KafkaSource({"subscribe": "t", "kafka.bootstrap.servers": "h:1", "startingOfsets": "latest"})
SENTENCE = "pybroker.errors.KafkaError: INVALID_CONFIG: unknown option startingofsets: did you mean startingOffsets?\n"


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process a Spark worker, which ends after an error."""
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SOCK_DIR", "/tmp")
    monkeypatch.setenv("SPARK_SIMPLIFIED_TRACEBACK", "1")
    monkeypatch.setenv(HIDDEN, "")


def told(call: Callable[[], object]) -> str:
    """The text that PySpark sends to the JVM when a call fails."""
    sent = io.BytesIO()
    try:
        call()
    except BaseException as error:
        handle_worker_exception(error, sent)
    sent.seek(0)
    assert read_int(sent) == SpecialLengths.PYTHON_EXCEPTION_THROWN
    return sent.read(read_int(sent)).decode()


@pytest.mark.usefixtures("worker")
def test_a_wrong_option_is_the_first_word() -> None:
    """A wrong option's error begins with the sentence, without a traceback before it."""
    assert told(lambda: SLIP.reader(schema.full(False))) == SENTENCE


@pytest.mark.usefixtures("worker")
def test_a_wrong_option_of_a_stream() -> None:
    """A wrong option of a stream fails its first call with the sentence: PySpark's runner itself fails without a
    reader."""
    reader = SLIP.streamReader(schema.full(False))
    for call in (reader.initialOffset, reader.getDefaultReadLimit, reader.prepareForTriggerAvailableNow):
        assert told(call) == SENTENCE
    reader.stop()


@pytest.mark.usefixtures("worker")
def test_an_error_after_some_rows() -> None:
    """An error after some rows of a task, which makes them one by one, begins with the sentence too."""

    @sentence_only
    def rows() -> Iterator[int]:
        yield 1
        raise KafkaError(INVALID_CONFIG, "no more")

    assert told(lambda: list(rows())) == "pybroker.errors.KafkaError: INVALID_CONFIG: no more\n"


@pytest.mark.usefixtures("worker")
def test_other_errors_keep_their_traceback() -> None:
    @sentence_only
    def fails() -> None:
        raise ZeroDivisionError("a mistake of ours")

    assert told(fails).startswith("Traceback") and not os.environ[HIDDEN]


def test_the_drivers_own_process_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HIDDEN, raising=False)
    with pytest.raises(KafkaError):
        SLIP.reader(schema.full(False))
    assert HIDDEN not in os.environ
