"""Steps that XLA's compiler for a GPU plans here, without one."""

import math

import keras
import pytest

import kerasmem as km
from kerasmem.backends.protobuf import Message
from kerasmem.backends.xla.hlo import read_buffers
from kerasmem.extras.plans import compiler
from kerasmem.memory.estimate import device_specs
from tests.keras_hub.families import FAMILIES, samples, shapes
from tests.memory.estimate import recorded_plans

pytestmark = [pytest.mark.one_backend, pytest.mark.plans]

MLP_BYTES = 77_602_328
"""The temporary block that an H200 had, and this compiler plans for both backends."""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_the_plan_of_a_dense_net(backend, monkeypatch):
    request = recorded_plans.request("mlp", backend=backend)
    plan = compiler.compiled(
        compiler.program_of(request), device_specs.CARDS["h200"].description
    )
    assert read_buffers(Message(plan).last(3)).scratch_bytes == MLP_BYTES


def test_the_second_call_compiles_nothing(backend, monkeypatch):
    inputs = keras.Input((16,))
    dense = keras.layers.Dense(4)
    model = keras.Model(inputs, dense(inputs))
    dense.enable_lora(2)
    model.compile("adam", "mse", jit_compile=True)
    first = km.estimate_memory(model, 8, method="plan", device="a100")
    # The step is traced again, to look for its plan among the stored ones.
    monkeypatch.setattr(compiler, "run_script", None)
    assert km.estimate_memory(model, 8, method="plan", device="a100") == first
    assert first.device == "a100"
    trained = (16 * 2 + 2 * 4 + 4) * 4
    assert first.by_category()["parameter"] == 16 * 4 * 4 + trained
    counters = 12 if backend == "tensorflow" else 8
    assert first.by_category()["optimizer_state"] == 2 * trained + counters


def fine_tuned(rank=4):
    """Return a Gemma of KerasHub in int8, of which LoRA alone is trained."""
    model = km.compress(FAMILIES["Gemma"](), km.Quantize("int8"), verbose=0).model
    model.backbone.enable_lora(rank)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=[], weighted_metrics=[])
    return model, shapes(model, samples(model, 2))


def with_a_chunked_head():
    """Return a model whose logits are never whole."""
    tokens = keras.Input((64,), dtype="int32")
    table = keras.layers.Embedding(2000, 16)
    head = km.layers.ChunkedVocabulary(table)
    model = keras.Model(tokens, head(table(tokens)))
    model.compile("adam", km.layers.ChunkedCrossentropy())
    return model, None


@pytest.mark.parametrize(
    ("make", "backend"), [(fine_tuned, "jax"), (with_a_chunked_head, "tensorflow")]
)
def test_what_people_train_now_is_planned(make, backend):
    model, given = make()
    options = {"jit_compile": True, "device": "h100", "input_shape": given}
    found = km.estimate_memory(model, 32, method="plan", backend=backend, **options)
    sizes = found.by_category()
    trained = sum(4 * math.prod(v.shape) for v in model.trainable_variables)
    assert 2 * trained <= sizes["optimizer_state"] <= 2 * trained + 16
    # No weight that is frozen has a gradient.
    assert sizes.get("gradient", 0) <= trained
    moving = found.peak_bytes - sizes["parameter"] - sizes["optimizer_state"]
    moving -= sizes.get("rounding", 0)
    if make is with_a_chunked_head:
        assert moving < 32 * 64 * 2000 * 4
