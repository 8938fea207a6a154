"""The names of `pybroker`: what they are, that they load when they are used, and that their values can be kept."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pybroker
from pybroker import core, errors
from pybroker.client.admin.groups import GroupDescription, Member
from pybroker.client.metadata import Node
from pybroker.client.settings import CONSUMER, PRODUCER, ConsumerSettings, ProducerSettings
from pybroker.config.settings import Choice, ConfigError, NotDynamic, Type
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol.codec import ProtocolError, TooMany
from pybroker.replication.logdirs import StartError
from pybroker.testing import BrokerFailed
from pybroker.testing import Record as RecordOfTests
from tests.harness import ROOT
from tests.rows import with_each

CLIENTS = (pybroker.Producer, pybroker.Consumer, pybroker.Admin, pybroker.AsyncProducer, pybroker.AsyncConsumer)
FUNCTIONS = (pybroker.read_log, pybroker.read_index)


def test_dir_has_the_public_names_and_no_others() -> None:
    """What was imported meanwhile does not show; each name is there, under the name that it has itself."""
    assert dir(pybroker) == sorted(pybroker.__all__)
    for name in pybroker.__all__:
        found = getattr(pybroker, name)
        if isinstance(found, type) or callable(found):
            assert found.__name__ == name and inspect.getdoc(found), name
    with pytest.raises(AttributeError, match="module 'pybroker' has no attribute 'Producers'"):
        pybroker.Producers  # type: ignore[attr-defined]  # noqa: B018


def test_importing_loads_nothing_of_the_client() -> None:
    """`import pybroker` and its dir() are for free: no module of ours and no NumPy comes along."""
    program = (
        "import sys, pybroker; dir(pybroker);"
        "print([name for name in sys.modules if name.startswith(('pybroker.', 'numpy'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def methods(client: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, method in inspect.getmembers(client, inspect.isfunction):
        if not name.startswith("_"):
            yield name, method


def types_in(annotation: object) -> Iterator[object]:
    """The classes that an annotation is made of."""
    if isinstance(annotation, list):
        inner = annotation
    else:
        inner = list(typing.get_args(annotation))
        if not inner:
            yield annotation
    for part in inner:
        yield from types_in(part)


@with_each("public", [*CLIENTS, *FUNCTIONS], ids=lambda public: public.__name__)
def test_what_signatures_name_is_public(public: Any) -> None:
    """A class of ours that a public call takes or returns can be imported from `pybroker`; each call has its docstring.
    """
    import pyarrow as pa

    from pybroker.client import arrays

    calls = dict(methods(public)) if inspect.isclass(public) else {"": public}
    for name, call in calls.items():
        assert inspect.getdoc(call), f"{public.__name__}.{name} has no docstring"
        known = {"pa": pa, "RecordArrays": arrays.RecordArrays, "AsyncProducer": pybroker.AsyncProducer}
        for hint in typing.get_type_hints(call, localns=known).values():
            for found in types_in(hint):
                if isinstance(found, type) and found.__module__.startswith("pybroker"):
                    assert getattr(pybroker, found.__name__, None) is found, f"{public.__name__}.{name}: {found}"


BY_FUTURE = {"send": "on_delivery", "send_columns": "on_delivery"}
"""What the twin for asyncio does without: its futures tell the outcome."""


@pytest.mark.parametrize(
    ("waits", "awaited"),
    [(pybroker.Producer, pybroker.AsyncProducer), (pybroker.Consumer, pybroker.AsyncConsumer)],
    ids=lambda client: client.__name__,
)
def test_the_twins_have_the_same_calls(waits: type, awaited: type) -> None:
    """With the same parameters, defaults and types, so that editors and type checkers know them."""
    theirs = dict(methods(awaited))
    for name, method in methods(waits):
        if name in ("try_send", "listen"):  # what the twins themselves stand on
            continue
        parameters = dict(inspect.signature(method).parameters)
        parameters.pop(BY_FUTURE.get(name, ""), None)
        twin = inspect.signature(theirs[name])
        assert dict(twin.parameters) == parameters, name
        if not name.startswith("send"):
            assert twin.return_annotation == inspect.signature(method).return_annotation, name


@pytest.mark.parametrize(("typed", "known"), [(ProducerSettings, PRODUCER), (ConsumerSettings, CONSUMER)])
def test_settings_are_typed_as_they_are_read(typed: Any, known: dict[str, Any]) -> None:
    """Each setting is in the TypedDict, as its type or as the words that it takes; nothing else is."""
    hints = typing.get_type_hints(typed)
    assert set(hints) == set(known) and typed.__required_keys__ == {"bootstrap_servers"}
    kinds = {Type.BOOLEAN: {bool}, Type.INT: {int}, Type.LONG: {int}}
    kinds |= {kind: {str} for kind in (Type.STRING, Type.LIST, Type.PASSWORD)}
    kinds[Type.CLASS] = {str}  # a function whose result is
    for name, hint in hints.items():
        words = {str(word) for word in types_in(hint) if not isinstance(word, type)}
        if isinstance(known[name].valid, Choice):
            assert words == set(known[name].valid.words), name
        else:
            assert set(types_in(hint)) - {types.NoneType} == kinds[known[name].type], name


TP = TopicPartition("t", 0)
MEMBER = Member("m", None, "c", "h", (TP,))
VALUES = (
    TP,
    core.Record("t", 0, 7, 1, 0, b"k", None, [("h", b"v")]),
    core.RecordMetadata("t", 0, 7, 1),
    pybroker.OffsetAndMetadata(7, "note"),
    pybroker.OffsetAndTimestamp(7, 1),
    pybroker.Committed(7),
    pybroker.ConfigResource(pybroker.ResourceType.TOPIC, "t"),
    pybroker.Alteration("retention.ms", pybroker.ConfigOperation.SET, "7"),
    pybroker.TopicInfo("t", bytes(16), False, (pybroker.PartitionInfo(0, 1, 2, (1,), (1,), 0),), 0),
    GroupDescription("g", "Stable", "classic", "consumer", "range", Node(0, "h", 1, None), (MEMBER,)),
    RecordOfTests("v", "k"),
)
RAISED = (
    KafkaError(errors.MESSAGE_TOO_LARGE, "a sentence"),
    KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION),
    ConfigError("a sentence"),
    NotDynamic("a sentence"),
    StartError("a sentence"),
    ProtocolError("a sentence"),
    TooMany("a sentence"),
    pybroker.LogError(errors.CORRUPT_MESSAGE, "a sentence"),
    pybroker.DamagedRecords(errors.CORRUPT_MESSAGE, TP, 7, None, "a sentence"),
    BrokerFailed("a sentence"),
)


@pytest.mark.parametrize("again", [lambda it: pickle.loads(pickle.dumps(it)), copy.copy, copy.deepcopy])
def test_values_and_exceptions_can_be_kept(again: Callable[[Any], Any]) -> None:
    """Pickled or copied they are what they were, as another process or a cache wants them."""
    for value in VALUES:
        assert again(value) == value and type(again(value)) is type(value)
    for error in RAISED:
        found = again(error)
        assert type(found) is type(error) and str(found) == str(error) and vars(found) == vars(error)


def subclasses(of: type) -> Iterator[type]:
    for one in of.__subclasses__():
        yield one
        yield from subclasses(one)


def test_no_exception_is_forgotten() -> None:
    """Every KafkaError that a client may raise is among those above."""
    known = {type(error) for error in RAISED}
    ours = {one for one in subclasses(KafkaError) if one.__module__.startswith(("pybroker.c", "pybroker.p"))}
    assert {one for one in ours if not one.__module__.startswith("pybroker.controller")} <= known
