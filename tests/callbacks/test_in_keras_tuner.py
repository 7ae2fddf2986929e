"""The monitors in a search of Keras Tuner: every trial is watched, on its own."""

import importlib.util
import sys
from types import ModuleType

import keras
import keras_tuner
import numpy as np
import pytest

import kerasmem as km
from kerasmem.files.read_run import read_run

EPOCHS, TRIALS = 2, 3


@pytest.fixture
def search(tmp_path, monkeypatch):
    """Run a search with both monitors, return the tuner and the monitors."""
    if importlib.util.find_spec("tensorboard") is None:
        # Keras Tuner imports it on TensorFlow, also where no callback is of it.
        module = ModuleType("tensorboard.plugins.hparams")
        vars(module)["api"] = None
        monkeypatch.setitem(sys.modules, "tensorboard", ModuleType("tensorboard"))
        monkeypatch.setitem(sys.modules, "tensorboard.plugins", module)
        monkeypatch.setitem(sys.modules, "tensorboard.plugins.hparams", module)
    x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    y = (x.sum(axis=1) > 0).astype("int32")
    monitors = (
        km.callbacks.MemoryMonitor(log_dir=tmp_path / "run"),
        km.callbacks.GradientMonitor(log_dir=tmp_path / "run"),
    )
    tuner = keras_tuner.RandomSearch(
        build,
        objective=keras_tuner.Objective("gradient_norm_max", "min"),
        max_trials=TRIALS,
        directory=tmp_path,
        seed=0,
    )
    tuner.search(x, y, epochs=EPOCHS, verbose=0, callbacks=list(monitors))
    return tuner, monitors


def build(parameters):
    units = parameters.Int("units", 4, 64, step=20)
    hidden = keras.layers.Dense(units, "relu")
    model = keras.Sequential(
        [keras.Input((8,)), hidden, keras.layers.Dense(2, "softmax")]
    )
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    return model


# Not every backend has a device series on a CPU; Keras Tuner asks threads for names.
@pytest.mark.filterwarnings("ignore:.*device values are missing")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:keras_tuner")
def test_a_search_goes_by_a_monitors_series_and_all_of_it_is_recorded(search, tmp_path):
    tuner, monitors = search
    trials = tuner.oracle.get_best_trials(TRIALS)
    recorded = read_run(tmp_path / "run")
    assert len(recorded.gradients) == len(recorded.memory) == TRIALS * EPOCHS
    norms = [record.norm_max for record in recorded.gradients]
    by_trial = {
        str(i): min(norms[EPOCHS * i : EPOCHS * (i + 1)]) for i in range(TRIALS)
    }
    scores = {trial.trial_id.lstrip("0") or "0": trial.score for trial in trials}
    assert scores == pytest.approx(by_trial)
    assert [trial.score for trial in trials] == sorted(scores.values())
    assert all("host_peak_mib" in trial.metrics.metrics for trial in trials)
    assert [monitor.records for monitor in monitors] == [[], []]  # copies were watched
