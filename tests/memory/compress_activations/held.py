"""Two models, and what their backward pass really holds, on each backend."""

import keras
import numpy as np

L = keras.layers

BFC = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_ENABLE_ONEDNN_OPTS": "0"}
"""Environment in which TensorFlow counts what it allocates on the CPU."""


def residual_cnn(size=16, widths=(8, 16), channels=1):
    x = inputs = keras.Input((size, size, channels))
    for width in widths:
        x = L.Conv2D(width, 3, padding="same")(x)
        x = shortcut = L.ReLU()(L.BatchNormalization()(x))
        x = L.Conv2D(width, 3, padding="same", use_bias=False)(x)
        x = L.Add()([L.BatchNormalization()(x), shortcut])
        x = L.MaxPooling2D()(L.ReLU()(x))
    x = L.Dropout(0.3)(L.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, L.Dense(10, activation="softmax")(x))


def transformer(length=16, width=32, blocks=2, dropout=0.1):
    inputs = keras.Input((length,), dtype="int32")
    x = L.Embedding(50, width)(inputs)
    for _ in range(blocks):
        h = L.LayerNormalization()(x)
        x = x + L.MultiHeadAttention(2, width // 2, dropout=dropout)(h, h)
        h = L.Dense(4 * width, activation="gelu")(L.LayerNormalization()(x))
        x = L.Add()([x, L.Dropout(dropout)(L.Dense(width)(h))])
    x = L.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, L.Dense(10, activation="softmax")(x))


MODELS = {"cnn": residual_cnn, "transformer": transformer}


def batch(model, size, seed=0):
    """Return inputs and labels of the shapes that the model takes."""
    random = np.random.default_rng(seed)
    shape = (size, *model.inputs[0].shape[1:])
    if model.inputs[0].dtype == "int32":
        x = random.integers(0, 50, shape).astype("int32")
    else:
        x = random.normal(size=shape).astype("float32")
    return x, random.integers(0, 10, size)


def held_bytes(model, x):
    """Return the bytes alive between the forward and the backward pass.

    Neither weights count nor the batch. TensorFlow's allocator tells its bytes, of
    JAX it is what `jax.vjp` keeps, of torch the storages that are saved.
    """
    measure = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}
    return measure[keras.backend.backend()](model, keras.ops.convert_to_tensor(x))


def _tensorflow(model, x):
    import tensorflow as tf

    def in_use(*_):
        return np.int64(tf.config.experimental.get_memory_info("CPU:0")["current"])

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y = model(x, training=True)
            # Read once everything is done; the outputs are there before what is kept
            # has been packed. The gradient waits for the reading.
            with tf.control_dependencies(y.graph.get_operations()):
                between = tf.numpy_function(in_use, [y], tf.int64)
            with tf.control_dependencies([between]):
                loss = tf.reduce_sum(tf.square(tf.identity(y)))
        gradients = tape.gradient(loss, model.trainable_variables)
        return between, [tf.reduce_sum(gradient) for gradient in gradients]

    def held():
        before = in_use()
        return int(step(x)[0] - before)

    step(x)
    # A block may lie in a free piece of nearly twice its size, as threads left it.
    return min(held() for _ in range(20))


def _jax(model, x):
    import jax

    weights = [v.value for v in model.trainable_variables]
    state = [v.value for v in model.non_trainable_variables]

    def forward(weights):
        return model.stateless_call(weights, state, x, training=True)[0]

    _, pullback = jax.vjp(forward, weights)
    ours = {id(array) for array in (*weights, *state, x)}
    kept = {id(leaf): leaf for leaf in jax.tree.leaves(pullback)}
    return sum(leaf.nbytes for key, leaf in kept.items() if key not in ours)


def _torch(model, x):
    import torch

    ours = {v.value.untyped_storage().data_ptr() for v in model.variables}
    ours.add(x.untyped_storage().data_ptr())
    kept = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(x, training=True)
    return sum(s.nbytes() for key, s in kept.items() if key not in ours)


def held_by(job):
    """Return held bytes of models and of compressed copies; a task for a child."""
    from kerasmem.memory.compress_activations import compress_activations

    found = []
    for one in job["jobs"]:
        model = MODELS[one["model"]](**one["arguments"])
        x, _ = batch(model, job["batch_size"])
        plain, small = held_bytes(model, x), held_bytes(compress_activations(model), x)
        found.append({"plain": plain, "compressed": small})
    return {"held": found}


def peaks(job):
    """Return the rise of TensorFlow's peak in a step of a graph, per batch size."""
    import tensorflow as tf

    from kerasmem.memory.compress_activations import compress_activations

    model = MODELS[job["model"]](**job["arguments"])
    model.compile(
        "sgd", "sparse_categorical_crossentropy", jit_compile=job.get("jit", False)
    )
    found = {}
    for name in ("plain", "compressed"):
        trained = model if name == "plain" else compress_activations(model)
        found[name] = []
        for size in job["batch_sizes"]:
            x, y = batch(trained, size)
            for _ in range(3):
                before = tf.config.experimental.get_memory_info("CPU:0")["current"]
                tf.config.experimental.reset_memory_stats("CPU:0")
                trained.train_on_batch(x, y)
            peak = tf.config.experimental.get_memory_info("CPU:0")["peak"]
            found[name].append(peak - before)
    return found
