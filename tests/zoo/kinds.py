"""The kinds of Keras models, small: each function returns a compiled, built model.

Classes are registered or not as in the code of users.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tests.train_steps import update

L, ops = keras.layers, keras.ops
SAMPLES = 16


@dataclass(frozen=True)
class Case:
    """A model and samples that it trains on.

    Args:
        name: Name of the kind.
        model: A compiled, built `keras.Model`.
        x: Inputs of 16 samples.
        y: Labels.
        objects: Classes and functions that Keras has to know to load the model.
    """

    name: str
    model: Any
    x: Any
    y: Any
    objects: dict[str, Any]

    @property
    def ids(self) -> Any:
        """The inputs as `data=` takes them: token ids where `x` is texts for a task."""
        preprocessor = getattr(self.model, "preprocessor", None)
        if preprocessor is None:
            return self.x
        made = preprocessor(self.x)
        return {name: np.asarray(values) for name, values in made.items()}


Build = Callable[[np.random.Generator], tuple[Any, Any, Any]]
KINDS: dict[str, Build] = {}
OBJECTS: dict[str, Any] = {}


def kind(name: str) -> Callable[[Build], Build]:
    """Returns a decorator that adds a function to the table of kinds."""

    def add(build: Build) -> Build:
        KINDS[name] = build
        return build

    return add


def known(cls: Any) -> Any:
    """Decorator for a class that loading needs as a custom object."""
    OBJECTS[cls.__name__] = cls
    return cls


def build(name: str) -> Case:
    """Returns the same model and samples for the same name."""
    keras.config.set_dtype_policy("float32")
    keras.utils.set_random_seed(0)
    model, x, y = KINDS[name](np.random.default_rng(0))
    return Case(name, model, x, y, OBJECTS)


def compiled(model: Any, loss: Any = "mse", **settings: Any) -> Any:
    """Returns the model compiled with plain SGD, whose steps are small."""
    settings.setdefault("optimizer", keras.optimizers.SGD(0.01))
    model.compile(loss=loss, **settings)
    return model


def normal(random: np.random.Generator, *shape: int) -> np.ndarray:
    """Returns float32 samples of the given shape."""
    return random.normal(size=(SAMPLES, *shape)).astype("float32")


def whole(random: np.random.Generator, most: int, *shape: int) -> np.ndarray:
    """Returns int32 samples in [0, most)."""
    return random.integers(0, most, (SAMPLES, *shape)).astype("int32")


def texts(*two: Any) -> np.ndarray:
    """Returns 16 samples of texts, by turns."""
    return np.array([*two] * (SAMPLES // 2), dtype=object)


def dense(random: np.random.Generator, *layers: Any, shape: tuple[int, ...] = (12,)):
    """Returns a Sequential with an Input, one output of width 3, and samples."""
    layers = (*layers, L.Dense(8, activation="relu"), L.Dense(3))
    model = keras.Sequential([keras.Input(shape), *layers])
    return compiled(model), normal(random, *shape), normal(random, 3)


@kind("Sequential with an Input")
def _(random):
    return dense(random, L.Dense(16, activation="relu"))


@kind("Sequential without an Input, built by fit")
def _(random):
    model = compiled(keras.Sequential([L.Dense(16, activation="relu"), L.Dense(3)]))
    x, y = normal(random, 12), normal(random, 3)
    model.fit(x[:8], y[:8], batch_size=8, verbose=0)
    return model, x, y


@kind("Functional")
def _(random):
    inputs = keras.Input((12, 12, 3))
    x = L.Conv2D(8, 3, activation="relu")(inputs)
    x = L.BatchNormalization()(x)
    y = L.Conv2D(8, 3, padding="same", activation="relu")(x)
    x = L.Add()([x, y])
    outputs = L.Dense(3)(L.GlobalAveragePooling2D()(x))
    model = compiled(keras.Model(inputs, outputs))
    return model, normal(random, 12, 12, 3), normal(random, 3)


@kind("part compiled and trained on its own")
def _(random):
    part = compiled(keras.Sequential([keras.Input((12,)), L.Dense(8)]))
    x = normal(random, 12)
    part.fit(x, normal(random, 8), verbose=0)
    inputs = keras.Input((12,))
    model = compiled(keras.Model(inputs, L.Dense(3)(part(inputs))))
    return model, x, normal(random, 3)


@kind("nested with a dtype cast")
def _(random):
    inner_inputs = keras.Input((8,), dtype="int32")
    table = L.Embedding(9, 4)(inner_inputs)
    inner = keras.Model(inner_inputs, L.Dense(4)(L.Flatten()(table)))
    inputs = keras.Input((8,))
    model = compiled(keras.Model(inputs, L.Dense(3)(inner(inputs))))
    return model, whole(random, 9, 8).astype("float32"), normal(random, 3)


@known
@keras.saving.register_keras_serializable("zoo")
class WithConfig(keras.Model):
    """Subclassed with `get_config`."""

    def __init__(self, units=8, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.hidden, self.head = L.Dense(units, activation="relu"), L.Dense(3)

    def call(self, x):
        return self.head(self.hidden(x))

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@known
class WithoutConfig(keras.Model):
    """Subclassed without `get_config`, with an argument and a layer of its own."""

    def __init__(self, units, activation):
        super().__init__()
        self.hidden = L.Dense(units, activation=activation)
        self.head = L.Dense(3)

    def call(self, x):
        return self.head(self.hidden(x))


def called(model: Any, random: np.random.Generator) -> tuple[Any, Any, Any]:
    x = normal(random, 12)
    model(x)
    return model, x, normal(random, 3)


@kind("subclassed with get_config")
def _(random):
    return called(compiled(WithConfig()), random)


@kind("subclassed without get_config")
def _(random):
    return called(compiled(WithoutConfig(8, "relu")), random)


@known
@keras.saving.register_keras_serializable("zoo")
class LazyModel(keras.Model):
    """Creates a layer in its first call."""

    hidden = None

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.head = L.Dense(3)

    def call(self, x):
        if self.hidden is None:
            self.hidden = L.Dense(8, activation="relu")
        return self.head(self.hidden(x))


@kind("layer that is created in call")
def _(random):
    return called(compiled(LazyModel()), random)


class OwnStep(keras.Model):
    """`train_step` of Keras's guide, of two parts, or three with sample weights."""

    parts = 2

    def train_step(self, *arguments):
        if keras.backend.backend() == "jax":
            return super().train_step(*arguments)
        data = arguments[0]
        weight = None
        if self.parts == 2:
            x, y = data
        else:
            x, y, weight = keras.utils.unpack_x_y_sample_weight(data)

        def loss_of():
            predicted = self(x, training=True)
            return self.compute_loss(y=y, y_pred=predicted, sample_weight=weight)

        loss = update(self.optimizer, self.trainable_variables, loss_of)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
        return {metric.name: metric.result() for metric in self.metrics}


