"""Scratch space of library kernels, shared by all estimation methods.

On a CPU, the gradients of TensorFlow convolutions unroll image patches. The number of
images is chosen to fill the cache, independent of the batch size. If the threads share
an image, one image is unrolled at a time. This rule follows TensorFlow's kernels and
matches recorded steps. oneDNN kernels, which are the default, unroll nothing.
"""

import math
import os
import sys
from collections.abc import Sequence

LARGEST_TRIAL = 4 << 30
"""Maximum scratch space that TensorFlow and XLA allow cuDNN for an algorithm."""
FEW_CHANNELS = 4
"""cuDNN has special kernels without tensor cores up to this number of channels."""
SPLITS = 15
"""Partial sums of a kernel gradient if cuDNN copies the operands to channels last."""
RNN_GATES = {"LSTM": 4, "GRU": 3}
RNN_KEPT = {"LSTM": 5, "GRU": 6}
"""Values that cuDNN saves for the gradient per sample, time step and unit. For an LSTM,
these are the gates and the cell state. cuDNN's own numbers for a network of four
layers, in PyTorch issue 2895, agree."""

_TILE, _NUMBERS = 4, 36
"""Winograd's F(4x4, 3x3): numbers per tile of 4 by 4."""
_CACHE = 30 << 20
"""Bytes of the last-level cache, as assumed by TensorFlow."""
_CACHE_OF_A_CORE = 256 << 10
"""Bytes of the second-level cache, as assumed by TensorFlow."""


def rnn_entries(kind: str, state: int, inputs: int, weights: int) -> int:
    """Return the entries of cuDNN's scratch space for an LSTM or a GRU.

    These are the packed input and output, the product of each gate with the input, and
    two copies of the weights. `state`, `inputs` and `weights` are numbers of entries.
    """
    return (RNN_GATES[kind] + 1) * state + inputs + 2 * weights


def fourier_bytes(
    padded: Sequence[int], images: int, channel_pairs: int, width: int
) -> int:
    """Return the scratch bytes of a convolution by Fourier transform of whole images.

    The spectrum of an image has half the entries of the padded image, as complex
    numbers. The kernels are stored twice: transformed, and transposed for the products.
    `padded` is the height and width of a padded image. `images` and `channel_pairs` are
    numbers of planes.
    """
    plane = padded[0] * (padded[1] // 2 + 1) * 2 * width
    return (images + 2 * channel_pairs) * plane


def winograd_bytes(
    space: Sequence[int], samples: int, channels: tuple[int, int], width: int
) -> int:
    """Return the scratch bytes of a 3 by 3 convolution by Winograd's transforms.

    Input and output images and the kernel are transformed (Lavin and Gray, "Fast
    Algorithms for Convolutional Neural Networks", 2016). `space` is the height and
    width of an image. `channels` contains the numbers of input and output channels.
    """
    tiles = samples * math.prod(-(-n // _TILE) for n in space)
    return _NUMBERS * (tiles * sum(channels) + math.prod(channels)) * width


def padded_length(length: int, kernel: int) -> int:
    """Return the power of two to which a Fourier transform pads an axis."""
    return 1 << max(length + kernel - 2, 0).bit_length()


def unrolled_bytes(
    image: Sequence[int], kernel: Sequence[int], batch_size: int, width: int
) -> tuple[int, int]:
    """Return the scratch bytes of the kernel gradient and of the input gradient.

    Both are 0 if oneDNN runs the convolutions. `image` is the shape of one output
    image, channels last.
    """
    if in_one_dnn():
        return 0, 0
    patches = math.prod(image[:-1]) * math.prod(kernel[:-1])
    work = (patches + math.prod(image) + math.prod(kernel)) * width
    filled_bytes = -(-_CACHE // work) * patches * width
    is_shared = batch_size == 1 or work // threads() >= _CACHE_OF_A_CORE
    return filled_bytes, patches * width if is_shared else filled_bytes


def in_one_dnn() -> bool:
    """Return whether TensorFlow runs convolutions in oneDNN in this environment."""
    setting = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1").lower()
    return sys.platform != "darwin" and setting not in ("0", "false")


def threads() -> int:
    """Return the number of threads that run operations in parallel."""
    if hasattr(os, "sched_getaffinity"):  # A container may have only some of the cores.
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
