"""A model that trains with activations in eight bits."""

import zipfile

import keras
import numpy as np
import pytest

from kerasmem.backends.seeding import seeded
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.activation_policy import policy_of
from kerasmem.graph.clone import clone
from kerasmem.graph.values import to_numpy
from kerasmem.memory.compress_activations import (
    ActivationReport,
    activation_report,
    compress_activations,
)
from kerasmem.processes import run_in_child
from tests.memory.compress_activations import held
from tests.models import Subclassed

L = keras.layers
LOSS = "sparse_categorical_crossentropy"


def mlp(units=64, depth=3, activation="relu", **dense):
    layers = [L.Dense(units, activation, **dense) for _ in range(depth)]
    return keras.Sequential([keras.Input((units,)), *layers, L.Dense(10, "softmax")])


def compiled(model, jit, rate=0.05):
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), LOSS, jit_compile=jit)
    return model


def losses(model, x, y, steps=4):
    with seeded(0):
        return [float(model.train_on_batch(x, y)) for _ in range(steps)]


JIT = {"tensorflow": [False, True], "jax": [True], "torch": [False]}
"""What is tested; without jit JAX runs every operation by itself, and torch's compiler
takes a minute a model."""

SOME_JIT = JIT[keras.backend.backend()][0]


@pytest.mark.parametrize(
    ("kind", "arguments", "jit"),
    [
        ("cnn", {"widths": (8,)}, JIT[keras.backend.backend()][0]),
        ("transformer", {"blocks": 1}, JIT[keras.backend.backend()][-1]),
    ],
)
def test_forward_passes_and_draws_are_the_same_and_training_nearly(
    kind, arguments, jit
):
    model = compiled(held.MODELS[kind](**arguments), jit)
    x, y = held.batch(model, 16)
    small = compress_activations(model)
    state = [to_numpy(v) for v in small.non_trainable_variables]
    exact, found = losses(model, x, y), losses(small, x, y)
    # The first loss hangs on the masks of dropout, but not on what is stored.
    assert found[0] == pytest.approx(exact[0], rel=1e-5)
    np.testing.assert_allclose(found, exact, rtol=0.05)
    assert found[-1] < found[0]
    changed = False
    for own, other, before in zip(
        small.non_trainable_variables, model.non_trainable_variables, state, strict=True
    ):
        name = own.path
        np.testing.assert_allclose(
            to_numpy(own), to_numpy(other), atol=0.05, err_msg=name
        )
        changed |= not np.array_equal(to_numpy(own), before)
    assert changed or kind != "cnn"  # on torch dropout has no state of Keras's


def test_the_first_step_moves_the_statistics_of_batch_normalization_exactly():
    model = compiled(held.residual_cnn(widths=(8,)), SOME_JIT)
    small = compress_activations(model)
    x, y = held.batch(model, 16)
    losses(model, x, y, 1), losses(small, x, y, 1)
    for own, other in zip(
        small.non_trainable_variables, model.non_trainable_variables, strict=True
    ):
        np.testing.assert_allclose(to_numpy(own), to_numpy(other), rtol=1e-4, atol=1e-6)


def test_the_gradient_is_right_on_average():
    model = compiled(mlp(activation="tanh"), SOME_JIT)
    small = compress_activations(model)
    sample, _ = held.batch(model, 1)
    moved = {}
    for copies in (1, 400):
        x, y = np.repeat(sample, copies, axis=0), np.full(copies, 3)
        # The exact gradient is the same; the errors of the copies differ.
        moved[copies] = activation_report(small, (x, y)).gradient_change
    assert 1e-3 < moved[1] < 0.1
    assert moved[400] < moved[1] / 8


def test_another_seed_rounds_otherwise():
    model = compiled(mlp(), SOME_JIT)
    batch = held.batch(model, 8)
    found = {
        seed: activation_report(compress_activations(model, seed=seed), batch)
        for seed in (0, 1)
    }
    again = activation_report(compress_activations(model), batch)
    moved = [
        np.array([g.relative for g in report.gradients])
        for report in (found[0], again, found[1])
    ]
    np.testing.assert_allclose(moved[0], moved[1], rtol=1e-3)
    assert np.abs(moved[2] / moved[0] - 1).max() > 0.01


def test_losses_that_layers_add_are_those_of_the_model():
    model = mlp(kernel_regularizer="l2", activity_regularizer="l2")
    model = compiled(model, SOME_JIT, 0.001)
    small = compress_activations(model)
    x, y = held.batch(model, 8)
    exact, found = losses(model, x, y, 2), losses(small, x, y, 2)
    np.testing.assert_allclose(found, exact, rtol=1e-3)
    assert exact[0] > 4  # of which cross-entropy is 2.3


def test_inference_is_that_of_the_model_and_the_model_is_as_before():
    model = compiled(held.residual_cnn(widths=(8,)), SOME_JIT)
    x, _ = held.batch(model, 4)
    before = [to_numpy(v) for v in model.variables]
    small = compress_activations(model)
    np.testing.assert_array_equal(
        small.predict(x, verbose=0), model.predict(x, verbose=0)
    )
    assert all(map(np.array_equal, before, map(to_numpy, model.variables)))
    assert "call" not in vars(model)
    assert type(small) is type(model)