@known
@keras.saving.register_keras_serializable("zoo")
class TwoParts(OwnStep):
    """Unpacks x and y."""


@known
@keras.saving.register_keras_serializable("zoo")
class ThreeParts(OwnStep):
    """Unpacks x, y and sample weights."""

    parts = 3


@known
@keras.saving.register_keras_serializable("zoo")
class OwnLoss(keras.Model):
    """A loss and a metric of its own, without those of `compile`."""

    # Keras makes a Functional of the config of a class with `*args` of this name only.
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, *arguments):
        if keras.backend.backend() == "jax":
            return super().train_step(*arguments)
        x, y = arguments[0]
        loss = update(
            self.optimizer,
            self.trainable_variables,
            lambda: ops.mean(ops.square(self(x, training=True) - y)),
        )
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **_):
        return ops.mean(ops.square(y_pred - y))


def functional(cls: Any) -> Any:
    inputs = keras.Input((12,))
    return cls(inputs, L.Dense(3)(L.Dense(8, activation="relu")(inputs)))


@kind("train_step of two parts")
def _(random):
    return compiled(functional(TwoParts)), normal(random, 12), normal(random, 3)


@kind("train_step of three parts")
def _(random):
    return compiled(functional(ThreeParts)), normal(random, 12), normal(random, 3)


