"""The names of `pybroker`: their values, that they are loaded at their first use, and that the values can be
pickled."""

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
from pybroker.client.net.metadata import Node
from pybroker.client.settings import CONSUMER, PRODUCER, ConsumerSettings, ProducerSettings
from pybroker.config.settings import Choice, ConfigError, NotDynamic, Type
from pybroker.errors import KafkaError, StartError
from pybroker.model import TopicPartition
from pybroker.protocol.codec import ProtocolError, TooMany
from pybroker.testing import BrokerFailed
from pybroker.testing import Record as RecordOfTests
from tests.harness import ROOT
from tests.rows import with_each

CLIENTS = (
    pybroker.Producer, pybroker.Consumer, pybroker.Admin,
    pybroker.AsyncProducer, pybroker.AsyncConsumer, pybroker.AsyncAdmin,
)  # fmt: skip
FUNCTIONS = (
    pybroker.read_log, pybroker.read_index, pybroker.read_topic, pybroker.scan_topic, pybroker.scan_polars,
    pybroker.write_topic,
)  # fmt: skip


def test_dir_has_the_public_names_and_no_others() -> None:
    """dir() has the public names and no others: imported modules do not show, and each name is the object's own."""
    assert dir(pybroker) == sorted(pybroker.__all__)
    for name in pybroker.__all__:
        found = getattr(pybroker, name)
        if isinstance(found, type) or callable(found):
            assert found.__name__ == name and inspect.getdoc(found), name
    with pytest.raises(AttributeError, match="module 'pybroker' has no attribute 'Producers'"):
        pybroker.Producers  # type: ignore[attr-defined]  # noqa: B018


def test_importing_loads_nothing_of_the_client() -> None:
    """`import pybroker` and its dir() import nothing of the client: no module of ours and no NumPy."""
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
    """The classes that an annotation contains."""
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
    """Each class of ours in a public signature can be imported from `pybroker`; each public call has a docstring."""
    import polars as pl
    import pyarrow as pa

    from pybroker.client.columns import arrays

    calls = dict(methods(public)) if inspect.isclass(public) else {"": public}
    for name, call in calls.items():
        assert inspect.getdoc(call), f"{public.__name__}.{name} has no docstring"
        known = {"pa": pa, "pl": pl, "RecordArrays": arrays.RecordArrays, "AsyncProducer": pybroker.AsyncProducer}
        for hint in typing.get_type_hints(call, localns=known).values():
            for found in types_in(hint):
                if isinstance(found, type) and found.__module__.startswith("pybroker"):
                    assert getattr(pybroker, found.__name__, None) is found, f"{public.__name__}.{name}: {found}"


def shape(call: Callable[..., Any]) -> dict[str, object]:
    """The parameters of a call by name, each with its kind, default and type, and the type of the result."""
    import pyarrow as pa

    from pybroker.client.columns import arrays

    hints = typing.get_type_hints(call, localns={"pa": pa, "RecordArrays": arrays.RecordArrays})
    found: dict[str, object] = {"return": hints["return"]}
    for name, parameter in inspect.signature(call).parameters.items():
        found[name] = (parameter.kind, parameter.default, hints.get(name))
    return found


BY_FUTURE = {"send": "on_delivery", "send_columns": "on_delivery"}
"""Parameters that the asyncio clients lack, as their futures have the outcome."""
CONTEXTS = ("transaction",)
"""Calls for a `with`, or an `async with`."""


@pytest.mark.parametrize(
    ("waits", "awaited"),
    [
        (pybroker.Producer, pybroker.AsyncProducer),
        (pybroker.Consumer, pybroker.AsyncConsumer),
        (pybroker.Admin, pybroker.AsyncAdmin),
    ],
    ids=lambda client: client.__name__,
)
def test_the_twins_have_the_same_calls(waits: type, awaited: type) -> None:
    """The asyncio clients have the same calls and constructors, with the same parameters, defaults and types."""
    theirs = dict(methods(awaited))
    assert inspect.signature(awaited) == inspect.signature(waits)
    for name, method in methods(waits):
        if name in ("try_send", "listen"):  # for the asyncio clients themselves
            continue
        own, twin = shape(method), shape(theirs[name])
        own.pop(BY_FUTURE.get(name, ""), None)
        if name in BY_FUTURE or name in CONTEXTS:
            own.pop("return"), twin.pop("return")
        assert twin == own, name


@pytest.mark.parametrize(("typed", "known"), [(ProducerSettings, PRODUCER), (ConsumerSettings, CONSUMER)])
def test_settings_are_typed_as_they_are_read(typed: Any, known: dict[str, Any]) -> None:
    """Settings are typed as they are parsed: each is in the TypedDict, with its type or its allowed words, and no other
    is."""
    hints = typing.get_type_hints(typed)
    assert set(hints) == set(known) and typed.__required_keys__ == {"bootstrap_servers"}
    kinds = {Type.BOOLEAN: {bool}, Type.INT: {int}, Type.LONG: {int}}
    kinds |= {kind: {str} for kind in (Type.STRING, Type.LIST, Type.PASSWORD)}
    kinds[Type.CLASS] = {str}  # the result of a function
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
    pybroker.DeserializationError(core.Record("t", 0, 7, 1, 0, b"k", b"v"), "value", "a sentence"),
    pybroker.RegistryError("a sentence", 404, 40403),
    BrokerFailed("a sentence"),
)


@pytest.mark.parametrize("again", [lambda it: pickle.loads(pickle.dumps(it)), copy.copy, copy.deepcopy])
def test_values_and_exceptions_can_be_kept(again: Callable[[Any], Any]) -> None:
    """Values and exceptions can be pickled and copied, for another process or a cache."""
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
    """Every KafkaError that a client may raise is in the test above."""
    known = {type(error) for error in RAISED}
    ours = {one for one in subclasses(KafkaError) if one.__module__.startswith(("pybroker.c", "pybroker.p"))}
    assert {one for one in ours if not one.__module__.startswith("pybroker.controller")} <= known
