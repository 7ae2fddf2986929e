"""Heads, hidden units and layers of models of KerasHub go; the class stays."""

import keras
import keras_hub
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.recipe import apply_technique
from kerasmem.compression.technique import Context
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.clone import clone
from kerasmem.graph.values import to_numpy
from tests.keras_hub.families import FAMILIES, samples
from tests.keras_hub.matrix import generated
from tests.keras_hub.test_presets import TOKENS
from tests.keras_hub.test_presets import gemma as with_tokenizer
from tests.masked import called, kept_places, masked, randomized

M = keras_hub.models
SIZE = {"vocabulary_size": 40, "hidden_dim": 32, "intermediate_dim": 64}
SHARED = {"num_query_heads": 8, "num_key_value_heads": 2, "num_layers": 2}
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*vocabulary.spm:pytest.PytestUnraisableExceptionWarning",
    "ignore:.compile\\(\\). was not called",
    "ignore:.*was passed an input with a mask attached",
)


def writer(name, **arguments):
    backbone = getattr(M, f"{name}Backbone")(**SIZE, **arguments)
    return randomized(getattr(M, f"{name}CausalLM")(backbone, preprocessor=None))


def gemma(**options):
    return writer("Gemma", **{**SHARED, "head_dim": 4, **options})


def assert_computes_what_is_left(model, small):
    x = samples(model)
    expected = masked(model, small, clone(model))
    for now, then in zip(called(small, x), called(expected, x), strict=True):
        np.testing.assert_allclose(now, then, rtol=1e-5, atol=1e-5 * np.abs(then).max())
    if hasattr(model, "generate"):
        pairs = zip(generated(small, x), generated(expected, x), strict=True)
        assert all(np.array_equal(now, then) for now, then in pairs)


def test_heads_and_hidden_units_of_gemma():
    model = gemma()
    small, changes = apply_technique(km.PruneChannels(0.5), model)
    assert type(small) is M.GemmaCausalLM
    backbone = small.backbone
    sizes = backbone.num_query_heads, backbone.num_key_value_heads
    assert (*sizes, backbone.intermediate_dim) == (4, 1, 32)
    # By layer: 4 of 8 query heads in two kernels, 1 of 2 heads of key and of value,
    # and 16 of 32 hidden units in three.
    less = 2 * (2 * 4 * 32 * 4 + 2 * 32 * 4 + 3 * 16 * 32)
    assert model.count_params() - small.count_params() == less
    assert_computes_what_is_left(model, small)
    details = {change.weight: change.detail for change in changes}
    name = "decoder_block_0/attention/query/kernel"
    assert details[name] == "(8, 32, 4) to (4, 32, 4)"


