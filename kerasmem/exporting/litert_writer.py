"""LiteRT files in fewer bits, written by litert-quantizer: one form per operation."""

import importlib
import importlib.util
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from kerasmem.backends.converting import quiet
from kerasmem.errors import ConfigError
from kerasmem.exporting.litert_graph import PRODUCTS, Graph, Operation, Seen

INT8, INT16, FLOAT = "int8", "int16x8", "float"
DYNAMIC, DYNAMIC_INT4 = "dynamic int8", "dynamic int4"
WEIGHT_ONLY = "weight-only int8"
"""Forms of an operation.

`INT8` and `INT16`: activations of 8 or 16 bits in fixed ranges, int8 weights. `DYNAMIC`
and `DYNAMIC_INT4`: weights of 8 or 4 bits, and inputs that are rounded to int8 row by
row at run time. `WEIGHT_ONLY`: int8 weights that become float at run time.
"""

INTEGER_INPUTS = {INT8, INT16, DYNAMIC, DYNAMIC_INT4}
"""Forms whose products multiply integers."""

_BLOCKS = (128, 64, 32)


def quantizer_module(name: str) -> Any:
    """Return a module of `litert_quantizer`.

    Raises:
        ConfigError: if it is not installed.
    """
    if importlib.util.find_spec("litert_quantizer") is None:
        raise ConfigError(
            "int8 and int4 files are written by litert-quantizer. Expected: it is "
            "installed (pip install kerasmem[litert]). Received: no module "
            "'litert_quantizer'."
        )
    return importlib.import_module(f"litert_quantizer.{name}")


@cache
def supports(kind: str, form: str) -> bool:
    """Return whether an operation of a kind can have a form.

    Args:
        kind: name of the operation in LiteRT.
        form: one of the forms above.
    """
    types = quantizer_module("qtyping")
    manager = quantizer_module("recipe_manager").RecipeManager()
    name = {"TRANSPOSE_CONV": "CONV_2D_TRANSPOSE"}.get(kind, kind)
    if form == FLOAT:
        return True
    if name not in types.TFLOperationName.__members__:
        return False
    key = types.TFLOperationName[name]
    try:
        _add_rule(manager, ".*", key, form)
    except ValueError:
        return False
    return True


def _add_rule(manager: Any, pattern: str, key: Any, form: str, block: int = 0) -> None:
    grain = quantizer_module("qtyping").QuantGranularity
    rows = grain[f"BLOCKWISE_{block}"] if block else grain.CHANNELWISE
    if form in (INT8, INT16):
        manager.add_static_config(pattern, key, 8 if form == INT8 else 16, 8)
    elif form in (DYNAMIC, DYNAMIC_INT4):
        manager.add_dynamic_config(pattern, key, 8 if form == DYNAMIC else 4, rows)
    elif form == WEIGHT_ONLY:
        manager.add_weight_only_config(pattern, key, 8)


Ranges = Mapping[str, tuple[float, float]]
Forms = Mapping[str, str]


