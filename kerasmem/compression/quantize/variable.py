"""A weight that is small in RAM and float wherever a layer reads it."""

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
from kerasmem.types import Tensor, Tensors

_SUFFIXES = {
    "codes": "",
    "scales": "_scale",
    "zero_points": "_zero_point",
    "input_scales": "_input_scale",
}


class StandIn(ComputedVariable):
    """Stands in the place of a float weight of a layer; subclasses say what it reads.

    Args:
        coding: how the weight is stored.
        origin: the float weight that is replaced.

    Attributes:
        block_count: number of blocks in which a layer may make the weight float.
        dynamic: whether what the weight multiplies is to be rounded to int8 too.
        activation_scale: of its codes then; None for what each call finds.
    """

    def __init__(self, coding: Coding, origin: Any) -> None:
        super().__init__(origin)
        self.coding = coding
        self.block_count = 1
        self.dynamic = False
        self.activation_scale: float | None = None

    @property
    def rows(self) -> Rows | None:
        """How the codes are laid out, `None` for as the weight."""
        return self._rows

    @property
    def parts(self) -> Sequence[Any]:
        """The variables that a layer tracks in place of the float weight."""
        raise NotImplementedError

    def read_after(self, inputs: Tensors) -> AbstractContextManager[None]:
        """Return a scope in which the float weight is not made before `inputs` is."""
        raise NotImplementedError

    def read_once(self, inputs: Tensors) -> AbstractContextManager[None]:
        """Return a scope at whose beginning, after `inputs`, the weight is made."""
        raise NotImplementedError

    def plain(self) -> Any:
        """Return the float weight as one without a stand-in has it."""
        raise NotImplementedError

    def lookup(self, indices: Any) -> Any:
        """Return the float rows at `indices` of a table."""
        return keras.ops.take(self.value, indices, axis=0)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.coding.dtype}>"


class QuantizedVariable(StandIn):
    """Holds codes and scales, and is read as what they stand for.

    The float weight is computed on the spot in the layer's compute dtype.

    Args:
        coding: how the weight is stored.
        origin: the float weight that is replaced.
        compute_dtype: dtype that the layer computes in.
        known: NumPy arrays that stand for the weight, if there are any yet.

    Attributes:
        coded: the `keras.Variable`s that hold it.
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
        # Only if somebody asks: a file that is loaded lazily has the codes itself.
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
            if isinstance(array, MappedArray):  # where values stay in files
                variable.assign(array)

    @property
    def parts(self) -> Sequence[Any]:
        """The variables with codes, scales and zero points."""
        return self.coded.parts

    def plain(self) -> Any:
        """Return what the codes stand for, float32."""
        return self.coding.decode(*self.tensors())

    @property
    def codes(self) -> Any:
        """The variable with the codes; see `Coded`."""
        return self.coded.codes

    @property
    def scales(self) -> Any:
        """The variable with the scales, None for 16 bits."""
        return self.coded.scales

    @property
    def value(self) -> Any:
        """The float weight, a fresh tensor."""
        if self._hoisted is not None:
            return self._hoisted
        return self.decoded(*self.tensors(self._waits_for))

    @contextmanager
    def read_after(self, inputs: Tensors) -> Iterator[None]:
        """Return a scope in which the float weight is not made before `inputs` is.

        A graph runs whatever has its inputs: without this it would make all weights of
        a model float when it begins.
        """
        before, self._waits_for = self._waits_for, inputs
        try:
            yield
        finally:
            self._waits_for = before

    @contextmanager
    def read_once(self, inputs: Tensors) -> Iterator[None]:
        """Return a scope in which the float weight is computed once, at its begin."""
        with self.read_after(inputs):
            self.hoist()
        try:
            yield
        finally:
            self.drop()

    def hoist(self) -> None:
        """Compute the float weight once and keep it until `drop`."""
        self._hoisted = None
        self._hoisted = self.value

    @property
    def is_hoisted(self) -> bool:
        """Whether the float weight is at hand."""
        return self._hoisted is not None

    def drop(self) -> None:
        """Forget what `hoist` kept."""
        self._hoisted = None

    def has_parts(self, axis: int) -> bool:
        """Return True along an axis that shares no scale; False for floats at hand."""
        return self._hoisted is None and axis not in self.coding.axes

    def part(self, axis: int, start: int, stop: int, after: Any) -> Any:
        """Return some entries of the float weight, made when `after` is there."""
        return self.decoded(*self.tensors(after, (axis, start, stop - start)))

    def lookup(self, indices: Any) -> Any:
        """Return the float rows at `indices` of a table, without the other rows."""

        def taken(part: Any) -> Any:
            # One scale for all rows stays as it is.
            return part if part.shape[0] == 1 else ops.take(part, flat, axis=0)

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
        """Return tensors that stand for the weight, and how they are laid out.

        Args:
            after: a tensor that is to be there before anything is made of them.
            part: an axis that is not summed over, the first index along this axis, which
                may be a tensor, and the number of entries. `None` for the whole weight.
            coded: tensors with the values of its variables; None for those of now.
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
        """Return a copy that lays out and decodes tensors alike, and holds nothing."""
        layout = copy.copy(self)
        object.__setattr__(layout, "coded", Coded(None))
        return layout

    def decoded(self, coded: Coded, rows: Rows | None, half: int | None = None) -> Any:
        """Return the float weight, or part of it, that tensors stand for."""
        return self.coding.decode(coded, rows, self._own_dtype, half)

    def assign(self, value: Any) -> Any:
        """Replace the weight by `value`, quantized anew (on the host)."""
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
