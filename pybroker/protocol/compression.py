"""The codecs of record batches: gzip, snappy, lz4 and zstd, none of which can be made to fill memory.

What comes out of `decompress` is bounded by its caller, whatever the input says of itself; at most about twice that
much is held for a moment. It runs without the GIL, but for as long as it takes: large input belongs on a thread.

A broker stores nothing that some client's library refuses, so what is undone here is undone by the strict: lz4 in core,
snappy and zstd by `cramjam`, gzip by zlib (`isal` takes a reserved flag). Frames are made by the fast: `lz4`,
`zstandard`, and `isal` at gzip's default level. The packages are imported at their first use.
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

Buffer = bytes | bytearray | memoryview

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""The names that configs have for codecs; their places are the numbers that batches have, in attribute bits 0 to 2."""

LZ4: Final = CODECS.index("lz4")
BATCH_HEADER_BYTES: Final = 61
PLAIN_BYTES_MAX: Final = 100 << 20
"""What one batch may become when it is decompressed, about the largest request that brought it."""

_GZIP_WINDOW: Final = 31  # zlib's wbits for 32 KiB in a gzip wrapper
_GZIP_LEVEL: Final = 2
"""Of isal, which has 0 to 3: as small as zlib's default makes it, in half of the time and less."""
_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_HEAD_BYTES: Final = 10
_GZIP_FLAGS_AT: Final = 3
_GZIP_TAIL_BYTES: Final = 18  # or fewer that follow a member are none: Java's reader asks for more before it looks
_GZIP_DEFLATE: Final = b"\x08"
_GZIP_CRC: Final = 0x02
_GZIP_EXTRA: Final = 0x04
_GZIP_NAME: Final = 0x08
_GZIP_COMMENT: Final = 0x10
_GZIP_HEAD: Final = _GZIP_MAGIC + _GZIP_DEFLATE + bytes(_GZIP_HEAD_BYTES - 3)  # of no flags
_GZIP_STEP_BYTES: Final = 256
_GZIP_STEP_BYTES_MAX: Final = 1 << 20
"""A member is fed in steps that double: zlib copies what follows the end of one, and there may be a great many."""

# snappy-java's framing, which Kafka's clients use: magic, version, oldest compatible version, then blocks with an i32
# of length each. librdkafka also takes and older clients sent snappy's raw format, one block and nothing else.
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + (1).to_bytes(4, "big") * 2
_XERIAL_LENGTH_BYTES: Final = 4
_XERIAL_BLOCK_BYTES: Final = 1 << 15
_SNAPPY_RATIO_MAX: Final = 32  # its best element makes 64 bytes of three