@kind("train_step with its own loss and metric")
def _(random):
    model = functional(OwnLoss)
    model.compile(optimizer=keras.optimizers.SGD(0.01))
    return model, normal(random, 12), normal(random, 3)


@known
@keras.saving.register_keras_serializable("zoo")
class Gan(keras.Model):
    """Two networks and two optimizers."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.generator = keras.Sequential([keras.Input((4,)), L.Dense(12)])
        self.judge = keras.Sequential([keras.Input((12,)), L.Dense(8), L.Dense(1)])

    def build(self, shape):
        self.built = True

    def compile(self, judge_optimizer, optimizer, **kwargs):
        super().compile(optimizer=optimizer, **kwargs)
        self.judge_optimizer = judge_optimizer

    def call(self, x):
        return self.judge(x)

    def train_step(self, *arguments):
        if keras.backend.backend() == "jax":
            return super().train_step(*arguments)
        real = arguments[0][0] if isinstance(arguments[0], tuple) else arguments[0]
        noise = keras.random.normal((ops.shape(real)[0], 4))
        loss = keras.losses.BinaryCrossentropy(from_logits=True)

        def judged():
            both = ops.concatenate([self.generator(noise), real], axis=0)
            zeros = ops.zeros((ops.shape(real)[0], 1))
            return loss(ops.concatenate([zeros + 1, zeros], axis=0), self.judge(both))

        def fooled():
            made = self.judge(self.generator(noise))
            return loss(ops.zeros_like(made), made)

        parts = self.judge.trainable_variables, self.generator.trainable_variables
        first = update(self.judge_optimizer, parts[0], judged)
        second = update(self.optimizer, parts[1], fooled)
        return {"d_loss": first, "g_loss": second}


@kind("GAN of two optimizers")
def _(random):
    model = Gan()
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), keras.optimizers.SGD(0.01), loss=loss)
    x = normal(random, 12)
    model(x)
    return model, x, np.zeros((SAMPLES, 1), "float32")


@known
@keras.saving.register_keras_serializable("zoo")
class Sampling(L.Layer):
    """Draws from a normal distribution in its call."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(7)

    def call(self, inputs, training=False):
        mean, log_variance = inputs
        if not training:
            return mean
        drawn = keras.random.normal(ops.shape(mean), seed=self.seeds)
        return mean + ops.exp(0.5 * log_variance) * drawn


@kind("VAE")
def _(random):
    inputs = keras.Input((12,))
    hidden = L.Dense(8, activation="relu")(inputs)
    code = Sampling()([L.Dense(2)(hidden), L.Dense(2)(hidden)])
    model = compiled(keras.Model(inputs, L.Dense(12)(code)))
    x = normal(random, 12)
    return model, x, x


@kind("Siamese")
def _(random):
    tower = keras.Sequential([keras.Input((12,)), L.Dense(8, activation="relu")])
    pair = [keras.Input((12,), name=name) for name in ("left", "right")]
    distance = L.Subtract()([tower(each) for each in pair])
    model = compiled(keras.Model(pair, L.Dense(1)(distance)))
    return model, [normal(random, 12), normal(random, 12)], normal(random, 1)


@kind("dict inputs and dict outputs")
def _(random):
    inputs = {name: keras.Input((6,), name=name) for name in ("a", "b")}
    joined = L.Concatenate()(list(inputs.values()))
    hidden = L.Dense(8, activation="relu")(joined)
    outputs = {"one": L.Dense(1, name="one")(hidden), "two": L.Dense(2)(hidden)}
    model = compiled(keras.Model(inputs, outputs), {"one": "mse", "two": "mse"})
    x = {name: normal(random, 6) for name in inputs}
    return model, x, {"one": normal(random, 1), "two": normal(random, 2)}


