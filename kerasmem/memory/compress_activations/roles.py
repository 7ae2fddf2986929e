"""What the gradient of an operation needs, and what it costs to run it again."""

from collections.abc import Sequence
from enum import Enum
from typing import Any

import keras

_LAYERS = keras.layers


class Role(Enum):
    """How an operation takes part in the backward pass."""

    LINEAR = "its gradient needs none of its inputs"
    CHEAP = "its gradient needs its input or output, and it is cheap to run again"
    JOINING = "the same, but its input is not to be rounded"
    KERNEL = "its gradient needs its input, and it is dear to run again"
    MODEL = "a nested model: its own operations have roles"


_LINEAR = (
    _LAYERS.Add,
    _LAYERS.Average,
    _LAYERS.AveragePooling1D,
    _LAYERS.AveragePooling2D,
    _LAYERS.AveragePooling3D,
    _LAYERS.Concatenate,
    _LAYERS.Cropping1D,
    _LAYERS.Cropping2D,
    _LAYERS.Cropping3D,
    _LAYERS.Dropout,
    _LAYERS.Flatten,
    _LAYERS.GaussianDropout,
    _LAYERS.GaussianNoise,
    _LAYERS.GlobalAveragePooling1D,
    _LAYERS.GlobalAveragePooling2D,
    _LAYERS.GlobalAveragePooling3D,
    _LAYERS.Identity,
    _LAYERS.Permute,
    _LAYERS.RepeatVector,
    _LAYERS.Rescaling,
    _LAYERS.Reshape,
    _LAYERS.SpatialDropout1D,
    _LAYERS.SpatialDropout2D,
    _LAYERS.SpatialDropout3D,
    _LAYERS.Subtract,
    _LAYERS.UpSampling1D,
    _LAYERS.UpSampling2D,
    _LAYERS.UpSampling3D,
    _LAYERS.ZeroPadding1D,
    _LAYERS.ZeroPadding2D,
    _LAYERS.ZeroPadding3D,
)
_CHEAP = (
    _LAYERS.Activation,
    _LAYERS.BatchNormalization,
    _LAYERS.ELU,
    _LAYERS.GlobalMaxPooling1D,
    _LAYERS.GlobalMaxPooling2D,
    _LAYERS.GlobalMaxPooling3D,
    _LAYERS.GroupNormalization,
    _LAYERS.LayerNormalization,
    _LAYERS.LeakyReLU,
    _LAYERS.Maximum,
    _LAYERS.MaxPooling1D,
    _LAYERS.MaxPooling2D,
    _LAYERS.MaxPooling3D,
    _LAYERS.Minimum,
    _LAYERS.Multiply,
    _LAYERS.PReLU,
    _LAYERS.RMSNormalization,
    _LAYERS.ReLU,
    _LAYERS.UnitNormalization,
)
_LINEAR_CALLS = """
    Add Cast Concatenate ExpandDims Flip GetItem Mean Moveaxis Negative Pad Repeat
    Reshape Split Squeeze Stack Subtract Sum SwapAxes Transpose
"""
_DEAR_CALLS = """
    AssociativeScan Cond Conv ConvTranspose Correlate DepthwiseConv Dot
    DotProductAttention Einsum FFT FFT2 FlashAttention Inner MapOp Matmul Outer RFFT
    STFT Scan SeparableConv Tensordot Vdot VectorizedMap WhileLoop
"""


def roles_of(nodes: Sequence[Any]) -> list[Role]:
    """Return the role of each call of a graph.

    What leads from a kernel to a softmax by linear operations alone stays with it.
    """
    roles: list[Role] = []
    joining: set[int] = set()
    for node in reversed(nodes):
        role = role_of(node.operation)
        if role is Role.LINEAR and any(id(y) in joining for y in node.outputs):
            role = Role.JOINING
        if role is Role.JOINING:
            joining.update(id(x) for x in node.input_tensors)
        roles.append(role)
    return roles[::-1]


def role_of(operation: Any) -> Role:
    """Return the role of a layer or of a `keras.Operation` such as `a + b`.

    Whatever is not known to be cheap, such as a layer of the user's own, is taken for
    dear.
    """
    if isinstance(operation, keras.Model):
        return Role.MODEL
    if isinstance(operation, _LAYERS.Layer):
        return _of_layer(operation)
    name = type(operation).__name__
    if name in _LINEAR_CALLS.split():
        return Role.LINEAR
    if name == "Softmax":
        return Role.JOINING
    return Role.KERNEL if name in _DEAR_CALLS.split() else Role.CHEAP


def _of_layer(layer: Any) -> Role:
    # By the class itself: a subclass may do anything on top.
    kind = type(layer)
    if layer.activity_regularizer is not None:
        return Role.KERNEL
    if kind is _LAYERS.Activation and layer.activation is keras.activations.linear:
        return Role.LINEAR
    # A mask of -1e9 among scores would take all eight bits.
    if kind is _LAYERS.Softmax or (
        kind is _LAYERS.Activation and layer.activation is keras.activations.softmax
    ):
        return Role.JOINING
    if kind in _LINEAR:
        return Role.LINEAR
    return Role.CHEAP if kind in _CHEAP else Role.KERNEL
