"""A weight that is int8 in RAM and float wherever a layer reads it."""

from contextlib import ExitStack
from typing import Any

import keras

from kerasmem.compression.quantize.math import quantize
from kerasmem.graph.values import to_numpy


class Int8Variable(keras.Variable):
    """Stands in the place of a float weight of a layer, holding int8 codes and scales.

    Any layer that reads the weight (`ops.matmul(x, self.kernel)`) gets
    `codes * scales`, computed on the spot in the layer's compute dtype, so no layer
    needs to know. `keras.Variable` is subclassed because that is what every backend
    asks for when it turns a weight into a tensor; none of its own state is used.

    Args:
        codes: int8 `keras.Variable` of the weight's shape.
        scales: float32 `keras.Variable` that broadcasts against `codes`.
        origin: the float weight that is replaced.
        compute_dtype: dtype that the layer computes in.
    """

    def __init__(
        self, codes: Any, scales: Any, origin: Any, compute_dtype: str
    ) -> None:
        self.codes = codes
        self.scales = scales
        self._hoisted = None
        self._int8_name, self._int8_path = origin.name, origin.path
        self._int8_shape = origin.shape
        self._int8_dtype = compute_dtype

    @property
    def value(self) -> Any:
        """The float weight, a fresh tensor."""
        if self._hoisted is not None:
            return self._hoisted
        exact = keras.ops.cast(self.codes.value, "float32") * self.scales.value
        return keras.ops.cast(exact, self._int8_dtype)

    def hoist(self) -> None:
        """Compute the float weight once and keep it until `drop`."""
        self._hoisted = None
        self._hoisted = self.value

    def drop(self) -> None:
        """Forget what `hoist` kept."""
        self._hoisted = None

    def rows(self, indices: Any) -> Any:
        """Return the float rows at `indices` of a table, without the other rows."""
        codes = keras.ops.take(self.codes, indices, axis=0)
        scales = keras.ops.take(self.scales, indices, axis=0)
        exact = keras.ops.cast(codes, "float32") * scales
        return keras.ops.cast(exact, self._int8_dtype)

    def assign(self, value: Any) -> Any:
        """Replace the weight by `value`, quantized anew (on the host)."""
        axes = tuple(i for i, n in enumerate(self.scales.shape) if n == 1)
        codes, scales = quantize(to_numpy(value), axes)
        self.codes.assign(codes)
        self.scales.assign(scales)
        return self.value

    name = property(lambda self: self._int8_name)
    path = property(lambda self: self._int8_path)
    shape = property(lambda self: self._int8_shape)
    ndim = property(lambda self: len(self._int8_shape))
    dtype = property(lambda self: self._int8_dtype)
    trainable = property(lambda _: False)
    regularizer = property(lambda _: None)
    constraint = property(lambda _: None)

    def __repr__(self) -> str:
        return f"<Int8Variable path={self.path}, shape={self.shape}>"


def replace_by_int8(
    kernel: Any, owner: Any, layers: list[Any], axes: tuple[int, ...]
) -> list[Any]:
    """Replace a float weight by an int8 one in every layer that keeps it.

    Args:
        kernel: the float weight.
        owner: the layer that is to track the codes and scales.
        layers: the layers to look in, `owner` among them.
        axes: axes that share a scale.

    Returns:
        The layers that kept the weight. Usually that is `owner` alone; a wrapper such
        as SpectralNormalization keeps the weight of the layer inside it as well.
    """
    codes, scales = quantize(to_numpy(kernel), axes)
    with ExitStack() as scopes:
        for part in kernel.path.split("/")[:-1]:
            scopes.enter_context(keras.name_scope(part))
        parts = (_fixed(codes, kernel.name), _fixed(scales, f"{kernel.name}_scale"))
    stand_in = Int8Variable(*parts, kernel, owner.compute_dtype)
    holders = [
        (layer, name)
        for layer in layers
        for name, value in vars(layer).items()
        if value is kernel
    ]
    for layer, name in holders:
        _exchange(layer, name, kernel, stand_in)
    _track(owner, parts)
    return [layer for layer, _ in holders]


def _fixed(value: Any, name: str) -> Any:
    return keras.Variable(
        value, dtype=str(value.dtype), trainable=False, autocast=False, name=name
    )


def _exchange(layer: Any, attribute: str, old: Any, new: Any) -> None:
    # A built layer is locked, and Keras offers no public way to exchange a weight; its
    # own `quantize` does the same.
    layer._untrack_variable(old)
    if keras.backend.backend() == "tensorflow":
        # TensorFlow keeps a list of its own, and with it the float weight alive.
        layer._delete_tracking(attribute)
    object.__setattr__(layer, attribute, new)


def _track(layer: Any, variables: Any) -> None:
    # See `_exchange`: the lock is Keras's own, and has to be opened for a moment.
    layer._tracker.unlock()
    for variable in variables:
        layer._track_variable(variable)
    layer._tracker.lock()


def forget_float_weights(layers: list[Any]) -> None:
    """Drop the references to replaced weights that the layers around them keep."""
    if keras.backend.backend() != "torch":
        return
    modules = (module for layer in layers for module in layer.modules())
    for module in {id(m): m for m in modules}.values():
        if isinstance(module, keras.layers.Layer):
            # On torch every layer keeps a table of the parameters of all layers inside
            # it, made when it was built. This remakes the table.
            module._track_variables()
