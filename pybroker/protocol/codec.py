"""Encodes and decodes messages, at any version of their definition, and their headers.

A reader and a writer are compiled for each message and version when first used (see `reader` and `writer`). Input is
untrusted: decoding raises only ProtocolError, and the memory that it allocates is bounded (`wire.ELEMENTS_MAX`).
"""

from collections.abc import Generator
from struct import Struct as Layout
from struct import error as StructError
from typing import Any, Final, NamedTuple, TypeVar

from pybroker.errors import UNSUPPORTED_VERSION
from pybroker.protocol import messages
from pybroker.protocol.apis import API_VERSIONS, CONTROLLED_SHUTDOWN, KNOWN, SERVED
from pybroker.protocol.diagnose import fault
from pybroker.protocol.message import Bytes, Message, Reader, Sendable, Sliced, Writer
from pybroker.protocol.reader import Piece, Slicer, compile_reader, compile_slicer
from pybroker.protocol.wire import ELEMENTS_MAX, EncodeError, ProtocolError, TooMany, skip_tags, uvarint
from pybroker.protocol.writer import compile_halves, compile_writer

__all__ = [
    "EncodeError",
    "ProtocolError",
    "RequestHeader",
    "Tail",
    "TooMany",
    "decode",
    "decode_request_header",
    "decode_response",
    "decode_slices",
    "encode",
    "encode_parts",
    "encode_request",
    "encode_request_parts",
    "encode_response",
    "encode_response_parts",
    "encode_tail",
    "encode_unsupported",
]

Buffer = Bytes
M = TypeVar("M", bound=Message)
Pieces = list[Any]
"""Bytes, and objects given for records: slices of a request, file ranges of a response."""

_UNREADABLE: Final = (StructError, IndexError, UnicodeDecodeError)
_HALVES: Final[dict[tuple[str, int, str], tuple[Writer, Writer]]] = {}
_UNWRITABLE: Final = (StructError, TypeError, AttributeError, ValueError, OverflowError)


# -- messages --------------------------------------------------------------------------------------------------------


def decode(
    kind: type[M], version: int, data: Buffer, offset: int = 0, elements_max: int = ELEMENTS_MAX
) -> tuple[M, int]:
    """Return (message, end position); fields of bytes are views of `data`. Raises ProtocolError, TooMany if the message
    has more elements than allowed."""
    reader = kind.READERS.get(version) or _new_reader(kind, version)
    if type(data) is not bytes:
        data = memoryview(data)
    try:
        decoded: tuple[M, int] = reader(data, offset, len(data), elements_max)
        return decoded
    except _UNREADABLE as error:
        raise _unreadable(kind, version, len(data) - offset, error) from None


def decode_slices(
    kind: type[M], version: int, data: Buffer, offset: int, elements_max: int, step: int, path: tuple[str, ...]
) -> Generator[Piece, None, M]:
    """Decode in slices of about `step` elements, as `reader.compile_slicer` does; the generator returns the message."""
    slicer = _SLICERS.get((kind, version, path)) or _new_slicer(kind, version, path)
    if type(data) is not bytes:
        data = memoryview(data)
    try:
        message: M
        message, _ = yield from slicer(data, offset, len(data), elements_max, step)
    except _UNREADABLE as error:
        raise _unreadable(kind, version, len(data) - offset, error) from None
    return message


_SLICERS: Final[dict[tuple[type[Message], int, tuple[str, ...]], Slicer]] = {}


def _new_slicer(kind: type[Message], version: int, path: tuple[str, ...]) -> Slicer:
    slicer = _SLICERS[kind, version, path] = compile_slicer(kind, version, path)
    return slicer


def _unreadable(kind: type[Message], version: int, size: int, error: Exception) -> ProtocolError:
    why = "has a string that is not UTF-8" if isinstance(error, UnicodeDecodeError) else "ends early"
    return ProtocolError(f"{kind.__name__} v{version} of {size} bytes {why}")


