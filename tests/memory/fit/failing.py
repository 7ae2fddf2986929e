"""Models whose step runs out of memory when a test says so, on every backend."""

import keras
import numpy as np
from keras import layers


class Shortage:
    """Raises what a framework raises, if a batch is too large or the time has come.

    Args:
        above: batches of more samples fail; None for none.
        at: numbers of the checks that fail, from 0, whatever the batch.
    """

    def __init__(self, above=None, at=()):
        self.above, self.at = above, set(at)
        self.checks, self.failures = 0, 0

    def check(self, array):
        number, self.checks = self.checks, self.checks + 1
        size = np.shape(array)[0] if np.ndim(array) else 0
        if (self.above is not None and size > self.above) or number in self.at:
            self.failures += 1
            # TensorFlow makes a ResourceExhaustedError of it.
            kind = (
                MemoryError if keras.backend.backend() == "tensorflow" else RuntimeError
            )
            raise kind("RESOURCE_EXHAUSTED: Out of memory allocating 1024 bytes.")
        return array


def checked(tensor, shortage):
    """Return the tensor, having asked `shortage` while the step runs."""
    name = keras.backend.backend()
    if name == "tensorflow":
        import tensorflow as tf

        def check(array):
            return shortage.check(array.numpy())

        found = tf.py_function(check, [tf.stop_gradient(tensor)], tensor.dtype)
        with tf.control_dependencies([found]):
            return tf.identity(tensor)
    if name == "jax":
        import jax

        shape = jax.ShapeDtypeStruct((), "float32")

        def check(array):
            shortage.check(np.asarray(array))
            return np.float32(0)

        zero = jax.experimental.io_callback(check, shape, jax.lax.stop_gradient(tensor))
        return tensor + zero.astype(tensor.dtype)
    if tensor.device.type != "meta":  # Keras asks for shapes only
        shortage.check(tensor.detach().numpy())
    return tensor


def checked_in_backward(tensor, shortage):
    """Return the tensor; `shortage` is asked when its gradient is known."""
    name = keras.backend.backend()
    if name == "tensorflow":
        import tensorflow as tf

        @tf.custom_gradient
        def same(value):
            return tf.identity(value), lambda gradient: checked(gradient, shortage)

        return same(tensor)
    if name == "jax":
        import jax

        @jax.custom_vjp
        def same(value):
            return value

        same.defvjp(lambda v: (v, None), lambda _, g: (checked(g, shortage),))
        return same(tensor)
    if tensor.requires_grad:
        tensor.register_hook(lambda gradient: checked(gradient, shortage))
    return tensor


class Fails(layers.Layer):
    """Hands its input on."""

    def __init__(self, shortage, where):
        super().__init__()
        self.shortage, self.where = shortage, where
        self.supports_masking = True

    def call(self, inputs, training=None):
        if self.where == "evaluation":
            return checked(inputs, self.shortage) if training is False else inputs
        if not training or self.where == "update":
            return inputs
        check = checked if self.where == "forward" else checked_in_backward
        return check(inputs, self.shortage)


class FailingAdam(keras.optimizers.Adam):
    """Asks `shortage` before each of five variables moves, of six."""

    def __init__(self, shortage, **options):
        super().__init__(**options)
        self.shortage = shortage

    def update_step(self, gradient, variable, learning_rate):
        if tuple(variable.shape) != (6, 16):
            gradient = checked(gradient, self.shortage)
        super().update_step(gradient, variable, learning_rate)


def failing_model(shortage, where, **options):
    """Return a compiled model with batch statistics of no kind."""
    keras.utils.set_random_seed(5)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(16, activation="tanh"),
            Fails(shortage, where),
            layers.Dense(8, activation="tanh"),
            layers.Dense(1),
        ]
    )
    adam = keras.optimizers.Adam(0.01)
    if where == "update":
        adam = FailingAdam(shortage, learning_rate=0.01)
    if keras.backend.backend() == "tensorflow":
        options["jit_compile"] = False  # XLA cannot call Python
    model.compile(adam, "mse", metrics=["mae"], **options)
    return model
