"""GradientMonitor beside optimizers with their own way to update."""

import keras
import numpy as np
import pytest

from kerasmem.callbacks import GradientMonitor
from kerasmem.errors import KerasMemWarning
from kerasmem.graph.values import to_numpy

RATE = 0.1


class OwnApply(keras.optimizers.SGD):
    """Updates without clipping."""

    def apply(self, grads, trainable_variables=None):
        variables = trainable_variables or self._trainable_variables
        self.build(variables)
        self._backend_update_step(list(grads), list(variables), self.learning_rate)
        self._iterations.assign_add(1)


class Keywords(OwnApply):
    """Passes everything by name."""

    def apply(self, grads, trainable_variables=None):
        variables = list(trainable_variables or self._trainable_variables)
        self.build(variables)
        grads = self._clip_gradients(grads=list(grads))
        self._backend_update_step(
            grads=grads, trainable_variables=variables, learning_rate=RATE
        )
        self._iterations.assign_add(1)


class OwnUpdate(OwnApply):
    """Calls no method of Keras."""

    def apply(self, grads, trainable_variables=None):
        variables = trainable_variables or self._trainable_variables
        self.build(variables)
        for gradient, variable in zip(grads, variables, strict=True):
            variable.assign(variable - RATE * gradient)
        self._iterations.assign_add(1)


class OwnSignature(OwnApply):
    """Has `_backend_update_step` with one argument, a generator."""

    def apply(self, grads, trainable_variables=None):
        variables = trainable_variables or self._trainable_variables
        self.build(variables)
        self._backend_update_step(pair for pair in zip(grads, variables, strict=True))
        self._iterations.assign_add(1)

    def _backend_update_step(self, pairs):
        for gradient, variable in pairs:
            variable.assign(variable - RATE * gradient)


class OwnVariables(OwnApply):
    """Updates through objects of its own in place of the variables."""

    def apply(self, grads, trainable_variables=None):
        variables = trainable_variables or self._trainable_variables
        self.build(variables)
        setters = [variable.assign_sub for variable in variables]
        self._backend_update_step(list(grads), setters, RATE)
        self._iterations.assign_add(1)

    def _backend_update_step(self, grads, setters, rate):
        for gradient, setter in zip(grads, setters, strict=True):
            setter(rate * gradient)


class OwnStatelessApply(OwnApply):
    """Returns as many variables as it knows of; JAX calls it."""

    def stateless_apply(self, optimizer_variables, grads, trainable_variables):
        iterations, rate = optimizer_variables
        pairs = zip(trainable_variables, grads, strict=True)
        updated = [value - rate * gradient for value, gradient in pairs]
        return updated, [iterations + 1, rate]


def trained(make_model, data, optimizer, callbacks=()):
    model = make_model()
    jit = keras.backend.backend() == "jax"
    model.compile(optimizer, "mse", jit_compile=jit)
    options = {"batch_size": 4, "shuffle": False, "verbose": 0, "epochs": 2}
    history = model.fit(*data, callbacks=list(callbacks), **options).history
    return history, [to_numpy(v) for v in model.weights]


@pytest.mark.parametrize("optimizer", [OwnApply, Keywords])
def test_keys_are_those_of_plain_sgd(make_model, data, optimizer):
    monitors = [GradientMonitor(every=2) for _ in range(2)]
    sgd = keras.optimizers.SGD(RATE)
    expected, weights = trained(make_model, data, sgd, monitors[:1])
    history, same_weights = trained(make_model, data, optimizer(RATE), monitors[1:])
    for key, values in expected.items():
        assert history[key] == pytest.approx(values, rel=1e-6)
    for weight, same in zip(weights, same_weights, strict=True):
        np.testing.assert_allclose(same, weight, atol=1e-6)


@pytest.mark.parametrize(
    "optimizer", [OwnUpdate, OwnSignature, OwnVariables, OwnStatelessApply]
)
def test_keys_are_absent_after_one_warning(make_model, data, optimizer):
    if optimizer is OwnStatelessApply and keras.backend.backend() != "jax":
        optimizer = OwnUpdate
    plain_history, plain = trained(make_model, data, optimizer(RATE))
    with pytest.warns(KerasMemWarning) as caught:
        history, watched = trained(
            make_model, data, optimizer(RATE), [GradientMonitor()]
        )
    assert len([w for w in caught if w.category is KerasMemWarning]) == 1
    assert history == plain_history
    for weight, same in zip(plain, watched, strict=True):
        np.testing.assert_array_equal(same, weight)
