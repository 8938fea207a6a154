"""Messages to bytes and back, at any version of their definition; and the headers that go before them.

A reader and a writer are compiled for a message and version when first used (see `reader` and `writer`). What is read
is untrusted: ProtocolError is all that it can raise, and what it allocates is bounded (`wire.ELEMENTS_MAX`).
"""

from collections.abc import Generator
from functools import cache
from struct import Struct as Layout
from struct import error as StructError
from typing import Any, Final, NamedTuple

from pybroker.errors import UNSUPPORTED_VERSION
from pybroker.protocol import messages
from pybroker.protocol.apis import API_VERSIONS, CONTROLLED_SHUTDOWN, KNOWN, SERVED
from pybroker.protocol.diagnose import fault
from pybroker.protocol.messages import Message
from pybroker.protocol.reader import Piece, Reader, compile_reader, compile_slicer
from pybroker.protocol.wire import ELEMENTS_MAX, EncodeError, ProtocolError, TooMany, skip_tags, uvarint
from pybroker.protocol.writer import compile_writer

__all__ = [
    "EncodeError",
    "ProtocolError",
    "RequestHeader",
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
    "encode_unsupported",
]

Buffer = bytes | bytearray | memoryview

_UNREADABLE: Final = (StructError, IndexError, UnicodeDecodeError)
_UNWRITABLE: Final = (StructError, TypeError, AttributeError, ValueError, OverflowError)


# -- messages --------------------------------------------------------------------------------------------------------


def decode(
    kind: Any, version: int, data: Buffer, offset: int = 0, elements_max: int = ELEMENTS_MAX
) -> tuple[Any, int]:
    """(message, where it ends) of a message class at a version; its bytes are views of `data`. Raises ProtocolError,
    TooMany if it has more elements than allowed."""
    reader = kind.READERS.get(version) or _new_reader(kind, version)
    if type(data) is not bytes:
        data = memoryview(data)
    try:
        return reader(data, offset, len(data), elements_max)
    except _UNREADABLE as error:
        raise _unreadable(kind, version, len(data) - offset, error) from None


def decode_slices(
    kind: Any, version: int, data: Buffer, offset: int, elements_max: int, step: int, path: tuple[str, ...]
) -> Generator[Piece, None, Any]:
    """Decode in slices of about `step` elements, as `reader.compile_slicer` does; the generator returns the message."""
    slicer = _slicer(kind, version, path)
    if type(data) is not bytes:
        data = memoryview(data)
    try:
        message, _ = yield from slicer(data, offset, len(data), elements_max, step)
    except _UNREADABLE as error:
        raise _unreadable(kind, version, len(data) - offset, error) from None
    return message


_slicer: Final = cache(compile_slicer)


def _unreadable(kind: Any, version: int, size: int, error: Exception) -> ProtocolError:
    why = "has a string that is not UTF-8" if isinstance(error, UnicodeDecodeError) else "ends early"
    return ProtocolError(f"{kind.__name__} v{version} of {size} bytes {why}")


def _new_reader(kind: type[Message], version: int) -> Reader:
    schema = kind.SCHEMA
    if not schema.first <= version <= schema.last:
        raise ProtocolError(f"{schema.name} has versions {schema.first} to {schema.last}, not {version}")
    reader = kind.READERS[version] = compile_reader(kind, version)
    return reader


def encode(message: Any, version: int) -> bytes:
    """The bytes of a message; slices given for records are read into them. Raises EncodeError."""
    return _join(_pieces(message, version))


def encode_parts(message: Any, version: int) -> list[Any]:
    """The bytes of a message in order, as bytes, and between them, as they are, the slices given for records."""
    return _merge(_pieces(message, version))


def _pieces(message: Any, version: int, *before: bytes) -> list[Any]:
    kind = type(message)
    writer = kind.WRITERS.get(version)
    if writer is None:
        schema = kind.SCHEMA
        if not schema.first <= version <= schema.last:
            raise EncodeError(f"{schema.name} has versions {schema.first} to {schema.last}, not {version}")
        writer = kind.WRITERS[version] = compile_writer(kind, version)
    pieces: list[Any] = [*before]
    try:
        writer(message, pieces.append)
    except _UNWRITABLE as error:
        title = f"{kind.__name__} v{version}"
        raise EncodeError(fault(kind.STRUCT, message, version, title) or f"{title}: {error}") from error
    return pieces


