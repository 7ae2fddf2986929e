"""Models with a custom `train_step`: example data, estimates, real steps and `fit`."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import KerasMemWarning, ModelError
from kerasmem.memory.batch_size import trial
from kerasmem.memory.estimate.estimate import checked_request
from kerasmem.memory.estimate.inputs import run_once, symbolic_batch, zeros
from kerasmem.memory.estimate.request import request_of
from kerasmem.memory.estimate.variables import persistent_parts
from kerasmem.memory.fit import training
from tests.train_steps import BACKEND, OwnLoss, ThreeParts, TwoParts, functional, gan

random = np.random.default_rng(0)
X = random.normal(size=(24, 6)).astype("float32")
Y = random.normal(size=(24, 3)).astype("float32")
CLASSES = random.integers(0, 3, 24).astype("int32")
WEIGHTS = np.ones(24, "float32")

MODELS = {
    "two parts": (lambda: functional(TwoParts, loss="mse", metrics=["mae"]), (X, Y)),
    "three parts": (lambda: functional(ThreeParts, loss="mse"), (X, Y, WEIGHTS)),
    "own loss": (lambda: functional(OwnLoss), (X, CLASSES)),
}
if BACKEND != "jax":  # The guide for JAX has no GAN.
    MODELS["GAN"] = gan, (X,)


def in_a_child(model, batch_size, **options):
    """Return the request as a child process gets it, without the process."""
    return request_of(checked_request(model, batch_size, device="cpu", **options).job())


@pytest.mark.parametrize("name", MODELS)
def test_a_step_gets_the_parts_of_the_example_data(name):
    make, data = MODELS[name]
    request = in_a_child(make(), 4, data=data).with_batch_size(8)
    batch = symbolic_batch(request)
    parts = batch if isinstance(batch, tuple) else (batch,)
    described = [(tuple(part.shape), part.dtype) for part in parts]
    assert described == [((8, *part.shape[1:]), str(part.dtype)) for part in data]
    before = [keras.ops.convert_to_numpy(w) for w in request.model.trainable_weights]
    ones = keras.tree.map_structure(np.ones_like, zeros(request))
    run_once(request, ones)
    run_once(request, ones)
    after = [keras.ops.convert_to_numpy(w) for w in request.model.trainable_weights]
    assert all((a != b).any() for a, b in zip(after, before, strict=True))


def test_a_failed_step_without_example_data_names_the_argument():
    job = in_a_child(functional(ThreeParts, loss="mse"), 4).job()
    with pytest.raises(ModelError, match=r"failed with a batch .* Next: pass data="):
        trial.answer({**job, "limit": 1 << 30, "usable": 1 << 30})


def test_open_lengths_of_a_model_with_a_step_of_its_own_are_read_from_samples():
    with pytest.raises(
        ModelError, match="unknown shape. Next: pass data= with example samples"
    ):
        checked_request(gan(), 4)


def weights_of(fit, **options):
    keras.utils.set_random_seed(0)
    model = functional(OwnLoss)
    fit(model, X, CLASSES, batch_size=24, epochs=2, shuffle=False, verbose=0, **options)
    return [keras.ops.convert_to_numpy(w) for w in model.trainable_weights]


def test_micro_batches_of_an_own_loss_train_as_the_whole_batch(monkeypatch):
    monkeypatch.setattr(training, "micro_batches", lambda *_, **__: 2)
    with (
        pytest.warns(KerasMemWarning, match="trained in 2 micro-batches"),
        pytest.warns(KerasMemWarning, match="assumed to be a mean over the samples"),
    ):
        split = weights_of(km.fit, memory_limit="1GiB")
    whole = weights_of(keras.Model.fit)
    for one, other in zip(split, whole, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_step_with_several_optimizers_is_not_split(monkeypatch):
    if BACKEND == "jax":
        return
    monkeypatch.setattr(training, "micro_batches", lambda *_, **__: 2)
    with pytest.warns(KerasMemWarning, match="d_optimizer, g_optimizer.*smaller batch"):
        history = km.fit(gan(), X, batch_size=24, memory_limit="1GiB", verbose=0)
    assert np.isfinite(history.history["d_loss"]).all()


def test_the_state_of_several_optimizers_is_that_of_training():
    if BACKEND == "jax":  # whose guide has no such step
        return
    model = gan()
    estimated = km.estimate_memory(model, 24, data=X).by_category()
    model.fit(X, batch_size=24, verbose=0)
    optimizers = [model.optimizer, model.d_optimizer, model.g_optimizer]
    kept = [v for each in optimizers for v in each.variables]
    measured = sum(keras.ops.size(v) * np.dtype(v.dtype).itemsize for v in kept)
    # The rate and the number of steps, of each optimizer, are eight bytes each at most.
    assert abs(estimated["optimizer_state"] - int(measured)) <= 3 * 16


def test_an_optimizer_of_a_part_does_not_hide_that_of_the_model():
    if BACKEND == "jax":  # whose guide has no such step
        return
    model = functional(TwoParts, loss="mse")
    model.others = [keras.optimizers.SGD(), keras.optimizers.SGD(momentum=0.9)]
    request = checked_request(model, 8, device="cpu")
    state = [p for p in persistent_parts(request) if p.category == "optimizer_state"]
    assert sum(part.nbytes for part in state) >= 2 * 4 * model.count_params()


def test_a_limit_that_cannot_be_applied_is_reported_before_training(monkeypatch):
    def fail(*_, **__):
        raise ModelError("no estimate.")

    monkeypatch.setattr(training, "micro_batches", fail)
    with pytest.warns(KerasMemWarning, match="without the limit: no estimate. Rec"):
        km.fit(functional(OwnLoss), X, CLASSES, memory_limit="1GiB", verbose=0)
