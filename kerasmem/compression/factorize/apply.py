"""Applies low-rank factorization to a model.

Low-rank layers, the factors, approximate the kernel of a layer.

Source of `method="spatial"`: Max Jaderberg, Andrea Vedaldi, Andrew Zisserman: Speeding
up Convolutional Neural Networks with Low Rank Expansions, 2014 (rows, then columns).
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from kerasmem.compression.account import (
    account,
    check_every_pattern_matches,
    decibels,
    matches,
)
from kerasmem.compression.factorize import Factorize
from kerasmem.compression.factorize.inside import (
    built_in_turn,
    factorize_inside,
    summed_and_new,
    why_not_inside,
)
from kerasmem.compression.technique import Context
from kerasmem.errors import ModelError
from kerasmem.graph.clone import compile_as
from kerasmem.graph.kernels import is_kernel
from kerasmem.graph.layers import Weight, operations, readers, weights
from kerasmem.graph.rebuild import Rebuild, Rewrite
from kerasmem.graph.values import to_numpy
from kerasmem.records import WeightChange
from kerasmem.types import Layer, Model, Node

NAME = "factorize"
_NO_KERNEL = "is not a kernel"
_TOO_LARGE = "would not have fewer weights"
_ADVICE = " Next: reduce the rank."


def factors(
    matrix: np.ndarray, ratio: float | None, energy: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns two factors of shapes (m, rank) and (rank, n) by truncated SVD.

    Both factors have equal norms per rank component, so training updates are balanced.
    `energy` applies if `ratio` is `None`.
    """
    if matrix.shape[0] < matrix.shape[1]:
        right, left = factors(matrix.T, ratio, energy)
        return left.T, right.T
    # Eigenvectors of this product take a fraction of the time of an SVD.
    squares, vectors = np.linalg.eigh(matrix.T @ matrix)
    rank = _rank(np.maximum(squares[::-1], 0), ratio, energy)
    largest = vectors[:, ::-1][:, :rank]
    left = matrix @ largest
    root = np.sqrt(np.linalg.norm(left, axis=0))
    return left / np.where(root, root, 1), root[:, None] * largest.T


def _rank(squares: np.ndarray, ratio: float | None, energy: float | None) -> int:
    if ratio is not None:
        return max(1, round(ratio * len(squares)))
    energies = np.cumsum(squares)
    return min(
        len(squares), int(np.searchsorted(energies, (energy or 1.0) * energies[-1])) + 1
    )


_CONVOLUTIONS = (layers.Conv1D, layers.Conv2D, layers.Conv3D)
_POINTWISE = {
    "kernel_size": 1,
    "strides": 1,
    "dilation_rate": 1,
    "padding": "valid",
}


@dataclass(frozen=True)
class FactorChain:
    """Layers that replace one layer, with their kernels.

    The last config has the bias and the activation. `energy` is the fraction of the
    kernel's sum of squares that the factors keep.
    """

    kind: type
    configs: tuple[dict[str, Any], ...]
    kernels: tuple[np.ndarray, ...]
    energy: float

    @property
    def size(self) -> int:
        """Number of entries of all kernels."""
        return sum(kernel.size for kernel in self.kernels)

    def layers(self) -> list[Any]:
        """Returns the unbuilt layers."""
        return [self.kind.from_config(config) for config in self.configs]

    def inside(self, layer: Layer) -> list[Any]:
        """Returns built sublayers for `layer`, without bias and activation."""
        *firsts, last = self.configs
        layers = built_in_turn(layer, [*firsts, last | _plain(last)])
        for thin, kernel in zip(layers, self.kernels, strict=True):
            thin.kernel.assign(kernel)
        return layers


def why_not(layer: Layer) -> str | None:
    """Returns why a layer cannot be factorized, or `None`."""
    if type(layer) not in (layers.Dense, layers.EinsumDense, *_CONVOLUTIONS):
        return "is not in a Dense, EinsumDense or Conv layer"
    if not keras.backend.is_float_dtype(layer.kernel.dtype):
        return f"is {layer.kernel.dtype} already"
    if getattr(layer, "groups", 1) > 1:
        return "is in a grouped convolution"
    if layer.kernel_constraint is not None:
        return "has a constraint, which factors would violate"
    if type(layer) is layers.EinsumDense and _letters(layer) is None:
        return "has axes that are neither reduced nor new in the output"
    return None


def chain(layer: Layer, config: Factorize) -> FactorChain:
    """Returns the factors of a layer for the configured ranks."""
    kernel = np.asarray(ops.convert_to_numpy(layer.kernel)).astype("float64")
    if type(layer) is layers.Dense:
        return _dense(layer, kernel, config)
    if type(layer) is layers.EinsumDense:
        return _einsum(layer, kernel, config)
    spatial = kernel.shape[:-2]
    if config.method == "spatial" and len(spatial) == 2 and max(spatial) > 1:
        return _rows_and_columns(layer, kernel, config)
    return _channels(layer, kernel, config)


