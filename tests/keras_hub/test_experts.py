"""The experts of KerasHub's mixtures are compressed with the rest of the model."""

import functools

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.graph.values import to_numpy
from tests.keras_hub.families import FAMILIES, M, samples

pytestmark = [
    pytest.mark.one_backend,
    # Keras says it of a task of KerasHub whenever it makes a copy of one.
    pytest.mark.filterwarnings("ignore:.compile\\(\\). was not called"),
]

_SIZE = {"vocabulary_size": 40, "num_layers": 2, "hidden_dim": 32}
_HEADS = {"num_query_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
_EXPERTS = {"num_experts": 4, "intermediate_dim": 64, "top_k": 2}


def qwen3():
    return M.Qwen3MoeBackbone(**_SIZE, **_HEADS, **_EXPERTS, moe_intermediate_dim=24)


def gemma4():
    return M.Gemma4Backbone(
        **{**_SIZE, **_HEADS, "intermediate_dim": 64},
        image_size=16,
        enable_moe_block=True,
        num_experts=4,
        num_experts_per_token=2,
        expert_intermediate_dim=24,
    )


MAKE = {**FAMILIES, "Qwen3Moe": qwen3, "Gemma4": gemma4}
BANKS = {
    "Mixtral": {"gate_dense", "intermediate_dense", "output_dense"},
    "GptOss": {"gate_up_proj", "down_proj"},
    "Qwen3Moe": {"gate_dense", "output_dense"},
    "Gemma4": {"gate_proj", "up_proj", "down_proj"},
}


def made(name, seed):
    """Return a model with weights that a seed decides on every machine."""
    model = MAKE[name]()
    random = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        if len(weight.shape) > 1:
            size = np.prod(weight.shape[:-1]) ** -0.5
            weight.assign(random.normal(scale=size, size=weight.shape))
    return model


def answers(model, x):
    tensors = {name: keras.ops.convert_to_tensor(array) for name, array in x.items()}
    return to_numpy(model(tensors, training=False))


@functools.cache
def compressed(name):
    model = made(name, 0)
    return model, km.compress(model, km.Quantize("int8"))


@pytest.mark.parametrize("name", BANKS)
def test_every_bank_is_int8_with_scales_by_expert(name):
    _, result = compressed(name)
    left = sum(c.before_bytes for c in result.changes if not c.changed)
    assert left < 0.05 * result.report.before.weight_bytes
    banks = [v for v in quantized_variables(result.model) if "xpert" in v.path]
    ends = {end for v in banks for end in BANKS[name] if v.name.endswith(end)}
    assert ends == BANKS[name]
    for bank in banks:
        experts, _, channels = bank.shape
        assert bank.scales.shape == (experts, 1, channels)


# A token whose second and third expert are nearly equal in the eyes of its router may
# be sent to the other by any rounding: with these weights none is.
@pytest.mark.parametrize("name", ["Mixtral", "GptOss"])
def test_a_padded_batch_is_answered_to_three_percent(name, tmp_path):
    model, small = compressed(name)
    x = samples(model, 8)
    exact = answers(model, x)
    small.save(tmp_path / "small.keras")
    found = answers(km.load_model(tmp_path / "small.keras"), x)
    assert 0 < np.linalg.norm(found - exact) < 0.03 * np.linalg.norm(exact)
    np.testing.assert_allclose(found, answers(small.model, x), rtol=1e-5, atol=1e-5)
