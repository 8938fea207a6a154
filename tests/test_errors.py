"""The table of error codes is complete, and agrees with a client's own table."""

import importlib
import inspect
import pickle
import warnings
from typing import Any

from pybroker import errors
from pybroker.errors import ERRORS, KafkaError, lookup
from tests.rows import with_each

# kafka-python keeps some names from before Kafka renamed them, or shortens them.
PEER_NAMES = {
    -1: "UNKNOWN",
    0: "NO_ERROR",
    6: "NOT_LEADER_FOR_PARTITION",
    10: "MESSAGE_SIZE_TOO_LARGE",
    17: "INVALID_TOPIC",
    39: "INVALID_REPLICATION_ASSIGNMENT",
}
# kafka-python does not retry a batch that arrived corrupt; Java does.
PEER_RETRIABLE = {2: False}


def peer_table() -> dict[int, tuple[str, bool]]:
    """kafka-python's error classes by code: code -> (name, retriable)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of its own import of importlib.resources
        peer: Any = importlib.import_module("kafka.errors")
    found: list[Any] = [e for _, e in inspect.getmembers(peer, inspect.isclass)]
    return {e.errno: (e.message, e.retriable) for e in found if isinstance(getattr(e, "errno", None), int)}


def test_every_code_from_the_unknown_error_to_the_last_is_told_once_in_order() -> None:
    assert [e.code for e in ERRORS] == list(range(-1, 134))
    assert len({e.name for e in ERRORS}) == len(ERRORS)
    assert len({e.meaning for e in ERRORS}) == len(ERRORS)


@with_each("code", sorted(peer_table()))
def test_name_and_retriable_are_those_of_kafka_python(code: int) -> None:
    name, retriable = peer_table()[code]
    assert PEER_NAMES.get(code, lookup(code).name) == name
    assert PEER_RETRIABLE.get(code, lookup(code).retriable) == retriable


def test_each_name_is_a_constant_of_the_module() -> None:
    for error in ERRORS:
        assert getattr(errors, error.name) == error.code


def test_an_exception_speaks_with_its_own_words_or_with_those_of_its_code() -> None:
    error = KafkaError(errors.OFFSET_OUT_OF_RANGE, "offset 912 is below the log start 1000")
    assert str(error) == "OFFSET_OUT_OF_RANGE: offset 912 is below the log start 1000"
    assert (error.code, error.name, error.retriable) == (1, "OFFSET_OUT_OF_RANGE", False)
    assert KafkaError(errors.NOT_CONTROLLER).message == "this broker is not the controller"
    assert KafkaError(errors.NOT_CONTROLLER).retriable


def test_a_code_from_the_future_keeps_its_number() -> None:
    error = KafkaError(999)
    assert (error.code, error.name) == (999, "UNKNOWN_SERVER_ERROR")
    assert "999" in str(error)


def test_an_exception_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(KafkaError(errors.INVALID_CONFIG, "no")))
    assert (copy.code, copy.message) == (40, "no")
