"""A request read in slices equals the request read at once, and joined answers equal the whole answer."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from pybroker.protocol import codec
from pybroker.protocol.apis import SERVED, Api
from pybroker.protocol.bounds import BOUNDS, OTHERS, Cut, bound_of
from pybroker.protocol.joiner import Joiner, key_of
from pybroker.protocol.messages import MetadataRequest
from pybroker.protocol.reader import SLICE_BYTES
from pybroker.protocol.wire import BESIDE_MAX, ELEMENTS_MAX, STRING_MAX
from tests.rows import with_each
from tests.wide import arrays, wide

VERSIONS = [(api, version) for api in SERVED.values() for version in range(api.min_version, api.max_version + 1)]
CUTS = [
    (api, version, cut)
    for api, version in VERSIONS
    if (cut := bound_of(api.name).cut(api.request.STRUCT, version)) is not None
]
COUNTS = (4, 3, 20)
STEP = 7


def called(value: Any) -> str:
    return value.name if isinstance(value, Api) else ".".join(value.asked) if isinstance(value, Cut) else f"v{value}"


def counts_of(path: tuple[str, ...]) -> tuple[int, ...]:
    return (*COUNTS[: len(path) - 1], 50)


def test_every_bound_is_that_of_an_api_and_names_arrays_of_its_messages() -> None:
    assert BOUNDS.keys() <= {api.name for api in SERVED.values()}
    for api, version, cut in CUTS:
        assert cut.asked in arrays(api.request.STRUCT, version), (api, version)
        assert cut.told in arrays(api.response.STRUCT, version), (api, version)
    assert all(bound.at_once <= bound.most for bound in [*BOUNDS.values(), OTHERS])


@with_each(("api", "version"), VERSIONS, ids=called)
def test_a_request_in_slices_is_the_same(api: Api, version: int) -> None:
    for path in arrays(api.request.STRUCT, version):
        request = wide(api.request, version, path, counts_of(path))
        data = codec.encode(request, version)
        slices, read, pauses = codec.decode_slices(api.request, version, data, 0, 100_000, STEP, ()), None, 0
        while read is None:
            try:
                assert next(slices) is None
                pauses += 1
            except StopIteration as done:
                read = done.value
        assert read == codec.decode(api.request, version, data)[0], path
        numbers = isinstance(_innermost(request, path)[0], int)
        assert numbers or pauses >= 50 // STEP, path


def test_what_is_executed_at_once_is_bounded_in_elements() -> None:
    """An array that is not sliced, such as the assignments of one topic, is bounded in elements."""
    tried = 0
    for api, version, cut in CUTS:
        for path in arrays(api.request.STRUCT, version) if version == api.max_version else ():
            if path == cut.asked[: len(path)]:
                continue
            for count, error in ((BESIDE_MAX, None), (BESIDE_MAX + 1, codec.TooMany)):
                data = codec.encode(wide(api.request, version, path, (1,) * (len(path) - 1) + (count,)), version)
                slices = codec.decode_slices(api.request, version, data, 0, ELEMENTS_MAX, 1000, cut.asked)
                with pytest.raises(error, match=str(BESIDE_MAX)) if error else nullcontext():
                    list(slices)
            tried += 1
    assert tried > 10


def test_what_is_executed_at_once_is_bounded_in_bytes() -> None:
    names = ["n" * STRING_MAX] * 100
    request = MetadataRequest(topics=[MetadataRequest.Topics(name=name) for name in names])
    data = codec.encode(request, 12)
    slices = codec.decode_slices(MetadataRequest, 12, data, 0, ELEMENTS_MAX, 1000, ("topics",))
    held = [len(piece[0]) for piece in slices if piece is not None]
    assert len(held) > 10 and max(held) <= SLICE_BYTES // STRING_MAX + 1


def _innermost(message: Any, path: tuple[str, ...]) -> list[Any]:
    for name in path[:-1]:
        message = getattr(message, name)[0]
    found: list[Any] = getattr(message, path[-1])
    return found


@with_each("turned", [False, True], ids=["in order", "denied ones last"])
@with_each(("api", "version", "cut"), CUTS, ids=called)
def test_joined_answers_are_the_answer(api: Api, version: int, cut: Cut, turned: bool) -> None:
    request = wide(api.request, version, cut.asked, counts_of(cut.asked))
    data = codec.encode(request, version)
    joiner = Joiner(api.key, version, 5, api.response, cut.told)
    slices, is_last, seen = codec.decode_slices(api.request, version, data, 0, 100_000, STEP, cut.asked), False, 0
    while not is_last:
        try:
            piece = next(slices)
        except StopIteration as done:
            piece, is_last = (getattr(done.value, cut.asked[0]), 0), True
        if piece is None:
            continue
        elements, depth = piece
        seen += 1
        told, keys, inner = echo(api.response, version, cut.asked, cut.told, elements, turned), [], elements
        for name in cut.asked[1 : depth + 1]:
            keys.append(key_of(inner[-1]))
            inner = getattr(inner[-1], name)
        joiner.add(told, keys)
    assert seen > 4
    correlation_id, joined = codec.decode_response(api.key, version, b"".join(joiner.finish()))
    asked = codec.decode(api.request, version, data)[0]
    whole = echo(api.response, version, cut.asked, cut.told, getattr(asked, cut.asked[0]), False)
    whole = codec.decode(api.response, version, codec.encode(whole, version))[0]
    if turned:
        _sort(joined, cut.told), _sort(whole, cut.told)
    assert correlation_id == 5 and joined == whole


def echo(kind: Any, version: int, asked: tuple[str, ...], told: tuple[str, ...], elements: Any, turned: bool) -> Any:
    """Return an answer with an element for each of the request, with its names and ids; `turned`: in reverse."""
    (array,) = (field for field in kind.STRUCT.untagged(version) if field.name == told[0])
    inner = getattr(kind, array.struct.name)
    found = []
    for each in elements:
        if isinstance(each, str | int):
            type_ = "str" if isinstance(each, str) else "i32"
            name = next(field.name for field in array.struct.untagged(version) if field.type == type_)
            found.append(inner(**{name: each}))
            continue
        made = echo(inner, version, asked[1:], told[1:], getattr(each, asked[1]), turned) if len(told) > 1 else inner()
        for field in array.struct.untagged(version):
            if not field.is_array and hasattr(each, field.name):
                setattr(made, field.name, getattr(each, field.name))
        found.append(made)
    return kind(**{told[0]: found[::-1] if turned else found})


def _sort(message: Any, path: tuple[str, ...]) -> None:
    elements = getattr(message, path[0])
    for each in elements if len(path) > 1 else ():
        _sort(each, path[1:])
    elements.sort(key=repr)


def test_a_request_with_more_than_its_bound_is_refused_before_it_is_read() -> None:
    api = next(api for api in SERVED.values() if api.name == "DeleteGroups")
    data = codec.encode(api.request(groups_names=[f"g{number}" for number in range(100)]), 2)
    with pytest.raises(codec.TooMany, match="more than 99 elements"):
        next(codec.decode_slices(api.request, 2, data, 0, 99, 10, ("groups_names",)))
    with pytest.raises(codec.TooMany):
        codec.decode(api.request, 2, data, 0, 99)
