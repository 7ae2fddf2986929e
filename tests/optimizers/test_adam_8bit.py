"""Adam8bit against Adam, against NumPy, and in all that Keras does with it."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasmem.errors import ConfigError
from kerasmem.optimizers import Adam8bit
from tests.optimizers.reference import Adam8bitInNumPy

Adam = keras.optimizers.Adam
RATE = 0.01


def variable(shape=(70, 60), seed=0, dtype="float32", name="kernel"):
    value = np.random.default_rng(seed).normal(size=shape)
    return keras.Variable(value.astype("float32"), dtype=dtype, name=name)


def gradients(count, shape=(70, 60), seed=1):
    """Return gradients whose entries differ in size as those of a network do."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.normal(-3, 0.7, shape)
    pull = rng.normal(size=shape)
    return [
        (sizes * (rng.normal(size=shape) + 0.3 * pull)).astype("float32")
        for _ in range(count)
    ]


def trained(optimizer, target, steps):
    """Return the value of `target` after some steps; each gradient is a tensor."""
    for gradient in steps:
        tensor = keras.ops.convert_to_tensor(gradient)
        optimizer.apply([keras.ops.cast(tensor, target.dtype)], [target])
    return keras.ops.convert_to_numpy(target).astype("float64")


def nbytes(variables):
    return sum(keras.ops.convert_to_numpy(v).nbytes for v in variables)


def slots_nbytes(optimizer):
    """Return the bytes of the state without the step and the learning rate."""
    return nbytes(optimizer.variables[2:])


