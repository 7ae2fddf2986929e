"""A student learns the same on two devices as on one."""

import keras
import numpy as np

import kerasmem as km
from kerasmem.memory.child import ON_THE_CPU, run_in_child
from tests.two_devices import TWO_DEVICES, two_devices


def network(units):
    return keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(units, activation="tanh", name="hidden"),
            keras.layers.Dense(3),
        ]
    )


def prepared():
    keras.utils.set_random_seed(3)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 5)).astype("float32")
    y = rng.integers(0, 3, 24)
    teacher, student = network(8), network(4)
    distiller = km.Distiller(
        teacher, student, losses=["logits", {"loss": "features", "layers": "auto"}]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    distiller.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    return distiller, student, (x, y)


def learned(distiller, student, data):
    options = {"batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0}
    history = distiller.fit(*data, validation_data=data, **options).history
    weights = [keras.ops.convert_to_numpy(v) for v in student.trainable_variables]
    logs = [list(map(float, history[k])) for k in ("loss", "val_teacher_accuracy")]
    return [*(w.ravel().tolist() for w in weights), *logs]


def on_two(_):
    """Return what a student learned on one device and on two; in a child."""
    scope = two_devices()
    alone = learned(*prepared())
    with scope():
        given = prepared()
        if keras.backend.backend() == "jax":
            together = learned(*given)
    if keras.backend.backend() == "tensorflow":
        together = learned(*given)  # a strategy's scope is needed by `compile` only
    devices = len(keras.distribution.list_devices())
    return {"alone": alone, "together": together, "devices": devices}


def test_on_two_devices_a_student_learns_what_it_would_on_one(backend):
    if backend == "torch":
        return  # Keras needs several processes there
    found = run_in_child(
        f"{__name__}:on_two",
        {},
        backend=backend,
        environment={**ON_THE_CPU, **TWO_DEVICES},
    )
    assert found["devices"] == 2
    for alone, together in zip(found["alone"], found["together"], strict=True):
        np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)
