"""Laws of weights in fewer bits."""

from typing import Any

import keras
import numpy as np

import kerasmem as km
from kerasmem.compression.recipe import apply_technique
from kerasmem.compression.technique import Context
from kerasmem.graph.layers import sublayers, weights
from kerasmem.graph.values import to_numpy
from tests.fuzz.graphs.case import Case, WrongValueError, apart
from tests.fuzz.graphs.models import outputs

_PRODUCTS = (
    keras.layers.Dense,
    keras.layers.EinsumDense,
    keras.layers.Conv1D,
    keras.layers.Conv2D,
    keras.layers.Conv3D,
)
_STEPS = {"int8": 127, "int8-dynamic": 127, "int4": 7}


def check_quantized(case: Case, scheme: str) -> None:
    """Every weight is within half a step, and the answer is that of these weights."""
    if scheme == "int8-static":
        _check_static(case)
        return
    draw, more = case.draw, {}
    if scheme in ("int8", "int4"):
        granularity = draw.choice(("channel", "tensor", "group"))
        more = {"granularity": granularity, "symmetric": draw.flag(0.7)}
        more |= {"group_size": 4} if granularity == "group" else {}
    before = [to_numpy(w.variable) for w in weights(case.model)]
    model, _ = apply_technique(km.Quantize(scheme, **more), case.model)
    plain = km.dequantize(model)
    _check_weights(before, plain, (scheme, more))
    if scheme == "int8-dynamic":
        _check_products(case, model, plain)
        return
    found, expected = outputs(model, case.x), outputs(plain, case.x)
    noise = case.noise_of(plain, case.x, expected)
    if np.isfinite(noise) and noise < 0.1:
        case.check_equal(expected, found, noise, f"{scheme} {more}")


def _check_weights(before: list[Any], plain: Any, how: tuple[str, dict]) -> None:
    scheme, more = how
    for old, new in zip(before, weights(plain), strict=True):
        want, have = (a.astype("float64") for a in (old, to_numpy(new.variable)))
        most = np.abs(want).max(initial=0.0)
        # Without symmetry the range is that between the ends, and zero is a code.
        span = (
            most
            if more.get("symmetric", True)
            else (max(want.max(initial=0.0), 0) - min(want.min(initial=0.0), 0)) / 2
        )
        step = span / _STEPS[scheme] if scheme in _STEPS else most / 1024
        if not np.abs(want - have).max(initial=0.0) <= 0.505 * step + 1e-7:
            raise WrongValueError(
                f"{scheme} {more} {new.path}: {np.abs(want - have).max():.2e} off, "
                f"half a step is {step / 2:.2e}"
            )


def _check_products(case: Case, model: Any, plain: Any) -> None:
    """Each layer's product is within what rounding its inputs can do."""
    calls: list[tuple[Any, Any, Any]] = []
    twins = {
        id(new): old
        for new, old in zip(sublayers(model), sublayers(plain), strict=True)
        if type(new) is not type(old) and isinstance(old, _PRODUCTS)
    }
    for layer in sublayers(model):
        if id(layer) in twins:
            _record(layer, calls)
    outputs(model, case.x)
    if case.program["policy"] != "float32":
        return
    for layer, x, y in calls:
        twin = twins[id(layer)]
        expected, bound = to_numpy(twin(x)), _bound(twin, x)
        error = np.abs(expected - y)
        slack = 1e-4 * max(np.abs(expected).max(initial=0.0), 1.0)
        if (error > 1.2 * bound + slack).any():
            raise WrongValueError(
                f"{twin.name} {type(twin).__name__}: {error.max():.2e} apart, rounding "
                f"explains {bound.max():.2e}"
            )


def _record(layer: Any, calls: list) -> None:
    call = layer.call

    def recorded(inputs, *more, **named):
        y = call(inputs, *more, **named)
        calls.append((layer, inputs, to_numpy(y)))
        return y

    object.__setattr__(layer, "call", recorded)


def _bound(twin: Any, x: Any) -> np.ndarray:
    """Return half a step of the input times the sum of |kernel|, per output."""
    most = float(np.abs(to_numpy(x)).max(initial=0.0))
    kernel, activation = to_numpy(twin.kernel), twin.activation
    bias = None if twin.bias is None else to_numpy(twin.bias)
    twin.kernel.assign(np.abs(kernel))
    twin.activation = None
    if bias is not None:
        twin.bias.assign(np.zeros_like(bias))
    bound = to_numpy(twin(keras.ops.ones_like(x) * (most / 127 / 2)))
    twin.kernel.assign(kernel)
    twin.activation = activation
    if bias is not None:
        twin.bias.assign(bias)
    # Softmax and its kind look at all channels at once.
    return bound.max() * np.ones_like(bound)


def _check_static(case: Case) -> None:
    """Integers run, at other batch sizes too, and are near where they were found."""
    data = case.batch(8)
    answers = [(x, outputs(case.model, x)) for x in (data, case.batch(1))]
    found, _ = apply_technique(km.Quantize("int8-static"), case.model, Context(data))
    for x, expected in answers:
        y = outputs(found, x)
        if not all(np.isfinite(a).all() for a in y):
            raise WrongValueError("not finite")
        if [a.shape for a in y] != [a.shape for a in expected]:
            raise WrongValueError(f"{[a.shape for a in y]}")
    error = apart(answers[0][1], outputs(found, data))
    if error > 1.0 and not (
        _looks_up_what_it_computes(case.model) or _is_steep(case.model, *answers[0])
    ):
        raise WrongValueError(
            f"int8-static is off by {error:.2f} of the largest output"
        )


def _is_steep(model: Any, x: Any, expected: list[np.ndarray]) -> bool:
    """Return whether rounding the inputs alone turns answers over, as a sign does."""
    random = np.random.default_rng(0)

    def rounded(a: Any) -> Any:
        if a.dtype.kind != "f":
            return a
        step = np.abs(a).max(initial=0.0) / 127
        return (a + step * random.uniform(-1, 1, a.shape)).astype(a.dtype)

    return apart(expected, outputs(model, keras.tree.map_structure(rounded, x))) > 0.5


def _looks_up_what_it_computes(model: Any) -> bool:
    """Return whether a rounding may look up another row of a table."""
    tables = (x for x in sublayers(model) if isinstance(x, keras.layers.Embedding))
    return any(not table.name.endswith("_table") for table in tables)
