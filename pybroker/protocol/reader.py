"""Compiles a schema at one version into a Python function that decodes it.

The function is straight-line code with a loop for each array. Fixed fields before a field of variable size, and the
first bytes of its size, are read with one struct call. A count or length is checked against the remaining bytes before
it is used; fixed fields beyond the end raise struct.error or IndexError, which `codec.decode` turns into ProtocolError.
In the source `p` is the position, `n` the count or length just read, `q` the end of a value.
"""

from collections.abc import Callable, Generator, Sequence
from functools import cache
from struct import Struct as Layout
from struct import unpack_from
from typing import Any

from pybroker.protocol.message import Message, Reader, Scope
from pybroker.protocol.schema import Field, Struct
from pybroker.protocol.wire import (
    BESIDE_MAX,
    ELEMENTS_MAX,
    FORMATS,
    NUMBERS_IN_ELEMENT,
    SIZES,
    STRING_MAX,
    refuse,
    refuse_many,
    skip_tags,
    uvarint,
)

Piece = tuple[Sequence[object], int] | None
"""(elements of a slice, number of nested arrays in which its last element continues in the next); None for a pause."""

Slicer = Callable[[bytes | memoryview, int, int, int, int], Generator[Piece, None, tuple[Any, int]]]
"""(data, position, end, elements at most, elements in a slice) -> slices; the generator returns what a reader returns,
with the elements of the last slice."""

SLICE_BYTES = 1 << 18
"""A slice ends with the element that exceeds this size, as names may have 32 KiB each."""


def compile_reader(kind: type[Message], version: int) -> Reader:
    """Compile the reader of a top-level message at a version that its definition has."""
    reader: Reader = _Compiler(kind, version).compile("data, p, end, left=ELEMENTS_MAX")
    return reader


def compile_slicer(kind: type[Message], version: int, path: tuple[str, ...]) -> Slicer:
    """Compile a reader that is a generator: it pauses after each `step` elements and yields those of the nested arrays
    of `path`. If it pauses within an element, only the fields before its array are set, so the array has to be its last
    field."""
    slicer: Slicer = _Compiler(kind, version, path).compile("data, p, end, left, step")
    return slicer


@cache
def _unpackers(format_: str) -> tuple[Callable[..., tuple[float, ...]], ...]:
    """Unpackers for arrays of 0 to 15 numbers, such as replicas or partitions."""
    return tuple(Layout(f">{count}{format_}").unpack_from for count in range(16))


OF_A_CONTROLLER = ("LeaderAndIsrRequest", "UpdateMetadataRequest")


