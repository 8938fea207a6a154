"""Modules do not import each other, directly or indirectly: each can be read with the modules below it."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import pytest

from tests.sources import files, module_name, python_imports

pytestmark = pytest.mark.xdist_group("house")  # each file is read and parsed once


@pytest.mark.parametrize("room", ["avro", "cli", "client", "frames", "interbroker", "spark", "testing"])
def test_no_module_imports_one_that_imports_it(room: str) -> None:
    """No module imports one that imports it; imports inside functions and for types count, too."""
    modules = {module_name(path): path for path in files(".py", under=f"pybroker/{room}")}
    below: dict[str, set[str]] = {importer: set() for importer in modules}
    for importer, path in modules.items():
        for _, name in python_imports(path):
            imported = name if name in modules else name.rpartition(".")[0]
            if imported in modules and imported != importer:
                below[importer].add(imported)
    try:
        tuple(TopologicalSorter(below).static_order())
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))
