"""Compiles a schema at one version into a Python function that encodes it.

The function is straight-line code with a loop for each array. It relies on the checks of struct, len() and
str.encode(); `codec.encode` turns their errors into an EncodeError that names the field. In the source `w` takes the
next piece of output, `v` is the current value, `n` its size or count.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from struct import Struct as Layout
from struct import pack
from typing import Any, NamedTuple

from pybroker.protocol.message import Bytes, Message, Scope, Sliced, Writer
from pybroker.protocol.schema import Field, Struct
from pybroker.protocol.wire import FORMATS, STRING_MAX, put_uvarint


def compile_writer(kind: type[Message], version: int) -> Writer:
    """Compile the writer of a top-level message at a version that its definition has."""
    return _Compiler(kind, version).compile()


def compile_halves(kind: type[Message], version: int, field: str) -> tuple[Writer, Writer]:
    """Compile the writers of a top-level message's fields before one of them, and from it on."""
    fields = kind.STRUCT.untagged(version)
    place = next(index for index, each in enumerate(fields) if each.name == field)
    return (
        _Compiler(kind, version).compile_fields(fields[:place], kind),
        _Compiler(kind, version).compile_fields(fields[place:], kind, tags_of=kind.STRUCT),
    )


class ArrayWriters(NamedTuple):
    """The writers of a struct's fields before and after one of its arrays, and of an element of that array."""

    before: Writer
    after: Writer
    element: Writer


def compile_levels(kind: type[Message], version: int, path: tuple[str, ...]) -> list[ArrayWriters]:
    """Compile the writers for the nested arrays of `path` in a top-level message."""
    levels = []
    struct, of = kind.STRUCT, kind
    for name in path:
        fields = struct.untagged(version)
        place = next(index for index, field in enumerate(fields) if field.name == name)
        array, write = fields[place], partial(_Compiler, kind, version)
        levels.append(
            ArrayWriters(
                write().compile_fields(fields[:place], of),
                write().compile_fields(fields[place + 1 :], of, tags_of=struct),
                write().compile_element(array, of),
            )
        )
        if array.struct is not None:
            struct, of = array.struct, getattr(of, array.struct.name)
    return levels


@cache
def _packers(count_format: str, format_: str) -> tuple[Callable[..., bytes], ...]:
    """Packers for a count and an array of 0 to 15 numbers, such as replicas or partitions."""
    return tuple(Layout(f">{count_format}{count}{format_}").pack for count in range(16))


def _numbers(compact: bool, format_: str, values: Sequence[float]) -> bytes:
    """Encode a count and an array of numbers."""
    count = put_uvarint(len(values) + 1) if compact else len(values).to_bytes(4, "big")
    return count + pack(f">{len(values)}{format_}", *values)


def _payload(value: Any) -> Bytes | Sliced:
    """Convert a bytes-like value for b"".join, with elements of one byte; return a slice unchanged."""
    try:
        view = memoryview(value)
    except TypeError:
        sliced: Sliced = value
        if not hasattr(value, "tobytes"):
            raise
        return sliced
    return view if view.c_contiguous and view.nbytes == len(view) else view.tobytes()


def _check_uuid(value: bytes) -> None:
    if len(value) != 16:
        raise ValueError("a uuid has 16 bytes")


def _check_string(size: int) -> None:
    if size > STRING_MAX + 1:
        raise ValueError(f"a string has at most {STRING_MAX} bytes")