@pytest.mark.parametrize("size", [4096, 4097, 4352, 100_001, 1 << 20])
def test_the_state_is_at_most_27_percent_of_adams(size):
    one, other = Adam8bit(), Adam()
    for optimizer in (one, other):
        optimizer.build([keras.Variable(np.zeros(size, "float32"))])

    assert slots_nbytes(other) == 8 * size
    assert slots_nbytes(one) == -(-size // 256) * (2 * 256 + 2 * 4)
    assert slots_nbytes(one) <= 0.27 * slots_nbytes(other)


def test_larger_blocks_take_a_quarter_of_adams_and_next_to_nothing_more():
    optimizer = Adam8bit(block_size=2048)
    optimizer.build([keras.Variable(np.zeros(1 << 20, "float32"))])
    assert slots_nbytes(optimizer) == (2 << 20) + 2 * 4 * 512


@pytest.mark.parametrize(("shape", "block_size"), [((70, 60), 256), ((5, 900), 64)])
def test_codes_and_weights_are_those_of_the_same_arithmetic_in_numpy(shape, block_size):
    target = variable(shape)
    optimizer = Adam8bit(RATE, block_size=block_size, name="adam")
    reference = Adam8bitInNumPy(
        keras.ops.convert_to_numpy(target), RATE, block_size=block_size
    )

    for gradient in gradients(6, shape):
        value = trained(optimizer, target, [gradient])
        reference.update(gradient)

        np.testing.assert_allclose(value, reference.value, atol=1e-4 * RATE)
        state = {
            v.name.removeprefix("kernel_"): keras.ops.convert_to_numpy(v)
            for v in optimizer.variables
        }
        for place, moment in enumerate(["momentum", "velocity"]):
            codes, scales = state[f"{moment}_codes"], state[f"{moment}_scales"]
            off = np.abs(codes - reference.codes[place])
            assert off.max() <= 1  # where float32 and float64 differ at an edge
            assert (off > 0).mean() < 0.002
            np.testing.assert_allclose(scales, reference.scales[place], rtol=1e-5)
            # On from the same place: that edge would lead the two apart.
            reference.codes[place], reference.scales[place] = codes, scales
        reference.value = value


@pytest.mark.parametrize(("steps", "bound"), [(5, 0.05), (60, 0.1)])
def test_weights_move_as_with_adam(steps, bound):
    by_adam, by_ours = variable(), variable()
    start = keras.ops.convert_to_numpy(by_adam)
    many = gradients(steps)

    expected = trained(Adam(RATE), by_adam, many) - start
    found = trained(Adam8bit(RATE), by_ours, many) - start

    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error < bound
    assert found.ravel() @ expected.ravel() == pytest.approx(
        (expected**2).sum(), rel=0.02
    )


OPTIONS = {
    "no options": {},
    "weight decay": {"weight_decay": 0.1},
    "clipnorm": {"clipnorm": 0.01},
    "clipvalue": {"clipvalue": 1e-3},
    "global clipnorm": {"global_clipnorm": 0.01},
    "averaged weights": {"use_ema": True, "ema_overwrite_frequency": 2},
    "loss scale": {"loss_scale_factor": 8.0},
    "accumulation": {"gradient_accumulation_steps": 2},
    "schedule": {
        "learning_rate": keras.optimizers.schedules.ExponentialDecay(RATE, 2, 0.5)
    },
    "callable rate": {"learning_rate": lambda: RATE},
    "betas and epsilon": {"beta_1": 0.8, "beta_2": 0.99, "epsilon": 1e-3},
}
ON_LARGE = [
    "weight decay",
    "averaged weights",
    "loss scale",
    "accumulation",
    "schedule",
]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_small_variables_train_as_with_adam(options):
    options = {"learning_rate": RATE} | options
    by_adam, by_ours = variable((6, 5)), variable((6, 5))
    steps = gradients(6, (6, 5))

    expected = trained(Adam(**options), by_adam, steps)
    found = trained(Adam8bit(**options), by_ours, steps)

    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("options", [OPTIONS[name] for name in ON_LARGE], ids=ON_LARGE)
def test_large_variables_train_nearly_as_with_adam(options):
    options = {"learning_rate": RATE} | options
    by_adam, by_ours = variable(), variable()
    start = keras.ops.convert_to_numpy(by_adam)
    steps = gradients(6)

    expected = trained(Adam(**options), by_adam, steps) - start
    found = trained(Adam8bit(**options), by_ours, steps) - start

    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert 0 < error < 0.05


@pytest.mark.parametrize(("dtype", "atol"), [("float16", 0.01), ("bfloat16", 0.06)])
def test_variables_of_other_types_keep_float32_moments(dtype, atol):
    target, reference = variable(dtype=dtype), variable()
    small = variable((3,), dtype=dtype, name="bias")
    optimizer = Adam8bit(RATE)
    steps = gradients(5)

    for gradient in steps:
        both = [gradient, gradient[0, :3]]
        tensors = [keras.ops.convert_to_tensor(g.astype("float32")) for g in both]
        optimizer.apply(tensors, [target, small])
    expected = trained(Adam8bit(RATE), reference, steps)

    found = keras.ops.convert_to_numpy(keras.ops.cast(target, "float32"))
    types = {keras.backend.standardize_dtype(v.dtype) for v in optimizer.variables[2:]}
    assert types == {"uint8", "float32"}
    np.testing.assert_allclose(found, expected, atol=atol)


def test_moments_follow_a_gradient_that_stops_while_others_go_on():
    # Rounded to the nearest code, 0.999 of a code is that code again: every second
    # moment whose neighbors go on would stay as it is for good.
    target = variable((16, 256))
    optimizer = Adam8bit(RATE)
    moments = []
    rng = np.random.default_rng(0)
    for step in range(300):
        gradient = rng.normal(size=(16, 256)).astype("float32")
        if step >= 100:
            gradient[:, ::2] = 0
        trained(optimizer, target, [gradient])
        if step in (99, 299):
            read = optimizer._slots[0].read()
            moments.append([keras.ops.convert_to_numpy(m)[:, ::2] for m in read])

    (_, before), (first, after) = moments
    assert after.mean() / before.mean() == pytest.approx(0.999**200, rel=0.02)
    assert np.abs(first).max() < 1e-5


@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 30), st.integers(-3, 12))
def test_no_step_is_larger_than_adam_could_make_it(seed, decade):
    # |first moment| <= 7.3 roots of the second with Adam's decays, by Cauchy's
    # inequality; a second moment rounded down to nothing would lift every bound.
    rng = np.random.default_rng(seed)
    target = keras.Variable(np.zeros((4096,), "float32"))
    optimizer = Adam8bit(1.0, epsilon=1e-30)
    last = np.zeros(4096)
    for step in range(8):
        gradient = 10.0**decade * 10.0 ** rng.uniform(-12, 0, 4096)
        gradient *= rng.choice([-1, 0, 1], 4096) * (rng.random() < 0.7)
        value = trained(optimizer, target, [gradient.astype("float32")])
        correction = np.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1))
        assert np.abs(value - last).max() < 7.3 * 4 * correction
        last = value


