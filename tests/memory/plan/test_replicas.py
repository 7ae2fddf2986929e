"""Models on two devices train to the same weights with and without a plan."""

import keras
import numpy as np
import pytest

from kerasmem.processes import ON_THE_CPU, run_in_child
from tests.memory.plan import models
from tests.two_devices import TWO_DEVICES, two_devices


def weights_on_two(_):
    """Return the weights after three steps, plain and rematerialized; in a child."""
    from kerasmem.memory.plan import rematerialize

    scope = two_devices()
    found = {}
    for name in ("plain", "lean"):
        with scope():
            keras.utils.set_random_seed(7)
            model = models.cnn()
            jit = keras.backend.backend() == "jax"
            model.compile(keras.optimizers.SGD(0.03), "mse", jit_compile=jit)
            if name == "lean":
                model = rematerialize(model, segments=3)
            x, y = models.batch(model, 8)
            model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0)
            weights = [keras.ops.convert_to_numpy(v) for v in model.trainable_variables]
            found[name] = [w.ravel().tolist() for w in weights]
    return found | {"devices": len(keras.distribution.list_devices())}


@pytest.fixture
def on_two(backend):
    """Return a function that runs a function of this module on two devices."""
    if backend == "torch":
        pytest.skip("Keras on torch needs several processes")
    return lambda function: run_in_child(
        f"{__name__}:{function.__name__}",
        {},
        backend=backend,
        environment={**ON_THE_CPU, **TWO_DEVICES},
    )


def planned_on_two(_):
    """Return the weights of a plain and a planned fit, and its warnings; in a child."""
    import warnings

    import kerasmem as km
    from tests.memory.plan.test_memory_plan import data, deep

    scope = two_devices()
    settings = {"batch_size": 4096, "epochs": 2, "shuffle": False, "verbose": 0}
    found = {}
    for name in ("plain", "planned"):
        with scope():
            keras.utils.set_random_seed(7)
            model = deep(16)
            if name == "plain":
                model.fit(*data(4096), **settings)
            else:
                limit = round(0.8 * km.plan_memory(model, 4096, "1TiB").peak_bytes)
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    km.fit(
                        model,
                        *data(4096),
                        **settings,
                        memory_limit=limit,
                        on_oom="raise",
                    )
                found["told"] = [str(one.message) for one in caught]
            weights = [keras.ops.convert_to_numpy(v) for v in model.trainable_variables]
            found[name] = [w.ravel().tolist() for w in weights]
    return found


def test_on_two_devices_the_weights_are_those_of_the_plain_model(on_two):
    found = on_two(weights_on_two)
    assert found["devices"] == 2
    for plain, lean in zip(found["plain"], found["lean"], strict=True):
        np.testing.assert_allclose(lean, plain, rtol=1e-5, atol=1e-6)
    found = on_two(planned_on_two)
    assert any("by a memory plan" in text for text in found["told"]), found["told"]
    for plain, planned in zip(found["plain"], found["planned"], strict=True):
        np.testing.assert_allclose(planned, plain, rtol=1e-3, atol=1e-5)
