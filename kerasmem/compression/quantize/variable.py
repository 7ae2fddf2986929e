"""Quantized weights: compact in memory, float when a layer reads them."""

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from kerasmem import backends
from kerasmem.backends.mapped import MappedArray
from kerasmem.compression.quantize.coding import Coded, Coding
from kerasmem.compression.quantize.rows import Rows
from kerasmem.graph.computed import ComputedVariable, named_beside
from kerasmem.graph.values import represents, to_numpy
from kerasmem.types import Layer, Tensor, Tensors

_SUFFIXES = {
    "codes": "",
    "scales": "_scale",
    "zero_points": "_zero_point",
    "input_scales": "_input_scale",
}


class StandIn(ComputedVariable):
    """Base class of replacements for a layer's float weight.

    Args:
        coding: Storage format.
        origin: Float weight to replace.

    Attributes:
        block_count: Number of blocks in which a layer may dequantize the weight.
        dynamic: Whether the layer's inputs are rounded to int8 too.
        activation_scale: Fixed scale of these inputs. If None, computed in every call.
    """

    def __init__(self, coding: Coding, origin: Any) -> None:
        super().__init__(origin)
        self.coding = coding
        self.block_count = 1
        self.dynamic = False
        self.activation_scale: float | None = None

    @property
    def parts(self) -> Sequence[Any]:
        """Variables that the layer tracks instead of the float weight."""
        raise NotImplementedError

    def read_after(self, inputs: Tensors) -> AbstractContextManager[None]:
        """Return a scope in which the weight is not computed before `inputs` exist."""
        raise NotImplementedError

    def read_once(self, inputs: Tensors) -> AbstractContextManager[None]:
        """Return a scope that computes the weight once on entry, after `inputs`."""
        raise NotImplementedError

    def plain(self) -> Any:
        """Return the float weight to use without a stand-in."""
        raise NotImplementedError

    def lookup(self, indices: Any) -> Any:
        """Return the float rows at `indices` of an embedding table."""
        return keras.ops.take(self.value, indices, axis=0)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.coding.dtype}>"


def own_stand_ins(layer: Layer) -> dict[str, StandIn]:
    """Return the stand-ins that a layer holds itself, by attribute."""
    return {name: x for name, x in vars(layer).items() if isinstance(x, StandIn)}


