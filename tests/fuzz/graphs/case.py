"""One model and one law: what is compared with what, and how closely."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

import kerasmem as km
from kerasmem.graph.clone import clone
from kerasmem.graph.values import to_numpy
from tests.fuzz.graphs.models import outputs, sample
from tests.fuzz.graphs.operation import Draw

TOLERANCE = {"float32": 1e-4, "mixed_float16": 2e-2, "mixed_bfloat16": 1e-1}
_NUDGE = {"float32": 1e-6, "mixed_float16": 5e-4, "mixed_bfloat16": 4e-3}
VARIANTS = ("fresh", "fresh", "cloned", "cloned by Keras", "reloaded")


class WrongValueError(Exception):
    """A law does not hold."""


class UnfitError(Exception):
    """The model itself does not run, or tells nothing: no case."""


@dataclass
class Case:
    """What a law is given.

    Args:
        model: as it came out of the program, or a copy; a law may change it that puts
            it through a technique that works in place.
        program: what it was made by.
        draw: the law's own choices.
        x: a batch of three.
        y: what the model answers.
        noise: what a change of all weights by a rounding makes of `y`.
    """

    model: Any
    program: dict[str, Any]
    draw: Draw
    x: Any
    y: list[np.ndarray]
    noise: float = 0.0

    @property
    def tolerance(self) -> float:
        """Of a difference, relative to the largest output."""
        return TOLERANCE[self.program["policy"]]

    def batch(self, size: int) -> Any:
        """Return another batch of inputs."""
        return sample(self.model, self.program, size, seed=size)

    def check_equal(self, expected: list, found: list, noise: float, what: str) -> None:
        """Raise unless two answers agree.

        Args:
            expected: arrays.
            found: arrays.
            noise: what a nudge at the weights does to `expected`, see `noise_of`.
            what: is compared.
        """
        error = apart(expected, found)
        if not error <= max(self.tolerance, 30 * noise):
            shapes = f"{[y.shape for y in expected]} {[y.shape for y in found]}"
            raise WrongValueError(
                f"{what}: {error:.1e} apart, noise {noise:.0e} {shapes}"
            )

    def noise_of(self, model: Any, x: Any, expected: list[np.ndarray]) -> float:
        """Return what a relative change of all weights by a rounding does to it."""
        random, before = np.random.default_rng(0), []
        size = _NUDGE[self.program["policy"]]
        floats = [v for v in model.weights if keras.backend.is_float_dtype(v.dtype)]
        for variable in floats:
            value = to_numpy(variable)
            before.append(value)
            variable.assign(value * random.uniform(1 - size, 1 + size, value.shape))
        found = outputs(model, _nudged(x, size))
        for variable, value in zip(floats, before, strict=True):
            variable.assign(value)
        return apart(expected, found)


def _nudged(x: Any, size: float) -> Any:
    return keras.tree.map_structure(
        lambda a: a * np.float32(1 + size) if a.dtype.kind == "f" else a, x
    )


def apart(expected: list[np.ndarray], found: list[np.ndarray]) -> float:
    """Return the largest difference, relative to the largest entry; inf by shape."""
    if len(expected) != len(found):
        return float("inf")
    worst = 0.0
    for want, have in zip(expected, found, strict=True):
        if want.shape != have.shape:
            return float("inf")
        error = np.abs(want - have).max(initial=0.0)
        worst = np.maximum(worst, error / max(np.abs(want).max(initial=0.0), 1e-3))
    return float(worst)


def varied(model: Any, variant: str) -> Any:
    """Return the model itself, or what becomes of it on the way through Keras."""
    if variant == "cloned":
        return clone(model)
    if variant == "cloned by Keras":
        copy = keras.models.clone_model(model)
        copy.set_weights(model.get_weights())
        return copy
    if variant == "reloaded":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.keras"
            km.save_model(model, path)
            return km.load_model(path)
    return model


def flat_weights(model: Any) -> list[np.ndarray]:
    """Return copies of all weights."""
    return [np.array(to_numpy(v)) for v in model.weights]
