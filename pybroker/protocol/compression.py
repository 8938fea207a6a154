"""The codecs of record batches: gzip, snappy, lz4 and zstd, with bounded memory.

The caller bounds the output of `decompress`, regardless of sizes in the input; up to about twice as much memory is used
for a moment. It runs without the GIL, but may take long: decompress large input on a thread.

A broker must not store data that some client's library refuses, so strict libraries decompress: lz4 in core, snappy and
zstd by `cramjam`, gzip by zlib (`isal` accepts a reserved flag). Fast libraries compress: `lz4`, `zstandard`, and
`isal` at gzip's default level. The packages are imported at their first use.
"""

import contextlib
import mmap
import threading
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from pybroker.core import BatchHeader, Block, LogError, Lz4Compressor, undo
from pybroker.errors import CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, UNSUPPORTED_COMPRESSION_TYPE, KafkaError
from pybroker.model import CODECS

Buffer = bytes | bytearray | memoryview

LZ4: Final = CODECS.index("lz4")
BATCH_HEADER_BYTES: Final = 61
PLAIN_BYTES_MAX: Final = 100 << 20
"""The most bytes of a decompressed batch, about the size of the largest request."""

_GZIP_WINDOW: Final = 31  # zlib's wbits for 32 KiB in a gzip wrapper
_GZIP_LEVEL: Final = 2
"""The level of isal, from 0 to 3: as small as with zlib's default, in less than half of the time."""
_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_HEAD_BYTES: Final = 10
_GZIP_FLAGS_AT: Final = 3
_GZIP_TAIL_BYTES: Final = 18  # so few bytes after a member are ignored: Java's reader needs more
_GZIP_DEFLATE: Final = b"\x08"
_GZIP_CRC: Final = 0x02
_GZIP_EXTRA: Final = 0x04
_GZIP_NAME: Final = 0x08
_GZIP_COMMENT: Final = 0x10
_GZIP_HEAD: Final = _GZIP_MAGIC + _GZIP_DEFLATE + bytes(_GZIP_HEAD_BYTES - 3)  # without flags
_GZIP_STEP_BYTES: Final = 256
_GZIP_STEP_BYTES_MAX: Final = 1 << 20
"""A member is decompressed in steps that double in size, as zlib copies all input after its end, and there may be many
members."""

# snappy-java's framing, which Kafka's clients use: magic, version, oldest compatible version, then blocks, each after
# an i32 length. librdkafka also accepts, and older clients sent, snappy's raw format, which is one block.
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + (1).to_bytes(4, "big") * 2
_XERIAL_LENGTH_BYTES: Final = 4
_XERIAL_BLOCK_BYTES: Final = 1 << 15
_SNAPPY_RATIO_MAX: Final = 32  # the best element expands 3 bytes to 64

