"""GradientMonitor: figures against independent gradients, and not a trace left."""

import copy
import csv
import json
import math
import os
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from datetime import datetime, timedelta

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem import backends
from kerasmem.callbacks import (
    GradientMonitor,
    MemoryMonitor,
    MemoryTimeline,
    Pruning,
)
from kerasmem.callbacks.gradient_state import GradientState
from kerasmem.callbacks.gradient_tally import GradientTally
from kerasmem.errors import ConfigError, KerasMemWarning
from kerasmem.records import GradientRecord, RunInfo
from tests.callbacks import deterministic_cnn
from tests.two_devices import TWO_DEVICES

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:(TensorFlow's CPU|JAX counts|torch counts)"  # of a MemoryMonitor beside
    ),
    pytest.mark.filterwarnings("ignore:The gradient contained NaN"),
]

RATE = 0.1


def global_norm(gradients):
    return math.sqrt(sum(float(np.sum(np.square(g))) for g in gradients))


def norms_by_hand(model, data, batch_size, reference, gradients_per_update=1):
    """Train `model` with plain SGD by hand; return the global norm of every update."""
    x, y = data
    norms, pending = [], []
    for start in range(0, len(x), batch_size):
        batch = slice(start, start + batch_size)
        pending.append(reference(model, x[batch], y[batch]))
        if len(pending) < gradients_per_update:
            continue
        update = [np.mean(parts, axis=0) for parts in zip(*pending, strict=True)]
        pending = []
        norms.append(global_norm(update))
        for variable, gradient in zip(model.trainable_variables, update, strict=True):
            value = keras.ops.convert_to_numpy(variable.value)
            variable.assign(value - RATE * gradient)
    return norms


def fit(model, data, callbacks=(), **arguments):
    arguments = {"batch_size": 4, "epochs": 1, "verbose": 0, "shuffle": False} | (
        arguments
    )
    return model.fit(*data, callbacks=list(callbacks), **arguments).history


def hooks_on(model):
    """Return what hangs on a model and its optimizer that Keras did not put there."""
    owners = [model, model.optimizer]
    owners.append(getattr(model.optimizer, "inner_optimizer", model.optimizer))
    ours = {
        name
        for owner in owners
        for name, value in vars(owner).items()
        if type(value).__module__.startswith("kerasmem")
    }
    paths = {v.path for v in model.optimizer.variables if "kerasmem" in v.path}
    return ours | paths


def compiled(make_model, optimizer=None, **arguments):
    model = make_model()
    optimizer = optimizer or keras.optimizers.SGD(RATE)
    # Without jit JAX compiles every operation on its own: a test takes ten times as
    # long. So jit is off there only where a test asks for it.
    jit = keras.backend.backend() == "jax"
    model.compile(optimizer, loss="mse", **({"jit_compile": jit} | arguments))
    return model


def weights_of(model):
    return [keras.ops.convert_to_numpy(v.value) for v in model.weights]


def several_optimizers():
    return keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(
            keras.optimizers.SGD(RATE), {".*bias": keras.optimizers.SGD(RATE)}
        ),
        loss_scale_factor=8.0,
    )


OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(RATE),
    "a constant loss scale": lambda: keras.optimizers.SGD(RATE, loss_scale_factor=8.0),
    "a dynamic loss scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(RATE)
    ),
    "several optimizers": several_optimizers,
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_norm_is_that_of_an_independent_computation(
    make_model, data, reference_gradients, optimizer
):
    expected = norms_by_hand(make_model(), data, 4, reference_gradients)

    history = fit(
        compiled(make_model, OPTIMIZERS[optimizer]()), data, [GradientMonitor()]
    )

    assert history["gradient_norm"] == [pytest.approx(np.mean(expected), rel=1e-5)]
    assert history["gradient_norm_max"] == [pytest.approx(max(expected), rel=1e-5)]
    assert history["gradient_nonfinite"] == [0.0]


