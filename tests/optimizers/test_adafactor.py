"""Adafactor against Keras's own, against NumPy, and how little it keeps."""

import keras
import numpy as np
import pytest

from kerasmem.errors import ConfigError
from kerasmem.extras.optimizers.adafactor import factored_shape
from kerasmem.optimizers import Adafactor
from tests.optimizers.reference import adafactor_step

Keras = keras.optimizers.Adafactor
L = keras.layers


def variables(*shapes):
    rng = np.random.default_rng(0)
    return [keras.Variable(rng.normal(size=s).astype("float32")) for s in shapes]


def gradients(*shapes, count=4):
    rng = np.random.default_rng(1)
    sizes = [10.0 ** rng.normal(-2, 1, shape) for shape in shapes]
    return [
        [(size * rng.normal(size=size.shape)).astype("float32") for size in sizes]
        for _ in range(count)
    ]


def trained(optimizer, targets, steps):
    for step in steps:
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in step], targets)
    return [keras.ops.convert_to_numpy(target) for target in targets]


OPTIONS = {
    "no options": {},
    "large rate": {"learning_rate": 0.5},
    "rate that stays": {"learning_rate": 0.1, "relative_step": False},
    "schedule": {
        "learning_rate": keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    },
    "own decay and thresholds": {
        "beta_2_decay": -0.5,
        "epsilon_1": 1e-8,
        "epsilon_2": 0.1,
        "clip_threshold": 0.3,
    },
    "weight decay and clipping": {"weight_decay": 0.1, "clipnorm": 0.5},
    "averaged weights": {"use_ema": True},
    "accumulation": {"gradient_accumulation_steps": 2},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_update_is_that_of_keras(options):
    shapes = [(7,), (6, 5)]
    steps = gradients(*shapes)

    expected = trained(Keras(**options), variables(*shapes), steps)
    found = trained(Adafactor(**options), variables(*shapes), steps)

    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("axes", "shapes"),
    [("auto", [(), (3, 3, 4, 8), (2, 3, 12)]), ("last", [(12, 2, 3), (3, 3, 5, 1)])],
)
def test_the_update_is_that_of_keras_with_axes_of_its_choice(axes, shapes):
    steps = gradients(*shapes, count=3)

    expected = trained(Keras(), variables(*shapes), steps)
    found = trained(Adafactor(axes=axes), variables(*shapes), steps)

    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_kernel_of_attention_trains_as_the_matrix_that_it_is():
    steps = gradients((12, 2, 3))
    (value,) = variables((12, 2, 3))
    expected = keras.ops.convert_to_numpy(value).reshape(12, 6)
    second = {"rows": 0.0, "columns": 0.0}
    for number, (gradient,) in enumerate(steps, 1):
        expected, second = adafactor_step(
            expected, gradient.reshape(12, 6), second, number
        )

    optimizer = Adafactor()
    (found,) = trained(optimizer, [value], steps)

    np.testing.assert_allclose(found.reshape(12, 6), expected, rtol=1e-5, atol=1e-6)
    rows, columns = optimizer.variables[2:]
    np.testing.assert_allclose(rows.numpy(), second["rows"], rtol=1e-4)
    np.testing.assert_allclose(columns.numpy(), second["columns"], rtol=1e-4)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("shape", "factored"),
    [
        ((6, 5), (6, 5)),
        ((1, 9), (1, 9)),
        ((3, 3, 64, 32), (3, 3, 64, 32)),  # as Keras
        ((3, 3, 3, 64), (3, 3, 3, 64)),
        ((512, 8, 64), (512, 512)),  # query, key, value
        ((8, 64, 512), (8, 64, 512)),  # output: as Keras
        ((3, 3, 96, 1), (9, 96)),  # depthwise
        ((3, 128, 256), (3, 128, 256)),
    ],
)
def test_the_axes_that_are_factored(shape, factored):
    assert factored_shape(shape, "auto") == factored
    assert factored_shape(shape, "last") == shape


