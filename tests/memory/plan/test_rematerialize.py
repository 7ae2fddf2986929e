"""A model that computes activations again trains to the same weights."""

import warnings

import keras
import numpy as np
import pytest
from keras import layers

from kerasmem.errors import ConfigError, KerasMemWarning, ModelError
from kerasmem.graph.clone import clone
from kerasmem.graph.values import to_numpy
from kerasmem.memory.compress_activations import compress_activations
from kerasmem.memory.estimate import estimate_memory
from kerasmem.memory.plan import plan_memory, plan_of, rematerialize
from tests.memory.plan import models

STEPS = 3


def compiled(model, *, jit_compile=None):
    # JAX runs eagerly what is not compiled, operation by operation.
    jit = keras.backend.backend() == "jax" if jit_compile is None else jit_compile
    model.compile(keras.optimizers.SGD(0.03), "mse", jit_compile=jit)
    return model


def trained(model, steps=STEPS):
    x, y = models.batch(model)
    return [float(np.sum(model.train_on_batch(x, y))) for _ in range(steps)]


def values(model):
    return [keras.ops.convert_to_numpy(v.value) for v in model.variables]


def assert_trains_alike(model, lean, tolerance=1e-5):
    plain = clone(model)
    np.testing.assert_allclose(trained(lean), trained(plain), rtol=tolerance)
    for one, other in zip(values(plain), values(lean), strict=True):
        np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("make", models.MAKERS, ids=lambda make: make.__name__)
def test_a_model_of_any_kind_trains_to_the_same_weights(make):
    model = compiled(make())
    lean = rematerialize(model, segments=3)
    assert any(piece.recomputed for piece in plan_of(lean).pieces)
    assert_trains_alike(model, lean)


def test_so_it_does_when_the_step_is_compiled_and_when_it_is_not(backend):
    model = compiled(models.losses(), jit_compile=backend == "tensorflow")
    assert_trains_alike(model, rematerialize(model, segments=3))


def test_so_it_does_when_the_step_is_no_graph(backend):
    model = models.losses() if backend != "jax" else models.mlp()
    model.compile(keras.optimizers.SGD(0.03), "mse", run_eagerly=True)
    assert_trains_alike(model, rematerialize(model, segments=3))


def test_so_it_does_when_every_piece_is_one_layer():
    model = compiled(models.frozen())
    names = [layer.name for layer in model.layers[2:]]
    lean = rematerialize(model, segments=names)
    assert len(plan_of(lean).pieces) == len(names) + 1
    assert_trains_alike(model, lean)


def test_a_model_may_be_called_by_keyword():
    model = compiled(models.encoder())
    lean = rematerialize(model, batch_size=64)
    x, _ = models.batch(model)
    for training in (False, True):
        outputs = [m(inputs=x, training=training) for m in (lean, clone(model))]
        np.testing.assert_allclose(*map(to_numpy, outputs), rtol=1e-5, atol=1e-6)


def test_a_layer_that_holds_all_blocks_is_cut_between_them():
    model = compiled(models.encoder())
    lean = rematerialize(model, batch_size=64)
    plan = plan_of(lean)
    assert plan.model_name == model.layers[2].name
    assert plan.peak_bytes < 0.7 * plan.plain_peak_bytes
    estimated = estimate_memory(lean, 64, method="analytic", device="cpu")
    assert estimated.peak_bytes < 0.7 * plan.plain_peak_bytes
    x, _ = models.batch(model)
    np.testing.assert_array_equal(lean.predict(x), clone(model).predict(x))
    assert_trains_alike(model, lean)


@pytest.mark.parametrize(
    "wishes",
    [
        {"adds_a_loss": True},
        {"dtype": "mixed_bfloat16"},
        *({"kind": kind} for kind in models.OWN_WAYS),
    ],
    ids=["a loss", "half precision", *(kind.__name__ for kind in models.OWN_WAYS)],
)
def test_a_layer_whose_call_does_more_than_return_is_left_whole(wishes):
    model = compiled(models.encoder(**wishes))
    lean = rematerialize(model, segments=2, batch_size=64)
    assert plan_of(lean).model_name == model.name
    assert_trains_alike(model, lean, 1e-2 if "dtype" in wishes else 1e-5)


def test_so_it_does_in_half_precision_with_a_last_layer_that_is_not():
    with_half = keras.dtype_policies.DTypePolicy("mixed_bfloat16")
    x = inputs = keras.Input((6,))
    for _ in range(4):
        x = keras.layers.Dense(6, "tanh", dtype=with_half)(x)
        x = keras.layers.Dense(6, "tanh", dtype="float32")(x)
    model = compiled(keras.Model(inputs, x), jit_compile=False)
    assert_trains_alike(model, rematerialize(model, segments=3), 1e-4)
    old = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        x = inputs = keras.Input((6,))
        for _ in range(3):
            x = keras.layers.Dense(6, "tanh")(x)
            x = keras.layers.Dense(6, "tanh", dtype="float32")(x)
        model = compiled(keras.Model(inputs, x), jit_compile=False)
    finally:
        keras.config.set_dtype_policy(old)
    assert_trains_alike(model, rematerialize(model, segments=3), 1e-4)