class Writer:
    """Writes a float file anew, with a form for each of its operations.

    Args:
        graph: the float file.
        seen: what its tensors hold on samples, by name.
        ranges: of the same tensors.
        has_codes: whether its weights are decoded int8 or int4 codes, which the file
            gets unchanged.
    """

    def __init__(
        self,
        graph: Graph,
        seen: Mapping[str, Seen],
        ranges: Ranges,
        *,
        has_codes: bool = False,
    ) -> None:
        self._graph = graph
        self._ranges = {
            name: {
                "min": np.full((1,) * len(seen[name].shape), low, np.float32),
                "max": np.full((1,) * len(seen[name].shape), high, np.float32),
            }
            for name, (low, high) in ranges.items()
        }
        self.steps: dict[str, CodeSteps] = {}
        for operation in graph.operations if has_codes else ():
            found = _code_steps(operation, graph)
            if found is not None:
                self.steps[operation.scope] = found

    def write(self, forms: Forms) -> bytes:
        """Return the file.

        Args:
            forms: of operations, by their scopes; all others stay float.
        """
        made = quantizer_module("quantizer").Quantizer(self._graph.content)
        key = quantizer_module("qtyping").TFLOperationName.ALL_SUPPORTED
        scopes, ends = defaultdict(list), dict(self._ranges)
        for operation in self._graph.operations:
            form = forms.get(operation.scope, FLOAT)
            if form == FLOAT:
                continue
            steps = self.steps.get(operation.scope)
            block = 0
            if form == DYNAMIC_INT4:
                block = self.block(operation) if steps is None else steps.block
            if steps is not None and steps.bits == (4 if form == DYNAMIC_INT4 else 8):
                most = steps.steps * (2 ** (steps.bits - 1) - 1)
                ends[steps.weight] = {"min": -most, "max": most}
            scopes[form, block].append(re.escape(operation.scope))
        if not scopes:
            return self._graph.content
        for (form, block), names in scopes.items():
            _add_rule(made, f"^(?:{'|'.join(names)})$", key, form, block)
        with quiet():  # progress of each file that is tried
            result = made.quantize(
                ends, enable_progress_bar=False, enable_progress_report=False
            )
        return bytes(result.quantized_model)

    def block(self, operation: Operation) -> int:
        """Return how many weights share a scale in int4, 0 for those of a channel."""
        kernel = kernel_of(operation, self._graph)
        if kernel is None or operation.kind != "FULLY_CONNECTED":
            return 0
        width = self._graph.constants[kernel].shape[1]
        return next((n for n in _BLOCKS if width % n == 0), 0)


@dataclass(frozen=True)
class CodeSteps:
    """The steps of a weight whose values are codes times steps.

    Args:
        weight: its name.
        bits: 8 or 4.
        block: how many entries of a row share a step, 0 for all of a channel.
        steps: of the weight's number of axes.
    """

    weight: str
    bits: int
    block: int
    steps: np.ndarray


_CODE_TOLERANCE = 0.01


def _code_steps(operation: Operation, graph: Graph) -> CodeSteps | None:
    """Return the steps of an operation's weight, None if it has no codes."""
    name = kernel_of(operation, graph)
    if name is None or operation.kind not in PRODUCTS:
        return None
    values = graph.constants[name]
    axis = 3 if operation.kind == "DEPTHWISE_CONV_2D" else 0
    rows = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    shape = [n if place == axis else 1 for place, n in enumerate(values.shape)]
    for bits in (4, 8):
        steps = steps_of(rows, 2 ** (bits - 1) - 1)
        if steps is not None:
            return CodeSteps(name, bits, 0, steps.reshape(shape))
    if operation.kind != "FULLY_CONNECTED":
        return None
    for block in _BLOCKS:
        if values.shape[1] % block == 0:
            steps = steps_of(values.reshape(-1, block), 7)
            if steps is not None:
                return CodeSteps(name, 4, block, steps.reshape(len(values), -1))
    return None


def steps_of(rows: np.ndarray, limit: int) -> np.ndarray | None:
    """Return the step of each row whose values are whole multiples of it.

    Args:
        rows: float32, shape `(rows, entries)`.
        limit: the largest multiple.

    Returns:
        Steps, float32, shape `(rows,)`; None if a row has none.

    Example:
        >>> steps_of(np.array([[0.5, -1.5, 3.5]], "float32"), 7)
        array([0.5], dtype=float32)
        >>> steps_of(np.array([[0.5, -1.3, 3.5]], "float32"), 7) is None
        True
    """
    largest = np.abs(rows).max(axis=1)
    steps = np.where(largest == 0, np.float32(1), np.float32(0))
    # What scales of the largest entry give comes first.
    for most in (limit, *range(1, limit)):
        open_rows = np.flatnonzero(steps == 0)
        if not len(open_rows):
            return steps
        size = largest[open_rows] / np.float32(most)
        multiples = rows[open_rows] / size[:, None]
        fits = np.abs(multiples - np.rint(multiples)).max(axis=1) < _CODE_TOLERANCE
        steps[open_rows[fits]] = size[fits]
    return steps if steps.all() else None


def kernel_of(operation: Operation, graph: Graph) -> str | None:
    """Return the name of the stored weight that an operation multiplies or looks up."""
    floats = (name for name in operation.constants if name in graph.constants)
    return next((name for name in floats if graph.constants[name].ndim > 1), None)
