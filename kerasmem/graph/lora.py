"""Low-rank products of LoRA, and the LoRA settings of layers inside a block.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021.
"""

from string import ascii_letters
from typing import Any

import keras

from kerasmem.graph.kernels import einsum_parts
from kerasmem.graph.layers import own_variables, sublayers, without_inputs
from kerasmem.types import Layer, Tensors

_LORA = ("lora_rank", "lora_alpha")
_WITH_LORA = (
    *(keras.layers.Dense, keras.layers.EinsumDense, keras.layers.Embedding),
    *(keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D),
)


def has_lora(layer: Layer) -> bool:
    """Returns whether LoRA is enabled for a layer."""
    return getattr(layer, "lora_enabled", False)


def has_low_rank_product(layer: Layer) -> bool:
    """Returns whether `low_rank_product` supports a layer.

    Supported are Dense, and EinsumDense if the last kernel axis is an output axis.
    """
    if not isinstance(layer, keras.layers.EinsumDense):
        return isinstance(layer, keras.layers.Dense)
    input_letters, kernel, output = einsum_parts(layer.equation)
    return kernel[-1] in output and kernel[-1] not in input_letters


def low_rank_product(layer: Layer, inputs: Tensors) -> Any:
    """Returns the LoRA term of a layer's product, without a matrix in kernel size."""
    ops = keras.ops
    down, up = layer.lora_kernel_a, layer.lora_kernel_b
    factor = layer.lora_alpha / layer.lora_rank
    if not isinstance(layer, keras.layers.EinsumDense):
        return ops.matmul(ops.matmul(inputs, down) * factor, up)
    input_letters, kernel, output = einsum_parts(layer.equation)
    rank = next(c for c in ascii_letters if c not in layer.equation)
    *others, last = kernel
    narrow = output.replace(last, rank)
    x = ops.einsum(f"{input_letters},{''.join(others)}{rank}->{narrow}", inputs, down)
    return ops.einsum(f"{narrow},{rank}{last}->{output}", x * factor, up)


def lora_of(layer: Layer) -> dict[str, Any]:
    """Returns the LoRA arguments of a layer's constructor, or an empty dict."""
    return {key: vars(layer)[key] for key in _LORA if vars(layer).get(key)}


def lora_inside(block: Layer) -> dict[str, Any]:
    """Returns LoRA settings and frozen layers inside a block, as plain data.

    Layers are identified by index. The block itself has index 0. Frozen layers are
    omitted if the whole block is frozen.
    """
    layers = without_inputs(sublayers(block))
    inner = {str(n): layer for n, layer in enumerate(layers) if n}
    frozen = [n for n, layer in inner.items() if not layer.trainable]
    settings = {"frozen": frozen} if block.trainable and frozen else {}
    ranks = {n: lora_of(each) for n, each in inner.items() if _takes_lora(each)}
    return {**settings, "lora": ranks}


def note_lora_inside(block: Layer, config: dict[str, Any]) -> None:
    """Stores the output of `lora_inside` for `enable_lora_inside`."""
    inner = config.get("lora", {}), config.get("frozen", [])
    object.__setattr__(block, "_inner_lora", inner)


def enable_lora_inside(block: Layer) -> None:
    """Enables LoRA and freezes layers inside a built block, as recorded."""
    ranks, frozen = vars(block).pop("_inner_lora", ({}, []))
    layers = without_inputs(sublayers(block)) if ranks or frozen else []
    for place, lora in ranks.items():
        layer = layers[int(place)]
        if not layer.lora_enabled:
            layer.enable_lora(*(lora[key] for key in _LORA))
    for model in layers:
        if getattr(model, "load_lora_weights", None):
            _note_on_backbone(model)
    for place in frozen:
        for weight in own_variables(layers[int(place)]):
            weight.trainable = False
        object.__setattr__(layers[int(place)], "_trainable", False)


def _note_on_backbone(backbone: Any) -> None:
    """Stores what `enable_lora` of KerasHub stores, for its files of adapters."""
    layers = backbone._flatten_layers(include_self=False)
    layers = [layer for layer in layers if layer.weights]
    places = [n for n, layer in enumerate(layers) if _takes_lora(layer)]
    if places:
        object.__setattr__(backbone, "_lora_enabled_layers", places)
        object.__setattr__(backbone, "_lora_rank", layers[places[0]].lora_rank)


def _takes_lora(layer: Layer) -> bool:
    # A custom layer can have an attribute `lora_rank` with another meaning.
    return isinstance(layer, _WITH_LORA) and has_lora(layer)