@kind("TextVectorization inside")
def _(random):
    lookup = L.TextVectorization(10, output_sequence_length=4)
    lookup.adapt(["a b c d", "a b", "e f"])
    inputs = keras.Input((), dtype="string")
    table = L.GlobalAveragePooling1D()(L.Embedding(10, 6)(lookup(inputs)))
    model = compiled(keras.Model(inputs, L.Dense(3)(table)))
    return model, texts("a b c", "e f"), normal(random, 3)


@kind("StringLookup inside")
def _(random):
    import tensorflow as tf

    lookup = L.StringLookup(vocabulary=["a", "b", "c"])
    inputs = keras.Input((1,), dtype="string")
    table = L.Flatten()(L.Embedding(4, 6)(lookup(inputs)))
    model = compiled(keras.Model(inputs, L.Dense(3)(table)))
    # Keras's predict takes texts of two axes as a tensor only.
    return model, tf.constant(texts(["a"], ["z"])), normal(random, 3)


@kind("IntegerLookup inside")
def _(random):
    lookup = L.IntegerLookup()
    lookup.adapt(np.array([5, 7, 7, 11]))
    inputs = keras.Input((1,), dtype="int64")
    table = L.Flatten()(L.Embedding(4, 6)(lookup(inputs)))
    model = compiled(keras.Model(inputs, L.Dense(3)(table)))
    return model, np.array([[5], [7]] * 8), normal(random, 3)


def cnn(random: np.random.Generator, *first: Any, scale: float = 1.0):
    """Returns a small CNN after other layers, and pictures."""
    shape = (16, 16, 3)
    layers = [L.Conv2D(8, 3, activation="relu"), L.GlobalAveragePooling2D()]
    model, x, y = dense(random, *first, *layers, shape=shape)
    return model, x * scale, y


@kind("augmentation inside")
def _(random):
    return cnn(
        random, L.RandomFlip("horizontal", seed=1), L.RandomRotation(0.1, seed=1)
    )


@kind("Resizing and Normalization inside")
def _(random):
    normalization = L.Normalization()
    normalization.adapt(normal(random, 8, 8, 3))
    return cnn(random, L.Resizing(8, 8), normalization)


def tripled(x):
    return 3.0 * x


@kind("Lambda of a named function")
def _(random):
    OBJECTS["tripled"] = tripled
    return dense(random, L.Dense(8), L.Lambda(tripled, name="tripled"))


@kind("Lambda of a lambda")
def _(random):
    return dense(random, L.Dense(8), L.Lambda(lambda x: x * 2))


@kind("arithmetic on inputs")
def _(random):
    inputs = keras.Input((16, 16, 3))
    scaled = keras.applications.mobilenet_v2.preprocess_input(inputs)
    x = L.GlobalAveragePooling2D()(L.Conv2D(8, 3, activation="relu")(scaled))
    model = compiled(keras.Model(inputs, L.Dense(3)(x)))
    return (
        model,
        255 * random.random((SAMPLES, 16, 16, 3), "float32"),
        normal(random, 3),
    )


@kind("masking")
def _(random):
    x = normal(random, 6, 4)
    x[:, 4:] = 0.0
    model, _, y = dense(random, L.Masking(), L.LSTM(5), shape=(6, 4))
    return model, x, y


@kind("embedding with mask_zero and a GRU")
def _(random):
    layers = [L.Embedding(9, 6, mask_zero=True), L.GRU(5), L.Dense(3)]
    model = compiled(keras.Sequential([keras.Input((7,), dtype="int32"), *layers]))
    return model, whole(random, 9, 7), normal(random, 3)


@kind("stateful RNN")
def _(random):
    inputs = keras.Input(batch_shape=(8, 6, 4))
    model = compiled(keras.Model(inputs, L.Dense(3)(L.LSTM(5, stateful=True)(inputs))))
    return model, normal(random, 6, 4), normal(random, 3)