def _dense(layer: Layer, kernel: np.ndarray, config: Factorize) -> FactorChain:
    left, right, energy = _two(kernel, config)
    first = _first(layer, units=left.shape[1])
    return FactorChain(type(layer), (first, _last(layer)), (left, right), energy)


def _einsum(layer: Layer, kernel: np.ndarray, config: Factorize) -> FactorChain:
    inputs, output, sum_letters, new = _letters(layer) or ("", "", "", "")
    matrix_form = np.transpose(kernel, summed_and_new(layer.equation))
    shape, split = matrix_form.shape, len(sum_letters)
    left, right, energy = _two(
        matrix_form.reshape(math.prod(shape[:split]), -1), config
    )
    rank = left.shape[1]
    rest = "".join(letter for letter in inputs if letter not in sum_letters)
    hidden = next(c for c in "zyxwvutsrqponm" if c not in layer.equation)
    # Output shapes omit the batch axis. Fixed lengths of the last layer must also hold
    # for the output of the first layer.
    letters = rest.replace("...", "") if "..." in rest else rest[1:]
    sizes = dict(zip(output[::-1], layer.partial_output_shape[::-1], strict=False))
    shared_axes = [sizes.get(letter) for letter in letters]
    first = _first(
        layer,
        equation=f"{inputs},{sum_letters}{hidden}->{rest}{hidden}",
        output_shape=(*shared_axes, rank),
    )
    last = _last(layer) | {"equation": f"{rest}{hidden},{hidden}{new}->{output}"}
    kernels = left.reshape(*shape[:split], rank), right.reshape(rank, *shape[split:])
    return FactorChain(type(layer), (first, last), kernels, energy)


def _letters(layer: Layer) -> tuple[str, str, str, str] | None:
    operands, output = layer.equation.replace(" ", "").split("->")
    inputs, kernel = operands.split(",")
    sum_letters = "".join(c for c in kernel if c not in output)
    new = "".join(c for c in kernel if c not in inputs)
    whole = len(sum_letters) + len(new) == len(kernel)
    leads = "." not in inputs or inputs.startswith("...")
    return (inputs, output, sum_letters, new) if whole and leads and new else None


def _rows_and_columns(
    layer: Layer, kernel: np.ndarray, config: Factorize
) -> FactorChain:
    height, width, inputs, outputs = kernel.shape
    matrix = kernel.transpose(0, 2, 1, 3).reshape(height * inputs, width * outputs)
    left, right, energy = _two(matrix, config)
    rank = left.shape[1]
    (row_step, column_step), (row_gap, column_gap) = layer.strides, layer.dilation_rate
    first = _first(
        layer,
        filters=rank,
        kernel_size=(height, 1),
        strides=(row_step, 1),
        dilation_rate=(row_gap, 1),
    )
    last = _last(layer) | {
        "kernel_size": (1, width),
        "strides": (1, column_step),
        "dilation_rate": (1, column_gap),
    }
    columns = right.reshape(rank, 1, width, outputs).transpose(1, 2, 0, 3)
    kernels = left.reshape(height, 1, inputs, rank), columns
    return FactorChain(type(layer), (first, last), kernels, energy)


def _channels(layer: Layer, kernel: np.ndarray, config: Factorize) -> FactorChain:
    *window, outputs = kernel.shape
    left, right, energy = _two(kernel.reshape(-1, outputs), config)
    rank = left.shape[1]
    first = _first(layer, filters=rank)
    kernels = left.reshape(*window, rank), _in_window(right, layer)
    return FactorChain(type(layer), (first, _last(layer) | _POINTWISE), kernels, energy)


def _two(matrix: np.ndarray, config: Factorize) -> tuple[np.ndarray, np.ndarray, float]:
    left, right = factors(matrix, config.rank_ratio, config.energy)
    sizes = np.square(left).sum(axis=0)  # the singular values
    return left, right, _share(np.square(sizes).sum(), matrix)


def _share(retained: float, kernel: np.ndarray) -> float:
    total = np.square(kernel).sum()
    return float(min(1.0, retained / total)) if total else 1.0


def _first(layer: Layer, **changed: Any) -> dict[str, Any]:
    config = _config(layer)
    return config | _plain(config) | {"name": f"{layer.name}_first"} | changed


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    no_bias = {"use_bias": False} if "use_bias" in config else {"bias_axes": None}
    names = ("activation", "activity_regularizer", "bias_regularizer")
    return dict.fromkeys((*names, "bias_constraint")) | no_bias


