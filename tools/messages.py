"""Write the stubs of the messages beside pybroker/protocol/messages/__init__.py: `python tools/messages.py`.

Classes are made from the definitions while a broker runs, which no type checker follows; stubs declare their types. One
stub for each family of definitions keeps each below the house's limit of lines, so none is exempt from it. The stubs
are committed: an editor needs them in a checkout that was not built, and a review shows what a definition changed.

A field has Kafka's name in snake_case. The comment after each one is in the notation of pybroker/protocol/definitions:
its type on the wire, its versions, its tag. It may be None where null is allowed in some version, or where it is an
optional struct. A required struct has no default.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PLACE: Final = ROOT / "pybroker/protocol/messages"

sys.path.insert(0, str(ROOT))

from pybroker.protocol import definitions, schema  # noqa: E402  # found in this checkout, installed or not
from pybroker.protocol.schema import VERSION_LAST, Field, Range, Schema, Struct  # noqa: E402

LINE_MAX: Final = 120
TYPES: Final = {"bool": "bool", "f64": "float", "str": "str", "bytes": "Bytes", "uuid": "bytes"}
NAMES_FROM_MESSAGE: Final = ("Bytes", "Message", "Request", "Sendable", "Sliced")


def stubs() -> dict[Path, str]:
    """Return the text of each stub, by its path."""
    texts = {PLACE / f"_{name}.pyi": _family(family, name) for name, family in _families()}
    return {PLACE / "__init__.pyi": _index(), **texts}


def _families() -> Iterator[tuple[str, ModuleType]]:
    for name, found in sorted(vars(definitions).items()):
        if isinstance(found, ModuleType) and hasattr(found, "MESSAGES"):
            yield name, found


def _names(family: ModuleType) -> list[str]:
    return [block[: block.index(" ")] for block in family.MESSAGES.strip().split("\n\n")]


def _index() -> str:
    lines = ['"""The messages by name, typed: written by tools/messages.py from pybroker/protocol/definitions."""', ""]
    lines += [_exported("message", name) for name in ("Message", "message")]
    for name, family in _families():
        lines += [_exported(f"messages._{name}", each) for each in sorted(_names(family))]
    return "\n".join(lines) + "\n"


def _exported(module: str, name: str) -> str:
    """Return an import that exports the name, wrapped as ruff does."""
    before, after = f"from pybroker.protocol.{module} import ", f"{name} as {name}"
    return before + (after if len(before + after) <= LINE_MAX else f"(\n    {after},\n)")


def _family(family: ModuleType, name: str) -> str:
    lines = [f'"""Messages of definitions/{name}.py, typed: written by tools/messages.py."""', ""]
    body = [line for each in _names(family) for line in ("", *_message(schema.load(each)))]
    used = [name for name in NAMES_FROM_MESSAGE if any(re.search(rf"\b{name}\b", line.split("#")[0]) for line in body)]
    return "\n".join([*lines, f"from pybroker.protocol.message import {', '.join(used)}", *body]) + "\n"


def _message(found: Schema) -> Iterator[str]:
    title = f"API {found.key}, " if found.key >= 0 else ""
    title += f"versions {found.first} to {found.last}"
    if found.flexible_from <= found.last:
        title += f", flexible from {found.flexible_from}"
    yield from _struct(found.root, found, "", f'"""{title}."""')


def _struct(struct: Struct, found: Schema, indent: str, title: str = "") -> Iterator[str]:
    within = f"{indent}    "
    asks = f"Request[{found.name.removesuffix('Request')}Response]" if found.name.endswith("Request") else "Message"
    yield f"{indent}class {struct.name}({'Message' if indent else asks}):"
    if title:
        yield within + title
    for field in struct.fields:
        yield f"{within}{field.name}: {_type(field, found)}{_default(field, found)}  # {_notation(field)}"
    for field in struct.fields:
        if field.struct:
            yield ""
            yield from _struct(field.struct, found, within)


def _type(field: Field, found: Schema) -> str:
    if field.struct:
        name = field.struct.name
    elif field.type == "records":
        name = "Bytes | Sliced" if found.name.endswith("Request") else "Bytes | Sendable"
    else:
        name = TYPES.get(field.type, "int")
    if field.is_array:
        name = f"list[{name}]"
    return f"{name} | None" if field.nulls or (field.default is None and not _is_required(field, found)) else name


def _is_required(field: Field, found: Schema) -> bool:
    """True for a struct that exists in every version, and is never null."""
    first, last = field.versions
    everywhere = first <= found.first and last >= found.last
    return field.struct is not None and not field.is_array and not field.nulls and field.tag is None and everywhere


def _default(field: Field, found: Schema) -> str:
    if _is_required(field, found):
        return ""
    plain = field.default is None or (isinstance(field.default, int | float | str | bytes) and field.type != "uuid")
    return f" = {field.default!r}".replace("'", '"') if plain else " = ..."


def _notation(field: Field) -> str:
    text = ("{}" if field.struct else field.type) + ("[]" if field.is_array else "")
    if field.nulls:
        text += "?" if field.nulls == (0, VERSION_LAST) else f"?({_versions(field.nulls)})"
    if field.versions != (0, VERSION_LAST):
        text += f" v{_versions(field.versions)}"
    return text if field.tag is None else f"{text} tag{field.tag}"


def _versions(found: Range) -> str:
    first, last = found
    if last == VERSION_LAST:
        return f"{first}+"
    return str(first) if first == last else f"{first}-{last}"


if __name__ == "__main__":
    for path, text in stubs().items():
        path.write_text(text)
