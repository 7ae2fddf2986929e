"""A function that keeps only its arguments has the same values and gradients."""

import gc
import weakref

import keras
import numpy as np
import pytest

from kerasmem import backends

X = np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4)
W = np.linspace(0.5, 2, 8, dtype="float32").reshape(4, 2)
COUNT = np.array([3], "int32")


def gradients(function, arguments, upstream):
    """Return values of `function` and the gradients of sum(upstream * first value)."""
    name = keras.backend.backend()
    if name == "tensorflow":
        import tensorflow as tf

        @tf.function
        def step(*xs):
            with tf.GradientTape() as tape:
                tape.watch([x for x in xs if x.dtype.is_floating])
                ys = function(*xs)
                total = tf.reduce_sum(ys[0] * upstream)
            return ys, tape.gradient(total, [x for x in xs if x.dtype.is_floating])

        ys, dxs = step(*map(tf.constant, arguments))
    elif name == "jax":
        import jax
        import jax.numpy as jnp

        floats = [i for i, x in enumerate(arguments) if x.dtype == np.float32]

        def total(*xs):
            ys = function(*xs)
            return jnp.sum(ys[0] * upstream), ys

        step = jax.jit(jax.value_and_grad(total, argnums=floats, has_aux=True))
        (_, ys), dxs = step(*map(jnp.asarray, arguments))
    else:
        import torch

        xs = [torch.tensor(x, requires_grad=x.dtype == np.float32) for x in arguments]
        ys = function(*xs)
        (ys[0] * torch.tensor(upstream)).sum().backward()
        dxs = [x.grad for x in xs if x.requires_grad]
    return [np.asarray(keras.ops.convert_to_numpy(y)) for y in (*ys, *dxs)]


class Layer:
    """A pure function that counts how often it is run or traced."""

    def __init__(self):
        self.runs = 0

    def __call__(self, x, w, count):
        self.runs += 1
        hidden = keras.ops.tanh(keras.ops.matmul(x, w))
        return keras.ops.exp(hidden) * keras.ops.sum(x), count + 1


class Halves:
    """Keeps the first argument in half precision."""

    def applies_to(self, index, tensor):
        return index == 0

    def pack(self, tensor):
        return (keras.ops.cast(tensor, "float16"),)

    def unpack(self, packed, like):
        assert len(like.shape) == 2
        return keras.ops.cast(packed[0], like.dtype)


@pytest.mark.parametrize("compiled", [False, True])
def test_values_and_gradients_are_those_of_the_function(compiled):
    function = Layer()
    upstream = np.arange(6, dtype="float32").reshape(3, 2)
    plain = gradients(function, (X, W, COUNT), upstream)
    again = backends.current().recomputed(function, compiled=compiled)
    lean = gradients(again, (X, W, COUNT), upstream)
    for one, other in zip(plain, lean, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6)
    assert plain[1] == 4


def test_the_gradient_is_taken_at_what_the_store_gives_back():
    upstream = np.ones((3, 2), "float32")
    x = X + 1e-4
    rounded = x.astype("float16").astype("float32")
    again = backends.current().recomputed(Layer(), Halves())
    value, _, dx, dw = gradients(again, (x, W, COUNT), upstream)
    exact = gradients(Layer(), (x, W, COUNT), upstream)
    at_rounded = gradients(Layer(), (rounded, W, COUNT), upstream)
    np.testing.assert_allclose(value, exact[0], rtol=1e-6)
    np.testing.assert_allclose(dx, at_rounded[2], rtol=1e-6)
    np.testing.assert_allclose(dw, at_rounded[3], rtol=1e-6)
    assert not np.allclose(dw, exact[3], rtol=1e-6)


def test_what_is_between_is_not_kept(backend):
    kept = saved_bytes(lambda f: f, backend)
    lean = saved_bytes(backends.current().recomputed, backend)
    assert kept >= 10 * 4096 * 4
    assert lean <= 2 * 4096 * 4


@pytest.mark.parametrize("store", [None, Halves()])
def test_tensors_in_reference_cycles_are_freed_after_each_run(store, backend):
    if backend != "torch":
        return  # a graph or a compiled step has no such tensors
    import torch

    alive = []

    def function(x):
        hidden = keras.ops.tanh(x)
        cycle = [hidden]
        cycle.append(cycle)
        alive.append(weakref.ref(hidden))
        return (keras.ops.sum(hidden * hidden, keepdims=True),)

    x = torch.tensor(X, requires_grad=True)
    gc.disable()
    try:
        (y,) = backends.current().recomputed(function, store)(x)
        assert [one() for one in alive] == [None]
        y.sum().backward()
        assert [one() for one in alive] == [None, None]
    finally:
        gc.enable()


def saved_bytes(treatment, backend):
    """Return the bytes that a chain of ten tanh keeps between its two passes."""

    def chain(x):
        for _ in range(10):
            x = keras.ops.tanh(x) * 1.5
        return (x,)

    x = np.ones(4096, "float32")
    function = treatment(chain)
    if backend == "jax":
        import jax

        _, pullback = jax.vjp(lambda x: function(x)[0], x)
        return sum(leaf.nbytes for leaf in jax.tree_util.tree_leaves(pullback))
    if backend == "torch":
        import torch

        sizes = {}

        def pack(tensor):
            sizes[tensor.data_ptr()] = tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            function(torch.tensor(x, requires_grad=True))
        return sum(sizes.values())
    import tensorflow as tf

    @tf.function
    def both(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            (y,) = function(x)
        return y, tape.gradient(y, x)

    graph = both.get_concrete_function(tf.TensorSpec((4096,))).graph
    return crossing_bytes(graph)


def crossing_bytes(graph):
    """Return the bytes of tensors that operations before and after the loss share."""
    operations = graph.get_operations()
    start = next(
        i
        for i, op in enumerate(operations)
        if op.type.startswith("Ones") or "ones" in op.name
    )
    forward = {tensor.ref() for op in operations[:start] for tensor in op.outputs}
    used = {
        tensor.ref()
        for op in operations[start:]
        for tensor in op.inputs
        if op.type not in {"IdentityN"}
    }
    return sum(
        tensor.deref().shape.num_elements() * tensor.deref().dtype.size
        for tensor in forward & used
    )
