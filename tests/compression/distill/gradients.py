"""Gradients of a function of one array, by the running backend and by differences."""

import keras
import numpy as np


def by_backend(function, x):
    """Return d function(x) / dx for a float32 array."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        tensor = tf.convert_to_tensor(x)
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            value = function(tensor)
        return tape.gradient(value, tensor).numpy()
    if backend == "jax":
        import jax

        return np.asarray(jax.jit(jax.grad(function))(x))
    import torch

    tensor = torch.tensor(x, requires_grad=True)
    function(tensor).backward()
    return tensor.grad.numpy()


def by_differences(function, x, step=1e-5):
    """Return the same by central differences in float64."""
    x = x.astype("float64")
    gradient = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[place] += step
        down[place] -= step
        gradient[place] = (function(up) - function(down)) / (2 * step)
    return gradient