@pytest.mark.one_backend
def test_as_many_query_heads_go_of_each_key_where_no_key_can():
    model = gemma()
    small, _ = apply_technique(km.PruneChannels(0.25), model)
    backbone = small.backbone
    assert (backbone.num_query_heads, backbone.num_key_value_heads) == (6, 2)
    old, new = (
        to_numpy(m.backbone.get_layer("decoder_block_0").attention.query_dense.kernel)
        for m in (model, small)
    )
    heads = kept_places(old, new)[0]
    assert [int((heads // 4 == key).sum()) for key in (0, 1)] == [3, 3]
    assert_computes_what_is_left(model, small)


@pytest.mark.one_backend
def test_query_heads_that_went_with_their_key_count_in_later_rounds():
    config = km.PruneChannels(0.75, rounds=2)
    small, _ = apply_technique(config, gemma(num_layers=1))
    backbone = small.backbone
    assert (backbone.num_query_heads, backbone.num_key_value_heads) == (2, 1)
    assert backbone.intermediate_dim == 16


@pytest.mark.one_backend
@pytest.mark.parametrize("family", ["Mistral", "Bert"])
def test_what_is_left_of_a_family(family):
    # Mistral's config leaves the width of a head open.
    model = randomized(FAMILIES[family]())
    small, _ = apply_technique(km.PruneChannels(0.5), model)
    assert type(small) is type(model)
    assert_computes_what_is_left(model, small)


@pytest.mark.one_backend
def test_heads_whose_width_follows_from_their_number_stay_and_why_is_told():
    small, changes = apply_technique(km.PruneChannels(0.5), FAMILIES["Llama3"]())
    assert small.backbone.num_query_heads == 2
    assert small.backbone.intermediate_dim == 32
    (why,) = {c.detail for c in changes if c.weight.endswith("attention/query/kernel")}
    assert why.startswith(
        "num_query_heads is not an independent width: at twice the value,"
    )
    for arguments in ({"ignore": "query/kernel"}, {"ratios": {"query/kernel": 0.3}}):
        with pytest.raises(ConfigError, match="removable channels.*'query/kernel'"):
            apply_technique(km.PruneChannels(0.5, **arguments), FAMILIES["Llama3"]())


@pytest.mark.one_backend
def test_gradients_rank_heads():
    model = gemma(num_key_value_heads=8, num_query_heads=8, num_layers=1)
    attention = model.backbone.get_layer("decoder_block_0").attention
    alive = (np.arange(8) % 2 == 1)[:, None, None]
    attention.output_dense.kernel.assign(
        to_numpy(attention.output_dense.kernel) * alive
    )
    x = samples(model)
    data = (x, np.zeros((2, 8), "int32"))
    config = km.PruneChannels(0.5, criterion="taylor")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    small, _ = apply_technique(config, model, Context(data=data))
    new = small.backbone.get_layer("decoder_block_0").attention.query_dense.kernel
    old = attention.query_dense.kernel
    assert kept_places(to_numpy(old), to_numpy(new))[0].tolist() == [1, 3, 5, 7]


@pytest.mark.one_backend
def test_lora_is_refused():
    model = gemma()
    model.backbone.enable_lora(2)
    with pytest.raises(ModelError, match="before km.Quantize, km.Factorize and LoRA"):
        apply_technique(km.PruneChannels(0.5), model)


@pytest.mark.one_backend
def test_tokenizer_and_preprocessor_stay_and_a_preset_is_written(tmp_path):
    model = with_tokenizer()
    result = km.compress(model, km.PruneChannels(0.5))
    small = result.model
    assert small.backbone.intermediate_dim == 32
    assert small.generate(["the quick"], max_length=8)
    result.save(tmp_path / "small.keras")
    loaded = km.load_model(tmp_path / "small.keras")
    expected = to_numpy(small(TOKENS))
    np.testing.assert_allclose(to_numpy(loaded(TOKENS)), expected, atol=1e-6)
    result.save(tmp_path / "preset")
    opened = M.GemmaCausalLM.from_preset(str(tmp_path / "preset"))
    np.testing.assert_allclose(to_numpy(opened(TOKENS)), expected, atol=1e-6)
    written = opened.generate(["the quick"], max_length=8)
    assert written == small.generate(["the quick"], max_length=8)


def silent(layer):
    """Make a residual block hand on what it is given: what it adds is zero."""
    for weight in layer.weights:
        weight.assign(np.zeros(weight.shape))


def test_a_student_has_half_of_the_layers_and_their_weights():
    teacher = gemma(num_layers=4)
    student = km.make_student(teacher, depth=0.5)
    assert type(student) is M.GemmaCausalLM
    assert student.backbone.num_layers == 2
    for new, old in ((0, 1), (1, 3)):
        weights = [
            m.backbone.get_layer(f"decoder_block_{n}").weights
            for m, n in ((student, new), (teacher, old))
        ]
        for now, then in zip(*weights, strict=True):
            np.testing.assert_array_equal(to_numpy(now), to_numpy(then))
    x, copy = samples(teacher), clone(teacher)
    for number in (0, 2):
        silent(copy.backbone.get_layer(f"decoder_block_{number}"))
    np.testing.assert_allclose(
        called(student, x)[0], called(copy, x)[0], rtol=1e-5, atol=1e-5
    )
    pairs = zip(generated(student, x), generated(copy, x), strict=True)
    assert all(np.array_equal(now, then) for now, then in pairs)


@pytest.mark.one_backend
def test_a_student_is_narrower_and_less_deep():
    teacher = gemma(num_layers=2)
    student = km.make_student(teacher, 0.7, depth=0.5)
    shallow = km.make_student(teacher, depth=0.5)
    assert student.count_params() <= 0.7 * shallow.count_params()
    assert type(student) is M.GemmaCausalLM
