"""Report on compressed activations: bytes by layer, and the gradient change."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import keras
import numpy as np

from kerasmem.backends.seeding import seeded
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.activation_policy import (
    ActivationPolicy,
    GraphPolicy,
    SegmentPolicy,
    policy_of,
)
from kerasmem.graph.clone import clone, compile_settings, same_draws
from kerasmem.graph.layers import own_graph
from kerasmem.graph.segments import graph_of
from kerasmem.graph.values import nbytes, to_numpy
from kerasmem.memory.compress_activations.apply import NAME
from kerasmem.memory.compress_activations.store import EmptyStore, packed_bytes
from kerasmem.records.plain import AnyNumber, JsonRecord
from kerasmem.types import Dataset, Model, Node, Tensor
from kerasmem.units import format_bytes

FATES = ("8 bits", "as it is", "not stored")
"""Storage of an output. An output that is not stored is recomputed if needed."""


@dataclass(frozen=True)
class LayerBytes:
    """Output of one layer, or of one operation such as `a + b`.

    Args:
        layer: Name of the layer.
        output_bytes: Bytes of the outputs in the compute dtype.
        stored_bytes: Calculated bytes stored for the backward pass.
        fate: One of `FATES`.
    """

    layer: str
    output_bytes: int
    stored_bytes: int
    fate: Annotated[str, FATES]


@dataclass(frozen=True)
class GradientChange:
    """Difference of the gradient of a layer's weights from the exact gradient.

    Args:
        layer: Path of the layer.
        relative: L2 norm of the difference, relative to the norm of the exact gradient.
            Infinity if only the exact gradient is zero.
    """

    layer: str
    relative: AnyNumber


@dataclass(frozen=True)
class ActivationReport(JsonRecord):
    """Activations stored for the backward pass of a batch, and the gradient change.

    Args:
        layers: Layers in execution order. A shared layer has one entry per call.
        gradients: Gradient changes by layer, measured in one step. Empty without
            targets.
        gradient_change: Relative gradient change of all weights. None if not measured.
    """

    layers: tuple[LayerBytes, ...]
    gradients: tuple[GradientChange, ...] = ()
    gradient_change: AnyNumber | None = None

    @property
    def output_bytes(self) -> int:
        """Bytes of all outputs."""
        return sum(layer.output_bytes for layer in self.layers)

    @property
    def stored_bytes(self) -> int:
        """Bytes stored for the backward pass."""
        return sum(layer.stored_bytes for layer in self.layers)

    def table(self) -> str:
        """Return the report as text with one line per layer."""
        width = max((len(layer.layer) for layer in self.layers), default=0)
        lines = [
            f"outputs of layers: {format_bytes(self.output_bytes)}, stored: "
            f"{format_bytes(self.stored_bytes)} (calculated)"
        ]
        lines += [
            f"  {row.layer:<{width}}  {format_bytes(row.output_bytes):>10}  "
            f"{format_bytes(row.stored_bytes):>10}  {row.fate}"
            for row in self.layers
        ]
        if self.gradient_change is not None:
            lines.append(
                f"gradient of this batch: changed by {self.gradient_change:.2%} of its "
                "norm (measured)"
            )
            lines += [f"  {g.layer}  {g.relative:.2%}" for g in self.gradients]
        return "\n".join(lines)


_PACKED, _AS_IT_IS, _NOT_STORED = FATES


def layer_bytes(
    model: Model, policy: ActivationPolicy, x: Tensor
) -> tuple[LayerBytes, ...]:
    """Return a record of each output in execution order."""
    symbols = own_graph(model).inputs
    inputs = [x[symbol.name] for symbol in symbols] if isinstance(x, dict) else x
    arrays = inputs if isinstance(inputs, list | tuple) else [inputs]
    data = [
        _Value("", keras.KerasTensor(array.shape, symbol.dtype))
        for array, symbol in zip(arrays, symbols, strict=True)
    ]
    count = _ByteCount({id(graph.model): graph for graph in policy.graphs})
    for value in count.run(model, data):
        value.whole = True
    return tuple(value.record() for value in count.outputs)


@dataclass(eq=False)
class _Value:
    """A tensor, its number of packed copies, and whether it is stored unpacked."""

    layer: str
    spec: Any
    packed: int = 0
    whole: bool = False

    def store(self, number: int, step: SegmentPolicy) -> None:
        if step.store is None:
            self.whole = True
        elif isinstance(step.store, EmptyStore):
            self.whole |= number not in step.store.dropped
        else:
            packs = number in step.store.packed
            self.packed += packs
            self.whole |= not packs

    def record(self) -> LayerBytes:
        size = nbytes(self.spec)
        code_bytes = self.packed * packed_bytes(self.spec.shape)
        fate = _AS_IT_IS if self.whole else _PACKED if self.packed else _NOT_STORED
        return LayerBytes(self.layer, size, self.whole * size + code_bytes, fate)


@dataclass
class _ByteCount:
    graphs: dict[int, GraphPolicy]
    outputs: list[_Value] = field(default_factory=list[_Value])

    def run(self, model: Model, inputs: Sequence[_Value]) -> list[_Value]:
        graph = graph_of(model)
        values = dict(zip(map(id, graph.inputs), inputs, strict=True))
        for step in self.graphs[id(model)].segments:
            # The steps of a nested model count its storage.
            if any(id(node.operation) not in self.graphs for node in step.nodes):
                for number, symbol in enumerate(step.segment.inputs):
                    values[id(symbol)].store(number, step)
            for node in step.nodes:
                outputs = self._call(node, values, whole=not step.recomputed)
                values.update(zip(map(id, node.outputs), outputs, strict=True))
        return [values[id(y)] for y in graph.outputs]

    def _call(
        self, node: Node, known: dict[int, _Value], *, whole: bool
    ) -> list[_Value]:
        operation = node.operation
        if id(operation) in self.graphs:
            return self.run(operation, [known[id(x)] for x in node.input_tensors])
        specs = {key: value.spec for key, value in known.items()}
        args, kwargs = node.arguments.fill_in(specs)
        specs = keras.tree.flatten(operation.compute_output_spec(*args, **kwargs))
        values = [_Value(operation.name, spec, whole=whole) for spec in specs]
        self.outputs.extend(values)
        return values


def gradients(model: Model, batch: Sequence[Any]) -> dict[str, np.ndarray]:
    """Return the gradient of each trainable variable by path.

    The model is compiled again and runs one step, after which each momentum is the
    negative gradient.
    """
    optimizer = keras.optimizers.SGD(learning_rate=1.0, momentum=0.5)
    settings = compile_settings(model) or {}
    model.compile(
        optimizer=optimizer,
        loss=settings["loss"],
        loss_weights=settings["loss_weights"],
        jit_compile=settings["jit_compile"],
        run_eagerly=settings["run_eagerly"],
        auto_scale_loss=False,
    )
    model.train_on_batch(*batch)
    pairs = zip(model.trainable_variables, optimizer.momentums, strict=True)
    return {variable.path: -to_numpy(slot) for variable, slot in pairs}


def changes(
    exact: dict[str, np.ndarray], moved: dict[str, np.ndarray]
) -> tuple[tuple[GradientChange, ...], float]:
    """Return the relative gradient change by layer and in total."""
    layers: dict[str, list[str]] = {}
    for path in exact:
        layers.setdefault(path.rpartition("/")[0], []).append(path)
    each = tuple(
        GradientChange(layer, _relative(paths, exact, moved))
        for layer, paths in layers.items()
    )
    return each, _relative(list(exact), exact, moved)


def _relative(
    paths: Sequence[str], exact: dict[str, np.ndarray], moved: dict[str, np.ndarray]
) -> float:
    difference = sum(_square(moved[path] - exact[path]) for path in paths)
    norm = sum(_square(exact[path]) for path in paths)
    if not norm:
        return float("inf") if difference else 0.0
    return float(np.sqrt(difference / norm))


def _square(values: np.ndarray) -> float:
    return float(np.sum(values.astype(np.float64) ** 2))


def activation_report(model: Model, data: Dataset) -> ActivationReport:
    """Return the bytes stored for the backward pass of a batch, and the gradient error.

    The bytes follow from the shapes of the batch. The gradient is measured in one step
    of two copies, one with and one without compressed activations. `model` is not
    modified.

    Args:
        model: Model from `compress_activations`.
        data: One batch: `x`, `(x, y)` or `(x, y, sample_weight)`, where `x` is an
            array, or a list or dict of arrays. With `y`, the gradient is measured,
            which needs a compiled model.

    Raises:
        ModelError: If the model is not from `compress_activations`.
        ConfigError: If `y` is passed but the model is not compiled.
    """
    policy = policy_of(model)
    if policy is None or policy.function != NAME:
        raise ModelError(
            "The report needs a model with compressed activations. "
            "Expected: a model from `compress_activations`. Received: "
            f"{model.name!r}."
        )
    batch = data if isinstance(data, tuple) else (data,)
    layers = layer_bytes(model, policy, batch[0])
    if len(batch) == 1:
        return ActivationReport(layers)
    if not model.compiled:
        raise ConfigError(
            "The gradient needs a loss. Expected: a compiled model, or a batch without "
            f"`y`. Received: {model.name!r}, not compiled. Next: model.compile(...)."
        )
    plain, lean_copy = (same_draws(clone(model), model) for _ in range(2))
    policy.apply(lean_copy, policy.settings)
    gradients_by_copy = []
    for copy in (plain, lean_copy):
        # Dropout of Keras on torch uses torch's own random generator.
        with seeded(policy.settings["seed"]):
            gradients_by_copy.append(gradients(copy, batch))
    return ActivationReport(layers, *changes(*gradients_by_copy))
