"""From a program to a model: functional, Sequential, of a class of its own."""

from typing import Any

import keras
import numpy as np

from kerasmem.graph.values import to_numpy
from tests.fuzz.graphs.program import VOCABULARY, Builder, policy, structures


@keras.saving.register_keras_serializable("fuzz")
class Constructed(keras.Model):
    """A functional model that is built in its constructor, as those of KerasHub."""

    def __init__(self, program, **kwargs):
        super().__init__(*structures(program), **kwargs)
        self.program = program

    def get_config(self):
        return {"program": _plain(self.program), "name": self.name}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


@keras.saving.register_keras_serializable("fuzz")
class Subclassed(keras.Model):
    """A model without a graph of its own."""

    def __init__(self, program, **kwargs):
        super().__init__(**kwargs)
        self.program = program
        self.body = keras.Model(*structures(program))

    def call(self, inputs, training=None):
        return self.body(inputs, training=training)

    def get_config(self):
        return {**super().get_config(), "program": _plain(self.program)}


def _plain(program):
    """Keras wraps what a layer keeps in containers of its own."""
    import json

    return json.loads(json.dumps(program, default=_bare))


def _bare(value):
    return dict(value) if hasattr(value, "items") else list(value)


def build(program: dict[str, Any]) -> Any:
    """Return the model of a program, with weights of a fixed seed."""
    form = program["form"]
    if form == "sequential":
        model = _sequential(program)
    elif form == "functional":
        model = keras.Model(*structures(program))
    else:
        model = {"constructor": Constructed, "subclassed": Subclassed}[form](program)
    if form == "subclassed":
        model(sample(model, program, 2))
    randomize(model)
    if program["compiled"]:
        model.compile(program["compiled"], "mse")
    return model


def _sequential(program: dict[str, Any]) -> Any:
    with policy(program["policy"]):
        builder = Builder(program)
        for step in program["steps"]:
            builder.apply(step)
    return keras.Sequential([*builder.inputs.values(), *builder.layers.values()])


def randomize(model: Any, seed: int = 0) -> None:
    """Give weights values that tell channels apart and keep outputs sane."""
    random = np.random.default_rng(seed)
    for variable in model.weights:
        if not keras.backend.is_float_dtype(variable.dtype):
            continue
        shape = tuple(variable.shape)
        value = random.normal(size=shape)
        if "variance" in variable.path:
            value = random.uniform(0.5, 1.5, shape)
        elif len(shape) > 1:
            value /= np.sqrt(max(np.prod(shape[:-1]), 1))
        else:
            value = 0.3 * value + (1.0 if "gamma" in variable.path else 0.0)
        variable.assign(value.astype("float32"))


def sample(model: Any, program: dict[str, Any], size: int, seed: int = 1) -> Any:
    """Return a batch of random inputs, in the model's structure, as NumPy arrays."""
    random = np.random.default_rng(seed)
    arrays = {}
    for name, kind, shape in program["inputs"]:
        whole = (size, *(5 if axis is None else axis for axis in shape))
        if kind == "tokens":
            arrays[name] = random.integers(0, VOCABULARY, whole).astype("int32")
        else:
            arrays[name] = random.normal(size=whole).astype("float32")
    if program["structure"] == "dict":
        return arrays
    several = len(arrays) > 1 or program["structure"] == "list"
    return list(arrays.values()) if several else next(iter(arrays.values()))


def outputs(model: Any, x: Any) -> list[np.ndarray]:
    """Return what a model answers, as flat list of float64 arrays."""
    given = keras.tree.map_structure(keras.ops.convert_to_tensor, x)
    found = keras.tree.flatten(model(given, training=False))
    return [to_numpy(y).astype("float64") for y in found]
