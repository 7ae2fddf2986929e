"""Selects the weights to prune, their sparsities and the groups to rank together.

Source: Evci, Gale, Menick, Castro and Elsen, "Rigging the Lottery: Making All Tickets
Winners", 2020 (Erdos-Renyi and its version for kernels).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from kerasmem.backends.patching import LayerCall
from kerasmem.compression.account import account, matches, select, why_left_alone
from kerasmem.compression.prune import (
    CRITERIA,
    ERDOS_RENYI,
    ERDOS_RENYI_KERNEL,
    INPUTS,
    Prune,
)
from kerasmem.compression.prune.scores import parse_pattern
from kerasmem.errors import ConfigError
from kerasmem.files.data import input_batches, sample_inputs
from kerasmem.graph.kernels import einsum_parts, is_depthwise, is_kernel, reduced_axes
from kerasmem.graph.layers import (
    Weight,
    first_argument,
    node_of,
    own_graph,
    sublayers,
    weights,
)
from kerasmem.graph.observe import observe
from kerasmem.graph.values import to_numpy
from kerasmem.records import WeightChange
from kerasmem.types import Dataset, Model, Node, Tensor

_SAMPLES, _BATCH_SIZE = 256, 32

_CONVOLUTIONS = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)
_KNOWN = (keras.layers.Dense, keras.layers.EinsumDense, *_CONVOLUTIONS)


def why_no_inputs(weight: Weight) -> str | None:
    """Returns why the inputs of a weight are unknown, or None."""
    if isinstance(weight.owner, _KNOWN) and weight.variable.name == "kernel":
        return None
    return "is not the kernel of a Dense, EinsumDense or convolution layer"


def input_norms(
    model: Model, data: Dataset, weights: Sequence[Weight]
) -> list[np.ndarray]:
    """Returns the L2 norm of the input that each entry of a weight multiplies.

    Runs the model in inference mode on up to 256 samples, or on the first batch of
    batched data. The results broadcast to the shapes of the weights.
    """
    if data is None:
        raise ConfigError(
            "The criterion 'wanda' needs layer inputs. Received: data=None. Next: give "
            "samples as data=x (--data on the command line)."
        )
    squares: dict[int, Any] = {}
    owners = [weight.owner for weight in weights]

    def add(call: LayerCall) -> None:
        values = to_numpy(call.x).astype("float64")
        features = tuple(axis % values.ndim for axis in _feature_axes(call.layer))
        rest = tuple(axis for axis in range(values.ndim) if axis not in features)
        # The feature axes must be in the order of the kernel axes.
        sums = np.square(values).transpose((*rest, *features))
        sums = sums.sum(tuple(range(len(rest))))
        squares[id(call.layer)] = squares.get(id(call.layer), 0.0) + sums

    batches = input_batches((sample_inputs(data, _SAMPLES),), _SAMPLES, _BATCH_SIZE)
    observe(model, batches, owners, inputs=add)
    missing = [weight.path for weight in weights if id(weight.owner) not in squares]
    if missing:
        raise ConfigError(
            f"The model {model.name!r} did not call the layer of a weight on the "
            f"samples. Next: exclude the weight. Received: exclude without "
            f"{missing[0]!r}."
        )
    return [_norms(weight, squares[id(weight.owner)]) for weight in weights]


def _feature_axes(owner: Any) -> list[int]:
    if isinstance(owner, _CONVOLUTIONS):
        return [1 if owner.data_format == "channels_first" else -1]
    if isinstance(owner, keras.layers.EinsumDense):
        input_letters, kernel, output = einsum_parts(owner.equation)
        # Counted from the end, because "..." covers any number of axes.
        from_end = input_letters.replace("...", ".")[::-1]
        return [-1 - from_end.index(c) for c in kernel if c not in output]
    return [-1]


def _norms(weight: Weight, squares: np.ndarray) -> np.ndarray:
    shape = tuple(weight.variable.shape)
    norms = np.sqrt(squares).astype("float32")
    if isinstance(weight.owner, _CONVOLUTIONS):
        # In a grouped convolution, an output channel reads its group's inputs only.
        groups = norms.reshape(-1, shape[-2])
        return np.repeat(groups.T, shape[-1] // len(groups), axis=1)
    axes = reduced_axes(weight)
    return norms.reshape([n if axis in axes else 1 for axis, n in enumerate(shape)])


_NOTHING_GOES = "has too few entries, or entries too large, to remove any"


@dataclass(frozen=True)
class MaskPlan:
    """Weights of a model to prune under a `Prune` configuration.

    `sparsities` contains the final sparsity of each weight, or of its group. `groups`
    contains the indices of weights that are ranked together. `left_alone` contains the
    other weights, each with the reason.
    """

    chosen: tuple[Weight, ...]
    sparsities: tuple[float, ...]
    groups: tuple[tuple[int, ...], ...]
    left_alone: tuple[tuple[Weight, str], ...]

    @property
    def variables(self) -> list[Any]:
        """Returns the variables to prune."""
        return [weight.variable for weight in self.chosen]

    def criterion(self, config: Prune) -> str:
        """Returns the criterion; scaling has no effect if arrays are ranked singly."""
        alone = all(len(group) == 1 for group in self.groups)
        if alone and config.criterion == "magnitude/rms":
            return "magnitude"
        return config.criterion

    @property
    def axes(self) -> list[int]:
        """Returns the axis of each weight that its layer sums over."""
        return [(reduced_axes(weight) or (0,))[-1] for weight in self.chosen]


def make_plan(model: Model, config: Prune) -> MaskPlan:
    """Selects the weights of `model` to prune."""
    all_weights = list(weights(model))
    last = output_layers(model, all_weights)
    pruned_weights, left_alone = select(
        model.name,
        all_weights,
        config.patterns_by_field(),
        lambda weight: _why_not(weight, config, last),
        "prune: none of its {count} weights is a float kernel or embedding table "
        "outside `exclude` and the output layer. Next: prune before quantizing, or "
        "name weights of the output layer in include= or ratios=.",
    )
    return MaskPlan(
        tuple(pruned_weights),
        tuple(_sparsities(pruned_weights, config)),
        tuple(_groups(pruned_weights, config)),
        tuple(left_alone),
    )


def _why_not(weight: Weight, config: Prune, last: set[int]) -> str | None:
    patterns = (*config.include, *(pattern for pattern, _ in config.ratios))
    if reason := why_left_alone(weight, patterns, config.exclude):
        return reason
    if id(weight.owner) in last and not matches(patterns, weight):
        return "is in the output layer"
    if CRITERIA[config.criterion] == INPUTS and (reason := why_no_inputs(weight)):
        return reason
    return parse_pattern(config.pattern).why_not(weight.variable.shape)


def _sparsities(chosen: Sequence[Weight], config: Prune) -> list[float]:
    own = [_ratio(weight, config) for weight in chosen]
    rest = [weight for weight, ratio in zip(chosen, own, strict=True) if ratio is None]
    common_sparsities = [config.sparsity] * len(rest)
    if config.scope in (ERDOS_RENYI, ERDOS_RENYI_KERNEL):
        shapes = [tuple(weight.variable.shape) for weight in rest]
        kernel = config.scope == ERDOS_RENYI_KERNEL
        common_sparsities = erdos_renyi(shapes, config.sparsity, kernel=kernel)
    others = iter(common_sparsities)
    return [next(others) if ratio is None else ratio for ratio in own]


def _groups(chosen: Sequence[Weight], config: Prune) -> list[tuple[int, ...]]:
    together: dict[Any, list[int]] = {}
    for index, weight in enumerate(chosen):
        key: Any = index
        if _ratio(weight, config) is None:
            if config.scope == "global":
                key = "global"
            elif isinstance(config.scope, tuple):
                matching = (p for p in config.scope if matches([p], weight))
                key = next(matching, index)
        together.setdefault(key, []).append(index)
    return [tuple(indices) for indices in together.values()]


def _ratio(weight: Weight, config: Prune) -> float | None:
    matching = (r for p, r in config.ratios if matches([p], weight))
    return next(matching, None)


def erdos_renyi(
    shapes: Sequence[Sequence[int]], sparsity: float, *, kernel: bool
) -> list[float]:
    """Returns a sparsity for each weight, lower for small weights.

    The density of a weight is proportional to the sum of its axes divided by their
    product, and at most 1. The total sparsity is `sparsity`. Without `kernel`, only the
    last two axes (inputs and outputs) are used.

    Example:
        >>> [round(s, 3) for s in erdos_renyi([(8, 8), (64, 64)], 0.8, kernel=False)]
        [0.0, 0.812]
    """
    sizes = [math.prod(shape) for shape in shapes]
    axis_lengths = [tuple(shape) if kernel else tuple(shape)[-2:] for shape in shapes]
    raw = [sum(axes) / math.prod(axes) for axes in axis_lengths]
    full: set[int] = set()
    while True:
        rest = [i for i in range(len(sizes)) if i not in full]
        room = (1 - sparsity) * sum(sizes) - sum(sizes[i] for i in full)
        share = room / sum(raw[i] * sizes[i] for i in rest) if rest else 0.0
        over = {i for i in rest if share * raw[i] >= 1}
        if not over:
            return [0.0 if i in full else 1 - share * raw[i] for i in range(len(raw))]
        full |= over


def output_layers(model: Model, weights: list[Weight]) -> set[int]:
    """Returns the ids of the last layers with a kernel.

    In a Functional model, the search starts at the outputs. In other models, the last
    listed layer with a kernel is used. Returns an empty set if no other layer has a
    kernel that is not depthwise.
    """
    kernels = [weight for weight in weights if is_kernel(weight)]
    last = _last(model, {id(weight.owner) for weight in kernels})
    others = {id(weight.owner) for weight in kernels if not is_depthwise(weight)}
    return set() if last >= others else last


def _last(model: Model, with_kernel: set[int]) -> set[int]:
    graph = own_graph(model)
    if graph is not None:
        return _makers(graph, graph.outputs, with_kernel)[0]
    for layer in reversed(model.layers):
        inside = {id(each) for each in sublayers(layer)} & with_kernel
        if inside:
            return _last(layer, inside) if isinstance(layer, keras.Model) else inside
    return set()


def _makers(
    graph: Any, outputs: Sequence[Any], with_kernel: set[int]
) -> tuple[set[int], set[int]]:
    """Returns the last layers with a kernel, searching backward from `outputs`.

    Also returns the indices of graph inputs reached without passing such a layer.
    """
    inputs = {id(tensor): number for number, tensor in enumerate(graph.inputs)}
    last, numbers, waiting, tensor_ids = set(), set(), list(outputs), set()
    while waiting:
        tensor = waiting.pop()
        if id(tensor) in tensor_ids:
            continue
        tensor_ids.add(id(tensor))
        if id(tensor) in inputs:
            numbers.add(inputs[id(tensor)])
        else:
            inside, before = _makers_in(node_of(tensor), tensor, with_kernel)
            last |= inside
            waiting += before
    return last, numbers


def _makers_in(
    node: Node, tensor: Tensor, with_kernel: set[int]
) -> tuple[set[int], list[Any]]:
    operation = node.operation
    if (graph := own_graph(operation)) is not None:
        number = next(n for n, x in enumerate(node.outputs) if x is tensor)
        inside, numbers = _makers(graph, [graph.outputs[number]], with_kernel)
        arguments = first_argument(node.arguments.args, node.arguments.kwargs)
        tensors = keras.tree.flatten(arguments)
        return inside, [tensors[n] for n in numbers]
    is_layer = isinstance(operation, keras.layers.Layer)
    layers = sublayers(operation) if is_layer else []
    inside = {id(layer) for layer in layers} & with_kernel
    return inside, [] if inside else node.input_tensors


def changes(plan: MaskPlan, shares: Sequence[float]) -> list[WeightChange]:
    """Returns one change per weight, with its fraction of zeros or the reason."""
    details = [
        (weight, f"{share:.1%} zero" if share else _NOTHING_GOES)
        for weight, share in zip(plan.chosen, shares, strict=True)
    ]
    zeros = [*map(bool, shares), *(False for _ in plan.left_alone)]
    return [
        account(weight, "prune", detail, changed=is_changed)
        for (weight, detail), is_changed in zip(
            (*details, *plan.left_alone), zeros, strict=True
        )
    ]