def test_a_gradient_of_nan_spoils_its_weight_and_no_other_block():
    target, clean = variable((2, 4096)), variable((2, 4096))
    steps = gradients(3, (2, 4096))
    bad = [step.copy() for step in steps]
    bad[1][0, 300] = np.nan

    expected = trained(Adam8bit(RATE), clean, steps)
    found = trained(Adam8bit(RATE), target, bad)

    spoiled = np.zeros((2, 4096), bool)
    spoiled[0, 256:512] = True
    assert np.isnan(found[0, 300])
    np.testing.assert_array_equal(found[~spoiled], expected[~spoiled])


def test_a_variable_named_by_a_pattern_keeps_its_moments_whole():
    optimizer = Adam8bit(full_precision=["embed"])
    optimizer.build([variable(name="embeddings"), variable(name="kernel")])
    names = [v.name for v in optimizer.variables[2:]]
    assert names[:2] == ["embeddings_momentum", "embeddings_velocity"]
    assert names[2] == "kernel_momentum_codes"


def test_a_variable_that_is_set_to_its_gradient_has_no_slots():
    scale = variable((3,), name="scale")
    scale.overwrite_with_gradient = True
    kernel = variable()
    optimizer = Adam8bit(RATE)
    optimizer.build([scale, kernel])

    new = keras.ops.convert_to_tensor(np.array([1, 2, 3], "float32"))
    optimizer.apply([new, keras.ops.convert_to_tensor(gradients(1)[0])])

    np.testing.assert_array_equal(keras.ops.convert_to_numpy(scale), [1, 2, 3])
    assert all(v.name.startswith("kernel_") for v in optimizer.variables[2:])


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"amsgrad": True},
            r"does not store maximum second moments.*Received: amsgrad=True.*Next",
        ),
        ({"beta_1": 1.0}, r"at least 0 and less than 1. Received: beta_1=1.0"),
        ({"beta_2": -0.1}, r"Received: beta_2=-0.1"),
        ({"block_size": 8}, r"from 16. Received: block_size=8"),
        ({"block_size": 64.0}, r"Received: block_size=64.0"),
        ({"min_quantized_size": -1}, r"from 0. Received: min_quantized_size=-1"),
        ({"full_precision": "embed"}, r"list of regular.*full_precision='embed'"),
        ({"full_precision": ["("]}, r"list of regular.*full_precision='\('"),
    ],
)
def test_an_argument_that_cannot_be_used_is_named(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Adam8bit(**arguments)


@pytest.mark.one_backend
def test_a_keyword_that_keras_does_not_know_is_refused_as_by_keras():
    with pytest.raises(ValueError, match="not recognized"):
        Adam8bit(lr=0.1)


# In models


def network():
    return keras.Sequential(
        [
            keras.Input((40,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(3),
        ]
    )


def data(samples=48):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(samples, 40)).astype("float32")
    return x, (x[:, 0] > 0).astype("int32") + (x[:, 1] > 0)


def fitted(optimizer, *, jit="auto", epochs=2, model=None):
    keras.utils.set_random_seed(5)
    model = model or network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=jit)
    history = model.fit(
        *data(), batch_size=16, epochs=epochs, verbose=0, shuffle=False
    ).history
    return model, history["loss"]


def test_a_model_learns_as_with_adam():
    _, expected = fitted(Adam(RATE), epochs=6)
    _, found = fitted(Adam8bit(RATE), epochs=6)
    assert found[-1] < 0.3 * found[0]
    np.testing.assert_allclose(found, expected, rtol=0.05)


def test_compiled_and_not_it_takes_the_same_steps(backend):
    compiled = backend != "torch"  # which takes a compiler of C++ and a minute
    weights = [
        fitted(Adam8bit(RATE), jit=jit)[0].get_weights() for jit in (compiled, False)
    ]
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, atol=0.05 * RATE)


