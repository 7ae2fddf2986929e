"""The weights of layers with a kernel as tensors of a LiteRT file."""

from typing import Any

import numpy as np

from kerasmem.files.litert import Writer
from kerasmem.graph.values import to_numpy


def kernel_and_bias(
    writer: Writer, layer: Any, values: np.ndarray, axis: int
) -> tuple[int, int]:
    """Return the numbers of two new tensors.

    Args:
        writer: gets them.
        layer: an integer layer with a kernel.
        values: the codes of the kernel, laid out as LiteRT wants them.
        axis: their axis of channels.
    """
    scales = to_numpy(layer.kernel_scale)
    kernel = writer.tensor(
        f"{layer.name}/kernel", values.shape, values=values, scales=scales, axis=axis
    )
    bias = writer.tensor(
        f"{layer.name}/bias",
        (layer.channels,),
        values=to_numpy(layer.bias),
        scales=np.float32(layer.input_codes[0].scale) * scales,
    )
    return kernel, bias