def test_the_norm_is_the_same_compiled_and_with_several_steps_per_execution(
    make_model, data, reference_gradients, backend
):
    expected = norms_by_hand(make_model(), data, 4, reference_gradients)
    # torch.compile is too slow for a test, and Keras has one step a call on torch.
    options = {} if backend == "torch" else {"jit_compile": True}
    if backend != "torch":
        options["steps_per_execution"] = 3  # 4 steps: the last call has but one
    model = compiled(make_model, **options)

    history = fit(model, data, [GradientMonitor(every=2)])

    assert history["gradient_norm"] == [pytest.approx(np.mean(expected), rel=1e-5)]
    assert history["gradient_norm_max"] == [pytest.approx(max(expected), rel=1e-5)]


@pytest.mark.parametrize("dynamic", [False, True])
def test_accumulated_gradients_count_once_per_update(
    make_model, data, reference_gradients, backend, dynamic
):
    expected = norms_by_hand(make_model(), data, 4, reference_gradients, 2)
    optimizer = keras.optimizers.SGD(RATE, gradient_accumulation_steps=2)
    if dynamic:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    jit = backend == "jax" or (dynamic and backend == "tensorflow")
    model = compiled(make_model, optimizer, jit_compile=jit)
    monitor = GradientMonitor()

    history = fit(model, data, [monitor])

    assert monitor.records[0].steps == len(expected) == 2
    assert history["gradient_norm"] == [pytest.approx(np.mean(expected), rel=1e-5)]
    assert history["gradient_norm_max"] == [pytest.approx(max(expected), rel=1e-5)]


@pytest.mark.parametrize("clip", [{"global_clipnorm": 1e-3}, {"clipvalue": 1e-3}])
def test_the_gradient_is_read_before_it_is_clipped(
    make_model, data, reference_gradients, clip
):
    x, y = data
    expected = global_norm(reference_gradients(make_model(), x, y))
    model = compiled(make_model, keras.optimizers.SGD(RATE, **clip))

    history = fit(model, data, [GradientMonitor()], batch_size=16)

    assert history["gradient_norm"] == [pytest.approx(expected, rel=1e-5)]


@pytest.mark.parametrize("jit", {False, keras.backend.backend() != "torch"})
def test_rows_of_an_embedding_used_twice_are_summed(reference_gradients, jit):
    def make_model():
        keras.utils.set_random_seed(11)
        return keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                keras.layers.Embedding(50, 3),
                keras.layers.Flatten(),
                keras.layers.Dense(2),
            ]
        )

    x = np.array([[1, 1, 2, 1], [2, 7, 7, 49]], "int32")
    data = x, np.ones((2, 2), "float32")
    expected = reference_gradients(make_model(), *data)
    monitor = GradientMonitor()

    model = compiled(make_model, jit_compile=jit)
    history = fit(model, data, [monitor])

    table = monitor.records[0].variables[0]
    assert history["gradient_norm"] == [pytest.approx(global_norm(expected), rel=1e-5)]
    assert table.norm == pytest.approx(np.linalg.norm(expected[0]), rel=1e-5)
    assert table.max_abs == pytest.approx(np.max(np.abs(expected[0])), rel=1e-5)
    assert table.zero_fraction == pytest.approx(46 / 50, rel=1e-5)


def test_per_variable_statistics_are_taken_in_every_nth_update(
    make_model, data, reference_gradients
):
    x, y = data
    first = reference_gradients(make_model(), x[:4], y[:4])
    monitor = GradientMonitor(every=10)

    fit(compiled(make_model), data, [monitor], epochs=2)

    rows = monitor.records[0].variables
    assert [row.steps for row in rows] == [1, 1, 1, 1]
    assert [row.path.split("/")[-1] for row in rows] == ["kernel", "bias"] * 2
    for row, gradient in zip(rows, first, strict=True):
        assert row.norm == pytest.approx(np.linalg.norm(gradient), rel=1e-5)
        assert row.max_abs == pytest.approx(np.max(np.abs(gradient)), rel=1e-5)
        assert row.zero_fraction == pytest.approx(np.mean(gradient == 0), abs=1e-6)
    assert [row.steps for row in monitor.records[1].variables] == [1, 1, 1, 1]