def test_what_is_saved_is_the_plain_model(tmp_path):
    model = compiled(models.several())
    lean = rematerialize(model, segments=3)
    trained(lean)
    assert lean.get_config() == clone(model).get_config()
    paths = [w.path for w in clone(model).weights]
    assert [w.path for w in lean.weights] == paths
    lean.save(tmp_path / "lean.keras")
    loaded = keras.models.load_model(tmp_path / "lean.keras")
    assert plan_of(loaded) is None
    x, _ = models.batch(model)
    expected = lean.predict(x, verbose=0)
    for key, y in loaded.predict(x, verbose=0).items():
        np.testing.assert_array_equal(y, expected[key])
    np.testing.assert_allclose(trained(loaded), trained(clone(lean)), rtol=1e-5)


def test_the_model_handed_in_stays_as_it_is():
    model = compiled(models.frozen())
    before = values(model)
    trained(rematerialize(model, segments=3))
    for one, other in zip(before, values(model), strict=True):
        np.testing.assert_array_equal(one, other)
    assert plan_of(model) is None
    assert "call" not in vars(model)


def test_without_wishes_the_peak_is_the_lowest_of_all():
    model = compiled(models.mlp())
    lowest = plan_of(rematerialize(model, batch_size=512))
    assert lowest.saved_bytes > 0
    for count in (2, 3, 4):
        plan = plan_of(rematerialize(model, segments=count, batch_size=512))
        assert lowest.peak_bytes <= plan.peak_bytes
        assert lowest.plain_peak_bytes == plan.plain_peak_bytes


def test_a_lower_limit_costs_more_time():
    model = compiled(models.mlp())
    lowest = plan_of(rematerialize(model, batch_size=512))
    between = (lowest.peak_bytes + lowest.plain_peak_bytes) // 2
    plan = plan_of(rematerialize(model, memory_limit=between, batch_size=512))
    assert lowest.peak_bytes <= plan.peak_bytes <= between
    assert 0 < plan.extra_time <= lowest.extra_time
    loose = plan_of(rematerialize(model, memory_limit="1GiB", batch_size=512))
    assert loose.extra_time == 0
    assert not any(piece.recomputed for piece in loose.pieces)


def test_the_plan_says_what_is_computed_again():
    model = compiled(models.mlp())
    names = [layer.name for layer in model.layers]
    lean = rematerialize(model, segments=[names[2], names[5]], batch_size=8)
    plan = plan_of(lean)
    assert [piece.layers for piece in plan.pieces] == [
        tuple(names[:2]),
        tuple(names[2:5]),
        tuple(names[5:]),
    ]
    assert [piece.recomputed for piece in plan.pieces] == [True, True, False]
    # Each Dense(6) with ReLU keeps its own output of 8 x 6 float32.
    assert [piece.recomputed_bytes for piece in plan.pieces] == [384, 576, 0]
    assert [piece.kept_bytes for piece in plan.pieces] == [192, 192, 192]
    second_row = ("3", "recomputed", "192 B", "576 B")
    assert plan.table().rows[1][1:] == second_row
    assert "576 B" in str(plan)


def test_a_limit_below_every_plan_is_one_clear_error():
    model = compiled(models.mlp())
    with pytest.raises(
        ConfigError,
        match=r"No plan with recompute is within the limit at batch size 32.*"
        r"from [\d.]+ KiB, the lowest.*choices",
    ):
        rematerialize(model, memory_limit=1000)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"segments": 1}, "number from 2 to 7. Received: segments=1"),
        ({"segments": 2.5}, "names of layers of 'sequential'.*segments=2.5"),
        (
            {"segments": ["nothing"]},
            "names of layers of 'sequential': dense, .*segments=.'nothing'.",
        ),
        (
            {"segments": 2, "memory_limit": "1GiB"},
            "Expected either memory_limit or segments",
        ),
    ],
)
def test_wishes_that_cannot_be_met_are_told(arguments, text):
    with pytest.raises(ConfigError, match=text):
        rematerialize(compiled(models.mlp()), **arguments)


class Subclassed(keras.Model):
    """Blocks of layers in a list, called in a loop."""

    def __init__(self, branches=False):
        super().__init__()
        self.branches = branches
        self.blocks = [
            keras.Sequential([layers.Dense(6, "tanh"), layers.LayerNormalization()])
            for _ in range(4)
        ]
        self.head = layers.Dense(2)

    def call(self, x):
        for block in self.blocks:
            x = x + block(x)
        if self.branches and np.sum(keras.ops.convert_to_numpy(x)) > 0:
            x = -x
        return self.head(x)

    def get_config(self):
        return {"branches": self.branches}


def subclassed(**wishes):
    model = Subclassed(**wishes)
    model(np.zeros((1, 6), "float32"))
    return model