_GUESS_BYTES: Final = 1 << 16
_GUESS_RATIO: Final = 8
_FULL: Final = "failed to write whole buffer"  # what cramjam says when its output does not fit


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`data` as Kafka's clients read it; `level` as the codec counts them, None for its default, ignored by snappy.

    Raises KafkaError 76 for a codec that is none."""
    if codec == 0:
        return bytes(data)
    return _of(_COMPRESSORS, codec)(data, level)


def compressor(codec: int, level: int | None) -> Callable[[Buffer], bytes] | None:
    """What applies a codec at a level; None for the codec that is none. Core makes frames of lz4 by itself, straight
    into a batch, where it finds the library."""
    if codec == LZ4:
        with contextlib.suppress(ValueError):
            return Lz4Compressor(_lz4_level(level))
    return partial(compress, codec, level=level) if codec else None


def decompress(codec: int, data: Buffer, max_bytes: int) -> bytes:
    """What `data` was before. Raises KafkaError: 10 if that is more than max_bytes, 2 if data is cut, followed by
    something else, or otherwise not what the codec writes, 76 for a codec that is none."""
    if codec == 0:
        if len(data) > max_bytes:
            raise _too_large(codec, max_bytes)
        return bytes(data)
    return _of(_DECOMPRESSORS, codec)(codec, data, max_bytes)


def decompress_stored(codec: int, data: Buffer, max_bytes: int) -> bytes:
    """Decompress what a broker has stored, Apache Kafka's too: as tolerantly as the decoders of its Java clients.

    It ignores what follows the data, reserved flags of gzip, and the size and checksum of an lz4 frame's content. Such
    a frame ends at a block of no bytes."""
    return _STORED.get(codec, decompress)(codec, data, max_bytes)


def open_batch(batch: Buffer, header: BatchHeader, *, strict: bool = False) -> Buffer:
    """The records section of a batch, decompressed; strict: of one to be stored. Raises KafkaError:
    CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, UNSUPPORTED_COMPRESSION_TYPE."""
    payload = memoryview(batch)[BATCH_HEADER_BYTES : header.size]
    if header.codec == LZ4:  # as core made them: no copy
        return memoryview(_undone(LZ4, payload, PLAIN_BYTES_MAX, strict=strict))
    if not header.codec:
        return payload
    return (decompress if strict else decompress_stored)(header.codec, payload, PLAIN_BYTES_MAX)


def _of(table: dict[int, Callable[..., bytes]], codec: int) -> Callable[..., bytes]:
    if codec not in table:
        raise KafkaError(UNSUPPORTED_COMPRESSION_TYPE, f"no codec has the number {codec}")
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
    """The place where the header of a member that begins at `start` ends; -1 if Java's reader takes none there.

    It ignores reserved flags, and looks at the checksum of the header. A name and a comment may be of any length."""
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
    """The place behind the next byte of 0; beyond the end if there is none."""
    while at < len(view):
        piece = bytes(view[at : at + _GZIP_STEP_BYTES])
        end = piece.find(0)
        if end >= 0:
            return at + end + 1
        at += len(piece)
    return len(view) + 1


def _gunzip(codec: int, data: Buffer, max_bytes: int, *, strict: bool = True) -> bytes:
    """One member or several, as gzip allows; what else follows is refused if `strict`.

    If not, it reads like GZIPInputStream: what is no header behind a member is the end."""
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
            member.decompress(_GZIP_HEAD)  # zlib then checks the length and the CRC behind the data
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
    """One block, or xerial's frame of blocks. If not `strict` a header may stand again where a block would begin, and
    less than a length ends it, as with SnappyInputStream."""
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
            raise _corrupt(codec, f"a block of {size} bytes goes past its end")
        made.append(_unsnappy_block(codec, view[position : position + size], left, max_bytes))
        left -= len(made[-1])
        position += size
    return b"".join(made)


def _unsnappy_block(codec: int, block: memoryview, left: int, max_bytes: int) -> bytes:
    """The size that a block says it makes is believed only where a block of its length can make as much."""
    import cramjam

    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > left:
            raise _too_large(codec, max_bytes)
        if size > len(block) * _SNAPPY_RATIO_MAX:
            raise _corrupt(codec, f"{len(block)} bytes say that they make {size}")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise _corrupt(codec, error) from None


# -- lz4 and zstd ----------------------------------------------------------------------------------------------------


_CONTEXTS_MAX: Final = 4
_CONTEXT_BYTES_MAX: Final = 16 << 20
"""One of a high level has hundreds of MiB after a large batch."""


_ZSTD_LEVEL: Final = 3
_ZSTD_TABLES: Final = {"hash_log": 16, "chain_log": 14}
"""Of that level, for what is larger than 16 KiB: 320 KiB, where the library takes 768 for a batch of 1 MiB. More of it
is near the core, and fewer short matches hide a longer one: docs/performance.md has speeds and sizes."""


LEVELS: Final = {"gzip": (-1, 9), "lz4": (-1, 17), "zstd": (-131072, 22)}
"""The lowest and the highest that the codecs have; -1 is the default of gzip and lz4."""


class _Contexts(threading.local):
    """What a thread compresses with: to make one costs more than to compress a small batch. Of a few levels, and small
    ones, are kept."""

    def __init__(self) -> None:
        self.zstd: dict[int, Any] = {}


_contexts = _Contexts()


def _lz4_level(level: int | None) -> int:
    return max(level or 0, 0)


def _lz4(data: Buffer, level: int | None) -> bytes:
    """A frame of blocks that do not refer to each other, which is all that Kafka reads, of 64 KiB, as Kafka's own."""
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
    """Into a buffer that is large enough for what is usual, and if not, into one of max_bytes whose pages are only
    made as they are written. Either bounds what the library writes. By `cramjam`, which refuses what a consumer's
    library may refuse; columns are undone in core."""
    import cramjam

    guess = max(_GUESS_BYTES, _GUESS_RATIO * len(data))
    try:
        if guess < max_bytes:
            try:
                return _unzstd_into(data, bytearray(guess))
            except cramjam.DecompressionError as error:
                if _FULL not in str(error):
                    raise
        with mmap.mmap(-1, max_bytes + 1) as pages:  # one more, as there are no maps of none
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