def test_without_per_variable_statistics_there_are_none(make_model, data):
    monitor = GradientMonitor(per_variable=False)

    fit(compiled(make_model), data, [monitor])

    assert monitor.records[0].variables == ()
    assert monitor.records[0].steps == 4


def test_a_step_with_nan_is_counted_and_left_out_of_the_mean(
    make_model, data, reference_gradients
):
    x, y = data
    expected = global_norm(reference_gradients(make_model(), x[:4], y[:4]))
    broken = y.copy()
    broken[4:8] = np.nan
    monitor = GradientMonitor(every=1)

    history = fit(compiled(make_model), (x[:8], broken[:8]), [monitor])

    assert history["gradient_nonfinite"] == [1.0]
    assert history["gradient_norm"] == [pytest.approx(expected, rel=1e-5)]
    output_bias = monitor.records[0].variables[-1]
    assert output_bias.nonfinite == 3
    assert math.isfinite(output_bias.norm)


def test_a_norm_of_nothing_but_nan_is_nan(make_model, data):
    x, y = data

    history = fit(compiled(make_model), (x * np.nan, y), [GradientMonitor()])

    assert math.isnan(history["gradient_norm"][0])
    assert history["gradient_nonfinite"] == [4.0]


def test_a_step_that_loss_scaling_skips_is_nonfinite(make_model, data):
    # The scaled gradient overflows until the scale was halved a few times.
    x, y = data
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(RATE), initial_scale=2.0**127
    )
    model = compiled(make_model, optimizer)
    monitor = GradientMonitor()

    history = fit(model, (x, 100 * y), [monitor], epochs=3)

    skipped = 12 - int(optimizer.iterations.numpy())
    assert skipped > 0
    assert sum(history["gradient_nonfinite"]) == skipped
    assert sum(record.steps for record in monitor.records) == 12 - skipped


def test_mixed_precision_reports_unscaled_gradients(
    make_model, data, reference_gradients
):
    x, y = data
    expected = global_norm(reference_gradients(make_model(), x, y))
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = compiled(make_model)
    finally:
        keras.config.set_dtype_policy("float32")

    history = fit(model, data, [GradientMonitor()], batch_size=16)

    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert history["gradient_norm"] == [pytest.approx(expected, rel=1e-2)]


def test_a_subclassed_model_with_a_step_of_its_own_is_watched(
    make_model, own_step, data, reference_gradients
):
    expected = global_norm(reference_gradients(make_model(), *data)) / 2
    model = compiled(lambda: own_step(make_model()))
    monitor = GradientMonitor()

    history = fit(model, data, [monitor], batch_size=16)

    assert history["gradient_norm"] == [pytest.approx(expected, rel=1e-5)]
    assert len(monitor.records[0].variables) == 4
    assert hooks_on(model) == set()


def test_training_is_the_same_to_the_bit_without_jit(make_model, data):
    plain, watched = (compiled(make_model, "adam", jit_compile=False) for _ in range(2))

    expected = fit(plain, data, epochs=2)["loss"]
    found = fit(watched, data, [MemoryMonitor(), GradientMonitor()], epochs=2)["loss"]

    assert found == expected
    for kept, with_monitor in zip(weights_of(plain), weights_of(watched), strict=True):
        np.testing.assert_array_equal(with_monitor, kept)


