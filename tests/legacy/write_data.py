"""Write `data/models.tar.xz`: models of tf_keras and tfmot, with what they answer.

Run once, by hand, where tf_keras and tensorflow-model-optimization are installed:

    python tests/legacy/write_data.py FOLDER [KIND ...]

Of a SavedModel the parts are kept that tell of weights and configs; the functions of
TensorFlow are large, and not read: an empty file stands for them.
"""

import os
import sys
import tarfile
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras
from tensorflow_model_optimization.python.core.clustering.keras.experimental import (
    cluster as experimental_cluster,
)

L = keras.layers
KINDS = {}
DRAW = np.random.default_rng(0)
FOLDERS = (
    "dense",
    "convolutions",
    "depthwise",
    "lstm",
    "bidirectional",
    "nested",
    "shared",
    "attention",
    "pruned",
    "clustered",
    "quantized",
)
"""Those that are written as SavedModels, too, which takes long."""


def kind(make):
    KINDS[make.__name__] = make
    return make


@kind
def dense():
    model = keras.Sequential(
        [L.Dense(8, "relu", input_shape=(6,)), L.Dropout(0.5), L.Dense(3, "softmax")]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@kind
def convolutions():
    return keras.Sequential(
        [
            L.InputLayer(input_shape=(8, 8, 2)),
            L.Conv2D(4, 3, padding="same", use_bias=False),
            L.BatchNormalization(),
            L.ReLU(6.0),
            L.MaxPooling2D(),
            L.Conv2D(4, 2, strides=2, activation="swish"),
            L.LeakyReLU(),
            L.Flatten(),
            L.Dense(3),
        ]
    )


@kind
def depthwise():
    x = inputs = L.Input((8, 8, 3))
    x = L.DepthwiseConv2D(3, depth_multiplier=2, padding="same")(x)
    x = L.BatchNormalization(scale=False)(x)
    x = L.SeparableConv2D(5, 3, activation=tf.nn.relu)(x)
    x = L.ZeroPadding2D(1)(x)
    x = L.Conv2DTranspose(3, 3, strides=2)(x)
    x = L.GlobalAveragePooling2D(keepdims=True)(x)
    return keras.Model(inputs, L.Reshape((3,))(x))


@kind
def sequences():
    return keras.Sequential(
        [
            L.InputLayer(input_shape=(7, 3)),
            L.Conv1D(4, 3, padding="causal", activation="gelu"),
            L.SeparableConv1D(4, 2),
            L.TimeDistributed(L.Dense(3, activation="tanh")),
            L.SimpleRNN(4, return_sequences=True),
            L.GlobalMaxPooling1D(),
        ]
    )


@kind
def lstm():
    return keras.Sequential(
        [
            L.Embedding(11, 4, mask_zero=True, input_length=6),
            L.LSTM(5, return_sequences=True, dropout=0.2),
            L.LSTM(4, unroll=True, implementation=1),
            L.Dense(2),
        ]
    )


@kind
def gru():
    x = inputs = L.Input((5, 3))
    x = L.GRU(4, return_sequences=True)(x)
    return keras.Model(inputs, L.GRU(3, reset_after=False)(x))


@kind
def bidirectional():
    return keras.Sequential(
        [
            L.Bidirectional(L.LSTM(3, return_sequences=True), input_shape=(5, 4)),
            L.Bidirectional(L.GRU(2), merge_mode="sum"),
            L.Dense(2),
        ]
    )


@kind
def states():
    """Recurrent layers that begin where others end; losses that are objects."""
    a, b = L.Input((5, 3)), L.Input((4, 3))
    _, h, c = L.LSTM(4, return_state=True)(a)
    x = L.LSTM(4, return_sequences=True)(b, initial_state=[h, c])
    _, *ends = L.Bidirectional(L.GRU(3, return_state=True))(x)
    x = L.Bidirectional(L.GRU(3, return_sequences=True))(x, initial_state=ends)
    x = L.RNN([L.GRUCell(4), L.GRUCell(4)])(x, initial_state=[h, c])
    x = L.Dense(2, name="logits/of/two")(x)
    return keras.Model([a, b], [x, L.Dense(1, name="one")(x)], name="a/b")


@kind
def nested():
    inner = keras.Sequential(
        [L.Dense(5, input_shape=(4,)), L.BatchNormalization()], name="inner"
    )
    x = start = L.Input((4,))
    x = L.BatchNormalization()(inner(x))
    middle = keras.Model(start, L.Dense(4)(x), name="middle")
    middle.layers[1].trainable = False
    inputs = L.Input((4,))
    x = middle(inputs)
    x = middle(L.Dense(4, "relu", trainable=False)(x))
    return keras.Model(inputs, L.Dense(2)(x))


@kind
def shared():
    a, b = L.Input((4,), name="a"), L.Input((4,), name="b")
    once = L.Dense(3, name="once")
    x = L.Concatenate()([once(a), once(b), L.Subtract()([a, b])])
    first = L.Dense(2, "softmax", name="first")(x)
    return keras.Model([b, a], {"first": first, "second": L.Dense(1, name="second")(x)})


@kind
def attention():
    x = inputs = L.Input((5, 6))
    memory = L.Input((4, 6))
    y = L.MultiHeadAttention(2, 3)(x, value=memory, attention_mask=None)
    x = L.LayerNormalization(epsilon=1e-6)(L.Add()([x, y]))
    x = L.Attention(use_scale=True)([x, memory])
    x = L.AdditiveAttention()([x, memory])
    x = L.MultiHeadAttention(2, 2, output_shape=3)(x, x)
    return keras.Model([inputs, memory], L.EinsumDense("abc,cd->abd", (None, 2))(x))


@kind
def hard_sigmoid():
    x = inputs = L.Input((5, 4))
    x = L.LSTM(4, return_sequences=True, recurrent_activation="hard_sigmoid")(x)
    x = L.Bidirectional(L.GRU(3, recurrent_activation="hard_sigmoid"))(x)
    x = L.Dense(4, activation="hard_sigmoid")(x)
    return keras.Model(inputs, L.Activation("hard_sigmoid")(x))


@kind
def operators():
    a, b = L.Input((4, 3)), L.Input((4, 3))
    x = (a + b) * 2.0 - 1.0
    x = 1.0 - x / (tf.abs(b) + 1.0)
    x = tf.nn.relu(x) + tf.math.tanh(-a) * tf.square(b)
    y = tf.reduce_mean(x, axis=[1], keepdims=True)
    x = tf.concat([x, y], axis=1)
    x = tf.transpose(x, [0, 2, 1])[:, 1:, ::2]
    x = tf.reshape(x, [-1, 6])
    z = tf.expand_dims(x[:, 0], -1)
    x = tf.stack([x, x**2.0], axis=-1)
    x = tf.squeeze(tf.reduce_sum(x, -1, keepdims=True), -1)
    x = tf.maximum(tf.nn.softmax(x), z)
    return keras.Model([a, b], tf.clip_by_value(L.Dense(2)(x), -1.0, 1.0))


@kind
def others():
    x = inputs = L.Input((6, 6, 4))
    x = L.Rescaling(1 / 3, offset=0.5)(x)
    x = L.Normalization(axis=-1)(x)
    x = L.GroupNormalization(2)(x)
    x = L.PReLU(shared_axes=[1, 2])(x)
    x = L.UpSampling2D(2, interpolation="bilinear")(x)
    x = L.Reshape((4, 6, 6, 4))(x)
    x = L.Conv3D(3, 2, activation="elu")(x)
    x = L.BatchNormalization(axis=[4])(x)
    x = L.AveragePooling3D((1, 2, 2))(x)
    x = L.ThresholdedReLU(0.1)(x)
    x = L.SpatialDropout3D(0.1)(L.GaussianNoise(0.1)(x))
    return keras.Model(inputs, L.GlobalAveragePooling3D()(x))


@kind
def half():
    policy = keras.mixed_precision.Policy("mixed_float16")
    x = inputs = L.Input((6,))
    x = L.Dense(5, "relu", dtype=policy)(x)
    x = L.BatchNormalization(dtype=policy)(x)
    return keras.Model(inputs, L.Dense(2, dtype="float32")(x))


@keras.utils.register_keras_serializable("legacy")
class Scale(L.Layer):
    def __init__(self, start=1.0, **kwargs):
        super().__init__(**kwargs)
        self.start = start

    def build(self, shape):
        self.factor = self.add_weight("factor", shape=(shape[-1],))

    def call(self, x):
        return x * self.factor * self.start

    def get_config(self):
        return {**super().get_config(), "start": self.start}


@kind
def custom():
    return keras.Sequential([L.Dense(3, input_shape=(4,)), Scale(2.0)])


@kind
def code():
    return keras.Sequential([L.Dense(3, input_shape=(4,)), L.Lambda(lambda x: x + 1)])


def trained(model, wrapped, callbacks=()):
    # Much more would make all weights of a kernel one.
    wrapped.compile(keras.optimizers.SGD(1e-5), "mse")
    x = [DRAW.normal(size=(8, *i.shape[1:])) for i in wrapped.inputs]
    y = DRAW.normal(size=(8, *wrapped.outputs[0].shape[1:]))
    wrapped.fit(x, y, epochs=1, verbose=0, callbacks=list(callbacks))
    return wrapped


def pruned_by(model, **how):
    prune = tfmot.sparsity.keras
    schedule = prune.ConstantSparsity(0.5, 0, frequency=1)
    wrapped = prune.prune_low_magnitude(model, schedule, **how)
    return trained(model, wrapped, [prune.UpdatePruningStep()])


@kind
def pruned():
    return pruned_by(convolutions())


@kind
def pruned_lstm():
    model = keras.Sequential([L.LSTM(4, input_shape=(5, 3)), L.Dense(2)])
    return pruned_by(model)


@kind
def clustered():
    model = random(convolutions())
    return trained(
        model, experimental_cluster.cluster_weights(model, 4, cluster_per_channel=False)
    )


@kind
def clustered_sparse():
    model = random(convolutions())
    for layer in (model.layers[0], model.layers[4], model.layers[7]):
        kernel, *rest = layer.get_weights()
        layer.set_weights([np.where(np.abs(kernel) < 0.3, 0, kernel), *rest])
    wrapped = experimental_cluster.cluster_weights(
        model,
        4,
        tfmot.clustering.keras.CentroidInitialization.LINEAR,
        preserve_sparsity=True,
        cluster_per_channel=True,
    )
    return trained(model, wrapped)


@kind
def clustered_bidirectional():
    model = random(bidirectional())
    return trained(model, tfmot.clustering.keras.cluster_weights(model, 3))


def quantized_and_float():
    x = inputs = L.Input((8, 8, 2))
    x = L.Conv2D(4, 3, use_bias=False, name="conv")(x)
    x = L.BatchNormalization(name="bn")(x)
    x = y = L.ReLU()(x)
    x = L.DepthwiseConv2D(3, padding="same", activation="relu", name="depthwise")(x)
    x = L.Flatten()(L.Add()([x, y]))
    x = L.Dense(3, activation="softmax", name="dense")(x)
    model = random(keras.Model(inputs, x))
    wrapped = trained(model, tfmot.quantization.keras.quantize_model(model))
    for layer in model.layers:
        if layer.weights:
            made = wrapped.get_layer(f"quant_{layer.name}").weights
            now = {weight.name.rpartition("/")[2]: weight for weight in made}
            for weight in layer.weights:
                weight.assign(now[weight.name.rpartition("/")[2]])
    return wrapped, model


@kind
def quantized():
    return quantized_and_float()


def random(model):
    """Return it with weights none of which is what it would be built with."""
    for weight in model.weights:
        if weight.dtype.is_floating:
            low = 0.5 if "variance" in weight.name else -1.0
            weight.assign(DRAW.uniform(low, 1.0, weight.shape))
    for layer in model.layers:
        if isinstance(layer, L.Normalization):
            layer.finalize_state()
    return model


def sample(model):
    """Return a batch of two for every input."""
    whole = isinstance(model.layers[0], L.Embedding)
    shapes = [(2, *tensor.shape[1:]) for tensor in model.inputs]
    if whole:
        return [DRAW.integers(0, 11, shape).astype("float32") for shape in shapes]
    return [DRAW.normal(size=shape).astype("float32") for shape in shapes]


def write(name, folder):
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    model = KINDS[name]()
    model, reference = model if isinstance(model, tuple) else (model, model)
    if not name.startswith(("clustered", "quantized")):
        random(model)
    if name.startswith("pruned"):
        trained(model, model, [tfmot.sparsity.keras.UpdatePruningStep()])
    x = sample(model)
    found = reference(x if len(x) > 1 else x[0])
    flat = tf.nest.flatten(found)
    np.savez(
        folder / f"{name}.npz",
        **{f"x{i}": a for i, a in enumerate(x)},
        **{f"y{i}": np.asarray(a) for i, a in enumerate(flat)},
    )
    for suffix in (".h5", ".keras", *[""] * (name in FOLDERS)):
        path = folder / f"{name}{suffix}"
        try:
            model.save(path, save_format=None if suffix else "tf")
        except Exception as error:  # noqa: BLE001 - what tf_keras itself cannot write
            sys.stderr.write(f"{path.name}: {type(error).__name__}: {error}\n")
            path.unlink(missing_ok=True)
        if not suffix and path.exists():
            (path / "fingerprint.pb").unlink()
            (path / "saved_model.pb").write_bytes(b"")


def pack(folder, target):
    # In one stream: the files are much alike.
    with tarfile.open(target, "w:xz") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.add(path, path.relative_to(folder))


def main(target, folder):
    folder.mkdir(exist_ok=True)
    for name in sys.argv[2:] or list(KINDS):
        write(name, folder)
    pack(folder, target)


if __name__ == "__main__":
    main(Path(__file__).parent / "data/models.tar.xz", Path(sys.argv[1]))