def _new_reader(kind: type[Message], version: int) -> Reader:
    schema = kind.SCHEMA
    if not schema.first <= version <= schema.last:
        raise ProtocolError(f"{schema.name} has versions {schema.first} to {schema.last}, not {version}")
    reader = kind.READERS[version] = compile_reader(kind, version)
    return reader


def encode(message: Message, version: int) -> bytes:
    """Return the bytes of a message, with the content of slices given for records. Raises EncodeError."""
    return _join(_pieces(message, version))


def encode_parts(message: Message, version: int) -> list[Bytes | Sliced]:
    """Return the parts of a message in order: bytes, and unchanged the slices given for records. Raises EncodeError."""
    return _merge(_pieces(message, version))


def _pieces(message: Message, version: int, *before: bytes) -> Pieces:
    kind = type(message)
    writer = kind.WRITERS.get(version)
    if writer is None:
        schema = kind.SCHEMA
        if not schema.first <= version <= schema.last:
            raise EncodeError(f"{schema.name} has versions {schema.first} to {schema.last}, not {version}")
        writer = kind.WRITERS[version] = compile_writer(kind, version)
    return _written(writer, message, version, *before)


def _written(writer: Writer, message: Message, version: int, *before: bytes) -> Pieces:
    kind = type(message)
    pieces: Pieces = [*before]
    try:
        writer(message, pieces.append)
    except _UNWRITABLE as error:
        title = f"{kind.__name__} v{version}"
        raise EncodeError(fault(kind.STRUCT, message, version, title) or f"{title}: {error}") from error
    return pieces


def _join(pieces: Pieces) -> bytes:
    try:
        return b"".join(pieces)
    except TypeError:  # a slice is among them
        return b"".join([piece if isinstance(piece, bytes | memoryview) else piece.tobytes() for piece in pieces])


def _merge(pieces: Pieces) -> Pieces:
    merged: Pieces = []
    run: list[bytes | memoryview] = []
    for piece in pieces:
        if isinstance(piece, bytes | memoryview):
            run.append(piece)
        else:
            merged += [b"".join(run), piece]
            run = []
    return [*merged, b"".join(run)] if run else merged


# -- headers ---------------------------------------------------------------------------------------------------------

_REQUEST: Final = Layout(">hhi")
_I16: Final = Layout(">h")
_I32: Final = Layout(">i")