_GUESS_BYTES: Final = 1 << 16
_GUESS_RATIO: Final = 8
_FULL: Final = "failed to write whole buffer"  # cramjam's error if the output does not fit


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compress data in the format of Kafka's clients. `level` None: the codec's default; snappy ignores it.

    Raises UNSUPPORTED_COMPRESSION_TYPE for an unknown codec."""
    if codec == 0:
        return bytes(data)
    return _of(_COMPRESSORS, codec)(data, level)


def compressor(codec: int, level: int | None) -> Callable[[Buffer], bytes] | None:
    """A function that compresses with a codec at a level; None for codec 0. Core itself writes lz4 frames, directly
    into a batch, if it finds the library."""
    if codec == LZ4:
        with contextlib.suppress(ValueError):
            return Lz4Compressor(_lz4_level(level))
    return partial(compress, codec, level=level) if codec else None


def decompress(codec: int, data: Buffer, max_bytes: int) -> bytes:
    """Decompress data. Raises MESSAGE_TOO_LARGE if the result exceeds max_bytes, CORRUPT_MESSAGE if data is truncated,
    malformed or followed by other bytes, UNSUPPORTED_COMPRESSION_TYPE for an unknown codec."""
    if codec == 0:
        if len(data) > max_bytes:
            raise _too_large(codec, max_bytes)
        return bytes(data)
    return _of(_DECOMPRESSORS, codec)(codec, data, max_bytes)


def decompress_stored(codec: int, data: Buffer, max_bytes: int) -> bytes:
    """Decompress data stored by a broker, also by Apache Kafka, as tolerantly as the decoders of Java clients.

    Ignores bytes after the data, reserved flags of gzip, and the size and checksum of an lz4 frame's content. Such a
    frame ends at an empty block."""
    return _STORED.get(codec, decompress)(codec, data, max_bytes)


def open_batch(batch: Buffer, header: BatchHeader, *, strict: bool = False) -> Buffer:
    """Return the records section of a batch, decompressed; `strict` for a batch that is about to be stored. Raises
    CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, UNSUPPORTED_COMPRESSION_TYPE."""
    payload = memoryview(batch)[BATCH_HEADER_BYTES : header.size]
    if header.codec == LZ4:  # core's buffer, without a copy
        return memoryview(_undone(LZ4, payload, PLAIN_BYTES_MAX, strict=strict))
    if not header.codec:
        return payload
    return (decompress if strict else decompress_stored)(header.codec, payload, PLAIN_BYTES_MAX)


def _of(table: dict[int, Callable[..., bytes]], codec: int) -> Callable[..., bytes]:
    if codec not in table:
        raise KafkaError(UNSUPPORTED_COMPRESSION_TYPE, f"unknown codec {codec}: it must be 0 to {len(CODECS) - 1}")
    return table[codec]


def _too_large(codec: int, max_bytes: int) -> KafkaError:
    return KafkaError(MESSAGE_TOO_LARGE, f"{CODECS[codec]} data holds more than {max_bytes} bytes")


def _corrupt(codec: int, why: object) -> KafkaError:
    return KafkaError(CORRUPT_MESSAGE, f"{CODECS[codec]} data cannot be decompressed: {why}")


# -- gzip ------------------------------------------------------------------------------------------------------------


def _gzip(data: Buffer, level: int | None) -> bytes:
    if level is None or level == -1:
        from isal import isal_zlib

        return isal_zlib.compress(data, _GZIP_LEVEL, _GZIP_WINDOW)
    return zlib.compress(data, level, _GZIP_WINDOW)


def _gzip_header_end(view: memoryview, start: int) -> int:
    """The end of the member header that begins at `start`; -1 if Java's reader finds no header there.

    Like that reader this ignores reserved flags and checks the header's CRC. Name and comment may have any length."""
    head = bytes(view[start : start + _GZIP_HEAD_BYTES])
    if len(head) < _GZIP_HEAD_BYTES or not head.startswith(_GZIP_MAGIC + _GZIP_DEFLATE):
        return -1
    flags, at = head[_GZIP_FLAGS_AT], start + _GZIP_HEAD_BYTES
    if flags & _GZIP_EXTRA:
        at += 2 + int.from_bytes(view[at : at + 2], "little")
    if flags & _GZIP_NAME:
        at = _past_zero(view, at)
    if flags & _GZIP_COMMENT:
        at = _past_zero(view, at)
    if flags & _GZIP_CRC:
        said, at = bytes(view[at : at + 2]), at + 2
        if said != (zlib.crc32(view[start : at - 2]) & 0xFFFF).to_bytes(2, "little"):
            return -1
    return at if at <= len(view) else -1


def _past_zero(view: memoryview, at: int) -> int:
    """The position after the next zero byte; beyond the end if there is none."""
    while at < len(view):
        piece = bytes(view[at : at + _GZIP_STEP_BYTES])
        end = piece.find(0)
        if end >= 0:
            return at + end + 1
        at += len(piece)
    return len(view) + 1


