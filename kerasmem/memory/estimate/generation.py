"""Generation by a `CausalLM` of KerasHub: prompts, then a token at a time.

`generate` fills a cache of keys and values from prompts that are padded to the full
length, and then goes round for each token, with the cache in hand. On JAX, and where a
model is compiled on TensorFlow, all of it is one compiled program.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras

from kerasmem.checks import Whole
from kerasmem.errors import ModelError, as_received
from kerasmem.graph.input_shapes import Shape
from kerasmem.graph.layers import sublayers
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.variables import Precision
from kerasmem.types import Model
from kerasmem.units import MIB


def check_generates(model: Model, length: int) -> None:
    """Raise unless `model` generates, and the length is a whole number from 1.

    Raises:
        ConfigError: if the length is another, or more than the model has places for.
        ModelError: if the model does not generate.
    """
    attributes = ("generate_step", "sampler", "backbone")
    if any(getattr(model, name, None) is None for name in attributes):
        raise ModelError(
            "A model that generates is a CausalLM of KerasHub. Expected: one, such as "
            f"keras_hub.models.GemmaCausalLM. Received: model={as_received(model)}. "
            "Next: a backbone alone has training=False (--predict)."
        )
    most = getattr(model.backbone, "max_sequence_length", None)
    if isinstance(most, int):
        Whole(1, most).check("estimate_memory", "generate", length)


def generated_shapes(
    own: Mapping[str, Shape | None], length: int, input_shape: Any | None
) -> Any:
    """Return the shapes of inputs, with the length of sequences where none is given.

    Args:
        own: what the model says of each input by name.
        length: tokens of a sequence.
        input_shape: shapes by input, or None; another form counts as it is.
    """
    if input_shape is not None and not isinstance(input_shape, Mapping):
        return input_shape
    sequences = {name: (length,) for name, shape in own.items() if shape == (None,)}
    return sequences | dict(input_shape or {})


@dataclass(frozen=True)
class KeyValueCache:
    """The cache of keys and values of a batch.

    Args:
        nbytes: its bytes, of one beam.
        layers: number of layers that it is of.
        beams: sequences that are followed for each prompt.
        merged: what waits for it after the prompts where XLA makes queries, keys and
            values in one product, as a multiple of it; 1 where it does not.
    """

    nbytes: int
    layers: int
    beams: int
    merged: float


def cache_of(request: Request) -> KeyValueCache:
    """Return the cache, as KerasHub makes it.

    Raises:
        ModelError: if the model's cache is made of more than tokens, or its sampler
            makes copies of it that are not known.
    """
    model, part = request.model, request.of_a_replica()
    copies = type(model.sampler).__name__ == "ContrastiveSampler"
    try:
        tokens = next(x for x in part.inputs if x.name == "token_ids")
        ids = keras.KerasTensor(tokens.shape, tokens.dtype)
        _, cache = _Prefill(model).compute_output_spec(ids)
        layers = cache.shape[1]
    except (AttributeError, StopIteration, TypeError, ValueError) as error:
        raise _unknown(model, "a CausalLM of text, with one cache") from error
    if copies:
        raise _unknown(model, "a sampler other than ContrastiveSampler")
    width = Precision(model.dtype_policy, request.dtype_policy).compute_width(
        model, cache.dtype
    )
    return KeyValueCache(
        nbytes=math.prod(cache.shape) * width,
        layers=layers,
        beams=getattr(model.sampler, "num_beams", 1),
        merged=_merged(model, math.prod(tokens.shape), width),
    )


_LARGEST_MERGED = 64 * MIB
"""XLA merges products with one operand in common, if one of them takes no more, with
its operands. Plans show it, and that the merged result waits as a whole."""


def _merged(model: Model, tokens: int, width: int) -> float:
    kernels = {
        layer.name: layer._kernel.shape  # not the sum with LoRA
        for layer in sublayers(model)
        if layer.name in ("query", "key") and "_kernel" in vars(layer)
    }
    if len(kernels) < 2:
        return 1.0
    query, key = (math.prod(kernels[name]) for name in ("query", "key"))
    hidden = model.backbone.outputs[0].shape[-1]
    entries = tokens * hidden + key + tokens * key // hidden
    return (query + 2 * key) / (2 * key) if entries * width <= _LARGEST_MERGED else 1.0


def _unknown(model: Model, expected: str) -> ModelError:
    return ModelError(
        "The analytic method does not know the cache of this model. Expected: "
        f"{expected}. Received: model={model.name!r}, of class {type(model).__name__}, "
        f"with {type(model.sampler).__name__}. Next: pass method='plan', which "
        "compiles what generates."
    )


class _Prefill(keras.Operation):
    """Makes the cache of prompts."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model

    def call(self, token_ids: Any) -> Any:
        """Return hidden states and the cache."""
        # Private: the one place that says what is cached, in which shape and type.
        return self._model._build_cache(token_ids)