@kind("Bidirectional LSTM")
def _(random):
    return dense(random, L.Bidirectional(L.LSTM(5)), shape=(6, 4))


@kind("ConvLSTM")
def _(random):
    layers = [L.ConvLSTM2D(4, 3), L.GlobalAveragePooling2D()]
    return dense(random, *layers, shape=(4, 8, 8, 2))


@kind("Conv3D")
def _(random):
    layers = [L.Conv3D(4, 2, activation="relu"), L.GlobalAveragePooling3D()]
    return dense(random, *layers, shape=(4, 6, 6, 2))


@kind("transposed convolution")
def _(random):
    layers = [L.Conv2DTranspose(8, 3, strides=2), L.GlobalAveragePooling2D()]
    return dense(random, *layers, shape=(6, 6, 4))


@kind("dilated, grouped and separable convolutions")
def _(random):
    layers = [
        L.Conv2D(8, 3, dilation_rate=2, activation="relu"),
        L.Conv2D(8, 3, groups=4, padding="same", activation="relu"),
        L.SeparableConv2D(8, 3, activation="relu"),
        L.DepthwiseConv2D(3, padding="same", activation="relu"),
        L.GlobalAveragePooling2D(),
    ]
    return dense(random, *layers, shape=(14, 14, 4))


@kind("causal convolution")
def _(random):
    layers = [L.Conv1D(8, 3, padding="causal"), L.GlobalAveragePooling1D()]
    return dense(random, *layers, shape=(10, 4))


@known
@keras.saving.register_keras_serializable("zoo")
class TiedDense(L.Layer):
    """Multiplies by the transposed kernel of another layer."""

    def __init__(self, tied, **kwargs):
        super().__init__(**kwargs)
        self.tied = tied

    def call(self, x):
        return ops.matmul(x, ops.transpose(self.tied.kernel))

    def get_config(self):
        tied = keras.saving.serialize_keras_object(self.tied)
        return {**super().get_config(), "tied": tied}

    @classmethod
    def from_config(cls, config):
        config["tied"] = keras.saving.deserialize_keras_object(config["tied"])
        return cls(**config)


@kind("tied autoencoder")
def _(random):
    inputs, encoder = keras.Input((12,)), L.Dense(6, activation="relu", name="encoder")
    model = compiled(keras.Model(inputs, TiedDense(encoder)(encoder(inputs))))
    x = normal(random, 12)
    return model, x, x


@kind("shared layers")
def _(random):
    inputs, shared = keras.Input((12,)), L.Dense(12, activation="tanh")
    model = compiled(keras.Model(inputs, L.Dense(3)(shared(shared(inputs)))))
    return model, normal(random, 12), normal(random, 3)


@kind("frozen nested base")
def _(random):
    inputs = keras.Input((16, 16, 3))
    base = keras.Sequential(
        [keras.Input((16, 16, 3)), L.Conv2D(8, 3), L.BatchNormalization(), L.ReLU()]
    )
    base.trainable = False
    x = L.GlobalAveragePooling2D()(base(inputs, training=False))
    model = compiled(keras.Model(inputs, L.Dense(3)(x)))
    return model, normal(random, 16, 16, 3), normal(random, 3)


@kind("MobileNetV2 of keras.applications")
def _(random):
    model = keras.applications.MobileNetV2((32, 32, 3), 0.35, weights=None, classes=3)
    return compiled(model), normal(random, 32, 32, 3), normal(random, 3)


@kind("U-Net of open size")
def _(random):
    inputs = keras.Input((None, None, 2))
    down = L.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    low = L.Conv2D(8, 3, padding="same", activation="relu")(L.MaxPooling2D()(down))
    joined = L.Concatenate()([L.UpSampling2D()(low), down])
    model = compiled(keras.Model(inputs, L.Conv2D(1, 1)(joined)))
    return model, normal(random, 8, 8, 2), normal(random, 8, 8, 1)


