"""Decodes frames of responses, and detects peers that do not speak Kafka's protocol."""

import struct
from typing import Any, Final

from pybroker import errors
from pybroker.errors import KafkaError
from pybroker.protocol import codec
from pybroker.protocol.apis import Api

FRAME_BYTES_MAX: Final = 256 << 20
"""The largest response that is accepted: as large as a Fetch response may be, and far smaller than the first four
characters of a text protocol taken as a size, so that HTTP servers are detected."""

SIZE: Final = struct.Struct(">i")
"""The size field at the beginning of a frame: the number of bytes that follow."""

PERHAPS_TLS: Final = "the port may need TLS (security.protocol SSL or SASL_SSL)"
_TLS_ALERT: Final = b"\x15\x03"
"""The beginning of a TLS server's response to other protocols: an alert, then the first byte of the version."""


def frame_size(data: bytes | bytearray | memoryview, address: str, position: int = 0) -> int:
    """Return the size of a frame. Raises NETWORK_EXCEPTION if no response can have this size."""
    size: int = SIZE.unpack_from(data, position)[0]
    if data[position : position + len(_TLS_ALERT)] == _TLS_ALERT:
        raise KafkaError(errors.NETWORK_EXCEPTION, f"{address} sent a TLS alert: {PERHAPS_TLS}")
    if not SIZE.size <= size <= FRAME_BYTES_MAX:
        what = f"an answer of {size} bytes, where {SIZE.size} to {FRAME_BYTES_MAX} are possible"
        raise nonsense(address, what)
    return size


def read_answer(api: Api, version: int, correlation_id: int, frame: bytes | memoryview, address: str) -> Any:
    """Decode the response to this request from a frame. Raises NETWORK_EXCEPTION if it is not one."""
    try:
        answered_id, answer = codec.decode_response(api.key, version, frame)
    except codec.ProtocolError as error:
        what = f"an answer to {api.name} {version} that does not parse: {error.message}"
        raise nonsense(address, what) from error
    if answered_id != correlation_id:
        raise nonsense(address, f"an answer to request {answered_id}, where {correlation_id} was asked")
    return answer


def nonsense(address: str, what: str) -> KafkaError:
    """The error for a peer that sent something that no broker would send."""
    return KafkaError(errors.NETWORK_EXCEPTION, f"{address} does not speak Kafka's protocol: it sent {what}")
