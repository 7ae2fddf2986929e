"""The pieces of an array as HDF5's own filters store them, made and read much faster.

HDF5 shuffles the bytes of a piece, first bytes of all entries first, and deflates them.
Here libdeflate does it, zlib where that is missing. Of float weights the low bytes of
the mantissa are as good as random: these are stored in the stream as they are, which
takes no time to write and none to read.
"""

import zlib

import numpy as np

try:
    import deflate
except ImportError:  # no wheel for this machine: slower, and read all the same
    deflate = None

_DAMAGED = (zlib.error, deflate.DeflateError if deflate else zlib.error)

_SAMPLE_BYTES = 1 << 13
_WORTH_IT = 0.99
"""Deflated, a part takes at most so much of its bytes, or is left as it is."""

_MOST_STORED = 65535
"""Bytes of one stored block in a stream."""

_LEVEL, _LEVEL_OF_PLANES = 6, 3
"""In planes no sequence repeats: a longer search for one finds nothing."""


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
    sample = piece[: 4 * _SAMPLE_BYTES // width * width]
    plain, planes = (
        len(_raw(each.reshape(-1), _LEVEL))
        for each in (sample, shuffled(sample, width))
    )
    return planes < 0.98 * plain


def deflated(piece: np.ndarray, width: int) -> bytes | None:
    """Return a zlib stream of a piece, None if it would not be smaller.

    Args:
        piece: bytes, of the shape (entries * width,).
        width: bytes of an entry if they are shuffled first, else 1.
    """
    planes = shuffled(piece, width)
    level = _LEVEL if width == 1 else _LEVEL_OF_PLANES
    random = 0
    while random < width and not _deflates(planes[random]):
        random += 1
    if random == width:
        return None
    rest = _raw(planes[random:].reshape(-1), level)
    stream = b"".join(
        [
            b"\x78\x01",
            *_stored(planes[:random].reshape(-1)),
            rest,
            zlib.adler32(planes.data).to_bytes(4, "big"),
        ]
    )
    return stream if len(stream) < piece.size else None


def _deflates(plane: np.ndarray) -> bool:
    # From three places: what is alike in an array may be so in a part of it.
    starts = (0, plane.size // 2, plane.size - _SAMPLE_BYTES)
    samples = [plane[max(start, 0) :][:_SAMPLE_BYTES] for start in starts]
    size = sum(each.size for each in samples)
    return sum(len(_raw(each, 1)) for each in samples) < _WORTH_IT * size


def _stored(content: np.ndarray) -> list[bytes]:
    """Return the blocks of a stream that hold bytes as they are."""
    blocks = []
    for start in range(0, content.size, _MOST_STORED):
        block = content[start : start + _MOST_STORED]
        length = block.size
        head = b"\0" + length.to_bytes(2, "little")
        blocks += [head + (length ^ 0xFFFF).to_bytes(2, "little"), block.tobytes()]
    return blocks


def _raw(content: np.ndarray, level: int) -> bytes:
    """Return the last blocks of a stream, without what stands around them."""
    if deflate is not None:
        return bytes(deflate.deflate_compress(content, level))
    coder = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    return coder.compress(content.data) + coder.flush()


def inflated(stream: bytes, width: int, size: int) -> np.ndarray:
    """Return the bytes of a piece, of the shape (size,).

    Args:
        stream: what `deflated` returned, or HDF5 wrote.
        width: bytes of an entry if they were shuffled, else 1.
        size: bytes of the piece.

    Raises:
        ValueError: if the stream does not hold that.
    """
    try:
        if deflate is not None:
            content = deflate.zlib_decompress(stream, size)
        else:
            unpack = zlib.decompressobj()
            content = unpack.decompress(stream, size + 1)
            if not unpack.eof:
                raise ValueError("the stream does not end")
    except _DAMAGED as error:
        raise ValueError("the stream is damaged") from error
    if len(content) != size:
        raise ValueError("the stream has another length")
    planes = np.frombuffer(content, np.uint8).reshape(width, -1)
    return np.ascontiguousarray(planes.T).reshape(-1)