class QuantizedVariable(StandIn):
    """A weight stored as codes and scales, and dequantized when read.

    Each read computes the float weight in the layer's compute dtype.

    Args:
        coding: Storage format.
        origin: Float weight to replace.
        compute_dtype: Compute dtype of the layer.
        known: Encoded weight as NumPy arrays. If None, encoded from `origin`.

    Attributes:
        coded: The `keras.Variable`s with the encoded weight.
    """

    def __init__(
        self, coding: Coding, origin: Any, compute_dtype: str, known: Coded | None
    ) -> None:
        super().__init__(coding, origin)
        self._hoisted = None
        self._waits_for = None
        self._own_dtype = compute_dtype
        shape = tuple(origin.shape)
        self._rows = coding.rows(shape)
        # Encoded on demand only, because a lazily loaded file contains the codes.
        encode = functools.cache(lambda: known or coding.encode(to_numpy(origin)))
        with named_beside(origin):
            part_forms = vars(coding.stored(shape)).items()
            variables = [
                part and _variable(encode, name, part, self)
                for name, part in part_forms
            ]
        self.coded = Coded(*variables)
        for variable, array in zip(
            self.parts, known.parts if known else (), strict=False
        ):
            if isinstance(array, MappedArray):  # values stay on disk
                variable.assign(array)

    @property
    def rows(self) -> Rows | None:
        """Layout of the codes. `None` for the layout of the weight."""
        return self._rows

    @property
    def parts(self) -> Sequence[Any]:
        """Variables with codes, scales and zero points."""
        return self.coded.parts

    def plain(self) -> Any:
        """Return the dequantized weight, float32."""
        return self.coding.decode(*self.tensors())

    @property
    def codes(self) -> Any:
        """Variable with the codes. See `Coded`."""
        return self.coded.codes

    @property
    def scales(self) -> Any:
        """Variable with the scales. None for 16 bits."""
        return self.coded.scales

    @property
    def value(self) -> Any:
        """Float weight. A new tensor unless the weight is hoisted."""
        if self._hoisted is not None:
            return self._hoisted
        return self.decoded(*self.tensors(self._waits_for))

    @contextmanager
    def read_after(self, inputs: Tensors) -> Iterator[None]:
        """Return a scope in which the weight is not computed before `inputs` exist.

        Otherwise a graph would dequantize all weights of a model at its start.
        """
        before, self._waits_for = self._waits_for, inputs
        try:
            yield
        finally:
            self._waits_for = before

    @contextmanager
    def read_once(self, inputs: Tensors) -> Iterator[None]:
        """Return a scope that computes the float weight once, on entry.

        A weight that is already hoisted is kept, so that exported files hold constants.
        """
        is_hoisted = self.is_hoisted
        if not is_hoisted:
            with self.read_after(inputs):
                self.hoist()
        try:
            yield
        finally:
            if not is_hoisted:
                self.drop()

    def hoist(self) -> None:
        """Compute the float weight once and keep it until `drop`."""
        self._hoisted = None
        self._hoisted = self.value

    @property
    def is_hoisted(self) -> bool:
        """Whether `hoist` has computed the float weight."""
        return self._hoisted is not None

    def drop(self) -> None:
        """Discard the float weight that `hoist` has computed."""
        self._hoisted = None

    def has_parts(self, axis: int) -> bool:
        """Return whether slices along an axis can be dequantized on their own."""
        return self._hoisted is None and axis not in self.coding.axes

    def part(self, axis: int, start: int, stop: int, after: Any) -> Any:
        """Return a slice of the float weight, computed after the tensor `after`."""
        return self.decoded(*self.tensors(after, (axis, start, stop - start)))

    def lookup(self, indices: Any) -> Any:
        """Return the float rows at `indices`, without dequantizing other rows."""

        def taken(part: Any) -> Any:
            if part.shape[0] == 1:  # a single scale serves all rows
                return part
            # After a lookup in a variable, TensorFlow copies it in every read. This
            # looks up in a tensor.
            return ops.take(ops.stop_gradient(part), flat, axis=0)

        ops = keras.ops
        if self._hoisted is not None:
            return super().lookup(indices)
        flat = ops.reshape(indices, (-1,))
        rows = None if self._rows is None else self._rows.narrowed(0, -1)
        float_rows = self.decoded(self.tensors()[0].map(taken), rows)
        return ops.reshape(float_rows, (*ops.shape(indices), self._own_shape[1]))

    def tensors(
        self,
        after: Any = None,
        part: tuple[int, Any, int] | None = None,
        coded: Coded | None = None,
    ) -> tuple[Coded, Rows | None]:
        """Return the encoded weight as tensors, and its layout.

        Args:
            after: Tensor that must exist before the codes are read.
            part: Axis, start and size of a slice along an axis that is not summed over.
                The start may be a tensor.
            coded: Values of the variables. Defaults to the current values.
        """
        rows = self._rows
        coded = coded or self.coded.map(lambda variable: variable.value)

        def taken(x: Tensor) -> Any:
            if part is None or x.shape[place] == 1:
                return x
            if isinstance(start, int):
                return x[(*(slice(None),) * place, slice(start, start + size))]
            starts = [start if axis == place else 0 for axis in range(len(x.shape))]
            sizes = (*x.shape[:place], size, *x.shape[place + 1 :])
            return keras.ops.slice(x, starts, sizes)

        if part is not None:
            axis, start, size = part
            place = axis if rows is None else rows.stored_axis(axis)
            rows = rows and rows.narrowed(axis, size)
        if after is None:
            codes = taken(coded.codes)
        else:
            codes = backends.current().after(coded.codes, after, taken)
        scales = replace(coded, codes=None).map(taken)
        return replace(scales, codes=codes), rows

    def without_variables(self) -> "QuantizedVariable":
        """Return a copy without variables that only lays out and decodes tensors."""
        layout = copy.copy(self)
        object.__setattr__(layout, "coded", Coded(None))
        return layout

    def decoded(self, coded: Coded, rows: Rows | None, half: int | None = None) -> Any:
        """Return the float weight, or a part of it, from encoded tensors."""
        return self.coding.decode(coded, rows, self._own_dtype, half)

    def assign(self, value: Any) -> Any:
        """Quantize `value` on the host and replace the weight."""
        values = to_numpy(value)
        inputs = self.coded.input_scales
        if inputs is not None:
            shape = self.coding.input_shape(values.shape)
            rows = self.coding.rows(shape)
            inputs = to_numpy(inputs)
            inputs = inputs if rows is None else rows.restore(inputs, np)
        new_codes = self.coding.encode(values, input_scales=inputs)
        for variable, new in zip(self.coded.parts, new_codes.parts, strict=True):
            variable.assign(new)
        return self.value

    dtype = property(lambda self: self._own_dtype)


def _variable(
    coded: Callable[[], Coded],
    part: str,
    kind: tuple[tuple[int, ...], str],
    weight: QuantizedVariable,
) -> Any:
    shape, dtype = kind

    def initial(shape: Any, dtype: Any) -> Any:
        del shape
        return keras.ops.convert_to_tensor(getattr(coded(), part), dtype)

    name = weight.name + _SUFFIXES[part]
    variable = keras.Variable(
        initial, shape, dtype, trainable=False, autocast=False, name=name
    )
    represents(variable, weight if part == "codes" else None)
    return variable