def _join(pieces: list[Any]) -> bytes:
    try:
        return b"".join(pieces)
    except TypeError:  # a slice is among them
        return b"".join([piece if isinstance(piece, bytes | memoryview) else piece.tobytes() for piece in pieces])


def _merge(pieces: list[Any]) -> list[Any]:
    merged: list[Any] = []
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
    """What goes before a request's body, which starts at `body_offset` of its frame; the frame's size is not part."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


def decode_request_header(frame: Buffer) -> RequestHeader:
    """The header of a request of any API that has a definition, at any version. Raises ProtocolError.

    Where the header depends on the version, one that the definition lacks is read like the last one; but for
    ApiVersions, whose later versions a broker must answer: there nothing past the client id is looked at.
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
    """It is never compact, so that a broker can read it whatever the version."""
    (size,) = _I16.unpack_from(data, position)
    position += _I16.size
    if size < 0:
        return None, position
    end = position + size
    if end > len(data):
        raise ProtocolError(f"a client id of {size} bytes goes past the end of its frame")
    return str(data[position:end], "utf-8"), end


def _skip_section(data: bytes | memoryview, position: int) -> int:
    count = data[position]
    position += 1
    if count > 0x7F:
        count, position = uvarint(data, position, count)
    return skip_tags(data, position, len(data), count)


def encode_request(api_key: int, version: int, correlation_id: int, client_id: str | None, message: Any) -> bytes:
    """A request with its header, without the size that frames it. Raises EncodeError."""
    return _join(_pieces(message, version, _request_header(api_key, version, correlation_id, client_id)))


def encode_request_parts(
    api_key: int, version: int, correlation_id: int, client_id: str | None, message: Any
) -> list[Any]:
    """As `encode_request`, in parts as `encode_parts` gives them; the lengths add up to what frames it."""
    return _merge(_pieces(message, version, _request_header(api_key, version, correlation_id, client_id)))


def _request_header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    header = _REQUEST.pack(api_key, version, correlation_id)
    if api_key != CONTROLLED_SHUTDOWN or version > 0:
        name = None if client_id is None else client_id.encode()
        header += _I16.pack(-1) if name is None else _I16.pack(len(name)) + name
    if version >= KNOWN[api_key].flexible_from:
        header += b"\0"
    return header


def encode_response(api_key: int, version: int, correlation_id: int, message: Any) -> bytes:
    """A response with its header, without the size that frames it. Raises EncodeError."""
    return _join(_pieces(message, version, response_header(api_key, version, correlation_id)))


def encode_response_parts(api_key: int, version: int, correlation_id: int, message: Any) -> list[Any]:
    """As `encode_response`, in parts as `encode_parts` gives them; the lengths add up to what frames it."""
    return _merge(_pieces(message, version, response_header(api_key, version, correlation_id)))


def response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    """The header of a response. ApiVersions has the oldest header at every version: its client does not know our
    versions yet (KIP-511)."""
    flexible = version >= KNOWN[api_key].flexible_from and api_key != API_VERSIONS
    return _I32.pack(correlation_id) + b"\0" if flexible else _I32.pack(correlation_id)


def encode_unsupported(correlation_id: int) -> bytes:
    """The answer to ApiVersions at a version that is not served: version 0, the error, and the versions of this one API
    for the client to ask again with (KIP-511)."""
    kind: Any = messages.message("ApiVersionsResponse")
    served = SERVED[API_VERSIONS]
    entry = kind.ApiKeys(api_key=API_VERSIONS, min_version=served.min_version, max_version=served.max_version)
    return encode_response(API_VERSIONS, 0, correlation_id, kind(error_code=UNSUPPORTED_VERSION, api_keys=[entry]))


def decode_response(api_key: int, version: int, frame: Buffer) -> tuple[int, Any]:
    """(correlation id, message) of a response to a request of that API and version. Raises ProtocolError.

    A broker that lacks the version of an ApiVersions request answers at version 0, with error 35; so is it read.
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
