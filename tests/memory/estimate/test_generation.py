"""Generation with a cache of keys and values, against arithmetic, XLA and KerasHub."""

import re

import keras
import keras_hub
import pytest

import kerasmem as km
from kerasmem.errors import ConfigError, ModelError
from kerasmem.memory.estimate.estimate import checked_request
from kerasmem.memory.estimate.generation import cache_of
from kerasmem.processes import ON_THE_CPU, run_in_child

M = keras_hub.models
SIZES = {"vocabulary_size": 100, "num_layers": 3, "num_query_heads": 4}
GEMMA = {**SIZES, "hidden_dim": 32, "intermediate_dim": 64, "head_dim": 16}


def gemma(kv_heads=2, **changes):
    backbone = M.GemmaBackbone(**GEMMA | changes, num_key_value_heads=kv_heads)
    return M.GemmaCausalLM(backbone, preprocessor=None)


def llama(**changes):
    settings = {**SIZES, "hidden_dim": 32, "intermediate_dim": 64} | changes
    backbone = M.LlamaBackbone(**settings, num_key_value_heads=2)
    return M.LlamaCausalLM(backbone, preprocessor=None)


def asked(model, batch_size=4, length=24, **options):
    return km.estimate_memory(model, batch_size, generate=length, **options)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("make", "width", "size"),
    [
        (gemma, 16, 4),
        (llama, 8, 4),
        (lambda: gemma(dtype="bfloat16"), 16, 2),
        (lambda: gemma(kv_heads=1), 8, 4),
    ],
)
def test_the_cache_has_keys_and_values_of_every_layer(make, width, size):
    request = checked_request(make(), 4, generate=24)
    # Two kv heads of `width`, or one of twice that.
    assert cache_of(request).nbytes == 2 * 3 * 4 * 24 * 2 * width * size
    assumed = checked_request(make(), 4, generate=24, dtype_policy="bfloat16")
    assert cache_of(assumed).nbytes == 2 * 3 * 4 * 24 * 2 * width * 2


def test_weights_and_caches_fill_a_long_generation(backend):
    model = gemma(kv_heads=4, num_layers=12)
    found = asked(model, 64, 16, method="analytic")
    assert found.jit_compile == (backend != "torch")
    sizes = found.by_category()
    weights = 4 * model.count_params()
    assert sizes["parameter"] == weights
    cache = 2 * 12 * 64 * 16 * 4 * 16 * 4
    # Compiled: what waits in one product of query, key and value, and the cache; by
    # Python the first, the last, the next, and what that is stacked of.
    caches = 1.5 + 1 if found.jit_compile else 4
    assert sizes["cache"] == pytest.approx(caches * cache, rel=0.001)
    rest = found.peak_bytes - weights - sizes["cache"] - sizes.get("rounding", 0)
    assert rest - sizes.get("workspace", 0) < 0.1 * cache
    assert not found.training
    assert "estimated peak, generate to 16 tokens, batch of 64" in found.table()
    assert type(found).from_json(found.to_json()) == found


@pytest.mark.one_backend
def test_beams_have_a_cache_each():
    model = gemma(num_layers=12)
    plain = asked(model, 512, 16, method="analytic").by_category()["cache"]
    model.compile(sampler=keras_hub.samplers.BeamSampler(num_beams=5))
    found = asked(model, 512, 16, method="analytic").by_category()["cache"]
    cache = 2 * 12 * 512 * 16 * 2 * 16 * 4
    assert plain == pytest.approx(3 * cache, rel=0.001)  # (4 + 2 + 2) / (2 + 2) + 1
    assert found == 2 * 5 * cache


@pytest.mark.one_backend
def test_a_large_product_is_not_merged():
    request = checked_request(gemma(), 4096, generate=256)
    assert cache_of(request).merged == 1
    small = checked_request(gemma(), 4, generate=256)
    assert cache_of(small).merged == (4 + 2 * 2) / (2 * 2)


