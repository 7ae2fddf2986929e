"""A rematerialized model on two devices trains to the weights of the plain one."""

import keras
import numpy as np

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


def test_on_two_devices_the_weights_are_those_of_the_plain_model(backend):
    if backend == "torch":
        return  # Keras needs several processes there
    found = run_in_child(
        f"{__name__}:weights_on_two",
        {},
        backend=backend,
        environment={**ON_THE_CPU, **TWO_DEVICES},
    )
    assert found["devices"] == 2
    for plain, lean in zip(found["plain"], found["lean"], strict=True):
        np.testing.assert_allclose(lean, plain, rtol=1e-5, atol=1e-6)
