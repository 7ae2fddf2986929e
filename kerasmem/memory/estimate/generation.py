"""Text generation by a KerasHub `CausalLM`.

`generate` fills a key-value cache from prompts padded to the full length. A loop then
updates the cache once per token. On JAX, and for compiled models on TensorFlow, the
prompts and the loop are one compiled program.
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
    """Check that `model` can generate sequences of `length` tokens.

    Raises:
        ConfigError: If the length is invalid or exceeds the maximum of the model.
        ModelError: If the model cannot generate.
    """
    attributes = ("generate_step", "sampler", "backbone")
    if any(getattr(model, name, None) is None for name in attributes):
        raise ModelError(
            "Generation needs a KerasHub CausalLM. Expected: a model such as "
            f"keras_hub.models.GemmaCausalLM. Received: model={as_received(model)}. "
            "Next: leave out generate; training=False (--predict) is one forward pass."
        )
    most = getattr(model.backbone, "max_sequence_length", None)
    if isinstance(most, int):
        Whole(1, most).check("estimate_memory", "generate", length)


def generated_shapes(
    own: Mapping[str, Shape | None], length: int, input_shape: Any | None
) -> Any:
    """Return the input shapes, with `length` for unspecified sequence lengths."""
    if input_shape is not None and not isinstance(input_shape, Mapping):
        return input_shape
    sequences = {name: (length,) for name, shape in own.items() if shape == (None,)}
    return sequences | dict(input_shape or {})


@dataclass(frozen=True)
class KeyValueCache:
    """Key-value cache of a batch.

    Args:
        nbytes: Bytes of the cache for one beam.
        layers: Number of layers in the cache.
        beams: Number of beams per prompt.
        merged: Size of the saved tensors after the prompts relative to the cache. Above
            1 if XLA computes queries, keys and values in one matrix product.
    """

    nbytes: int
    layers: int
    beams: int
    merged: float


def cache_of(request: Request) -> KeyValueCache:
    """Return the cache that KerasHub creates.

    Raises:
        ModelError: If the cache does not depend only on tokens, or the sampler copies
            the cache in an unknown way.
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
"""XLA merges matrix products with a common operand if one of them, including operands,
is below this size. The merged result is kept as a whole, as compiled plans show."""


def _merged(model: Model, tokens: int, width: int) -> float:
    kernels = {
        layer.name: layer._kernel.shape  # Without LoRA.
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
        "The analytic method does not support the cache of this model. Expected: "
        f"{expected}. Received: model={model.name!r}, of class {type(model).__name__}, "
        f"with {type(model.sampler).__name__}. Next: pass method='plan', which "
        "compiles the generation."
    )


class _Prefill(keras.Operation):
    """Creates the cache from prompts."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model

    def call(self, token_ids: Any) -> Any:
        """Return hidden states and the cache."""
        # Private API: no public function returns the shape and dtype of the cache.
        return self._model._build_cache(token_ids)