def by_jax(_):
    """Return temporary bytes by KerasHub's own function, and by ours; in a child."""
    import jax

    model = gemma()
    model.compile(sampler="top_k")
    function = model.make_generate_function()
    (compiled,) = (
        cell.cell_contents
        for cell in function.__closure__
        if isinstance(cell.cell_contents, type(jax.jit(abs)))
    )
    groups = model.trainable_variables, model.non_trainable_variables
    state = [[v.value for v in g] for g in (model.sampler.variables, *groups)]
    inputs = {
        "token_ids": jax.ShapeDtypeStruct((4, 24), "int32"),
        "padding_mask": jax.ShapeDtypeStruct((4, 24), "bool"),
    }
    known = compiled.lower(inputs, (0,), state).compile().memory_analysis()
    found = asked(model, method="traced", device="cpu")
    return {
        "kerashub": known.temp_size_in_bytes,
        "ours": found.by_category()["temporary"],
        "weights": found.by_category()["parameter"],
    }


@pytest.mark.one_backend
@pytest.mark.slow
def test_xla_plans_for_a_cpu_what_kerashub_compiles():
    task = f"{__name__}:by_jax"
    found = run_in_child(task, {}, backend="jax", environment=ON_THE_CPU)
    assert found["ours"] == pytest.approx(found["kerashub"], rel=0.01)
    assert found["weights"] == 4 * gemma().count_params()


@pytest.mark.one_backend
@pytest.mark.plans
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_the_fast_method_comes_near_a_plan(backend, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sizes = {"num_layers": 6, "head_dim": 64, "hidden_dim": 128}
    model = gemma(kv_heads=4, **sizes)
    options = {"backend": backend, "device": "h100", "jit_compile": True}
    fast, plan = (
        asked(model, 16, 128, method=method, **options)
        for method in ("analytic", "plan")
    )
    exact = plan.peak_bytes - plan.by_category().get("rounding", 0)
    mine = fast.peak_bytes - fast.by_category().get("rounding", 0)
    assert mine == pytest.approx(exact, rel=0.1)
    assert fast.low_bytes < exact < fast.high_bytes
    assert any("attention" in (buffer.layer or "") for buffer in plan.buffers)


@pytest.mark.one_backend
def test_what_cannot_be_generated_is_refused():
    plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with pytest.raises(
        ModelError, match="needs a KerasHub CausalLM. Expected: a model"
    ):
        asked(plain)
    for length in (0, True, 2.5):
        received = re.escape(f"Received: generate={length!r}.")
        with pytest.raises(ConfigError, match=received):
            asked(gemma(), length=length)
    with pytest.raises(ConfigError, match="on TensorFlow without compilation"):
        asked(gemma(), method="analytic", jit_compile=False, backend="tensorflow")
    with pytest.raises(ConfigError, match=r"shape \(16,\), or no shape"):
        shapes = {"token_ids": (8,), "padding_mask": (8,)}
        km.estimate_memory(gemma(), 2, generate=16, input_shape=shapes)
    with pytest.raises(ConfigError, match="KerasHub always compiles generation"):
        asked(gemma(), method="analytic", jit_compile=False, backend="jax")
    with pytest.raises(
        ConfigError, match="generation loop cannot be traced. Expected: a comp"
    ):
        asked(gemma(), method="traced")
    model = gemma()
    model.compile(sampler="contrastive")
    with pytest.raises(ModelError, match="a sampler other than ContrastiveSampler"):
        asked(model, method="analytic")
    bart = M.BartBackbone(40, 1, 2, 32, 64, max_sequence_length=16)
    model = M.BartSeq2SeqLM(bart, preprocessor=None)
    with pytest.raises(ModelError, match="a CausalLM of text, with one cache"):
        asked(model, length=16, method="analytic")
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 8}
    gpt2 = M.GPT2Backbone(40, **sizes, max_sequence_length=16)
    model = M.GPT2CausalLM(gpt2, preprocessor=None)
    with pytest.raises(ConfigError, match=r"None with method='measured'\. .*=16"):
        km.estimate_memory(
            gemma(), 2, generate=16, method="measured", backend="tensorflow"
        )
    with pytest.raises(ConfigError, match="number from 1 to 16. Received: generate=17"):
        asked(model, length=17)
