"""Scratch space of library kernels: what every method of estimating knows of it.

On a CPU TensorFlow's convolutions, going backward, write every patch under the kernel
out in a row, for as many images as fill the cache, be there so many in the batch or
not; for one at a time where the threads share an image. The rule is that of its
kernels, and gives what was recorded. oneDNN's kernels, which TensorFlow takes unless it
is told not to, write out nothing.
"""

import math
import os
import sys
from collections.abc import Sequence

LARGEST_TRIAL = 4 << 30
"""TensorFlow and XLA allow cuDNN no more than this for an algorithm."""
FEW_CHANNELS = 4
"""Up to so many cuDNN has kernels of its own, which do not use tensor cores."""
SPLITS = 15
"""Partial sums of the gradient of a kernel, where cuDNN copies to channels last."""
RNN_GATES = {"LSTM": 4, "GRU": 3}
RNN_KEPT = {"LSTM": 5, "GRU": 6}
"""What cuDNN keeps for the gradient, in numbers per sample, time and unit: of an LSTM
the gates and the cell. Its own answers for a net of four layers, in PyTorch's issue
2895, come to these."""

_TILE, _NUMBERS = 4, 36
"""Winograd's F(4x4, 3x3): so many numbers stand for each tile of 4 by 4."""
_CACHE = 30 << 20
"""Bytes of the last cache of a processor, as TensorFlow takes them to be."""
_CACHE_OF_A_CORE = 256 << 10
"""Bytes of the second cache, likewise."""


def rnn_entries(kind: str, state: int, inputs: int, weights: int) -> int:
    """Return the entries of cuDNN's scratch space for an LSTM or a GRU.

    The input and the output packed, each gate's product with the input, and the weights
    twice.

    Args:
        kind: `"LSTM"` or `"GRU"`.
        state: entries of its output, of all samples and steps in time.
        inputs: entries that go in.
        weights: entries of all weights.
    """
    return (RNN_GATES[kind] + 1) * state + inputs + 2 * weights


def fourier_bytes(
    padded: Sequence[int], images: int, channel_pairs: int, width: int
) -> int:
    """Return the space of a convolution by Fourier transform of whole images.

    Each image in as many complex numbers as half a padded one has; the kernels twice:
    transformed, and turned round for the products.

    Args:
        padded: height and width of an image with its padding.
        images: planes of samples and channels, going in and coming out.
        channel_pairs: planes of the kernel.
        width: bytes of an entry.
    """
    plane = padded[0] * (padded[1] // 2 + 1) * 2 * width
    return (images + 2 * channel_pairs) * plane


def winograd_bytes(
    space: Sequence[int], samples: int, channels: tuple[int, int], width: int
) -> int:
    """Return the space of a convolution of 3 by 3 by Winograd's transforms.

    Images going in and coming out, and the kernel (Lavin and Gray, "Fast Algorithms for
    Convolutional Neural Networks", 2016).

    Args:
        space: height and width of an image.
        samples: images in the batch.
        channels: going in and coming out.
        width: bytes of an entry.
    """
    tiles = samples * math.prod(-(-n // _TILE) for n in space)
    return _NUMBERS * (tiles * sum(channels) + math.prod(channels)) * width


def padded_length(length: int, kernel: int) -> int:
    """Return the power of two that an axis is padded to for a Fourier transform."""
    return 1 << max(length + kernel - 2, 0).bit_length()


def unrolled_bytes(
    image: Sequence[int], kernel: Sequence[int], batch_size: int, width: int
) -> tuple[int, int]:
    """Return the scratch bytes of the gradient of a kernel, and of that of its input.

    They are none where oneDNN runs convolutions.

    Args:
        image: shape of one image that the convolution makes, channels last.
        kernel: shape of the kernel, the channels made last.
        batch_size: images in the batch.
        width: bytes of an entry.
    """
    if in_one_dnn():
        return 0, 0
    patches = math.prod(image[:-1]) * math.prod(kernel[:-1])
    work = (patches + math.prod(image) + math.prod(kernel)) * width
    filled_bytes = -(-_CACHE // work) * patches * width
    is_shared = batch_size == 1 or work // threads() >= _CACHE_OF_A_CORE
    return filled_bytes, patches * width if is_shared else filled_bytes


def in_one_dnn() -> bool:
    """Return whether oneDNN runs the convolutions of a TensorFlow started like this."""
    setting = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1").lower()
    return sys.platform != "darwin" and setting not in ("0", "false")


def threads() -> int:
    """Return the number of threads that run operations at once."""
    if hasattr(os, "sched_getaffinity"):  # a container may have a part of the cores
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
