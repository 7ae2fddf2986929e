"""Fast compression compatible with HDF5's shuffle and deflate filters.

HDF5 groups the bytes of all entries by position and deflates the result. This module
uses libdeflate. The low mantissa bytes of float weights are nearly random. They are
stored uncompressed in the stream, which costs almost no time.
"""

import zlib
from collections.abc import Callable

import deflate
import numpy as np

from kerasmem.errors import ModelFileError

crc32 = deflate.crc32
"""Same result as `zlib.crc32`, sixteen times faster."""

_SAMPLE_BYTES = 1 << 12
_WORTH_IT = 0.98
"""Maximum ratio of deflated to plain bytes. Otherwise, a part stays uncompressed."""

_MOST_FOR_SPEED = 1.02
"""Maximum ratio of bytes without and with a search for repetitions."""

_MOST_STORED = 65535
"""Maximum bytes of a stored block."""

_LEVEL = 6
_END = b"\x03\0"
"""An empty last block."""


def shuffled(piece: np.ndarray, width: int) -> np.ndarray:
    """Groups bytes by position: (entries * width,) becomes (width, entries)."""
    return np.ascontiguousarray(piece.reshape(-1, width).T)


def better_shuffled(piece: np.ndarray, width: int) -> bool:
    """Returns whether the start of a chunk compresses better after shuffling.

    Zeros among float weights interrupt similar runs of leading bytes.
    """
    if width == 1:
        return False
    sample = piece[: 8 * _SAMPLE_BYTES // width * width]
    plain, planes = (len(_deflated(each)) for each in (sample, shuffled(sample, width)))
    return planes < 0.98 * plain


def deflated(piece: np.ndarray, width: int) -> bytes | None:
    """Returns a zlib stream, or `None` if it would not be smaller.

    `width` is the number of bytes per entry for shuffling, or 1 without shuffling.
    """
    planes = shuffled(piece, width)
    how = [_how(plane) for plane in planes]
    deflated_planes = [place for place, each in enumerate(how) if each is not _stored]
    if not deflated_planes:
        return None
    if _deflated not in how:
        blocks = [block(plane) for block, plane in zip(how, planes, strict=True)]
        blocks.append(_END)
    else:  # repetitions may extend over several planes
        blocks = [
            _stored(planes[: deflated_planes[0]]),
            _deflated(planes[deflated_planes[0] :]),
        ]
    adler = deflate.adler32(planes.reshape(-1).data).to_bytes(4, "big")
    stream = b"".join([b"\x78\x01", *blocks, adler])
    return stream if len(stream) < piece.size else None


def inflated(stream: bytes, width: int, size: int) -> np.ndarray:
    """Inflates a stream of `deflated` to `size` bytes.

    Raises `ModelFileError` if the stream is damaged.
    """
    try:
        planes = np.frombuffer(deflate.zlib_decompress(stream, size), np.uint8)
        return np.ascontiguousarray(planes.reshape(width, size // width).T)
    except (deflate.DeflateError, ValueError) as error:
        raise ModelFileError("A deflated array is damaged.") from error


def _how(plane: np.ndarray) -> Callable[[np.ndarray], bytes]:
    starts = (0, plane.size // 2, plane.size - _SAMPLE_BYTES)
    sample = np.concatenate([plane[max(n, 0) :][:_SAMPLE_BYTES] for n in starts])
    repeating, alone = len(_raw(sample, 1)), len(_by_frequency(sample))
    if min(repeating, alone) >= _WORTH_IT * sample.size:
        return _stored
    return _by_frequency if alone < _MOST_FOR_SPEED * repeating else _deflated


def _stored(content: np.ndarray) -> bytes:
    content, blocks = content.reshape(-1), []
    for start in range(0, content.size, _MOST_STORED):
        block = content[start : start + _MOST_STORED]
        length = block.size
        head = b"\0" + length.to_bytes(2, "little")
        blocks += [head + (length ^ 0xFFFF).to_bytes(2, "little"), block.tobytes()]
    return b"".join(blocks)


def _by_frequency(content: np.ndarray) -> bytes:
    """Compresses with Huffman coding only, which is faster.

    Exponents of trained weights have no repetitions worth a search.
    """
    how = (_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, 9)
    coder = zlib.compressobj(*how, zlib.Z_HUFFMAN_ONLY)
    return coder.compress(content.data) + coder.flush(zlib.Z_SYNC_FLUSH)


def _deflated(content: np.ndarray) -> bytes:
    return _raw(content.reshape(-1), _LEVEL)


def _raw(content: np.ndarray, level: int) -> bytes:
    return bytes(deflate.deflate_compress(content, level))