def test_a_subclassed_model_trains_to_the_same_weights():
    model = compiled(subclassed())
    lean = rematerialize(model, segments=3)
    assert sum(piece.recomputed for piece in plan_of(lean).pieces) == 2
    x, y = np.ones((8, 6), "float32"), np.ones((8, 2), "float32")
    plain = clone(model)
    losses = [[m.train_on_batch(x, y) for _ in range(STEPS)] for m in (plain, lean)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    for one, other in zip(values(plain), values(lean), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5)


def test_a_call_that_cannot_be_recorded_is_told_which_parts_have_a_graph():
    text = r"rematerialize its parts \['sequential.*'\], which have a graph"
    with pytest.raises(ModelError, match=text):
        rematerialize(subclassed(branches=True), input_shape=(6,))


def test_a_limit_needs_an_optimizer():
    with pytest.raises(ModelError, match="Expected: a compiled model"):
        rematerialize(models.mlp(), memory_limit="1GiB")


@pytest.fixture
def not_found(monkeypatch):
    """The search takes every call for one that can run twice."""
    monkeypatch.setattr("kerasmem.memory.plan.steps.runs_twice", lambda node: True)


def test_random_numbers_of_nobody_cannot_be_drawn_again(backend, not_found):
    class Global(keras.layers.Layer):
        def call(self, x):
            return x + keras.random.normal(keras.ops.shape(x))

    if backend == "jax":
        return  # Keras itself refuses them there
    x = inputs = keras.Input((4,))
    for _ in range(3):
        x = keras.layers.Dense(4)(Global()(x))
    lean = rematerialize(keras.Model(inputs, x), segments=3)
    with pytest.raises(ModelError, match="assigns a variable of another object"):
        lean(np.zeros((1, 4), "float32"), training=True)


def test_a_weight_that_its_own_layer_assigns_is_not_read_a_second_time(
    backend, not_found
):
    inputs = keras.Input((4,))
    x = keras.layers.SpectralNormalization(keras.layers.Dense(6))(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(6)(x)))
    model.compile("sgd", "mse")
    lean = rematerialize(model, segments=2)
    x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
    if backend == "jax":  # there the gradient goes through what is assigned anyway
        model.train_on_batch(x, y)
        lean.train_on_batch(x, y)
        for want, have in zip(model.weights, lean.weights, strict=True):
            np.testing.assert_allclose(have, want, atol=1e-5)
        return
    with pytest.raises(ModelError, match="assigns a trained weight"):
        lean.train_on_batch(x, y)


def test_a_model_keeps_less_in_one_way_only():
    dense = [keras.layers.Dense(32, activation="relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((32,)), *dense])
    lean, small = rematerialize(model, segments=2), compress_activations(model)
    text = "by `{}` or by a memory plan. Next: call `{}` with the original model"
    words = text.format("rematerialize", "compress_activations")
    with pytest.raises(ModelError, match=words):
        compress_activations(lean)
    words = text.format("compress_activations", "rematerialize")
    with pytest.raises(ModelError, match=words):
        rematerialize(small, segments=2)
    assert plan_of(rematerialize(lean, segments=3)) is not None


@pytest.mark.one_backend
def test_a_plan_that_hardly_lowers_the_peak_is_told():
    # A chain as short as this keeps nothing that could be computed again for less.
    short = [layers.Dense(64, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((64,)), *short])
    model.compile("adam", "mse")
    with pytest.warns(
        KerasMemWarning, match=r"saves little.*\(0% less\).*train the or"
    ):
        lean = rematerialize(model, batch_size=512)
    plan = plan_of(lean)
    assert plan.saved_bytes < 0.05 * plan.plain_peak_bytes
    deep = compiled(models.mlp())
    with warnings.catch_warnings():
        warnings.simplefilter("error", KerasMemWarning)
        found = plan_of(rematerialize(deep, batch_size=512))
        assert found.saved_bytes > 0.05 * found.plain_peak_bytes
        rematerialize(model, batch_size=512, segments=2)  # as was asked for


class FromGlobalState(layers.Layer):
    """Draws from the random generator of Keras."""

    def call(self, x):
        return x + 0.0 * keras.random.normal((1,))


def test_layers_that_cannot_run_twice_are_not_recomputed():
    x = inputs = keras.Input((32,))
    for place in range(9):
        x = layers.Dense(32, activation="tanh")(x)
        if place == 3:
            x = layers.SpectralNormalization(layers.Dense(32), name="once")(x)
        # JAX forbids such layers, and torch draws nothing for symbolic tensors.
        if place == 6 and keras.backend.backend() == "tensorflow":
            x = FromGlobalState(name="drawn")(x)
    model = compiled(keras.Model(inputs, x))
    x, y = np.ones((2048, 32), "float32"), np.ones((2048, 32), "float32")
    for lean in (
        rematerialize(model, segments=3),
        plan_memory(model, 2048, "2.8MiB", choices=["recompute"]).apply(model),
    ):
        pieces = [piece for piece in plan_of(lean).pieces if piece.recomputed]
        assert pieces
        assert not {"once", "drawn"} & {n for piece in pieces for n in piece.layers}
        lean.train_on_batch(x, y)
    compress_activations(model).train_on_batch(x, y)
