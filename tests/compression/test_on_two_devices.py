"""What a recipe makes and a student learns on two devices is what it is on one."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import DataError
from kerasmem.processes import ON_THE_CPU, run_in_child
from tests.models import L, chain
from tests.two_devices import TWO_DEVICES, two_devices

pytestmark = pytest.mark.slow

CHAIN = [km.Prune(0.5), km.Cluster(4), km.Distill(teacher="original")]
CODES = [km.PruneChannels(0.25), km.Quantize("int8-static")]


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 6)).astype("float32")
    return x, x[:, :3].argmax(1)


def network():
    keras.utils.set_random_seed(3)
    # JAX computes with the whole batch, a replica on TensorFlow with its own part.
    in_parts = keras.backend.backend() == "tensorflow"
    model = chain(
        (6,),
        L.Dense(16, activation="relu"),
        L.BatchNormalization(synchronized=in_parts),
        L.Dense(3),
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05), loss, metrics=["accuracy"])
    return model


def compressed(model, steps, epochs, **others):
    return km.compress(
        model,
        steps,
        data=data(),
        fine_tune_epochs=epochs,
        batch_size=8,
        seed=0,
        **others,
    )


def results(model, **others):
    others["validation_data"] = data()
    found = [compressed(model, CHAIN, 1, **others), compressed(model, CODES, 0)]
    weights = [
        keras.ops.convert_to_numpy(v).ravel().tolist() for v in found[0].model.weights
    ]
    answers = [result.model.predict(data()[0], verbose=0).tolist() for result in found]
    loss = found[0].report.after.metrics["loss"]
    return found, {"weights": weights, "answers": answers, "loss": loss}


def devices_of(model):
    if keras.backend.backend() == "jax":
        return len(model.weights[0].value.sharding.device_set)
    return model.distribute_strategy.num_replicas_in_sync


def recipes(scope):
    """Return what recipes make on one device and on two."""
    _, alone = results(network())
    with scope():
        model = network()
        if keras.backend.backend() == "jax":
            found, together = results(model)
            with pytest.raises(
                DataError, match="each batch evenly among 2 devices"
            ) as uneven:
                km.compress(model, km.Prune(0.5), data=data(), batch_size=3)
            assert "Received: 24 samples, batch_size=3" in str(uneven.value)
    if keras.backend.backend() == "tensorflow":
        # Outside: what is made trains on the devices of the model all the same.
        found, together = results(model)
        small = km.make_student(model, 0.5)
        student = km.distill(model, small, data(), batch_size=8, verbose=0)
        assert devices_of(student) == 2
    devices = [devices_of(result.model) for result in found]
    return {"alone": alone, "together": together, "devices": devices}


def perceptron(units):
    return keras.Sequential(
        [
            keras.Input((5,)),
            L.Dense(units, activation="tanh", name="hidden"),
            L.Dense(3),
        ]
    )


def prepared():
    keras.utils.set_random_seed(3)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 5)).astype("float32")
    y = rng.integers(0, 3, 24)
    teacher, student = perceptron(8), perceptron(4)
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
    logs = [list(map(float, history[k])) for k in ("loss", "val_accuracy")]
    return [*(w.ravel().tolist() for w in weights), *logs]


def students(scope):
    """Return what a student learned on one device and on two."""
    alone = learned(*prepared())
    with scope():
        given = prepared()
        if keras.backend.backend() == "jax":
            together = learned(*given)
    if keras.backend.backend() == "tensorflow":
        together = learned(*given)  # a strategy's scope is needed by `compile` only
    devices = len(keras.distribution.list_devices())
    return {"alone": alone, "together": together, "devices": devices}


def on_two(_):
    """Return what came of both; in a child."""
    scope = two_devices()
    return {"recipes": recipes(scope), "students": students(scope)}


@pytest.fixture(scope="module")
def found():
    """One child for both tests: to start a framework takes seconds."""
    return run_in_child(
        f"{__name__}:on_two",
        {},
        backend=keras.backend.backend(),
        environment={**ON_THE_CPU, **TWO_DEVICES},
    )


if keras.backend.backend() != "torch":  # Keras needs several processes there

    def test_on_two_devices_a_recipe_makes_what_it_makes_on_one(found):
        assert found["recipes"]["devices"] == [2, 2]
        alone, together = found["recipes"]["alone"], found["recipes"]["together"]
        for one, two in zip(alone["weights"], together["weights"], strict=True):
            np.testing.assert_allclose(two, one, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(together["loss"], alone["loss"], rtol=0.01)
        for one, two in zip(alone["answers"], together["answers"], strict=True):
            np.testing.assert_allclose(two, one, atol=0.05)  # of integers: a few codes

    def test_on_two_devices_a_student_learns_what_it_would_on_one(found):
        assert found["students"]["devices"] == 2
        pairs = zip(
            found["students"]["alone"], found["students"]["together"], strict=True
        )
        for alone, together in pairs:
            np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)