def _gunzip(codec: int, data: Buffer, max_bytes: int, *, strict: bool = True) -> bytes:
    """Decompress one or several gzip members. If `strict`, other bytes after a member are refused; if not, they are
    taken as the end, as by Java's GZIPInputStream."""
    view = memoryview(data)
    made: list[bytes] = []
    left, position = max_bytes, 0
    while True:
        member, step = zlib.decompressobj(_GZIP_WINDOW), _GZIP_STEP_BYTES
        if not strict:
            begin = _gzip_header_end(view, position)
            if begin < 0 and position:
                return b"".join(made)
            if begin < 0:
                raise _corrupt(codec, "its header is damaged or cut")
            member.decompress(_GZIP_HEAD)  # so that zlib checks the length and CRC after the data
            position = begin
        while not member.eof:
            piece = view[position : position + step]
            if not piece:
                raise _corrupt(codec, "it ends early")
            try:
                made.append(member.decompress(piece, left + 1))
            except zlib.error as error:
                raise _corrupt(codec, error) from None
            left -= len(made[-1])
            if left < 0:
                raise _too_large(codec, max_bytes)
            position += len(piece) - len(member.unused_data)
            step = min(2 * step, _GZIP_STEP_BYTES_MAX)
        if position == len(view) or (not strict and len(view) - position <= _GZIP_TAIL_BYTES):
            return b"".join(made)
        if strict and bytes(view[position : position + len(_GZIP_MAGIC)]) != _GZIP_MAGIC:
            raise _corrupt(codec, f"{len(view) - position} bytes follow it")


# -- snappy ----------------------------------------------------------------------------------------------------------


def _snappy(data: Buffer, level: int | None) -> bytes:
    import cramjam

    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += [len(block).to_bytes(4, "big"), block]
    return b"".join(parts)


