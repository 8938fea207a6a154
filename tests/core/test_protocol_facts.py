"""Constants of Kafka's protocol in core are generated from the protocol definitions, and written nowhere else."""

import re

import pytest

from tests.sources import ROOT, files, text_of
from tools.core_facts import GENERATED, error_codes, protocol

OWN = {"core/base/frame.pxd", *GENERATED}
"""The files of core that may have protocol constants: the header of a frame, and generated files."""

MEMBER = re.compile(r"^    (\w+) = ([^#\n]*\d[^#\n]*)", re.M)
"""A member of an enum with a number in its value."""

FACT = re.compile(
    r"(^|_)(VERSION|TAG|API)(_|$)|^(SIZE|LEADER|DIVERGING)_BYTES$|^LENGTH_BYTES_MAX$|^HEADER_BYTES_MAX$"
    r"|^(REQUEST|ANSWER)_PARTITION_BYTES$|^TOPIC_BYTES$|^(DIVERGING_EPOCH|CURRENT_LEADER|NODE_ENDPOINTS|REPLICA_STATE)$"
)
"""Names of protocol constants: versions, tags, keys of APIs, sizes of structs and headers."""


def members(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in MEMBER.findall(text)}


def facts_in(text: str) -> list[str]:
    return [name for name, _ in MEMBER.findall(text) if FACT.search(name)]


@pytest.mark.parametrize("name", GENERATED)
def test_what_is_generated_is_as_it_was_built(name: str) -> None:
    """The enums that core was compiled with equal those generated from the current tables."""
    assert (ROOT / name).read_text() == GENERATED[name]()


def test_facts_of_the_definitions() -> None:
    """Generated constants have the values of KIP-516, KIP-227, KIP-595, KIP-903 and KIP-951."""
    found = members(protocol())
    assert found["PRODUCE_VERSION_TOPIC_ID"] == found["FETCH_VERSION_TOPIC_ID"] == 13
    assert (found["FETCH_VERSION_SESSION_ID"], found["FETCH_VERSION_REPLICA_STATE"]) == (7, 15)
    assert (found["FETCH_TAG_DIVERGING_EPOCH"], found["FETCH_BYTES_DIVERGING_EPOCH"]) == (0, 4 + 8 + 1)
    assert (found["FETCH_TAG_CURRENT_LEADER"], found["PRODUCE_TAG_CURRENT_LEADER"]) == (1, 0)
    assert found["FETCH_REQUEST_BYTES_PARTITIONS"] == 4 + 4 + 8 + 4 + 8 + 4 + 1
    assert members(error_codes())["NOT_LEADER_OR_FOLLOWER"] == 6


def test_an_ambiguous_name_has_no_constant() -> None:
    """A field name that is ambiguous in a message, such as error_code in a Fetch answer, has no constant."""
    found = members(protocol())
    assert "FETCH_VERSION_ERROR_CODE" not in found and "FETCH_RESPONSE_VERSION_ERROR_CODE" not in found
    assert found["FETCH_REQUEST_VERSION_HIGH_WATERMARK"] == 18


@pytest.mark.parametrize("room", ["core/plane", "core/client"])
def test_no_fact_of_the_protocol_is_typed_in_core(room: str) -> None:
    """Versions, tags, keys and sizes of the protocol appear in core only as generated constants."""
    typed = {str(p.relative_to(ROOT)): facts_in(text_of(p)) for p in files(".pyx", ".pxd", under=room)}
    assert not {name: found for name, found in typed.items() if found and name not in OWN}


def test_a_version_of_the_protocol_is_compared_by_name() -> None:
    """No code in core's plane compares a protocol version with a number."""
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files(".pyx", ".pxd", under="core/plane")
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if re.search(r"\bversion\s*(>=|<=|==|!=|<|>)\s*\d", line)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_rule_itself() -> None:
    """The rule finds literal protocol constants, and accepts other numbers."""
    before = "    VERSION_IDS = 13\n    API_FETCH = 1\n    SIZE_BYTES = 4\n    DIVERGING_BYTES = 4 + 8 + 1\n"
    assert facts_in(before) == ["VERSION_IDS", "API_FETCH", "SIZE_BYTES", "DIVERGING_BYTES"]
    after = "    ORDERS_MAX = 1024   # batches\n    CURRENT_LEADER_BYTES = 1 + 1 + FETCH_BYTES_CURRENT_LEADER\n"
    assert facts_in(after) == []
    assert all((ROOT / name).exists() for name in OWN)
