"""Writes the table of APIs into docs/protocol.md, between its markers: `python tools/protocol_page.py`."""

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs/protocol.md"
BEGIN: Final = "<!-- apis: written by tools/protocol_page.py from pybroker.protocol.apis -->\n"
END: Final = "<!-- /apis -->\n"

sys.path.insert(0, str(ROOT))

from pybroker.protocol.apis import APIS, SERVED, Api  # noqa: E402  # found in this checkout, installed or not


def table() -> str:
    """One row for each API that the broker serves, by key."""
    rows = ["| key | API | versions |", "|---:|---|---|"]
    rows += [f"| {api.key} | {api.name} | {_versions(api)} |" for api in sorted(SERVED.values())]
    return "\n".join(rows) + "\n"


def _versions(api: Api) -> str:
    served = str(api.min_version) if api.min_version == api.max_version else f"{api.min_version} to {api.max_version}"
    listed = APIS[api.key].min_version
    if listed < api.min_version:
        served += f" ({listed} to {api.min_version - 1} are listed, which old clients look for, and refused)"
    return served


def written(text: str) -> str:
    """The text of the page with the table in its place."""
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    assert found and ended, f"{PAGE.name} has no place for the table"
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
