"""How large the inputs are that each entry of a kernel multiplies."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from kerasmem.errors import ConfigError
from kerasmem.files.data import input_batches, sample_inputs
from kerasmem.graph.kernels import einsum_parts, reduced_axes
from kerasmem.graph.layers import Weight
from kerasmem.graph.observe import LayerCall, observe
from kerasmem.graph.values import to_numpy

_SAMPLES, _BATCH_SIZE = 256, 32

_CONVOLUTIONS = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)
_KNOWN = (keras.layers.Dense, keras.layers.EinsumDense, *_CONVOLUTIONS)


def why_no_inputs(weight: Weight) -> str | None:
    """Return why the inputs of a weight are not known, None if they are."""
    if isinstance(weight.owner, _KNOWN) and weight.variable.name == "kernel":
        return None
    return "is no kernel of a Dense, EinsumDense or convolution, whose inputs are known"


def input_norms(model: Any, data: Any, weights: Sequence[Weight]) -> list[np.ndarray]:
    """Return for each weight the L2 norm of the input that each entry multiplies.

    The model is called on the first samples of `data`, as `predict` would.

    Args:
        model: a built model.
        data: samples in any form that `kerasmem.files.data` lists; the first 256 are
            taken, of batches the first batch.
        weights: kernels of which `why_no_inputs` returned None.

    Returns:
        Arrays that broadcast to the weights' shapes.

    Raises:
        ConfigError: if there are no samples, or a weight's layer was not called.
    """
    if data is None:
        raise ConfigError(
            "The criterion 'wanda' looks at what goes into the layers: give samples as "
            "data=x (--data on the command line). Received: data=None."
        )
    squares: dict[int, Any] = {}
    batches = input_batches((sample_inputs(data, _SAMPLES),), _SAMPLES, _BATCH_SIZE)
    owners = [weight.owner for weight in weights]
    observe(model, batches, owners, inputs=lambda call: _add(call, squares))
    missing = [weight.path for weight in weights if id(weight.owner) not in squares]
    if missing:
        raise ConfigError(
            f"The model {model.name!r} did not call the layer of a weight on the "
            f"samples. Next: leave it out. Received: exclude without {missing[0]!r}."
        )
    return [_norms(weight, squares[id(weight.owner)]) for weight in weights]


def _add(call: LayerCall, squares: dict[int, Any]) -> None:
    """Add up the squares of a layer's input, over all but its features."""
    values = to_numpy(call.x).astype("float64")
    features = tuple(axis % values.ndim for axis in _feature_axes(call.layer))
    rest = tuple(axis for axis in range(values.ndim) if axis not in features)
    # Transposed, so that the features come in the order of the kernel's axes.
    summed = np.square(values).transpose((*rest, *features))
    summed = summed.sum(tuple(range(len(rest))))
    squares[id(call.layer)] = squares.get(id(call.layer), 0.0) + summed


def _feature_axes(owner: Any) -> list[int]:
    """Return the axes of a layer's input that its kernel has, in the kernel's order."""
    if isinstance(owner, _CONVOLUTIONS):
        return [1 if owner.data_format == "channels_first" else -1]
    if isinstance(owner, keras.layers.EinsumDense):
        given, kernel, output = einsum_parts(owner.equation)
        # From the end: where there are dots, the number of axes before is open.
        from_end = given.replace("...", ".")[::-1]
        return [-1 - from_end.index(c) for c in kernel if c not in output]
    return [-1]


def _norms(weight: Weight, squares: np.ndarray) -> np.ndarray:
    shape = tuple(weight.variable.shape)
    norms = np.sqrt(squares).astype("float32")
    if isinstance(weight.owner, _CONVOLUTIONS):
        # Of grouped ones each output channel sees the channels of its own group.
        groups = norms.reshape(-1, shape[-2])
        return np.repeat(groups.T, shape[-1] // len(groups), axis=1)
    axes = reduced_axes(weight)
    return norms.reshape([n if axis in axes else 1 for axis, n in enumerate(shape)])