class RequestHeader(NamedTuple):
    """The header of a request. Its body starts at `body_offset` in the frame, which does not include the size field."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


def decode_request_header(frame: Buffer) -> RequestHeader:
    """Decode the header of a request of any known API, at any version. Raises ProtocolError.

    An unknown version is decoded like the last known one. For unknown versions of ApiVersions, which a broker must
    answer, nothing after the client id is decoded.
    """
    data = frame if type(frame) is bytes else memoryview(frame)
    try:
        key, version, correlation_id = _REQUEST.unpack_from(data)
        api = KNOWN.get(key)
        if api is None:
            raise ProtocolError(f"no API has the key {key}")
        if key == CONTROLLED_SHUTDOWN and version == 0:
            return RequestHeader(key, version, correlation_id, None, _REQUEST.size)
        client_id, position = _client_id(data, _REQUEST.size)
        if version >= api.flexible_from and (key != API_VERSIONS or version <= api.max_version):
            position = _skip_section(data, position)
        return RequestHeader(key, version, correlation_id, client_id, position)
    except _UNREADABLE as error:
        raise ProtocolError(f"a request header of at most {len(data)} bytes: {error}") from None


def _client_id(data: bytes | memoryview, position: int) -> tuple[str | None, int]:
    """Decode a client id, which is never compact, so that a broker can decode it at any version."""
    (size,) = _I16.unpack_from(data, position)
    position += _I16.size
    if size < 0:
        return None, position
    end = position + size
    if end > len(data):
        raise ProtocolError(f"a client id of {size} bytes exceeds its frame")
    return str(data[position:end], "utf-8"), end


def _skip_section(data: bytes | memoryview, position: int) -> int:
    count = data[position]
    position += 1
    if count > 0x7F:
        count, position = uvarint(data, position, count)
    return skip_tags(data, position, len(data), count)


class Tail(NamedTuple):
    """The encoding of a message from one field on, for requests that differ only before it."""

    field: str
    data: bytes


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, message: Message, tail: Tail | None = None
) -> bytes:
    """Encode a request with its header, without the size field; with `tail` only the fields before this. Raises
    EncodeError."""
    header = _request_header(api_key, version, correlation_id, client_id)
    if tail is None:
        return _join(_pieces(message, version, header))
    before, _ = _halves(type(message), version, tail.field)
    return b"".join([*_written(before, message, version, header), tail.data])


def encode_tail(message: Message, version: int, field: str) -> Tail:
    """Encode a message from an untagged field on. Raises EncodeError."""
    _, after = _halves(type(message), version, field)
    return Tail(field, _join(_written(after, message, version)))


def _halves(kind: type[Message], version: int, field: str) -> tuple[Writer, Writer]:
    key = kind.SCHEMA.name, version, field
    if key not in _HALVES:
        _HALVES[key] = compile_halves(kind, version, field)
    return _HALVES[key]


def encode_request_parts(
    api_key: int, version: int, correlation_id: int, client_id: str | None, message: Message
) -> list[Bytes | Sliced]:
    """Encode a request as `encode_request` does, in parts as `encode_parts`; their total length is the size field."""
    return _merge(_pieces(message, version, _request_header(api_key, version, correlation_id, client_id)))


def _request_header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    header = _REQUEST.pack(api_key, version, correlation_id)
    if api_key != CONTROLLED_SHUTDOWN or version > 0:
        name = None if client_id is None else client_id.encode()
        header += _I16.pack(-1) if name is None else _I16.pack(len(name)) + name
    if version >= KNOWN[api_key].flexible_from:
        header += b"\0"
    return header


def encode_response(api_key: int, version: int, correlation_id: int, message: Message) -> bytes:
    """Encode a response with its header, without the size field. Raises EncodeError."""
    return _join(_pieces(message, version, response_header(api_key, version, correlation_id)))


def encode_response_parts(
    api_key: int, version: int, correlation_id: int, message: Message
) -> list[Bytes | Sendable]:
    """Encode a response as `encode_response` does, in parts as `encode_parts`; their total length is the size field."""
    return _merge(_pieces(message, version, response_header(api_key, version, correlation_id)))


def response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    """Encode the header of a response. ApiVersions has the oldest header at every version, as the client does not know
    our versions yet (KIP-511)."""
    flexible = version >= KNOWN[api_key].flexible_from and api_key != API_VERSIONS
    return _I32.pack(correlation_id) + b"\0" if flexible else _I32.pack(correlation_id)


def encode_unsupported(correlation_id: int) -> bytes:
    """Encode the response to ApiVersions at a version that is not served: version 0, UNSUPPORTED_VERSION, and the
    versions of this one API with which the client can retry (KIP-511)."""
    kind = messages.ApiVersionsResponse
    served = SERVED[API_VERSIONS]
    entry = kind.ApiKeys(api_key=API_VERSIONS, min_version=served.min_version, max_version=served.max_version)
    return encode_response(API_VERSIONS, 0, correlation_id, kind(error_code=UNSUPPORTED_VERSION, api_keys=[entry]))


def decode_response(api_key: int, version: int, frame: Buffer) -> tuple[int, Message]:
    """Return (correlation id, message) of a response to a request of that API and version. Raises ProtocolError.

    A broker that lacks the version of an ApiVersions request answers with UNSUPPORTED_VERSION at version 0.
    """
    api = KNOWN[api_key]
    data = frame if type(frame) is bytes else memoryview(frame)
    try:
        (correlation_id,) = _I32.unpack_from(data)
        position = _I32.size
        if api_key == API_VERSIONS:
            if _I16.unpack_from(data, position)[0] == UNSUPPORTED_VERSION:
                version = 0
        elif version >= api.flexible_from:
            position = _skip_section(data, position)
    except _UNREADABLE as error:
        raise ProtocolError(f"the header of a response to {api.name} v{version}: {error}") from None
    return correlation_id, decode(api.response, version, data, position)[0]
