"""The slots of an optimizer, against those that it makes when it is really built."""

import math
from typing import ClassVar

import keras
import numpy as np
import pytest

from kerasmem.errors import ModelError
from kerasmem.memory.estimate import Input, Request, estimate_memory
from kerasmem.memory.estimate.analytic.framework import framework
from kerasmem.memory.estimate.analytic.record import record
from kerasmem.memory.estimate.variables import optimizer_slots, persistent_parts
from kerasmem.optimizers import Adafactor, Adam8bit

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
    "AdamW with all": lambda: OPTIMIZERS.AdamW(
        amsgrad=True, use_ema=True, gradient_accumulation_steps=2
    ),
    "Muon with averaged weights": lambda: OPTIMIZERS.Muon(use_ema=True),
    "Muon that leaves kernels to Adam": lambda: OPTIMIZERS.Muon(
        exclude_layers=["conv2d"]
    ),
    "Lion with averaged weights": lambda: OPTIMIZERS.Lion(use_ema=True),
    "RMSprop, centered": lambda: OPTIMIZERS.RMSprop(centered=True),
    "RMSprop with all": lambda: OPTIMIZERS.RMSprop(centered=True, momentum=0.9),
    "SGD with momentum": lambda: OPTIMIZERS.SGD(momentum=0.9),
    "SGD with Nesterov's": lambda: OPTIMIZERS.SGD(momentum=0.9, nesterov=True),
    "SGD on a schedule": lambda: OPTIMIZERS.SGD(
        OPTIMIZERS.schedules.ExponentialDecay(0.1, 10, 0.9)
    ),
    "LossScaleOptimizer": lambda: OPTIMIZERS.LossScaleOptimizer(
        OPTIMIZERS.Adam(use_ema=True)
    ),
    "LossScaleOptimizer that accumulates": lambda: OPTIMIZERS.LossScaleOptimizer(
        OPTIMIZERS.SGD(momentum=0.9, gradient_accumulation_steps=2)
    ),
    "Adam8bit": Adam8bit,
    "Adam8bit with codes": lambda: Adam8bit(min_quantized_size=100),
    "Adam8bit with all": lambda: OPTIMIZERS.LossScaleOptimizer(
        Adam8bit(use_ema=True, gradient_accumulation_steps=2, block_size=64)
    ),
    "Adafactor of kerasmem": Adafactor,
    "MultiOptimizer": several,
    "MultiOptimizer, one each": lambda: OPTIMIZERS.MultiOptimizer(by_kind),
}


def test_every_optimizer_of_keras_is_in_the_cases():
    known = {
        name
        for name, item in vars(OPTIMIZERS).items()
        if isinstance(item, type) and issubclass(item, OPTIMIZERS.Optimizer)
    }
    assert known - {"Optimizer"} <= {
        name.partition(" ")[0].strip(",") for name in CASES
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


def question(model, optimizer):
    """Return a question for torch, where gradients stay."""
    return Request(
        model=model,
        inputs=(Input("x", (4, 6, 6, 3), "float32"),),
        batch_size=4,
        optimizer=optimizer,
        dtype_policy=None,
        jit_compile=False,
        backend="torch",
        training=True,
        device="gpu",
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


def test_an_optimizer_without_a_config_of_its_own_is_refused():
    class Mine(OPTIMIZERS.SGD):
        def __init__(self, needed):
            super().__init__()

    with pytest.raises(ModelError, match=r"Mine cannot be created from.*get_config"):
        optimizer_slots(Mine(1), a_model().trainable_variables)


class OwnConfig(OPTIMIZERS.SGD):
    """An optimizer whose config has other names than its arguments."""

    def __init__(self, rate=0.1):
        assert type(self) is OwnConfig
        super().__init__(rate, momentum=0.9)

    def get_config(self):
        return {"rate_in_file": 0.1}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(rate=config["rate_in_file"])


def test_an_optimizer_with_a_config_of_its_own_has_its_slots_counted():
    variables = a_model().trainable_variables
    built = OwnConfig()
    built.build(variables)
    slots = optimizer_slots(OwnConfig(), variables)
    assert sorted(slot.nbytes for slot in slots) == nbytes(built.variables)


class Registered(OPTIMIZERS.SGD):
    """An optimizer that lists its subclasses and makes a variable at once."""

    subclasses: ClassVar[list] = []

    def __init__(self, learning_rate=0.01, momentum=0.9, **options):
        super().__init__(learning_rate, momentum, **options)
        self.temperature = self.add_variable((3,), name="temperature")

    def __init_subclass__(cls, **options):
        cls.subclasses.append(cls)

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return Registered(config["learning_rate"], config["momentum"])


def test_an_optimizer_of_any_form_has_its_slots_counted_without_a_trace():
    model = a_model()
    slots = optimizer_slots(Registered(), model.trainable_variables)
    built = Registered()
    built.build(model.trainable_variables)
    assert sorted(slot.nbytes for slot in slots) == nbytes(built.variables)
    assert not Registered.subclasses


def test_half_precision_counts_the_optimizer_that_scales_the_loss():
    model, adam = a_model(), OPTIMIZERS.Adam(loss_scale_factor=2.0)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        half = a_model()
    finally:
        keras.config.set_dtype_policy("float32")
    half.compile("adam", "mse", jit_compile=False)
    half.optimizer.build(half.trainable_variables)

    found = estimate_memory(
        model, 4, optimizer=adam, dtype_policy="mixed_float16", method="analytic"
    )

    slots = found.by_category()["optimizer_state"]
    assert slots == sum(nbytes(half.optimizer.variables))
    assert adam.loss_scale_factor == 2.0


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_parameters_and_gradients_are_to_the_byte_those_of_the_model(make):
    model = a_model()
    asked = question(model, make())

    parts = persistent_parts(asked)
    how = framework(asked.backend, asked.device, compiled=asked.jit_compile)
    step = record(asked, how).steps()[0]

    parameters = [part.nbytes for part in parts if part.category == "parameter"]
    gradients = [x.nbytes for x in step.results if x.root.kind == "gradient"]
    assert sorted(parameters) == nbytes(model.variables)
    assert sorted(gradients) == nbytes(model.trainable_variables)


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
