"""Where a C library may be that a Python package brings along."""

import glob
import importlib.util
import os


def library_paths(str package, str pattern, str system):
    """The modules of a package that match, and what the system calls the library: the package's is the newer one, and
    the same on every machine. It is not imported for that."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # something of that name is there that says nothing of itself
        spec = None
    for place in spec.submodule_search_locations or () if spec is not None else ():
        yield from glob.glob(os.path.join(glob.escape(place), pattern))
    yield system
