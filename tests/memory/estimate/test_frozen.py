"""Saved activations of frozen parts, and of layers that run over time."""

import math
from dataclasses import replace

import keras
import pytest
from keras import layers

import kerasmem as km
from kerasmem.memory.estimate.analytic.framework import framework
from kerasmem.memory.estimate.analytic.record import record
from kerasmem.memory.estimate.estimate import checked_request
from kerasmem.memory.program import AllocationPlan
from tests.memory.estimate.test_estimate_memory import Opaque

pytestmark = pytest.mark.one_backend

BATCH, SIDE, FILTERS = 8, 32, 16
CONVOLVED = 4 * BATCH * SIDE * SIDE * FILTERS
BACKENDS = ("tensorflow", "jax", "torch")


def base(blocks=3):
    inputs = x = keras.Input((SIDE, SIDE, 3))
    for _ in range(blocks):
        x = layers.Conv2D(FILTERS, 3, padding="same", activation="relu")(x)
        x = layers.BatchNormalization()(x)
    return keras.Model(inputs, x)


def with_head(inputs, x):
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(10)(x))


def nested(part, **options):
    inputs = keras.Input((SIDE, SIDE, 3))
    return with_head(inputs, part(inputs, **options))


def estimate(model, **options):
    settings = {"optimizer": "adam", "backend": "tensorflow", "jit_compile": False}
    return km.estimate_memory(model, BATCH, **settings | options)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "build",
    [
        nested,
        lambda part: nested(part, training=False),
        lambda part: with_head(part.input, part.output),
    ],
    ids=["nested", "inference", "flat"],
)
def test_a_frozen_base_saves_no_activations(build, backend):
    part = base()
    trained = estimate(build(part), backend=backend).by_category()
    part.trainable = False
    frozen = estimate(build(part), backend=backend).by_category()
    assert trained["activation"] > 3 * CONVOLVED
    assert frozen.get("activation", 0) <= 4 * BATCH * FILTERS
    # Two slots per trainable weight: the head's.
    head = FILTERS * 10 + 10
    assert 8 * head <= frozen["optimizer_state"] < 8 * head + 64


def saved_bytes(model):
    """Return the bytes of all saved activations, whether at the peak or not."""
    request = checked_request(model, BATCH, optimizer="adam", jit_compile=False)
    how = framework("tensorflow", "cpu", compiled=False)
    recorded = record(replace(request, backend="tensorflow"), how)
    assert recorded is not None
    step = recorded.steps()[1]
    return sum(
        x.nbytes for x in AllocationPlan(step, in_place=how.in_place).residuals()
    )


def test_a_partly_frozen_base_saves_activations_of_the_trained_layers():
    part = base()
    for layer in part.layers[:-2]:  # the last convolution is trained
        layer.trainable = False
    # Input of the convolution and output of its ReLU; some numbers per channel.
    assert saved_bytes(nested(part)) == pytest.approx(2 * CONVOLVED, rel=0.05)


def test_torch_frees_outputs_inside_a_nested_model_when_its_call_ends():
    parts = base(6), base(6)
    for part in parts:
        part.trainable = False
    inputs = x = keras.Input((SIDE, SIDE, 3))
    for part in parts:
        x = layers.Conv2D(3, 1, trainable=False)(part(x))
    # Keras's loop over a graph holds the outputs of its layers until the loop ends:
    # here the 12 of one part, not the 24 of both.
    model = with_head(inputs, x)
    peak = estimate(model, backend="torch", device="cpu").peak_bytes
    assert 12 * CONVOLVED <= peak <= 18 * CONVOLVED


def test_a_frozen_lstm_on_a_gpu_has_no_gradients():
    inputs = keras.Input((16, 8))
    frozen = layers.LSTM(32, trainable=False)
    model = keras.Model(inputs, layers.Dense(2)(frozen(inputs)))
    found = estimate(model, device="gpu").by_category()
    assert found.get("activation", 0) <= 4 * BATCH * 32


FRAMES, CLIP = (10, 64, 64, 3), (8, 32, 32, 1)


def video(shape, *inner):
    inputs = x = keras.Input(shape)
    for layer in inner:
        x = layer(x)
    model = keras.Model(inputs, x)
    model.compile("adam", "mse", jit_compile=False)
    return model