class _Compiler:
    """Writes the source line by line; `run` has the fixed fields for the next struct call."""

    def __init__(self, kind: type[Message], version: int, path: tuple[str, ...] | None = None) -> None:
        self.kind = kind
        self.version = version
        self.path = path  # None: the reader never pauses
        self.open: list[tuple[str, str, str]] = []  # for the path's arrays: elements, target, current element
        self.aside = 0  # depth of arrays outside the path
        self.compact = kind.SCHEMA.flexible(version)
        self.title = f"{kind.SCHEMA.name} v{version}"
        self.lines: list[str] = []
        self.indent = 1
        self.run: list[tuple[str, str]] = []  # (struct format, target)
        self.count = 0
        self.scope: Scope = {
            "ELEMENTS_MAX": ELEMENTS_MAX,
            "new": object.__new__,
            "refuse": refuse,
            "refuse_many": refuse_many,
            "skip_tags": skip_tags,
            "unpack_from": unpack_from,
            "uvarint": uvarint,
        }

    def compile(self, arguments: str) -> Callable[..., Any]:
        self.emit("view = memoryview(data)", "most = left")
        if self.path is not None:
            self.emit("k = h = step", f"b = p + {SLICE_BYTES}", "if False: yield")
        made = self.struct(self.kind.STRUCT, self.kind, self.title)
        self.emit(f"return {made}, p")
        source = "\n".join([f"def read({arguments}):", *self.lines])
        exec(compile(source, f"<pybroker {self.title} reader>", "exec"), self.scope)
        made_reader: Callable[..., Any] = self.scope["read"]
        return made_reader

    def emit(self, *lines: str) -> None:
        self.lines += ["    " * self.indent + line for line in lines]

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def constant(self, prefix: str, value: object) -> str:
        name = self.name(prefix)
        self.scope[name] = value
        return name

    # -- structs and their fields ------------------------------------------------------------------------------------

    def struct(self, struct: Struct, kind: type[Message], where: str) -> str:
        """Write code that reads a struct; return the name of its local variable."""
        made = self.name("o")
        self.emit(f"{made} = new({self.constant('C', kind)})")
        for field in struct.fields:
            if field.tag is not None or not field.exists(self.version):
                self.emit(f"{made}.{field.name} = {field.default!r}")
        for field in struct.untagged(self.version):
            self.value(field, f"{made}.{field.name}", kind, f"{where}.{field.name}")
        if self.compact:
            self.tags(struct, made, kind, where)
        self.flush()
        return made

    def value(self, field: Field, target: str, kind: type[Message], where: str) -> None:
        if not field.is_array and field.type in FORMATS:
            self.run.append((FORMATS[field.type], target))
            return
        indent = self.indent
        nullable = field.nullable(self.version)
        if field.is_array:
            self.array(field, target, kind, where, nullable)
        elif field.struct:
            self.lone_struct(field.struct, target, kind, where, nullable)
        else:
            self.chunk(field.type, target, where, nullable)
        self.indent = indent

    def lone_struct(self, struct: Struct, target: str, kind: type[Message], where: str, nullable: bool) -> None:
        if nullable:
            self.run.append(("b", "n"))
            self.flush()
            self.emit(f"if n < 0: {target} = None", "else:")
            self.indent += 1
        made = self.struct(struct, getattr(kind, struct.name), where)
        self.emit(f"{target} = {made}")

    def chunk(self, type_: str, target: str, where: str, nullable: bool) -> None:
        """Write code that reads a string, or bytes as a view of the frame."""
        is_text = type_ == "str"
        self.size("h" if is_text else "i", target, where, nullable, STRING_MAX if is_text else None)
        self.emit("q = p + n - 1" if self.compact else "q = p + n")
        self.emit(f"if q > end: refuse('{where} exceeds the message')")
        self.emit(f"{target} = str(data[p:q], 'utf-8')" if is_text else f"{target} = view[p:q]")
        self.emit("p = q")

    def array(self, field: Field, target: str, kind: type[Message], where: str, nullable: bool) -> None:
        self.size("i", target, where, nullable)
        if self.compact:
            self.emit("n -= 1")
        self.emit(f"if n * {self.least(field)} > end - p: refuse(f'{where} counts {{n}} in {{end - p}} bytes')")
        if self.path and not self.is_on_path(field):
            self.emit(f"if n > {BESIDE_MAX}: refuse_many('{where}', {BESIDE_MAX}, 'array')")
        if field.type in FORMATS:
            format_ = FORMATS[field.type]
            assert format_ != "16s", "struct would read one string of n * 16"
            self.spend(where, 1 if self.are_answered(field) else NUMBERS_IN_ELEMENT)
            short = self.constant("U", _unpackers(format_))
            if self.is_on_path(field):
                self.emit("while n > step:")
                self.indent += 1
                self.emit(f"{target} = list(unpack_from(f'>{{step}}{format_}', data, p))")
                self.emit(f"p += step * {SIZES[field.type]}", "n -= step")
                self.hand_over()
                self.indent -= 1
            if self.path is not None:
                self.emit("k -= n")
            self.emit(f"{target} = list({short}[n](data, p) if n < 16 else unpack_from(f'>{{n}}{format_}', data, p))")
            self.emit(f"p += n * {SIZES[field.type]}")
            return
        self.spend(where)
        self.loop(field, target, kind, where)

    def loop(self, field: Field, target: str, kind: type[Message], where: str) -> None:
        """Write code that reads `n` structs or strings."""
        items, made, on_path = self.name("a"), "x", self.is_on_path(field)
        left = self.name("i") if on_path else "_"
        self.emit(f"{target} = {items} = []", f"for {left} in range(n, 0, -1):" if on_path else "for _ in range(n):")
        self.indent += 1
        if on_path:
            # The struct will get the next free variable name.
            self.open.append((items, target, f"o{self.count + 1}"))
        else:
            self.aside += 1
        if field.struct:
            made = self.struct(field.struct, getattr(kind, field.struct.name), f"{where}[]")
        else:
            self.chunk(field.type, made, f"{where}[]", False)
        self.emit(f"{items}.append({made})")
        if on_path:
            assert made in (self.open.pop()[2], "x"), "the element has another name"
            self.emit("k -= 1", f"if (k <= 0 or p > b) and {left} > 1:")
            self.indent += 1
            self.hand_over((items, target))
            self.indent -= 1
        else:
            self.aside -= 1
            if self.path is not None:
                self.emit("k -= 1", "h -= 1", "if h <= 0:", "    h = step", "    yield None")

    def is_on_path(self, field: Field) -> bool:
        depth = len(self.open)
        return bool(self.path) and not self.aside and self.path[depth : depth + 1] == (field.name,)  # type: ignore[index]

    def hand_over(self, own: tuple[str, str] | None = None) -> None:
        """Write code that yields the elements read so far and starts new lists; outer elements continue.
        `own`: the array between whose elements the code runs."""
        for items, _, made in self.open:
            self.emit(f"{items}.append({made})")
        outermost = self.open[0][0] if self.open else own[0] if own else ""
        self.emit(f"yield {outermost}, {len(self.open)}", "k = h = step", f"b = p + {SLICE_BYTES}")
        for items, target in [*((items, target) for items, target, _ in self.open), *([own] if own else [])]:
            self.emit(f"{target} = {items} = []")

    def tags(self, struct: Struct, made: str, kind: type[Message], where: str) -> None:
        """Write code that reads the tagged fields at the end of a struct. The last one of a repeated tag counts."""
        self.run.append(("B", "n"))
        self.flush()
        self.emit("if n:")
        indent = self.indent
        self.indent += 1
        self.emit("if n > 127: n, p = uvarint(data, p, n)")
        self.spend(where)
        known = struct.tagged(self.version)
        if not known:
            self.emit("p = skip_tags(data, p, end, n)")
        else:
            self.tag_loop(known, made, kind, where)
        self.indent = indent

    def tag_loop(self, known: list[Field], made: str, kind: type[Message], where: str) -> None:
        end = self.name("z")
        self.emit("for _ in range(n):")
        self.indent += 1
        for target in ("t", "n"):
            self.emit(f"{target} = data[p]", "p += 1", f"if {target} > 127: {target}, p = uvarint(data, p, {target})")
        self.emit(f"{end} = p + n", f"if {end} > end: refuse('{where}: a tagged field exceeds the message')")
        for index, field in enumerate(known):
            self.emit(f"{'elif' if index else 'if'} t == {field.tag}:")
            self.indent += 1
            self.value(field, f"{made}.{field.name}", kind, f"{where}.{field.name}")
            self.flush()
            self.emit(f"if p != {end}: refuse('{where}.{field.name} and the size of its tag differ')")
            self.indent -= 1
        self.emit(f"else: p = {end}")

    # -- parts of a value --------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write code that reads `run` with one struct call."""
        if not self.run:
            return
        layout = Layout(">" + "".join(format_ for format_, _ in self.run))
        targets = ", ".join(target for _, target in self.run)
        if layout.format == ">B":
            self.emit(f"{targets} = data[p]")
        else:
            comma = "," if len(self.run) == 1 else ""
            self.emit(f"{targets}{comma} = {self.constant('U', layout.unpack_from)}(data, p)")
        self.emit(f"p += {layout.size}")
        self.run.clear()

    def size(self, wide: str, target: str, where: str, nullable: bool, most: int | None = None) -> None:
        """Write code that reads the size or count of a value into `n`, and continues if it is not null. Compact sizes
        are one larger, with 0 for null; otherwise negative sizes mean null, as in Kafka."""
        self.run.append(("B" if self.compact else wide, "n"))
        self.flush()
        if self.compact:
            self.emit("if n > 127:", "    n, p = uvarint(data, p, n)")
            if most is not None:
                self.emit(f"    if n > {most + 1}: refuse(f'{where} has {{n - 1}} bytes, more than {most}')")
        null = "n == 0" if self.compact else "n < 0"
        if nullable:
            self.emit(f"if {null}: {target} = None", "else:")
            self.indent += 1
        else:
            self.emit(f"if {null}: refuse('{where} is null')")

    def spend(self, where: str, share: int = 1) -> None:
        """Write code that counts `n` items, `share` of which are one element, against the limit of the message."""
        self.emit("left -= n" if share == 1 else f"left -= n // {share}")
        self.emit(f"if left < 0: refuse_many('{where}', most)")

    def are_answered(self, field: Field) -> bool:
        """True for an array of a request, except for the replicas in a controller's: each number may be answered."""
        name = self.kind.SCHEMA.name
        return name.endswith("Request") and (name not in OF_A_CONTROLLER or field.name.startswith("partition"))

    def least(self, field: Field) -> int:
        """The smallest size of an element in bytes."""
        if field.struct is None:
            return SIZES.get(field.type) or (1 if self.compact else 2 if field.type == "str" else 4)
        total = 1 if self.compact else 0  # its tags
        for inner in field.struct.untagged(self.version):
            if inner.is_array:
                total += 1 if self.compact else 4
            else:
                total += 1 if inner.nullable(self.version) and inner.struct else self.least(inner)
        assert total > 0, f"{self.title}: an array of empty elements would not be bounded"
        return total
