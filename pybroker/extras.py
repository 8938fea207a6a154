"""Name the packages of an optional part. pybroker itself is in no package index, so pip does not find it by name."""

import re
import shlex
from collections.abc import Iterator
from importlib import metadata
from typing import Final

WHEEL: Final = "dist/pybroker-*.whl"
"""The wheel that `make wheel` builds in a checkout."""
_OF_EXTRA: Final = re.compile(r"""(?P<requirement>[^;]+);.*\bextra\s*==\s*["'](?P<extra>[\w-]+)["']""")
_OURS: Final = re.compile(r"pybroker\[(?P<extras>[^\]]+)\]")


def install(extra: str) -> str:
    """Return the pip command for an optional part of pyproject.toml, such as `pip install 'pyarrow>=18'`."""
    try:
        required = metadata.requires("pybroker") or []
    except metadata.PackageNotFoundError:  # a checkout on PYTHONPATH
        required = []
    found = shlex.join(dict.fromkeys(_packages(required, extra)))
    return f"pip install {found}" if found else f'pip install "$(echo {WHEEL})[{extra}]"'


def _packages(required: list[str], extra: str) -> Iterator[str]:
    """Yield the requirements of a part, with those of the parts that it includes."""
    for found in filter(None, map(_OF_EXTRA.fullmatch, required)):
        if found["extra"] == extra:
            requirement = found["requirement"].strip()
            if ours := _OURS.fullmatch(requirement):
                for each in ours["extras"].split(","):
                    yield from _packages(required, each.strip())
            else:
                yield requirement