def _last(layer: Layer) -> dict[str, Any]:
    return _config(layer) | {"name": f"{layer.name}_last"}


def _config(layer: Layer) -> dict[str, Any]:
    config = layer.get_config()
    return {k: v for k, v in config.items() if k not in ("lora_rank", "lora_alpha")}


def _in_window(matrix: np.ndarray, layer: Layer) -> np.ndarray:
    return matrix.reshape(*[1] * len(layer.kernel_size), *matrix.shape)


def factorize(
    model: Model, config: Factorize, context: Context
) -> tuple[Any, list[WeightChange]]:
    """Factorizes the kernels of a model.

    Layers in the graph are replaced in a new model. Layers inside of other layers are
    changed in place.

    Raises:
        ModelError: If no kernel becomes smaller.
        ConfigError: If a pattern matches no weight.
    """
    del context
    everything = list(weights(model))
    patterns = {"include": config.include, "exclude": config.exclude}
    check_every_pattern_matches(model.name, everything, patterns)
    in_graph = {id(layer) for layer in operations(model)}
    shared_weights = readers(model)
    chains: dict[int, FactorChain] = {}
    reasons: dict[int, str] = {}
    for weight in everything:
        reason = _why_not(weight, config, in_graph)
        if reason is None and id(weight.variable) in shared_weights:
            reason = f"is read by {shared_weights[id(weight.variable)]} too"
        if reason is None:
            candidate = chain(weight.owner, config)
            if candidate.size < weight.size:
                chains[id(weight.variable)] = candidate
                continue
            reason = _TOO_LARGE
        reasons[id(weight.variable)] = reason
    if not chains:
        of_kernels = [why for why in reasons.values() if why != _NO_KERNEL]
        ((commonest, _),) = Counter(of_kernels or [_NO_KERNEL]).most_common(1)
        raise ModelError(
            f"The model {model.name!r} has nothing to factorize: none of its "
            f"{len(everything)} weights is a kernel that becomes smaller. Most "
            f"frequent reason: {commonest}. Received: "
            f"{config!r}.{_ADVICE * (_TOO_LARGE in reasons.values())}"
        )
    changes = [_change(weight, chains, reasons) for weight in everything]
    thick = [weight for weight in everything if id(weight.variable) in chains]
    inside = [weight for weight in thick if id(weight.owner) not in in_graph]
    factorize_inside((w, chains[id(w.variable)].inside(w.owner)) for w in inside)
    outer = {
        id(weight.owner): chains[id(weight.variable)]
        for weight in thick
        if id(weight.owner) in in_graph
    }
    if not outer:
        return model, changes
    smaller = Rebuild(_Thinner(outer)).run(model)
    compile_as(smaller, model)
    return smaller, changes


class _Thinner(Rewrite):
    """Replaces layers by their factors."""

    def __init__(self, chains: dict[int, FactorChain]) -> None:
        self._chains = chains

    def replacement(self, node: Node) -> Sequence[Any]:
        thin_chain = self._chains.get(id(node.operation))
        return () if thin_chain is None else thin_chain.layers()

    def values(self, old: Any, new: Any) -> Iterable[tuple[Any, Any]]:
        thin_chain = self._chains.get(id(old))
        if thin_chain is None:
            return super().values(old, new)
        values = [
            (layer.kernel, kernel)
            for layer, kernel in zip(new.layers, thin_chain.kernels, strict=True)
        ]
        if old.bias is not None:
            values.append((new.layers[-1].bias, to_numpy(old.bias)))
        return values


def _why_not(weight: Weight, config: Factorize, in_graph: set[int]) -> str | None:
    if not is_kernel(weight):
        return _NO_KERNEL
    if matches(config.exclude, weight):
        return "is excluded"
    if config.include and not matches(config.include, weight):
        return "is not included"
    if not np.isfinite(to_numpy(weight.variable)).all():
        return "has entries that are NaN or infinite"
    is_outer = id(weight.owner) in in_graph
    return (None if is_outer else why_not_inside(weight)) or why_not(weight.owner)


def _change(
    weight: Weight, chains: dict[int, FactorChain], reasons: dict[int, str]
) -> WeightChange:
    thin_chain = chains.get(id(weight.variable))
    if thin_chain is None:
        return account(weight, NAME, reasons[id(weight.variable)], changed=False)
    shapes = [str(tuple(kernel.shape)) for kernel in thin_chain.kernels]
    return account(
        weight,
        NAME,
        f"now {' and '.join(shapes)}, {thin_chain.energy:.1%} of its energy",
        changed=True,
        after_bytes=weight.nbytes * thin_chain.size // weight.size,
        sqnr_db=decibels(1.0, 1.0 - thin_chain.energy),
    )