def _unsnappy(codec: int, data: Buffer, max_bytes: int, *, strict: bool = True) -> bytes:
    """Decompress one block, or a xerial frame of blocks. If not `strict`, a header may be repeated before a block, and
    an incomplete length ends the frame, as in Java's SnappyInputStream."""
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _unsnappy_block(codec, view, max_bytes, max_bytes)
    if len(view) < len(_XERIAL_HEADER):
        raise _corrupt(codec, "it ends early")
    made: list[bytes] = []
    left = max_bytes
    position = len(_XERIAL_HEADER)
    while position < len(view):
        if not strict and len(view) - position < _XERIAL_LENGTH_BYTES:
            break
        if not strict and bytes(view[position : position + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)
            continue
        size = int.from_bytes(view[position : position + _XERIAL_LENGTH_BYTES], "big")
        position += _XERIAL_LENGTH_BYTES
        if size > len(view) - position:
            raise _corrupt(codec, f"a block of {size} bytes exceeds the data")
        made.append(_unsnappy_block(codec, view[position : position + size], left, max_bytes))
        left -= len(made[-1])
        position += size
    return b"".join(made)


def _unsnappy_block(codec: int, block: memoryview, left: int, max_bytes: int) -> bytes:
    """Decompress a block, after checking that its stated size is possible for its length."""
    import cramjam

    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > left:
            raise _too_large(codec, max_bytes)
        if size > len(block) * _SNAPPY_RATIO_MAX:
            raise _corrupt(codec, f"{len(block)} bytes cannot expand to {size}")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise _corrupt(codec, error) from None


# -- lz4 and zstd ----------------------------------------------------------------------------------------------------


_CONTEXTS_MAX: Final = 4
_CONTEXT_BYTES_MAX: Final = 16 << 20
"""The largest context that is kept; at a high level one takes hundreds of MiB after a large batch."""


_ZSTD_LEVEL: Final = 3
_ZSTD_TABLES: Final = {"hash_log": 16, "chain_log": 14}
"""The tables of that level for input above 16 KiB: 320 KiB, where the library takes 768 KiB for a batch of 1 MiB. They
fit better into CPU caches, and fewer short matches hide longer ones: docs/performance.md has speeds and sizes."""


LEVELS: Final = {"gzip": (-1, 9), "lz4": (-1, 17), "zstd": (-131072, 22)}
"""The lowest and highest level of each codec; -1 is the default of gzip and lz4."""


class _Contexts(threading.local):
    """The compression contexts of a thread: creating one takes longer than compressing a small batch. Only small ones,
    and those of a few levels, are kept."""

    def __init__(self) -> None:
        self.zstd: dict[int, Any] = {}


_contexts = _Contexts()


def _lz4_level(level: int | None) -> int:
    return max(level or 0, 0)


def _lz4(data: Buffer, level: int | None) -> bytes:
    """Compress to a frame of independent blocks, the only kind that Kafka supports, of 64 KiB, as Kafka does."""
    from lz4 import frame

    return bytes(
        frame.compress(
            data, compression_level=_lz4_level(level), block_size=frame.BLOCKSIZE_MAX64KB,
            block_linked=False, store_size=False,
        )
    )  # fmt: skip


def _zstd(data: Buffer, level: int | None) -> bytes:
    wanted = _ZSTD_LEVEL if level is None else level
    kept = _contexts.zstd
    compressor = kept.get(wanted)
    if compressor is None:
        import zstandard

        tables = _ZSTD_TABLES if wanted == _ZSTD_LEVEL else {}
        settings = zstandard.ZstdCompressionParameters(compression_level=wanted, **tables)
        compressor = zstandard.ZstdCompressor(compression_params=settings)
    made = bytes(compressor.compress(data))
    if compressor.memory_size() <= _CONTEXT_BYTES_MAX and (wanted in kept or len(kept) < _CONTEXTS_MAX):
        kept[wanted] = compressor
    else:
        kept.pop(wanted, None)
    return made


def _unlz4(codec: int, data: Buffer, max_bytes: int) -> bytes:
    return bytes(_undone(codec, data, max_bytes, strict=True))


def _undo_stored(codec: int, data: Buffer, max_bytes: int) -> bytes:
    try:
        return bytes(_undone(codec, data, max_bytes, strict=False))
    except ValueError:  # there is no libzstd
        return decompress(codec, data, max_bytes)


def _undone(codec: int, data: Buffer, max_bytes: int, *, strict: bool) -> Block:
    try:
        return undo(codec, data, max_bytes, strict)
    except LogError as error:
        raise (_too_large(codec, max_bytes) if error.code == MESSAGE_TOO_LARGE else _corrupt(codec, error)) from None


def _unzstd(codec: int, data: Buffer, max_bytes: int) -> bytes:
    """Decompress into a buffer of the usual size, and if that is too small into one of max_bytes, whose pages are
    allocated as they are written. Either bounds the output. Uses `cramjam`, which is as strict as clients' libraries.
    """
    import cramjam

    guess = max(_GUESS_BYTES, _GUESS_RATIO * len(data))
    try:
        if guess < max_bytes:
            try:
                return _unzstd_into(data, bytearray(guess))
            except cramjam.DecompressionError as error:
                if _FULL not in str(error):
                    raise
        with mmap.mmap(-1, max_bytes + 1) as pages:  # one more, as a map cannot be empty
            made = _unzstd_into(data, pages)
    except cramjam.DecompressionError as error:
        raise (_too_large(codec, max_bytes) if _FULL in str(error) else _corrupt(codec, error)) from None
    if len(made) > max_bytes:
        raise _too_large(codec, max_bytes)
    return made


def _unzstd_into(data: Buffer, buffer: Any) -> bytes:
    import cramjam

    size = cramjam.zstd.decompress_into(data, buffer)
    with memoryview(buffer) as view:
        return bytes(view[:size])


_COMPRESSORS: Final[dict[int, Callable[..., bytes]]] = {1: _gzip, 2: _snappy, 3: _lz4, 4: _zstd}
_DECOMPRESSORS: Final[dict[int, Callable[..., bytes]]] = {1: _gunzip, 2: _unsnappy, 3: _unlz4, 4: _unzstd}
_STORED: Final[dict[int, Callable[..., bytes]]] = {
    1: partial(_gunzip, strict=False),
    2: partial(_unsnappy, strict=False),
    3: _undo_stored,
    4: _undo_stored,
}