def transformer(width=256, heads=8, words=2000):
    """Return the variables of a table and of one block."""
    table, attention = L.Embedding(words, width), L.MultiHeadAttention(heads, 32)
    attention.build((None, 16, width), (None, 16, width))
    table.build((None, 16))
    others = [
        (L.Dense(4 * width), width),
        (L.Dense(width), 4 * width),
        (L.LayerNormalization(), width),
        (L.LayerNormalization(), width),
    ]
    for layer, size in others:
        layer.build((None, 16, size))
    layers = [table, attention, *(layer for layer, _ in others)]
    return [v for layer in layers for v in layer.trainable_variables]


def entries(items):
    return sum(int(np.prod(v.shape)) for v in items)


def test_the_state_for_a_transformer_is_at_most_two_percent_of_its_parameters():
    parameters = transformer()
    state = {}
    for name, optimizer in {
        "ours": Adafactor(),
        "as keras factors": Adafactor(axes="last"),
        "keras": Keras(),
    }.items():
        optimizer.build(parameters)
        state[name] = entries(optimizer.variables) / entries(parameters)

    assert state["ours"] < 0.02
    assert 0.02 < state["as keras factors"] < 0.1
    assert state["keras"] > 1


def test_a_gradient_of_zeros_changes_nothing_and_stays_finite():
    targets = variables((6, 5), (4,))
    before = [keras.ops.convert_to_numpy(v) for v in targets]
    zeros = [np.zeros((6, 5), "float32"), np.zeros(4, "float32")]
    for one, other in zip(
        trained(Adafactor(), targets, [zeros] * 2), before, strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_variables_of_half_precision_train_with_factors_in_float32(dtype):
    value = np.random.default_rng(0).normal(size=(6, 5)).astype("float32")
    half, whole = keras.Variable(value, dtype=dtype), keras.Variable(value)
    steps = gradients((6, 5))
    ours = Adafactor(0.1)
    trained(ours, [half], steps)
    (expected,) = trained(Adafactor(0.1), [whole], steps)

    found = keras.ops.convert_to_numpy(keras.ops.cast(half, "float32"))
    np.testing.assert_allclose(found, expected, atol=0.05)
    types = {keras.backend.standardize_dtype(v.dtype) for v in ours.variables[2:]}
    assert types == {"float32"}


def test_a_saved_model_goes_on_as_if_nothing_had_happened(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(16, 6)).astype("float32")
    y = rng.normal(size=(16, 3)).astype("float32")
    model = keras.Sequential([keras.Input((6,)), L.Dense(5), L.Dense(3)])
    model.compile(Adafactor(0.1, axes="last"), "mse")
    train = {"batch_size": 8, "verbose": 0, "shuffle": False}
    model.fit(x, y, **train)
    model.save(tmp_path / "model.keras")

    loaded = keras.models.load_model(tmp_path / "model.keras")

    assert type(loaded.optimizer) is Adafactor
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for each in (model, loaded):
        each.fit(x, y, **train)
    for one, other in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_rows_of_a_table_train_as_with_keras():
    tokens = np.arange(40, dtype="int32")[None, ::3]  # each once, as Keras needs it
    tables = []
    for optimizer in (Keras(0.1), Adafactor(0.1)):
        keras.utils.set_random_seed(1)
        table = L.Embedding(40, 8)
        model = keras.Sequential([keras.Input((14,), dtype="int32"), table])
        model.compile(optimizer, "mse")
        for _ in range(3):
            model.train_on_batch(tokens, np.ones((1, 14, 8), "float32"))
        tables.append(table.get_weights()[0])
    np.testing.assert_allclose(tables[1], tables[0], rtol=1e-5, atol=1e-6)


@pytest.mark.one_backend
def test_axes_of_another_name_are_refused():
    with pytest.raises(ConfigError, match="one of auto, last.*axes='first'"):
        Adafactor(axes="first")