def test_what_is_saved_is_the_plain_model(tmp_path):
    model = compiled(held.transformer(blocks=1), SOME_JIT)
    small = compress_activations(model)
    losses(small, *held.batch(model, 4), 1)
    small.save(tmp_path / "small.keras")
    assert small.get_config() == clone(model).get_config()
    with zipfile.ZipFile(tmp_path / "small.keras") as file:
        assert b"kerasmem" not in file.read("config.json")
    loaded = keras.models.load_model(tmp_path / "small.keras")
    assert all(
        map(np.array_equal, map(to_numpy, loaded.weights), map(to_numpy, small.weights))
    )
    assert "call" not in vars(loaded)


def test_sixteen_bits_nested_models_and_the_layers_chosen():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        inner = keras.Sequential(
            [keras.Input((64,)), L.Dense(64, "relu"), L.Dense(64, "relu")], name="inner"
        )
        inputs = keras.Input((64,))
        x = L.Dense(64, "relu", name="last")(inner(L.Dense(64, name="first")(inputs)))
        model = keras.Model(inputs, L.Dense(10, "softmax", dtype="float32")(x))
    finally:
        keras.config.set_dtype_policy("float32")
    compiled(model, SOME_JIT)
    x, y = held.batch(model, 32)
    report = activation_report(compress_activations(model), (x, y))
    rows = {row.layer: row for row in report.layers}
    assert rows["first"].output_bytes == 32 * 64 * 2
    assert rows["first"].stored_bytes == 32 * (64 + 8)
    assert [row.fate for row in report.layers] == ["8 bits"] * 4 + ["as it is"]
    assert 0 < report.gradient_change < 0.1
    some = compress_activations(model, include="inner|dense.*", exclude="last")
    fates = {row.layer: row.fate for row in activation_report(some, x).layers}
    assert (fates["first"], fates["last"]) == ("as it is", "as it is")
    assert "8 bits" in fates.values()


def test_the_report_tells_bytes_by_arithmetic_and_goes_through_json():
    model = compiled(held.residual_cnn(8, (8,)), SOME_JIT)
    x, y = held.batch(model, 2)
    report = activation_report(compress_activations(model), (x, y))
    rows = {row.layer: row for row in report.layers}
    convolution = next(row for name, row in rows.items() if name.startswith("conv2d"))
    assert convolution.output_bytes == 2 * 8 * 8 * 8 * 4
    # Two groups of 256 a sample, each with a scale and a code of zero.
    assert convolution.stored_bytes == 2 * 2 * (256 + 8)
    assert report.output_bytes == sum(row.output_bytes for row in report.layers)
    assert ActivationReport.from_json(report.to_json()) == report
    text = report.table()
    assert "B (calculated)" in text
    assert "gradient of this batch: changed by" in text
    assert len(report.gradients) == 5


def test_what_the_backward_pass_holds_is_what_the_report_says(backend):
    jobs = [
        {"model": "cnn", "arguments": {"widths": (16,), "size": 32}},
        {"model": "transformer", "arguments": {"length": 64, "blocks": 1}},
    ]
    job = {"jobs": jobs, "batch_size": 16}
    found = (
        run_in_child(
            "tests.memory.compress_activations.held:held_by",
            job,
            backend=backend,
            environment=held.BFC,
        )
        if backend == "tensorflow"
        else held.held_by(job)
    )
    for one, bytes_held in zip(jobs, found["held"], strict=True):
        model = held.MODELS[one["model"]](**one["arguments"])
        x, _ = held.batch(model, 16)
        report = activation_report(compress_activations(model), x)
        assert bytes_held["plain"] > 3.5 * bytes_held["compressed"]
        # The last layer's tensors and whatever the allocator rounds up come on top.
        assert 0.99 < bytes_held["compressed"] / report.stored_bytes < 1.6


def test_a_model_without_a_graph_is_refused():
    model = Subclassed()
    model(np.zeros((1, 5), "int32"))
    with pytest.raises(ModelError, match=r"graph.*Subclassed.*keras\.Input"):
        compress_activations(model)


def test_a_layer_that_assigns_its_weight_stays_unchanged():
    spectral = L.SpectralNormalization(L.Dense(64))
    model = keras.Sequential([keras.Input((64,)), L.Dense(64, "relu"), spectral])
    model.add(L.Dense(64, "relu"))
    model.compile("sgd", "mse", jit_compile=keras.backend.backend() == "jax")
    x = np.ones((4, 64), "float32")
    lean = compress_activations(model)
    assert spectral.name not in {n.operation.name for n in recomputed(lean)}
    lean.train_on_batch(x, x)


def recomputed(model):
    return [node for segment in policy_of(model).segments for node in segment.nodes]


def test_a_model_with_nothing_to_gain_is_refused():
    model = keras.Sequential([keras.Input((4,)), L.Dense(8), L.Dense(2)])
    with pytest.raises(ModelError, match="32 or more floats"):
        compress_activations(model)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"bits": 4}, "must be 8, the only supported number of bits. Received: bits=4"),
        ({"seed": -1}, "whole number from 0. Received: seed=-1"),
        ({"include": "nosuch"}, "'nosuch', which matches none of"),
        ({"exclude": ["("]}, r"regular expressions .* Received: exclude='\('"),
        ({"include": [3]}, "Received: include=3"),
    ],
    ids=str,
)
def test_arguments_that_cannot_be_used_are_refused(arguments, text):
    with pytest.raises(ConfigError, match=text):
        compress_activations(mlp(), **arguments)


def test_a_report_needs_a_compressed_model_and_for_gradients_a_loss():
    model = mlp()
    batch = held.batch(model, 2)
    with pytest.raises(ModelError, match="a model from `compress_activations`"):
        activation_report(model, batch)
    with pytest.raises(ConfigError, match="a compiled model, or a batch without"):
        activation_report(compress_activations(model), batch)
