"""Which weights are pruned, how far, and which are ranked together.

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
from kerasmem.compression.evidence import observe_samples
from kerasmem.compression.prune import (
    CRITERIA,
    ERDOS_RENYI,
    ERDOS_RENYI_KERNEL,
    INPUTS,
    Prune,
)
from kerasmem.compression.prune.scores import parse_pattern
from kerasmem.errors import ConfigError
from kerasmem.graph.kernels import einsum_parts, is_depthwise, is_kernel, reduced_axes
from kerasmem.graph.layers import (
    Weight,
    first_argument,
    node_of,
    own_graph,
    sublayers,
    weights,
)
from kerasmem.graph.values import to_numpy
from kerasmem.records import WeightChange
from kerasmem.types import Dataset, Model, Node, Tensor

_SAMPLES = 256

_CONVOLUTIONS = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)
_KNOWN = (keras.layers.Dense, keras.layers.EinsumDense, *_CONVOLUTIONS)


def why_no_inputs(weight: Weight) -> str | None:
    """Return why the inputs of a weight are not known, None if they are."""
    if isinstance(weight.owner, _KNOWN) and weight.variable.name == "kernel":
        return None
    return "is no kernel of a Dense, EinsumDense or convolution, whose inputs are known"


def input_norms(
    model: Model, data: Dataset, weights: Sequence[Weight]
) -> list[np.ndarray]:
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
    squares: dict[int, Any] = {}
    owners = [weight.owner for weight in weights]

    def add(call: LayerCall) -> None:
        """Add up the squares of a layer's input, over all but its features."""
        values = to_numpy(call.x).astype("float64")
        features = tuple(axis % values.ndim for axis in _feature_axes(call.layer))
        rest = tuple(axis for axis in range(values.ndim) if axis not in features)
        # Transposed, so that the features come in the order of the kernel's axes.
        sums = np.square(values).transpose((*rest, *features))
        sums = sums.sum(tuple(range(len(rest))))
        squares[id(call.layer)] = squares.get(id(call.layer), 0.0) + sums

    observe_samples(model, owners, add, data, samples=_SAMPLES, criterion="wanda")
    missing = [weight.path for weight in weights if id(weight.owner) not in squares]
    if missing:
        raise ConfigError(
            f"The model {model.name!r} did not call the layer of a weight on the "
            f"samples. Next: leave it out. Received: exclude without {missing[0]!r}."
        )
    return [_norms(weight, squares[id(weight.owner)]) for weight in weights]


def _feature_axes(owner: Any) -> list[int]:
    if isinstance(owner, _CONVOLUTIONS):
        return [1 if owner.data_format == "channels_first" else -1]
    if isinstance(owner, keras.layers.EinsumDense):
        input_letters, kernel, output = einsum_parts(owner.equation)
        # From the end: where there are dots, the number of axes before is open.
        from_end = input_letters.replace("...", ".")[::-1]
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


_NOTHING_GOES = "has too few entries in a row, or too large ones, for any to go"


@dataclass(frozen=True)
class MaskPlan:
    """What a `Prune` means for one model.

    Args:
        chosen: the weights that are pruned.
        sparsities: the share that each loses in the end; of a group that is ranked
            together, that of the group.
        groups: the indices of weights that are ranked together.
        left_alone: for every other weight why it is not pruned.
    """

    chosen: tuple[Weight, ...]
    sparsities: tuple[float, ...]
    groups: tuple[tuple[int, ...], ...]
    left_alone: tuple[tuple[Weight, str], ...]

    @property
    def variables(self) -> list[Any]:
        """Return the variables that are pruned."""
        return [weight.variable for weight in self.chosen]

    def criterion(self, config: Prune) -> str:
        """Return by what entries are ranked: within one array its scale is nothing."""
        alone = all(len(group) == 1 for group in self.groups)
        if alone and config.criterion == "magnitude/rms":
            return "magnitude"
        return config.criterion

    @property
    def axes(self) -> list[int]:
        """Return for each of them the axis that its layer sums over."""
        return [(reduced_axes(weight) or (0,))[-1] for weight in self.chosen]


def make_plan(model: Model, config: Prune) -> MaskPlan:
    """Return which weights of `model` are pruned, and how far.

    Raises:
        ModelError: if there are none.
        ConfigError: if a pattern of `include`, `exclude` or `ratios` matches no weight.
    """
    all_weights = list(weights(model))
    last = output_layers(model, all_weights)
    pruned_weights, left_alone = select(
        model.name,
        all_weights,
        config.patterns_by_field(),
        lambda weight: _why_not(weight, config, last),
        "prune: none of its {count} weights is a float kernel or embedding table that "
        "is not excluded and not of the output layer, which is pruned only if "
        "include= or ratios= names it. Prune before quantizing.",
    )
    return MaskPlan(
        tuple(pruned_weights),
        tuple(_sparsities(pruned_weights, config)),
        tuple(_groups(pruned_weights, config)),
        tuple(left_alone),
    )


def _why_not(weight: Weight, config: Prune, last: set[int]) -> str | None:
    """Return why a weight is left alone, or None if it is pruned.

    Args:
        weight: the weight.
        config: the choice.
        last: the ids of the layers that come last.
    """
    patterns = (*config.include, *(pattern for pattern, _ in config.ratios))
    if reason := why_left_alone(weight, patterns, config.exclude):
        return reason
    if id(weight.owner) in last and not matches(patterns, weight):
        return "is of the output layer"
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
    """Return a sparsity per weight, lower where a weight is small; `sparsity` in all.

    The share that stays is proportional to the sum of the axes over their product,
    and at most 1.

    Args:
        shapes: those of the weights, of two axes or more.
        sparsity: share of all entries to remove, in [0, 1).
        kernel: whether all axes count, or only the last two, inputs and outputs.

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
    """Return the ids of the layers that come last of those with a kernel.

    They are found by walking back from the outputs of the model. Of a model without a
    graph it is the last layer with a kernel that it lists. Where no other layer has a
    kernel, depthwise ones aside, there are none.

    Args:
        model: a built `keras.Model`.
        weights: all of its weights.
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
    """Return the layers with a kernel that are met first on the way back.

    Args:
        graph: a Functional model.
        outputs: tensors of its graph to begin at.
        with_kernel: the ids of the layers with a kernel.

    Returns:
        The ids of the layers, and the numbers of the inputs that are reached without
        one in between.
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
    """Return one change per weight of a model, with its share of zeros or why not.

    Args:
        plan: which of the weights are pruned.
        shares: the share of zeros in each of them, 0 to 1.
    """
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