def cnn():
    return [
        layers.Conv2D(16, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.GlobalAveragePooling2D(),
    ]


def functional():
    inputs = x = keras.Input(FRAMES[1:])
    for layer in cnn():
        x = layer(x)
    return keras.Model(inputs, x)


@pytest.mark.parametrize(
    "build", [lambda: keras.Sequential([keras.Input(FRAMES[1:]), *cnn()]), functional]
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_in_time_distributed_needs_as_much_as_its_layers(build, backend):
    whole = video(FRAMES, layers.TimeDistributed(build()))
    layered = video(FRAMES, *map(layers.TimeDistributed, cnn()))
    found, expected = (estimate(m, backend=backend) for m in (whole, layered))
    assert found.peak_bytes == pytest.approx(expected.peak_bytes, rel=0.01)
    assert found.by_category()["activation"] >= 4 * BATCH * 10 * 62 * 62 * 16


GATES = 4 * BATCH * 8 * 4 * 1024 * 16  # four, at each of 8 steps and 1,024 positions


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("layer", "shape", "directions"),
    [
        (layers.ConvLSTM1D(16, 3, padding="same"), (8, 1024, 1), 1),
        (layers.ConvLSTM2D(16, 3, padding="same"), CLIP, 1),
        (layers.ConvLSTM3D(16, 3, padding="same"), (8, 8, 8, 16, 1), 1),
        (layers.Bidirectional(layers.ConvLSTM2D(16, 3, padding="same")), CLIP, 2),
    ],
    ids=["1D", "2D", "3D", "bidirectional"],
)
def test_recurrent_convolution_saves_its_gates(layer, shape, directions, backend):
    model = video(shape, layer)
    with pytest.warns(
        km.errors.KerasMemWarning, match=rf"loops over time: {layer.name}"
    ):
        found = estimate(model, backend=backend, device="cpu")
    assert found.by_category()["activation"] >= directions * GATES
    assert found.high_bytes >= 1.5 * found.peak_bytes


class Cell(layers.Layer):
    """A cell of one's own: saves its output and its inputs."""

    def __init__(self, units):
        super().__init__()
        self.units = self.state_size = units

    def build(self, shape):
        self.kernel = self.add_weight((shape[-1], self.units))
        self.recurrent = self.add_weight((self.units, self.units))

    def call(self, x, states):
        y = keras.ops.tanh(x @ self.kernel + states[0] @ self.recurrent)
        return y, [y]


@pytest.mark.filterwarnings("ignore:The interval is wider")
@pytest.mark.parametrize(
    ("make", "least"),
    [
        (lambda: layers.RNN(layers.LSTMCell(32)), 7 * 32),
        (lambda: layers.RNN(Cell(32)), 32),
        (
            lambda: layers.RNN([layers.LSTMCell(32), layers.GRUCell(16)]),
            7 * 32 + 5 * 16,
        ),
        (lambda: layers.Bidirectional(layers.RNN(layers.LSTMCell(32))), 14 * 32),
    ],
    ids=["cell", "own", "stacked", "bidirectional"],
)
def test_a_loop_over_any_cell_saves_its_activations_per_step(make, least):
    model = video((64, 16), make())
    found = estimate(model, device="cpu").by_category()["activation"]
    assert 4 * BATCH * 64 * least <= found <= 2 * 4 * BATCH * 64 * (least + 16)


@pytest.mark.filterwarnings("ignore:The interval is wider")
def test_a_loop_over_an_lstm_cell_is_estimated_as_the_layer():
    loop = video((64, 16), layers.RNN(layers.LSTMCell(32)))
    layer = video((64, 16), layers.LSTM(32))
    found, expected = (estimate(m, device="cpu").peak_bytes for m in (loop, layer))
    assert found == pytest.approx(expected, rel=0.1)


def test_a_bidirectional_recurrent_convolution_is_rematerialized():
    convolved = layers.Conv2D(4, 3, padding="same", activation="relu")
    model = video(
        (4, 8, 8, 1),
        layers.TimeDistributed(convolved),
        layers.Bidirectional(layers.ConvLSTM2D(4, 3, padding="same")),
        layers.Conv2D(4, 3, padding="same", activation="relu"),
        layers.Conv2D(4, 3, padding="same"),
    )
    lean = km.rematerialize(model, segments=2, batch_size=4)
    x = keras.random.uniform((4, 4, 8, 8, 1), seed=0)
    assert math.isclose(
        float(keras.ops.sum(model(x))), float(keras.ops.sum(lean(x))), rel_tol=1e-4
    )


def test_an_unknown_layer_is_named_and_its_interval_is_wide():
    inputs = keras.Input((4096,))
    model = keras.Model(inputs, layers.Dense(1)(Opaque(name="scan")(inputs)))
    with pytest.warns(km.errors.KerasMemWarning, match="Opaque 'scan'.*much wider"):
        found = estimate(model)
    ends = 2 * 4 * BATCH * 4096
    assert found.high_bytes >= found.peak_bytes + 10 * ends


def test_xla_copies_no_variable_that_is_not_trained():
    wide = layers.Dense(2048)
    model = keras.Sequential([keras.Input((2048,)), wide, layers.Dense(1)])
    kernel = 4 * 2048 * 2048
    compiled_step = {"backend": "jax", "jit_compile": True, "optimizer": "sgd"}
    trained = estimate(model, **compiled_step)
    wide.trainable = False
    frozen = estimate(model, **compiled_step)
    assert trained.high_bytes - trained.peak_bytes >= 2 * kernel
    assert frozen.high_bytes - frozen.peak_bytes < kernel


def test_convolutions_alone_widen_the_interval_of_a_compiled_step():
    lower = {}
    for layer in (layers.Dense(64), layers.Conv2D(64, 3)):
        model = keras.Sequential([keras.Input((64, 64, 64)), layer])
        found = estimate(model, backend="jax", jit_compile=True, optimizer="sgd")
        sizes = found.by_category()
        peak = found.peak_bytes - sizes["rounding"]
        moving = peak - sizes["parameter"] - sizes["optimizer_state"]
        lower[type(layer).__name__] = (peak - found.low_bytes) / moving
    # A factor of 1.14 for JAX: at most a fifth, or the 25 % of any compiled step.
    assert lower["Dense"] == pytest.approx(0.2, abs=0.02)
    assert lower["Conv2D"] == pytest.approx(1.14 * 0.25, abs=0.03)
