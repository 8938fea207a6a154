"""The stubs of messages, for type checkers and editors, agree with the definitions and the classes."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from typing import Any, get_args, get_type_hints
from unittest.mock import MagicMock

import pytest

from pybroker.protocol import messages
from pybroker.protocol.apis import SERVED
from pybroker.protocol.definitions import TEXTS
from pybroker.protocol.message import Message
from pybroker.server.api import table
from pybroker.server.api.handlers.fetch import Fetch
from tests.protocol.values import NAMES
from tools import messages as tool


def test_the_stubs_are_what_the_definitions_say() -> None:
    """The stubs equal those that `make docs` writes."""
    written = {path: path.read_text() for path in tool.PLACE.glob("*.pyi")}
    assert written == tool.stubs(), "run `make docs`, or python tools/messages.py alone"


@pytest.mark.parametrize("name", NAMES)
def test_a_message_can_be_imported_by_its_name(name: str) -> None:
    made: Any = getattr(importlib.import_module("pybroker.protocol.messages"), name)
    assert made is messages.message(name) and issubclass(made, Message)
    assert (made.__module__, made.__qualname__) == ("pybroker.protocol.messages", name)
    assert name in dir(messages)


def classes() -> dict[str, ast.ClassDef]:
    """The top-level classes of all stubs, by name."""
    trees = [ast.parse(path.read_text()) for path in tool.PLACE.glob("_[a-z]*.pyi")]
    return {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}


def test_a_stub_has_the_fields_and_structs_of_the_class() -> None:
    """A stub has the fields and structs of its class at any depth, in wire order."""

    def compare(node: ast.ClassDef, kind: Any) -> None:
        fields = [each.target.id for each in node.body if isinstance(each, ast.AnnAssign)]  # type: ignore[union-attr]
        assert fields == list(kind.__slots__), kind
        for each in node.body:
            if isinstance(each, ast.ClassDef):
                compare(each, getattr(kind, each.name))

    found = classes()
    assert found.keys() == TEXTS.keys()
    for name, node in found.items():
        compare(node, messages.message(name))


def hints_of(served: Any) -> dict[str, Any]:
    function = served if hasattr(served, "__code__") or hasattr(served, "__func__") else type(served).__call__
    return get_type_hints(function, vars(sys.modules[function.__module__]))


def test_a_handler_takes_its_api_s_request_and_gives_its_response(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler takes its API's request and returns its response, which type checkers cannot see."""
    monkeypatch.setattr(table.Certain, "guard", lambda self, handlers: handlers)
    asked = MagicMock()
    asked.config.__getitem__.side_effect = lambda name: 1
    for key, handler in table.handlers(asked, Fetch.__new__(Fetch)).items():
        api = SERVED[key]
        by, failed = hints_of(handler.by), hints_of(handler.failed)
        assert by["request"] is failed["request"] is api.request, api.name
        assert failed["return"] is api.response, api.name
        assert by["return"] is api.response or api.response in get_args(by["return"]), api.name


def test_a_checker_sees_a_field_that_no_message_has(tmp_path: Any) -> None:
    """A type checker finds an unknown field in a message that is read or built, and a value of a wrong type."""
    pytest.importorskip("mypy")
    source = tmp_path / "use.py"
    source.write_text(
        "from pybroker.protocol.messages import JoinGroupRequest, JoinGroupResponse\n"
        "def name(request: JoinGroupRequest) -> str:\n"
        "    return str(request.group_name)\n"
        "JoinGroupResponse(member_name='m')\n"
        "JoinGroupResponse.Members(member_id=1)\n"
    )
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", str(source)]
    found = subprocess.run(command, capture_output=True, text=True)
    lines = [line.split(":")[1] for line in found.stdout.splitlines() if ": error:" in line]
    assert lines == ["3", "4", "5"], found.stdout
