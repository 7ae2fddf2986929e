"""Finds losses that depend on several samples at once, before a batch is split."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from keras import ops

from kerasmem.backends import splitting
from kerasmem.backends.steps import Steps
from kerasmem.errors import ConfigError
from kerasmem.graph.layers import sublayers
from kerasmem.graph.masks import mask_of, with_mask
from kerasmem.memory.fit import losses
from kerasmem.memory.fit.notices import Notices
from kerasmem.memory.plan.offers import smaller_batches
from kerasmem.records import PostMortem, Remedy
from kerasmem.types import Dataset, Model, Tensor, Tensors
from kerasmem.units import format_bytes

_MOST_ROWS, _CHUNK, _MOST_ELEMENTS = 64, 8, 2**20
_TOLERANCES = {"float16": 2e-2, "bfloat16": 2e-1}
_HALF = frozenset(_TOLERANCES)
_BY_OUTPUTS = "loss, through outputs that depend on other samples,"


class CouplingCheck:
    """Determines once whether the batches of a model must stay whole.

    Attributes:
        coupled: Name of the loss that depends on several samples, or `None`.
        remedy: Advice if batches cannot be split, else `None`.
    """

    def __init__(self, model: Model, notices: Notices) -> None:
        self.coupled: str | None = None
        self.remedy = smaller_batches(model)
        self._model, self._notices = model, notices
        self._has_run = self.remedy is not None

    def run(
        self,
        steps: Steps,
        state: Any,
        batch: Tensors,
        most: int,
        find_cause: Callable[[Exception], Any],
    ) -> Remedy | None:
        """Check a batch before the first split, with fewer samples if memory runs out.

        `most` is the maximum number of samples per call of the model. `find_cause`
        returns `None` for an error other than out of memory.

        Returns:
            The remedy if the batch must stay whole, else `None`.
        """
        while most > 0 and not self._has_run:
            try:
                self._check(steps, state, batch, most)
                most = 0
            except Exception as error:  # noqa: BLE001 - the user's code, not in a step
                if find_cause(error) is None:
                    self._notices.not_checked(error)
                    break
                most = most // 2 if most > 2 else 0
            steps.free()
        return self.remedy

    def _check(self, steps: Steps, state: Any, batch: Tensors, most: int) -> None:
        self.coupled = find_coupling(self._model, steps, state, batch, most)
        self._has_run = True
        if self.coupled is not None:
            self.remedy = Remedy(
                name="km.rematerialize(model), km.compress_activations(model), or a "
                "smaller `batch_size`",
                how=f"the {self.coupled} depends on several samples of a batch at "
                "once, so micro-batches would change the training",
            )

    def refusal(self, remedy: Remedy, size: int, limit_bytes: int) -> ConfigError:
        """Return the error for a batch that does not fit and cannot be split."""
        return ConfigError(
            f"A batch of {size} is estimated not to fit into the limit, and it cannot "
            f"be split into micro-batches: {remedy.how}. Received: "
            f"memory_limit={format_bytes(limit_bytes)}. Next: {remedy.name}."
        )

    def as_a_whole(self, report: PostMortem) -> PostMortem:
        """Return the post-mortem without micro-batches if batches must stay whole."""
        if self.remedy is None:
            return report
        return replace(
            report,
            fitting_micro_batches=None,
            fitting_bytes=None,
            remedies=(self.remedy, *report.remedies),
        )


def find_coupling(
    model: Model, steps: Steps, state: Any, batch: Tensors, most: int
) -> str | None:
    """Return the name of the first loss that couples samples, or `None`.

    The model runs in inference mode on some samples of the batch. For each loss, the
    weighted sum of single-sample losses must equal the loss of all samples. Outputs and
    `add_loss` terms of a few samples are compared with the results of their halves.
    Comparisons with random outputs are skipped. Swapped halves reveal such outputs. The
    model is not changed. `most` is the maximum number of samples per call of the model.
    """
    if name := _known_to_couple(model):
        return name
    probe = _Probe(model, steps, state)
    batch = steps.on_replicas(batch)[0]
    size = splitting.length_of(batch)
    chunk = max(min(most, size, _CHUNK) // 2 * 2, 2)
    first = probe.rows(batch, 0, chunk)
    first_outputs = probe.predict(first)
    coupling = _in_model(probe, first, first_outputs, chunk // 2)
    if coupling is not None:
        return coupling
    rows = min(size, _rows_within(first_outputs[0]))
    begins = range(chunk, rows - chunk + 1, chunk)
    others = [probe.predict(probe.rows(batch, b, b + chunk)) for b in begins]
    outputs = [each[:2] for each in (first_outputs, *others)]
    data = _joined(outputs), probe.rows(batch, 0, chunk * len(outputs))
    return _in_losses(probe, data)


class _Probe:
    """Runs a model and its losses on samples without changing the model."""

    def __init__(self, model: Model, steps: Steps, state: Any) -> None:
        self.model, self.steps, self._state = model, steps, state
        self._functions: dict[Any, Any] = {}
        self.names: list[str] = []

    def predict(self, batch: Tensors) -> Any:
        """Return outputs, masks and the sum of the `add_loss` terms."""
        return self._run(self._outputs, batch)

    def evaluate(self, data: Dataset) -> np.ndarray:
        """Return the value and the divisor of each loss."""
        return np.asarray(ops.convert_to_numpy(self._run(self._losses, data)))

    def _run(self, function: Callable[..., Any], data: Dataset) -> Any:
        # One function per shape: a model may need a static number of samples.
        key = function, splitting.length_of(data)
        if key not in self._functions:
            self._functions[key] = self.steps.counting(function)
        return self.steps.on_replicas(self._functions[key](self._state, data))[0]

    def rows(self, batch: Tensors, begin: int, end: int) -> Any:
        """Return a range of samples."""
        return splitting.cut(batch, begin, end, self.steps.take_rows)

    def _outputs(self, values: Sequence[tuple[Any, Any]], batch: Tensors) -> Any:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        scope = keras.StatelessScope(state_mapping=list(values), collect_losses=True)
        with scope:
            outputs = self.model(x, training=False)
            masks = [mask_of(leaf) for leaf in keras.tree.flatten(outputs)]
            terms = [ops.sum(ops.cast(term, "float32")) for term in scope.losses]
            return outputs, masks, ops.sum(ops.stack(terms)) if terms else ops.zeros(())

    def _losses(self, values: Sequence[tuple[Any, Any]], data: Dataset) -> Any:
        (outputs, masks), batch = data
        x, y, weight = keras.utils.unpack_x_y_sample_weight(
            splitting.copy_weights(batch)
        )
        leaves = [
            leaf if mask is None else with_mask(leaf, mask)
            for leaf, mask in zip(keras.tree.flatten(outputs), masks, strict=True)
        ]
        outputs = keras.tree.pack_sequence_as(outputs, leaves)
        model = self.model
        with keras.StatelessScope(state_mapping=list(values), collect_losses=True):
            self.names = losses.names(model)
            results = []
            if self.names:
                results = losses.apply(model, _value_and_count, y, outputs, weight)
            if type(model).compute_loss is not keras.Model.compute_loss:
                _, _, weight = keras.utils.unpack_x_y_sample_weight(
                    splitting.copy_weights(batch)
                )
                # Private API: Keras calls a `compute_loss` with fewer arguments.
                total = model._compute_loss(x, y, outputs, weight, training=True)
                results.append(ops.stack([ops.cast(total, "float32"), 1.0]))
                self.names.append("compute_loss")
        return ops.stack(results) if results else ops.zeros((0, 2))


def _value_and_count(loss: Any, y_true: Tensor, y_pred: Tensor, weight: Tensor) -> Any:
    value = ops.sum(ops.cast(loss(y_true, y_pred, weight), "float32"))
    return ops.stack([value, losses.count(loss, y_true, y_pred, weight)])


def _in_losses(probe: _Probe, data: Dataset) -> str | None:
    rows = splitting.length_of(data)
    whole = probe.evaluate(data)[:, 0]
    single = [probe.evaluate(probe.rows(data, row, row + 1)) for row in range(rows)]
    weights = splitting.weights([1] * rows, [each[:, 1] for each in single])
    terms = np.array(
        [
            share * factors * each[:, 0]
            for each, (share, factors) in zip(single, weights, strict=True)
        ]
    )
    scale = np.abs(terms).sum(0)
    for place, name in enumerate(probe.names):
        limit = losses.dtype_of(probe.model, place)
        limit = _TOLERANCES.get(limit, 1e-4) * scale[place] + 1e-7
        is_equal = abs(terms[:, place].sum() - whole[place]) <= limit
        if np.isfinite(whole[place]) and not is_equal:
            return f"loss {name!r}"
    return None


def _in_model(probe: _Probe, batch: Tensors, whole: Any, half: int) -> str | None:
    one, other = probe.rows(batch, 0, half), probe.rows(batch, half, 2 * half)
    halves = [probe.predict(one), probe.predict(other)]
    in_reverse = probe.predict(_joined([other, one]))
    outputs, terms = _joined([each[0] for each in halves]), [each[2] for each in halves]
    in_order = _joined(
        [probe.rows(in_reverse[0], half, 2 * half), probe.rows(in_reverse[0], 0, half)]
    )
    dtypes = {layer.compute_dtype for layer in sublayers(probe.model)}
    limit = 3e-2 if dtypes & _HALF else 3e-3
    triples = [
        *zip(*map(keras.tree.flatten, (whole[0], outputs, in_order)), strict=True)
    ]
    if any(own.shape != both.shape for own, both, _ in triples):
        return _BY_OUTPUTS
    is_random = _differ(whole[2], in_reverse[2], limit) or any(
        _differ(own, again, limit) for own, _, again in triples
    )
    if is_random:
        return None
    if any(_differ(own, both, limit) for own, both, _ in triples):
        return _BY_OUTPUTS
    if _differ(whole[2], sum(terms) / 2, limit):
        return "loss from `add_loss`"
    return None


def _differ(one: Any, other: Any, limit: float) -> bool:
    one, other = (np.asarray(ops.convert_to_numpy(x), "float32") for x in (one, other))
    return bool(np.abs(one - other).max(initial=0.0) > limit * np.abs(one).max())


def _known_to_couple(model: Model) -> str | None:
    """Return the first Keras loss that always couples samples.

    Without an axis, Dice and Tversky sum over the batch. A batch without any foreground
    would not show the coupling.
    """
    sums = keras.losses.Dice, keras.losses.Tversky
    functions = keras.losses.dice, keras.losses.tversky, keras.losses.circle
    for own_loss in keras.tree.flatten(model.loss):
        loss = keras.losses.get(own_loss) if isinstance(own_loss, str) else own_loss
        is_sum = isinstance(loss, sums) and loss.axis is None
        if is_sum or isinstance(loss, keras.losses.Circle) or loss in functions:
            name = getattr(loss, "name", None) or loss.__name__
            return f"loss {name!r}"
    return None


def _joined(pieces: Sequence[Any]) -> Any:
    return keras.tree.map_structure(
        lambda *leaves: None if leaves[0] is None else ops.concatenate(leaves, axis=0),
        *pieces,
    )


def _rows_within(outputs: Tensors) -> int:
    elements = sum(int(np.prod(x.shape[1:])) for x in keras.tree.flatten(outputs))
    return min(_MOST_ROWS, _MOST_ELEMENTS // max(elements, 1))