@pytest.fixture(scope="module")
def child():
    """What `deterministic_cnn.py` found in a process of its own, where it needs one."""
    if keras.backend.backend() == "torch":
        return deterministic_cnn.found()
    script = deterministic_cnn.__file__
    environment = os.environ | TWO_DEVICES | {"TF_CPU_ALLOCATOR_USE_BFC": "1"}
    run = subprocess.run(
        [sys.executable, script],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(run.stdout)


def test_training_a_cnn_is_the_same_to_the_bit_with_deterministic_ops(child):
    assert child["is_equal"] is True


def test_the_cpu_figures_are_complete_if_the_allocator_counts_all(child, backend):
    here = [reading.complete for reading in backends.current().device_memory()]
    if backend == "tensorflow":
        assert child["complete"] == [True, True]  # two logical devices
        assert here in ([False], [])  # no figures at all where oneDNN is off
    else:
        assert child["complete"] == here == []


def test_the_gradient_is_summed_over_replicas(child, backend):
    if backend == "torch":  # Keras trains on one device there
        assert child["replicas"] is None
        return
    alone, together = child["replicas"]["alone"], child["replicas"]["together"]
    assert child["replicas"]["devices"] == 2
    assert together == pytest.approx(alone, rel=1e-4)
    assert alone[1:3] == [8, 3]  # steps, and those that were sampled


def test_training_with_jit_is_the_same_to_rounding(make_model, data, backend):
    jit = backend != "torch"
    monitors = [MemoryMonitor(), GradientMonitor()]
    plain, watched = (compiled(make_model, jit_compile=jit) for _ in range(2))
    fit(plain, data, epochs=3)
    fit(watched, data, monitors, epochs=3)
    for kept, with_monitor in zip(weights_of(plain), weights_of(watched), strict=True):
        np.testing.assert_allclose(with_monitor, kept, atol=1e-6, rtol=0)

    plain, watched = (compiled(make_model, "adam", jit_compile=jit) for _ in range(2))
    expected = fit(plain, data, epochs=3)["loss"]
    found = fit(watched, data, monitors, epochs=3)["loss"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.one_backend
@pytest.mark.parametrize("validate", [False, True])
def test_callbacks_listed_after_see_the_keys_and_none_is_of_validation(
    make_model, data, tmp_path, validate
):
    stop = keras.callbacks.EarlyStopping(
        monitor="gradient_norm", mode="min", patience=0, min_delta=1e9
    )
    log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    options = {"validation_data": data} if validate else {}

    history = fit(
        compiled(make_model), data, [GradientMonitor(), stop, log], epochs=5, **options
    )

    assert len(history["gradient_norm"]) == 2  # the second epoch is no 1e9 better
    keys = {"loss", "gradient_norm", "gradient_norm_max", "gradient_nonfinite"}
    assert set(history) == keys | ({"val_loss"} if validate else set())
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    logged = [float(row["gradient_norm"]) for row in rows]
    assert logged == pytest.approx(history["gradient_norm"])
    if validate:
        assert set(rows[0]) == set(history) | {"epoch"}
    else:  # CSVLogger's own doing: an empty val_ twin for every key
        twins = {f"val_{key}" for key in keys}
        assert set(rows[0]) == keys | twins | {"epoch"}
        assert {rows[0][twin] for twin in twins} == {"NA"}


def test_nothing_is_left_on_the_model_after_fit(make_model, data):
    watched, plain = compiled(make_model, "adam"), compiled(make_model, "adam")

    fit(watched, data, [GradientMonitor(), GradientMonitor()])
    fit(plain, data)

    assert hooks_on(watched) == set()
    assert set(vars(watched)) == set(vars(plain))
    assert set(vars(watched.optimizer)) == set(vars(plain.optimizer))
    assert len(watched.optimizer.variables) == len(plain.optimizer.variables)
    assert set(fit(watched, data)) == {"loss"}


def test_one_monitor_serves_two_fits(make_model, data, reference_gradients):
    twin = make_model()
    expected = norms_by_hand(twin, data, 4, reference_gradients)
    expected += norms_by_hand(twin, data, 4, reference_gradients)
    model, monitor = compiled(make_model), GradientMonitor()

    fit(model, data, [monitor])
    fit(model, data, [monitor])

    means = [np.mean(expected[:4]), np.mean(expected[4:])]
    assert [r.norm for r in monitor.records] == pytest.approx(means, rel=1e-5)


@pytest.mark.one_backend
def test_a_copy_watches_on_its_own(make_model, data):
    """Keras Tuner copies callbacks for every trial."""
    monitor = GradientMonitor()
    copied = copy.deepcopy(monitor)
    fit(compiled(make_model), data, [copied])
    assert (monitor.records, len(copied.records)) == ([], 1)


def test_two_monitors_see_the_same(make_model, data):
    first, second = GradientMonitor(every=1), GradientMonitor(every=1)

    fit(compiled(make_model), data, [first, second])

    assert replace(first.records[0], time=0.0) == replace(second.records[0], time=0.0)
    assert first.records[0].steps == 4


class BreakOff(keras.callbacks.Callback):
    """Ends `fit` the hard way, in its second epoch."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt


@pytest.fixture
def broken_off(make_model, data):
    """A model whose monitored `fit` was broken off, and its monitor."""
    model, monitor = compiled(make_model, "adam"), GradientMonitor()
    with pytest.raises(KeyboardInterrupt):
        fit(model, data, [monitor, BreakOff()], epochs=3)
    assert hooks_on(model) != set()
    return model, monitor


@pytest.mark.parametrize("part", [GradientTally, GradientState])
def test_a_release_that_fails_is_one_warning_and_ends_no_fit(
    make_model, data, monkeypatch, part
):
    release = part.release

    def fail(released):
        release(released)
        raise OSError("nobody thought of this")

    monkeypatch.setattr(part, "release", fail)
    model, bare = compiled(make_model, "adam"), compiled(make_model, "adam")
    with pytest.warns(KerasMemWarning) as caught:
        fit(model, data, [GradientMonitor()])
    assert [str(w.message) for w in caught if w.category is KerasMemWarning] == [
        "GradientMonitor could not detach from the model: OSError: nobody thought of "
        "this. Training continues."
    ]
    assert hooks_on(model) == set()
    fit(bare, data)
    for watched, expected in zip(model.weights, bare.weights, strict=True):
        np.testing.assert_array_equal(watched.numpy(), expected.numpy())


@pytest.mark.parametrize("then", ["fit", "save"])
def test_a_release_that_fails_after_a_broken_fit_ends_nothing(
    broken_off, data, monkeypatch, tmp_path, then
):
    model, _ = broken_off

    def fail(released):
        raise OSError("nobody thought of this")

    monkeypatch.setattr(GradientState, "release", fail)
    go_on = {
        "fit": lambda: fit(model, data),
        "save": lambda: model.save(tmp_path / "model.keras"),
    }
    with pytest.warns(KerasMemWarning, match="could not detach from the model"):
        go_on[then]()


def test_what_a_broken_fit_leaves_goes_with_detach(broken_off):
    model, monitor = broken_off

    monitor.detach()
    monitor.detach()

    assert hooks_on(model) == set()


def test_what_a_broken_fit_leaves_goes_with_the_next_fit(broken_off, data):
    model, monitor = broken_off

    history = fit(model, data)

    assert set(history) == {"loss"}
    assert hooks_on(model) == set()
    assert len(monitor.records) == 2


def test_what_a_broken_fit_leaves_goes_with_a_fit_under_another_monitor(
    broken_off, data
):
    model, monitor = broken_off
    another = GradientMonitor()

    fit(model, data, [another])

    assert hooks_on(model) == set()
    assert (len(monitor.records), len(another.records)) == (2, 1)


SAVING = {
    "by the model": lambda model, path: model.save(path),
    "by Keras": keras.saving.save_model,
    "by kerasmem": lambda model, path: km.save_model(
        model, path, include_optimizer=True
    ),
}


@pytest.mark.parametrize(
    ("saving", "beside"),
    [
        ("by the model", GradientMonitor),
        ("by Keras", lambda: Pruning(km.Prune(0.5))),
        ("by kerasmem", lambda: Pruning(km.Prune(0.5))),
    ],
)
def test_what_a_broken_fit_leaves_goes_with_saving(
    make_model, data, tmp_path, saving, beside
):
    model, path = compiled(make_model, "adam"), tmp_path / "model.keras"
    with pytest.raises(KeyboardInterrupt):
        fit(model, data, [GradientMonitor(), beside(), BreakOff()], epochs=3)

    SAVING[saving](model, path)

    assert hooks_on(model) == set()
    assert {v.constraint for v in model.trainable_variables} == {None}
    restored = keras.models.load_model(path)
    assert optimizer_state(restored) == optimizer_state(model)


def test_what_a_broken_fit_leaves_goes_with_saving_without_the_optimizer(
    broken_off, tmp_path
):
    model, _ = broken_off

    km.save_model(model, tmp_path / "model.keras")

    assert hooks_on(model) == set()


def test_saving_in_a_running_fit_leaves_the_monitor_where_it_is(
    make_model, data, tmp_path
):
    class Save(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            km.save_model(self.model, tmp_path / "model.keras")

    monitor = GradientMonitor()
    fit(compiled(make_model, "adam"), data, [monitor, Save()])

    assert monitor.records[0].steps == 4
    restored = keras.models.load_model(tmp_path / "model.keras")
    assert len(restored.optimizer.variables) == 2 + 2 * 4


def test_what_a_broken_fit_leaves_changes_no_training(broken_off, make_model, data):
    model, _ = broken_off
    plain = compiled(make_model, "adam")
    fit(plain, data, epochs=2)

    for network in (model, plain):
        network.train_on_batch(*data)

    for kept, found in zip(weights_of(plain), weights_of(model), strict=True):
        np.testing.assert_array_equal(found, kept)


def optimizer_state(model):
    return [v.numpy().tolist() for v in model.optimizer.variables]


def wrapped_adam():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())


@pytest.mark.parametrize("optimizer", [keras.optimizers.Adam, wrapped_adam])
def test_a_checkpoint_of_a_watched_fit_loads_without_a_monitor(
    make_model, data, tmp_path, optimizer
):
    path = tmp_path / "{epoch}.keras"
    checkpoint = keras.callbacks.ModelCheckpoint(path, save_freq=3)
    model = compiled(make_model, optimizer())
    monitor = GradientMonitor()

    history = fit(model, data, [monitor, checkpoint], epochs=2)
    restored = keras.models.load_model(tmp_path / "2.keras")

    assert len(history["gradient_norm"]) == 2  # saving did not detach the monitor
    assert monitor.records[1].steps == 4
    assert len(restored.optimizer.variables) == len(model.optimizer.variables)
    assert int(restored.optimizer.iterations.numpy()) == 6
    assert any(np.any(np.asarray(v)) for v in optimizer_state(restored)[3:])


@pytest.mark.parametrize("optimizer", [keras.optimizers.Adam, wrapped_adam])
def test_a_checkpoint_of_an_unwatched_model_loads_in_a_watched_fit(
    make_model, data, tmp_path, optimizer
):
    plain = compiled(make_model, optimizer())
    fit(plain, data)
    plain.save_weights(tmp_path / "plain.weights.h5")
    plain.save(tmp_path / "plain.keras")
    model = compiled(make_model, optimizer())

    class Restore(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                self.model.load_weights(tmp_path / "plain.weights.h5")

    history = fit(model, data, [GradientMonitor(), Restore()], epochs=2)
    fit(plain, data)
    resumed = keras.models.load_model(tmp_path / "plain.keras")
    fit(resumed, data, [GradientMonitor()])

    assert len(history["gradient_norm"]) == 2
    for network in (model, resumed):
        for kept, found in zip(weights_of(plain), weights_of(network), strict=True):
            np.testing.assert_array_equal(found, kept)


def test_a_monitor_can_be_detached_while_fit_runs(make_model, data):
    monitor = GradientMonitor()

    class Detach(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                monitor.detach()
                assert hooks_on(self.model) == set()

    model, plain = compiled(make_model), compiled(make_model)
    with pytest.warns(KerasMemWarning, match=r"observed no update of model\.optimizer"):
        fit(model, data, [monitor, Detach()])
    fit(plain, data)

    for kept, found in zip(weights_of(plain), weights_of(model), strict=True):
        np.testing.assert_array_equal(found, kept)


def test_a_callback_may_have_the_step_traced_anew(make_model, data):
    class Retrace(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.make_train_function(force=True)

    history = fit(compiled(make_model), data, [GradientMonitor(), Retrace()], epochs=2)

    assert len(history["gradient_norm"]) == 2


def test_a_reading_that_fails_is_one_warning_and_training_goes_on(
    make_model, data, monkeypatch
):
    def broken(gradients):
        raise RuntimeError("no norm today")

    plain, watched = compiled(make_model), compiled(make_model)
    fit(plain, data, epochs=2)
    adapter = backends.current()
    monkeypatch.setattr(adapter, "squared_norms", broken)

    with pytest.warns(KerasMemWarning) as caught:
        history = fit(watched, data, [GradientMonitor()], epochs=2)

    messages = [str(w.message) for w in caught if w.category is KerasMemWarning]
    assert messages == [
        "GradientMonitor could not read a gradient: RuntimeError: no norm today. "
        "Training continues."
    ]
    assert set(history) == {"loss"}
    for kept, found in zip(weights_of(plain), weights_of(watched), strict=True):
        np.testing.assert_array_equal(found, kept)


@pytest.mark.one_backend
def test_a_full_disk_is_one_warning_and_the_keys_stay(make_model, data, tmp_path):
    (tmp_path / "log").write_text("a file where the folder shall be")
    monitor = GradientMonitor(log_dir=tmp_path / "log")

    with pytest.warns(KerasMemWarning, match=r"could not write run\.json: FileExist"):
        history = fit(compiled(make_model), data, [monitor], epochs=2)

    assert len(history["gradient_norm"]) == len(monitor.records) == 2


@pytest.mark.one_backend
def test_where_warnings_are_errors_training_goes_on(make_model, data, caplog):
    x, y = data
    with warnings.catch_warnings():
        warnings.simplefilter("error", KerasMemWarning)
        history = fit(compiled(make_model), (x * np.nan, y), [GradientMonitor()])
    assert history["gradient_nonfinite"] == [len(x) / 4]
    assert "NaN" in caplog.text


@pytest.mark.parametrize("cls", [GradientMonitor, MemoryMonitor, MemoryTimeline])
def test_a_model_without_an_input_is_in_the_run_after_an_epoch(cls, data, tmp_path):
    model = keras.Sequential([keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    seen = []

    class Reader(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch:
                text = (tmp_path / "run.json").read_text()
                seen.append((RunInfo.from_json(text), datetime.now().astimezone()))
            else:
                time.sleep(1.1)

    fit(model, data, [cls(log_dir=tmp_path), Reader()], epochs=2)
    [(info, at)] = seen
    assert info.parameters == 21
    started = datetime.fromisoformat(info.started)
    assert started + timedelta(seconds=1) < at


@pytest.mark.one_backend
def test_every_epoch_adds_a_line_that_reads_back(make_model, data, tmp_path):
    x, y = data
    monitor = GradientMonitor(log_dir=tmp_path / "run", per_variable=False)
    model = compiled(make_model)

    fit(model, data, [monitor])
    fit(model, (x * np.nan, y), [monitor])

    lines = (tmp_path / "run" / "gradients.jsonl").read_text().splitlines()
    first, second = map(GradientRecord.from_json, lines)
    assert first == monitor.records[0]
    assert math.isnan(second.norm)
    assert json.loads(lines[1])["norm"] is None


@pytest.mark.one_backend
@pytest.mark.parametrize("every", [0, -1, 2.0, True, "epoch"])
def test_an_interval_that_is_no_number_of_updates_is_refused(every):
    with pytest.raises(ConfigError, match=rf"from 1. Received: every={every!r}"):
        GradientMonitor(every=every)
