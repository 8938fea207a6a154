"""The import floors of the client's rooms, in addition to those of the whole tree (tests/test_house.py)."""

import pytest

from tests.test_house import files, module_name, python_imports

pytestmark = pytest.mark.xdist_group("house")

FLOORS = {
    6: ["pybroker.client.aio"],
    5: ["pybroker.client.admin"],
    4: ["pybroker.client.consuming", "pybroker.client.producing"],
    3: ["pybroker.client.net", "pybroker.client.columns", "pybroker.client.serialization"],
    2: ["pybroker.client.settings"],
    1: ["pybroker.client.security"],
    0: [
        "pybroker.client.arguments", "pybroker.client.foreign", "pybroker.client.html_tables",
        "pybroker.client.segment_files",
    ],
}
FLOOR_OF = {room: floor for floor, rooms in FLOORS.items() for room in rooms}


def room_of(module: str) -> str | None:
    """The room of the client that a module belongs to; None for the client as a whole, and outside it."""
    return next((r for r in FLOOR_OF if module == r or module.startswith(r + ".")), None)


def test_an_import_only_goes_down() -> None:
    """An import only goes down: each module lies in a room of the table, and imports its own room, or lower floors."""
    wrong = []
    for path in files(".py", under="pybroker/client"):
        here = room_of(module_name(path))
        assert here or module_name(path) == "pybroker.client", f"{path} is on no floor of the client"
        for line, name in python_imports(path):
            there = room_of(name)
            if here and there and here != there and FLOOR_OF[there] >= FLOOR_OF[here]:
                wrong.append(f"{module_name(path)}:{line}: imports {name}")
    assert not wrong, "\n".join(wrong)
