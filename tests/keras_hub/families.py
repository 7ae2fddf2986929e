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
# Bart, BERT, CLIP, GPT-2, Gemma, Llama and ViT have two blocks, and those whose blocks
# differ or share something; in the others there is nothing of which a second tells.
_ONE = {"num_layers": 1}
_ONE_BLOCK = {**_ENCODER, **_ONE}
_SHARED_HEADS = {**_TOKENS, "num_query_heads": 2, "num_key_value_heads": 1}
_ONE_SHARED = {**_SHARED_HEADS, **_ONE}
_IMAGE = {"image_shape": (16, 16, 3)}


def _writer(name: str, **arguments: Any) -> Callable[[], Any]:
    return _task(name, "CausalLM", arguments, preprocessor=None)


def _classifier(name: str, **arguments: Any) -> Callable[[], Any]:
    return _task(name, "TextClassifier", arguments, num_classes=3)


def _task(name: str, task: str, arguments: Any, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        backbone = getattr(M, f"{name}Backbone")(**arguments)
        return getattr(M, name + task)(backbone, **options)

    return make


def _backbone(name: str, **arguments: Any) -> Callable[[], Any]:
    return lambda: getattr(M, f"{name}Backbone")(**arguments)


def _gemma3() -> Any:
    backbone = M.Gemma3Backbone(
        **_ONE_SHARED,
        head_dim=16,
        image_size=16,
        query_head_dim_normalize=True,
        use_query_key_norm=True,
        use_post_ffw_norm=True,
        use_post_attention_norm=True,
        final_logit_soft_cap=None,
        attention_logit_soft_cap=None,
        use_sliding_window_attention=True,
        sliding_window_size=8,
        vision_encoder=None,
    )
    return M.Gemma3CausalLM(preprocessor=None, backbone=backbone)


def _bart() -> Any:
    return M.BartSeq2SeqLM(M.BartBackbone(**_ENCODER), preprocessor=None)


def _vit() -> Any:
    backbone = M.ViTBackbone(
        **_IMAGE, patch_size=8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64
    )
    return M.ViTImageClassifier(backbone, num_classes=3)


def _clip() -> Any:
    size = {**_SIZE, "num_heads": 2}
    seen = M.CLIPVisionEncoder(patch_size=8, **size, **_IMAGE)
    read = M.CLIPTextEncoder(
        vocabulary_size=40, embedding_dim=32, max_sequence_length=LENGTH, **size
    )
    return M.CLIPBackbone(seen, read, projection_dim=16)


def _resnet() -> Any:
    backbone = M.ResNetBackbone(
        [64], [7], [64, 64], [1, 1], [1, 2], "basic_block", **_IMAGE
    )
    return M.ResNetImageClassifier(backbone, num_classes=3)


def _densenet() -> Any:
    backbone = M.DenseNetBackbone(
        [1, 1], growth_rate=8, compression_ratio=0.5, **_IMAGE
    )
    return M.DenseNetImageClassifier(backbone, num_classes=3)


_EFFICIENTNET = {
    "stackwise_width_coefficients": [1.0] * 2,
    "stackwise_depth_coefficients": [1.0] * 2,
    "stackwise_kernel_sizes": [3, 3],
    "stackwise_num_repeats": [1, 1],
    "stackwise_input_filters": [8, 8],
    "stackwise_output_filters": [8, 16],
    "stackwise_expansion_ratios": [1, 2],
    "stackwise_strides": [1, 2],
    "stackwise_squeeze_and_excite_ratios": [0.25] * 2,
    "stackwise_block_types": ["v1"] * 2,
    "stem_conv_padding": "valid",
}


class Tagger(keras.Model):
    """A subclassed model: its calls cannot be read, only run."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.embedding = keras.layers.Embedding(40, 32)
        self.hidden = keras.layers.Dense(64, activation="relu")
        self.tags = keras.layers.Dense(3)

    def call(self, inputs: Any) -> Any:
        return self.tags(self.hidden(self.embedding(inputs)))


def subclassed() -> Any:
    """Return a model that has no graph."""
    model = Tagger(name="tagger")
    model(np.zeros((1, LENGTH), "int32"))
    return model


FAMILIES: dict[str, Callable[[], Any]] = {
    "Gemma": _writer("Gemma", **_SHARED_HEADS, head_dim=16),
    "Gemma3": _gemma3,
    "Llama3": _writer("Llama3", **_SHARED_HEADS),
    "Qwen3": _writer("Qwen3", **_ONE_SHARED, head_dim=16),
    "Mistral": _writer("Mistral", **_ONE_SHARED, sliding_window=8),
    "Phi3": _writer("Phi3", **_ONE_SHARED),
    "Mixtral": _writer("Mixtral", **_SHARED_HEADS, num_experts=4, top_k=2),
    "GptOss": _writer(
        "GptOss", **_SHARED_HEADS, num_experts=4, top_k=2, head_dim=16, sliding_window=8
    ),
    "GPT2": _writer("GPT2", **_ENCODER),
    "OPT": _writer("OPT", **_ONE_BLOCK),
    "Bloom": _writer("Bloom", **_ONE_BLOCK),
    "GPTNeoX": _writer("GPTNeoX", **_HEADS | _ONE),
    "Falcon": _writer("Falcon", **_TOKENS | _ONE, num_attention_heads=2),
    "Bert": _classifier("Bert", **_ENCODER),
    "DistilBert": _classifier("DistilBert", **_ONE_BLOCK),
    "Roberta": _classifier("Roberta", **_ONE_BLOCK),
    "Albert": _classifier("Albert", **_ENCODER, embedding_dim=8),
    "DebertaV3": _classifier("DebertaV3", **_ENCODER, bucket_size=8),
    "T5": _backbone("T5", **_HEADS | _ONE),
    "Bart": _bart,
    "Whisper": _backbone(
        "Whisper",
        **_HEADS | _ONE,
        num_mels=8,
        max_encoder_sequence_length=16,
        max_decoder_sequence_length=8,
    ),
    "ViT": _vit,
    # Its Identity is called with `training`, of which it takes none.
    "DINOV2": _backbone(
        "DINOV2",
        patch_size=8,
        num_heads=2,
        position_embedding_shape=(16, 16),  # or its own saving would resize them
        **_SIZE | _ONE,
        **_IMAGE,
    ),
    "CLIP": _clip,
    "EfficientNet": _backbone("EfficientNet", **_EFFICIENTNET, **_IMAGE),
    "ResNet": _resnet,
    "DenseNet": _densenet,
}


def samples(model: Any, size: int = 2, open_length: int = LENGTH) -> Any:
    """Return inputs in the model's structure; every other sequence ends earlier."""
    random = np.random.default_rng(0)
    if isinstance(model, Tagger):
        return random.integers(0, 40, (size, LENGTH)).astype("int32")
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
    if isinstance(x, dict):
        return {name: array.shape[1:] for name, array in x.items()}
    return x.shape[1:]


def targets(model: Any, x: Any) -> Any:
    """Return zeros in the form of what the model answers."""
    answers = model(keras.tree.map_structure(keras.ops.convert_to_tensor, x))
    return keras.tree.map_structure(lambda y: np.zeros(y.shape, "float32"), answers)


def apart(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Return the relative L2 distance of all outputs."""
    one, two = (np.concatenate([y.ravel() for y in ys]) for ys in (found, expected))
    return float(np.linalg.norm(one - two) / np.linalg.norm(two))
