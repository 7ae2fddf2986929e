"""The pieces of an array as HDF5's own filters store them, made much faster.

HDF5 shuffles the bytes of a piece, first bytes of all entries first, and deflates them.
Here libdeflate does it. Of float weights the low bytes of the mantissa are as good as
random: these are stored in the stream as they are, which takes no time to write and
none to read.
"""

import zlib
from collections.abc import Callable

import deflate
import numpy as np

crc32 = deflate.crc32
"""As that of zlib, sixteen times as fast."""

_SAMPLE_BYTES = 1 << 12
_WORTH_IT = 0.98
"""Deflated, a part takes at most so much of its bytes, or is left as it is."""

_MOST_FOR_SPEED = 1.02
"""So many times the bytes are taken if there is no search for what repeats."""

_MOST_STORED = 65535
"""Bytes of one stored block in a stream."""

_LEVEL = 6
_END = b"\x03\0"
"""A last block, of nothing."""


def shuffled(piece: np.ndarray, width: int) -> np.ndarray:
    """Return the bytes of a piece with those of one place in each entry together.

    Args:
        piece: bytes, of the shape (entries * width,).
        width: bytes of an entry.

    Returns:
        Bytes of the shape (width, entries).
    """
    return np.ascontiguousarray(piece.reshape(-1, width).T)


def better_shuffled(piece: np.ndarray, width: int) -> bool:
    """Return whether the beginning of a piece deflates better if it is shuffled.

    Zeros among float weights break up what is alike in their first bytes.
    """
    if width == 1:
        return False
    sample = piece[: 8 * _SAMPLE_BYTES // width * width]
    plain, planes = (len(_deflated(each)) for each in (sample, shuffled(sample, width)))
    return planes < 0.98 * plain


def deflated(piece: np.ndarray, width: int) -> bytes | None:
    """Return a zlib stream of a piece, None if it would not be smaller.

    Args:
        piece: bytes, of the shape (entries * width,).
        width: bytes of an entry if they are shuffled first, else 1.
    """
    planes = shuffled(piece, width)
    how = [_how(plane) for plane in planes]
    deflated_planes = [place for place, each in enumerate(how) if each is not _stored]
    if not deflated_planes:
        return None
    if _deflated not in how:
        blocks = [block(plane) for block, plane in zip(how, planes, strict=True)]
        blocks.append(_END)
    else:  # what repeats may do so in all planes
        blocks = [
            _stored(planes[: deflated_planes[0]]),
            _deflated(planes[deflated_planes[0] :]),
        ]
    adler = deflate.adler32(planes.reshape(-1).data).to_bytes(4, "big")
    stream = b"".join([b"\x78\x01", *blocks, adler])
    return stream if len(stream) < piece.size else None


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
    """Return blocks in which each byte is coded by itself: faster, by Huffman alone.

    In the exponents of trained weights no sequence repeats that is worth a search.
    """
    how = (_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, 9)
    coder = zlib.compressobj(*how, zlib.Z_HUFFMAN_ONLY)
    return coder.compress(content.data) + coder.flush(zlib.Z_SYNC_FLUSH)


def _deflated(content: np.ndarray) -> bytes:
    return _raw(content.reshape(-1), _LEVEL)


def _raw(content: np.ndarray, level: int) -> bytes:
    return bytes(deflate.deflate_compress(content, level))