def test_half_precision_scales_the_loss_and_skips_what_overflows():
    with_policy = keras.dtype_policies.DTypePolicy("mixed_float16")
    model = keras.Sequential(
        [
            keras.Input((40,)),
            keras.layers.Dense(128, activation="relu", dtype=with_policy),
            keras.layers.Dense(3, dtype=with_policy),
        ]
    )
    scaling = keras.optimizers.LossScaleOptimizer(Adam8bit(RATE), initial_scale=2.0**30)
    model, losses = fitted(scaling, epochs=20, model=model)

    assert losses[-1] < 0.5 * losses[0]
    assert float(model.optimizer.dynamic_scale) < 2.0**30
    assert all(np.isfinite(w).all() for w in model.get_weights())


def test_a_saved_model_goes_on_as_if_nothing_had_happened(tmp_path):
    model, _ = fitted(Adam8bit(RATE, clipnorm=1.0, full_precision=["embed"]))
    model.save(tmp_path / "model.keras")

    loaded = keras.models.load_model(tmp_path / "model.keras")

    assert type(loaded.optimizer) is Adam8bit
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for one, other in zip(
        loaded.optimizer.variables, model.optimizer.variables, strict=True
    ):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    for each in (model, loaded):
        each.fit(*data(), batch_size=16, verbose=0, shuffle=False)
    for one, other in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.one_backend
def test_its_config_makes_it_anew():
    schedule = keras.optimizers.schedules.CosineDecay(RATE, 10)
    optimizer = Adam8bit(
        schedule, 0.8, 0.95, 1e-5, weight_decay=0.1, block_size=64, name="mine"
    )
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is Adam8bit
    assert again.get_config() == optimizer.get_config()
    assert keras.optimizers.serialize(optimizer)["registered_name"] == (
        "kerasmem>Adam8bit"
    )


def test_rows_of_a_table_that_were_not_read_stay():
    table = keras.layers.Embedding(200, 32)
    model = keras.Sequential([keras.Input((4,), dtype="int32"), table])
    tokens = np.array([[3, 5, 3, 190], [7, 5, 11, 199]], "int32")
    keras.utils.set_random_seed(1)
    model.compile(Adam8bit(RATE), "mse")
    before = table.get_weights()[0]

    for _ in range(3):
        model.train_on_batch(tokens, np.ones((2, 4, 32), "float32"))

    moved = np.abs(table.get_weights()[0] - before).max(axis=1) > 0
    assert sorted(np.flatnonzero(moved)) == sorted(np.unique(tokens))


def test_rows_that_were_read_move_as_with_adam():
    tokens = np.arange(200, dtype="int32")[None, ::3]  # each once, as Adam needs it
    tables = []
    for optimizer in (Adam(RATE), Adam8bit(RATE, full_precision=["embeddings"])):
        keras.utils.set_random_seed(1)
        table = keras.layers.Embedding(200, 32)
        model = keras.Sequential([keras.Input((67,), dtype="int32"), table])
        model.compile(optimizer, "mse")
        for _ in range(3):
            model.train_on_batch(tokens, np.ones((1, 67, 32), "float32"))
        tables.append(table.get_weights()[0])
    np.testing.assert_allclose(tables[1], tables[0], rtol=1e-5, atol=1e-7)
