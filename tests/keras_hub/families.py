"""One small model of each family, and samples for any of them."""

from collections.abc import Callable
from typing import Any

import keras
import keras_hub
import numpy as np

M = keras_hub.models
LENGTH = 8
"""Of the sequences in samples."""

_SIZE = {"num_layers": 2, "hidden_dim": 32, "intermediate_dim": 64}
_TOKENS = {"vocabulary_size": 40, **_SIZE}
_HEADS = {**_TOKENS, "num_heads": 2}
_ENCODER = {**_HEADS, "max_sequence_length": 16}
_SHARED_HEADS = {**_TOKENS, "num_query_heads": 2, "num_key_value_heads": 1}


def gemma() -> Any:
    backbone = M.GemmaBackbone(**_SHARED_HEADS, head_dim=16)
    return M.GemmaCausalLM(backbone, preprocessor=None)


def llama3() -> Any:
    return M.Llama3CausalLM(M.Llama3Backbone(**_SHARED_HEADS), preprocessor=None)


def mixtral() -> Any:
    backbone = M.MixtralBackbone(**_SHARED_HEADS, num_experts=4, top_k=2)
    return M.MixtralCausalLM(backbone, preprocessor=None)


def gpt2() -> Any:
    return M.GPT2CausalLM(M.GPT2Backbone(**_ENCODER), preprocessor=None)


def bert() -> Any:
    return M.BertTextClassifier(M.BertBackbone(**_ENCODER), num_classes=3)


def roberta() -> Any:
    return M.RobertaTextClassifier(M.RobertaBackbone(**_ENCODER), num_classes=3)


def bart() -> Any:
    return M.BartSeq2SeqLM(M.BartBackbone(**_ENCODER), preprocessor=None)


def vit() -> Any:
    backbone = M.ViTBackbone(
        (16, 16, 3), patch_size=8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64
    )
    return M.ViTImageClassifier(backbone, num_classes=3)


def dino() -> Any:
    # Its Identity is called with `training`, of which it takes none.
    return M.DINOV2Backbone(8, **_SIZE, num_heads=2, image_shape=(16, 16, 3))


FAMILIES: dict[str, Callable[[], Any]] = {
    make.__name__: make
    for make in (gemma, llama3, mixtral, gpt2, bert, roberta, bart, vit, dino)
}


def samples(model: Any, size: int = 2, open_length: int = LENGTH) -> Any:
    """Return inputs in the model's structure; every other sequence ends earlier."""
    random = np.random.default_rng(0)
    found = {}
    for tensor in model.inputs:
        shape = (size, *(length or open_length for length in tensor.shape[1:]))
        if "mask" in tensor.name:
            found[tensor.name] = np.arange(shape[1]) < np.resize(
                [[shape[1]], [shape[1] * 5 // 8]], (size, 1)
            )
        elif "int" in tensor.dtype:
            kinds = 2 if "segment" in tensor.name else 40
            found[tensor.name] = random.integers(0, kinds, shape).astype("int32")
        else:
            found[tensor.name] = random.normal(size=shape).astype("float32")
    return found if isinstance(model.input, dict) else found[model.inputs[0].name]


def shapes(model: Any, x: Any) -> Any:
    """Return the shapes of samples without the batch axis, as a user gives them."""
    if isinstance(model.input, dict):
        return {name: array.shape[1:] for name, array in x.items()}
    return x.shape[1:]


def targets(model: Any, x: Any) -> Any:
    """Return zeros in the form of what the model answers."""
    answers = model(keras.tree.map_structure(keras.ops.convert_to_tensor, x))
    return keras.tree.map_structure(lambda y: np.zeros(y.shape, "float32"), answers)
