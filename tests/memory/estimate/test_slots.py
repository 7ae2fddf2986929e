"""The slots of an optimizer, against those that it makes when it is really built."""

import math

import keras
import numpy as np
import pytest

from kerasmem.memory.estimate.slots import optimizer_slots

OPTIMIZERS = keras.optimizers


def by_kind(variable):
    return OPTIMIZERS.Adam() if "kernel" in variable.path else OPTIMIZERS.SGD()


def several():
    adam, sgd = OPTIMIZERS.Adam(amsgrad=True), OPTIMIZERS.SGD(momentum=0.9)
    return OPTIMIZERS.MultiOptimizer(lambda v: adam if "kernel" in v.path else sgd)


CASES = {
    **{
        name: getattr(OPTIMIZERS, name)
        for name in [
            *["Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl"],
            *["Lamb", "Lion", "Muon", "Nadam", "RMSprop", "SGD", "ScheduleFreeAdamW"],
        ]
    },
    "Adam with amsgrad": lambda: OPTIMIZERS.Adam(amsgrad=True),
    "Adam with averaged weights": lambda: OPTIMIZERS.Adam(use_ema=True),
    "Adam that accumulates": lambda: OPTIMIZERS.Adam(gradient_accumulation_steps=4),
    "Adafactor that accumulates": lambda: OPTIMIZERS.Adafactor(
        gradient_accumulation_steps=4
    ),
    "RMSprop with all": lambda: OPTIMIZERS.RMSprop(centered=True, momentum=0.9),
    "SGD with momentum": lambda: OPTIMIZERS.SGD(momentum=0.9),
    "LossScaleOptimizer": lambda: OPTIMIZERS.LossScaleOptimizer(
        OPTIMIZERS.Adam(use_ema=True)
    ),
    "MultiOptimizer": several,
    "MultiOptimizer, one each": lambda: OPTIMIZERS.MultiOptimizer(by_kind),
}


def a_model():
    """Return a model with kernels of rank 1, 2 and 4."""
    return keras.Sequential(
        [
            keras.Input((6, 6, 3)),
            keras.layers.Conv2D(5, 3),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dense(7),
        ]
    )


def nbytes(variables):
    sizes = [
        math.prod(v.shape) * np.dtype(keras.backend.standardize_dtype(v.dtype)).itemsize
        for v in variables
    ]
    return sorted(sizes)


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_the_slots_are_to_the_byte_those_of_the_optimizer_once_it_is_built(make):
    model, optimizer = a_model(), make()

    slots = optimizer_slots(optimizer, model.trainable_variables)

    built = make()
    built.build(model.trainable_variables)
    assert sorted(slot.nbytes for slot in slots) == nbytes(built.variables)
    assert not optimizer.built


def test_a_slot_tells_the_variable_it_belongs_to():
    model = a_model()
    slots = optimizer_slots(keras.optimizers.Adam(), model.trainable_variables)
    kernel = model.layers[0].kernel

    own = [slot for slot in slots if slot.variable == kernel.path]

    assert [slot.name for slot in own] == ["momentum", "velocity"]
    assert [slot.nbytes for slot in own] == [3 * 3 * 3 * 5 * 4] * 2


def test_another_backend_counts_its_own_whole_numbers():
    model = a_model()
    adam = keras.optimizers.Adam()

    def total(backend):
        slots = optimizer_slots(adam, model.trainable_variables, backend)
        return sum(slot.nbytes for slot in slots)

    assert total("tensorflow") - total("jax") == 4  # the iterations: int64, int32


def test_slots_of_a_model_larger_than_the_memory_take_none(monkeypatch):
    class Huge:
        shape, dtype, name, path = (1 << 20, 1 << 20), "float32", "kernel", "big/kernel"
        trainable = True

    slots = optimizer_slots(keras.optimizers.Adam(), [Huge()])

    assert [slot.nbytes for slot in slots if slot.variable] == [4 << 40] * 2
