"""A validation that runs out of memory gives what it would have given."""

import keras
import numpy as np
import pytest
from keras import layers

from kerasmem.errors import KerasMemWarning, OutOfMemoryError
from kerasmem.memory.fit import fit, plan
from tests.memory.fit.failing import Fails, Shortage, checked
from tests.memory.fit.test_micro_batches import compiled, data, tokens, weighted

STEPS = {"batch_size": 32, "shuffle": False, "verbose": 0}
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
JIT = {"jit_compile": False} if ON_TENSORFLOW else {}  # XLA cannot call Python


def dense(shortage, **options):
    keras.utils.set_random_seed(3)
    hidden = layers.Dense(8, activation="tanh", kernel_regularizer="l2")
    stack = [keras.Input((6,)), hidden, Fails(shortage, "evaluation"), layers.Dense(3)]
    options = {"weighted_metrics": ["mae"]} | JIT | options
    return compiled(keras.Sequential(stack), **options)


def masked(shortage):
    keras.utils.set_random_seed(3)
    stack = [
        keras.Input((5,), dtype="int32"),
        layers.Embedding(9, 4, mask_zero=True),
        Fails(shortage, "evaluation"),
        layers.Dense(4, activation="tanh"),
        layers.Dense(2),
    ]
    options = {"optimizer": "sgd", "metrics": None, "weighted_metrics": ["mae"]}
    return compiled(keras.Sequential(stack), **options, **JIT)


def histories(make, arguments, shortage, epochs=2):
    """Return the history of a training that never fails, and of one that does."""
    validation = tuple(arguments.values())
    common = STEPS | {"epochs": epochs, "validation_data": validation}
    x, y = list(arguments.values())[:2]
    wanted = make(Shortage()).fit(x, y, **common).history
    return wanted, fit(make(shortage), x, y, **common).history


def assert_alike(found, wanted):
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("make", "arguments"),
    [(dense, weighted(data())), (masked, tokens())],
    ids=["sample weights", "a mask"],
)
def test_losses_and_metrics_are_those_of_whole_batches(make, arguments):
    shortage = Shortage(above=9)
    with (
        pytest.warns(KerasMemWarning, match="in a validation.* as a whole.*in 2 parts"),
        pytest.warns(KerasMemWarning, match="in a validation.* 2 parts.*in 4 parts"),
    ):
        wanted, found = histories(make, arguments, shortage)
    assert "val_mae" in wanted
    assert_alike(found, wanted)
    assert shortage.failures == 2  # the second epoch knows


def test_what_a_failed_step_has_added_to_a_metric_does_not_count():
    class Greedy(keras.metrics.MeanAbsoluteError):
        def __init__(self, shortage):
            super().__init__(name="greedy")
            self.shortage = shortage

        def update_state(self, y_true, y_pred, sample_weight=None):
            super().update_state(y_true, y_pred, sample_weight)
            self.count.assign_add(0.0 * keras.ops.sum(checked(y_pred, self.shortage)))

    def make(shortage):
        return dense(Shortage(), weighted_metrics=[Greedy(shortage)])

    # Three steps of training come first.
    with pytest.warns(KerasMemWarning, match="in a validation"):
        wanted, found = histories(make, data(), Shortage(at=[4]), epochs=1)
    assert_alike(found, wanted)


def test_single_samples_that_do_not_fit_are_an_error_and_nothing_is_left():
    model = dense(Shortage(above=0))
    x, y = (array[:4] for array in data().values())
    with (
        pytest.warns(KerasMemWarning, match="in a validation"),
        pytest.raises(OutOfMemoryError, match="in 4 micro-batches") as raised,
    ):
        fit(model, x, y, validation_data=(x, y), **STEPS)
    assert raised.value.kind == "device"
    assert raised.value.post_mortem.step is None
    assert "surviving" not in type(model.test_function).__module__
    assert int(model.optimizer.iterations) == 1


def test_it_can_be_told_to_raise():
    x, y = data().values()
    model = dense(Shortage(above=9))
    with pytest.raises(OutOfMemoryError, match="batch_size=32, in 1 micro"):
        fit(model, x, y, validation_data=(x, y), on_oom="raise", **STEPS)


def test_several_steps_per_execution_are_as_many_batches(backend):
    def make(shortage):
        # Keras on torch takes one step at a time.
        return dense(shortage, steps_per_execution=1 if backend == "torch" else 2)

    with pytest.warns(KerasMemWarning, match="in 2 parts"):
        wanted, found = histories(make, data(), Shortage(above=16), epochs=1)
    assert_alike(found, wanted)


def test_batches_that_are_lost_are_told(monkeypatch):
    """The fourth step fails, of which the like have run; the copy is of the second."""
    monkeypatch.setattr(plan, "_MOST_OF_THE_TIME", 1e-9)
    x, y = (np.concatenate([array, array]) for array in data().values())
    model = dense(Shortage(at=[3]), run_eagerly=True)
    lost = "The metrics exclude the 2 previous batches"
    with pytest.warns(KerasMemWarning, match="in 2 parts") as told:
        fit(model, x[:32], y[:32], validation_data=(x, y), **STEPS)
    is_lost = any(lost in str(each.message) for each in told)
    # On JAX a failed step leaves its state as it was.
    assert is_lost == (keras.backend.backend() != "jax")