@kind("mixed_float16")
def _(random):
    keras.config.set_dtype_policy("mixed_float16")
    return dense(random, L.Dense(16, activation="relu"))


@kind("mixed_bfloat16")
def _(random):
    keras.config.set_dtype_policy("mixed_bfloat16")
    return dense(random, L.Dense(16, activation="relu"))


@kind("float64")
def _(random):
    keras.config.set_dtype_policy("float64")
    return dense(random, L.Dense(16, activation="relu"))


@known
@keras.saving.register_keras_serializable("zoo")
class Attention(L.Layer):
    """Self-attention written with keras.ops."""

    def build(self, shape):
        self.kernels = [
            self.add_weight((shape[-1], shape[-1]), name=name) for name in "qkv"
        ]

    def call(self, x):
        query, key, value = (ops.matmul(x, kernel) for kernel in self.kernels)
        scores = ops.matmul(query, ops.swapaxes(key, -1, -2)) / shape_root(x)
        return ops.matmul(ops.softmax(scores), value)


def shape_root(x: Any) -> float:
    return float(x.shape[-1]) ** 0.5


@kind("hand-written attention")
def _(random):
    return dense(random, Attention(), L.GlobalAveragePooling1D(), shape=(6, 8))


@kind("MultiHeadAttention with LayerNormalization")
def _(random):
    inputs = keras.Input((6, 8))
    attended = L.MultiHeadAttention(2, 4)(inputs, inputs)
    x = L.LayerNormalization()(L.Add()([inputs, attended]))
    model = compiled(keras.Model(inputs, L.Dense(3)(L.GlobalAveragePooling1D()(x))))
    return model, normal(random, 6, 8), normal(random, 3)


@kind("SpectralNormalization")
def _(random):
    return dense(random, L.SpectralNormalization(L.Dense(8)))


@kind("LoRA")
def _(random):
    model, x, y = dense(random, L.Dense(16, activation="relu"))
    model.layers[0].enable_lora(2)
    return compiled(model), x, y


@kind("KerasHub classifier with a preprocessor")
def _(random):
    import keras_hub

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film"]
    tokenizer = keras_hub.models.BertTokenizer(vocabulary=words)
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, 8)
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    backbone = keras_hub.models.BertBackbone(len(words), max_sequence_length=8, **sizes)
    model = keras_hub.models.BertTextClassifier(
        backbone, num_classes=2, preprocessor=preprocessor
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss=loss)
    return model, texts("good film", "bad film"), whole(random, 2)


@kind("KerasHub causal language model without a preprocessor")
def _(random):
    import keras_hub

    backbone = keras_hub.models.GemmaBackbone(
        vocabulary_size=32,
        num_layers=1,
        num_query_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        hidden_dim=16,
        intermediate_dim=32,
    )
    model = keras_hub.models.GemmaCausalLM(backbone, preprocessor=None)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss=loss)
    x = {"token_ids": whole(random, 32, 6), "padding_mask": np.ones((SAMPLES, 6), bool)}
    return model, x, whole(random, 32, 6)


@known
class Neighbors(L.Layer):
    """Sums the rows of the neighbors in a graph."""

    def call(self, nodes, adjacency):
        return ops.matmul(adjacency, nodes)


@kind("graph network, a batch is a graph")
def _(random):
    nodes, adjacency = keras.Input((12,)), keras.Input((8,))
    hidden = Neighbors()(L.Dense(16, activation="relu")(nodes), adjacency)
    outputs = Neighbors()(L.Dense(3)(hidden), adjacency)
    links = (normal(random, 8) > 0.5).astype("float32")
    model = compiled(keras.Model([nodes, adjacency], outputs))
    return model, [normal(random, 12), links], normal(random, 3)


@kind("legacy .h5 file")
def _(random):
    import kerasmem as km

    model, x, y = dense(random, L.Dense(16, activation="relu"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.h5")
        model.save(path)
        return compiled(km.load_model(path)), x, y