class _Compiler:
    """Writes the source line by line; `run` has the fixed fields for the next struct call."""

    def __init__(self, kind: type[Message], version: int) -> None:
        self.kind = kind
        self.version = version
        self.compact = kind.SCHEMA.flexible(version)
        self.title = f"{kind.SCHEMA.name} v{version}"
        self.lines: list[str] = []
        self.indent = 1
        self.run: list[tuple[str, str]] = []  # (struct format, expression; "" for a pad byte)
        self.count = 0
        self.out = "w"
        self.scope: Scope = {
            "check_string": _check_string,
            "check_uuid": _check_uuid,
            "numbers": _numbers,
            "payload": _payload,
            "put_uvarint": put_uvarint,
        }

    def compile(self) -> Writer:
        self.struct(self.kind.STRUCT, self.kind, "m")
        return self.finish()

    def compile_fields(self, fields: Sequence[Field], kind: type[Message], tags_of: Struct | None = None) -> Writer:
        """Compile the writer of some fields of a struct and, with `tags_of`, of its tags."""
        for field in fields:
            self.value(field, kind, f"m.{field.name}")
        if tags_of is not None and self.compact:
            self.tags(tags_of, kind, "m")
        return self.finish()

    def compile_element(self, array: Field, kind: type[Message]) -> Writer:
        """Compile the writer of one element of an array."""
        if array.struct is not None:
            self.struct(array.struct, getattr(kind, array.struct.name), "m")
        elif array.type in FORMATS:
            self.run.append((FORMATS[array.type], "m"))
        else:
            self.chunk(array.type, "m", False)
        return self.finish()

    def finish(self) -> Writer:
        self.flush()
        source = "\n".join(["def write(m, w):", *(self.lines or ["    pass"])])
        exec(compile(source, f"<pybroker {self.title} writer>", "exec"), self.scope)
        writer: Writer = self.scope["write"]
        return writer

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

    def struct(self, struct: Struct, kind: type[Message], source: str) -> None:
        for field in struct.untagged(self.version):
            self.value(field, kind, f"{source}.{field.name}")
        if self.compact:
            self.tags(struct, kind, source)
        self.flush()

    def value(self, field: Field, kind: type[Message], source: str) -> None:
        nullable = field.nullable(self.version)
        if field.is_array:
            self.array(field, kind, source, nullable)
        elif field.struct:
            self.lone_struct(field.struct, kind, source, nullable)
        elif field.type in FORMATS:
            if field.type == "uuid":
                self.emit(f"check_uuid({source})")
            self.run.append((FORMATS[field.type], source))
        else:
            self.chunk(field.type, source, nullable)

    def lone_struct(self, struct: Struct, kind: type[Message], source: str, nullable: bool) -> None:
        if nullable:
            self.run.append(("b", f"-1 if {source} is None else 1"))
            self.flush()
            self.emit(f"if {source} is not None:")
            self.indent += 1
        self.struct(struct, getattr(kind, struct.name), source)
        if nullable:
            self.indent -= 1

    def chunk(self, type_: str, source: str, nullable: bool) -> None:
        """Write code that encodes a string or bytes."""
        is_text = type_ == "str"
        self.size(source, nullable, "b''", "v = v.encode()" if is_text else "if type(v) is not bytes: v = payload(v)")
        self.put_size("h" if is_text else "i", is_text)
        self.emit(f"{self.out}(v)")

    def array(self, field: Field, kind: type[Message], source: str, nullable: bool) -> None:
        if field.type in FORMATS:
            self.numbers(FORMATS[field.type], source, nullable)
            return
        self.size(source, nullable, "()")
        self.put_size("i")
        item = self.name("x")
        self.emit(f"for {item} in v:")
        self.indent += 1
        if field.struct:
            self.struct(field.struct, getattr(kind, field.struct.name), item)
        else:
            self.chunk(field.type, item, False)
        self.indent -= 1

    def numbers(self, format_: str, source: str, nullable: bool) -> None:
        """Write code that encodes an array of numbers; a short one and its count take one struct call."""
        assert format_ != "16s", "struct would write one string of n * 16"
        self.flush()
        self.emit(f"v = {source}")
        if nullable:
            self.emit(f"if v is None: {self.out}({bytes(1) if self.compact else bytes([255]) * 4!r})", "else:")
            self.indent += 1
        packers = self.constant("P", _packers("B" if self.compact else "i", format_))
        short = f"{packers}[n](n{' + 1' if self.compact else ''}, *v)"
        self.emit("n = len(v)", f"{self.out}({short} if n < 16 else numbers({self.compact}, '{format_}', v))")
        if nullable:
            self.indent -= 1

    def tags(self, struct: Struct, kind: type[Message], source: str) -> None:
        """Write code that encodes the tagged fields at the end of a struct that differ from their defaults, by tag."""
        known = struct.tagged(self.version)
        if not known:
            self.run.append(("x", ""))
            return
        section = self.name("t")
        self.emit(f"{section} = []")
        before, self.run = self.run, []
        for field in known:
            value = f"{source}.{field.name}"
            self.emit(f"if {self.present(field, kind, value)}:")
            self.indent += 1
            out, pieces = self.out, self.name("u")
            self.out = f"{pieces}.append"
            self.emit(f"{pieces} = []")
            self.value(field, kind, value)
            self.flush()
            self.out = out
            self.emit(f"{pieces} = b''.join({pieces})")
            self.emit(f"{section} += put_uvarint({field.tag}), put_uvarint(len({pieces})), {pieces}")
            self.indent -= 1
        self.run = [*before, ("B", f"len({section}) // 3")]
        self.flush()
        self.emit(f"if {section}: {self.out}(b''.join({section}))")

    def present(self, field: Field, kind: type[Message], value: str) -> str:
        """The condition under which a tagged field is written."""
        if field.default is None:
            if field.struct and not field.nullable(self.version):
                default = self.constant("D", getattr(kind, field.struct.name)())
                return f"{value} is not None and {value} != {default}"
            return f"{value} is not None"
        return value if field.is_array else f"{value} != {field.default!r}"

    # -- parts of a value --------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write code that encodes `run` with one struct call."""
        if self.run:
            self.emit(f"{self.out}({self.packed(self.run)})")
            self.run = []

    def packed(self, run: list[tuple[str, str]]) -> str:
        """The expression for the bytes of a run."""
        formats = "".join(format_ for format_, _ in run)
        if formats == "x":
            return "b'\\0'"
        return f"{self.constant('P', Layout('>' + formats).pack)}({', '.join(e for _, e in run if e)})"

    def size(self, source: str, nullable: bool, empty: str, prepare: str = "") -> None:
        """Write code that sets `v` and its size or count `n`. Compact sizes are one larger, with 0 for null."""
        count = "n = len(v) + 1" if self.compact else "n = len(v)"
        self.emit(f"v = {source}")
        if nullable:
            self.emit(f"if v is None: n, v = {0 if self.compact else -1}, {empty}", "else:")
            self.indent += 1
        self.emit(*filter(None, (prepare, count)))
        if nullable:
            self.indent -= 1

    def put_size(self, wide: str, is_text: bool = False) -> None:
        """Write code that encodes `run` and `n`."""
        if not self.compact:
            self.run.append((wide, "n"))
            self.flush()
            return
        run, self.run = self.run, []
        self.emit(f"if n < 128: {self.out}({self.packed([*run, ('B', 'n')])})", "else:")
        if is_text:
            self.emit("    check_string(n)")
        before = f"{self.packed(run)} + " if run else ""
        self.emit(f"    {self.out}({before}put_uvarint(n))")
