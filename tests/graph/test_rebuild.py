"""A rebuilt model keeps the state of its layers that is in no variable."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.recipe import apply_technique
from kerasmem.graph.rebuild import Rebuild, Rewrite
from kerasmem.graph.values import to_numpy

L = keras.layers
WORDS = np.array(["the cat sat", "a dog ran", "cats run far"])
TEXTS = WORDS[np.random.default_rng(0).integers(0, 3, 24)][:, None]
IDS = np.random.default_rng(0).integers(100, 130, (24, 1))


@keras.saving.register_keras_serializable("rebuilt")
class Offset(L.Layer):
    """Adds a number that it saves beside its weight, which is trained."""

    offset = 0.0

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return x * self.scale + self.offset

    def save_own_variables(self, store):
        super().save_own_variables(store)
        store["offset"] = np.float32(self.offset)

    def load_own_variables(self, store):
        self.offset = float(np.asarray(store["offset"]))
        self.scale.assign(store["0"])


@keras.saving.register_keras_serializable("rebuilt")
class FileOffset(L.Layer):
    """Adds a number that it saves in a file."""

    offset = 0.0

    def call(self, x):
        return x + self.offset

    def save_assets(self, folder):
        (Path(folder) / "offset.json").write_text(json.dumps(self.offset))

    def load_assets(self, folder):
        self.offset = json.loads((Path(folder) / "offset.json").read_text())


@keras.saving.register_keras_serializable("rebuilt")
class Around(L.Layer):
    """A layer that contains both."""

    def __init__(self, **options):
        super().__init__(**options)
        self.inner = [Offset(), FileOffset()]

    def build(self, shape):
        self.inner[0].build(shape)

    def call(self, x):
        return self.inner[1](self.inner[0](x))


def outputs_of(model, x):
    return to_numpy(model(keras.ops.convert_to_tensor(x)))


def with_offsets():
    around, offset, file_offset = Around(), Offset(), FileOffset()
    around.inner[0].offset, around.inner[1].offset = 1.0, 2.0
    offset.offset, file_offset.offset = 4.0, 8.0
    inputs = keras.Input((3,))
    x = L.BatchNormalization()(L.Dense(8)(inputs))
    for layer in (around, offset, file_offset):
        x = layer(x)
    return keras.Model(inputs, L.Dense(2)(x))


@keras.saving.register_keras_serializable("rebuilt")
class OfBlocks(keras.Model):
    """A model whose config contains the arguments of its constructor."""

    def __init__(self, num_layers=2, **options):
        inputs = keras.Input((3,))
        x = Around(name="around")(inputs)
        for number in range(num_layers):
            x = L.Dense(3, name=f"block_{number}")(x)
        super().__init__(inputs, x, **options)
        self.num_layers = num_layers

    def get_config(self):
        return {"num_layers": self.num_layers, "name": self.name}


def lookup(kind, options, data):
    layer = kind(**options)
    if "vocabulary" not in options:
        layer.adapt(keras.ops.convert_to_tensor(data))
    x = keras.Input((1,), dtype="int64" if data is IDS else "string")
    found = layer(x)
    if options.get("output_mode") != "tf_idf":
        found = L.Flatten()(L.Embedding(layer.vocabulary_size(), 8)(found))
    h = L.ReLU()(L.BatchNormalization()(L.Dense(16)(found)))
    model = keras.Model(x, L.Dense(1, "sigmoid")(L.Dense(16, "relu")(h)))
    model.compile("adam", "binary_crossentropy")
    return model


def test_layers_keep_the_state_that_they_save_themselves():
    model = with_offsets()
    x = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    expected = outputs_of(model, x)
    rebuilt = Rebuild(Rewrite()).run(model)
    np.testing.assert_array_equal(outputs_of(rebuilt, x), expected)


def test_models_made_with_other_arguments_keep_it():
    model = OfBlocks()
    around = model.get_layer("around")
    around.inner[0].offset, around.inner[1].offset = 1.0, 2.0
    student = km.make_student(model, depth=0.5)
    assert student.num_layers == 1
    offsets = [layer.offset for layer in student.get_layer("around").inner]
    assert offsets == [1.0, 2.0]


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("kind", "options", "data"),
    [
        (L.IntegerLookup, {}, IDS),
        (L.StringLookup, {"vocabulary": WORDS.tolist()}, TEXTS),
        (L.StringLookup, {"output_mode": "tf_idf"}, TEXTS),
        (L.TextVectorization, {"output_sequence_length": 4}, TEXTS),
    ],
)
def test_lookup_layers_keep_their_tables(kind, options, data):
    model = lookup(kind, options, data)
    rebuilt = Rebuild(Rewrite()).run(model)
    np.testing.assert_array_equal(outputs_of(rebuilt, data), outputs_of(model, data))


@pytest.mark.one_backend
def test_techniques_keep_an_adapted_vocabulary():
    model = lookup(L.IntegerLookup, {}, IDS)
    expected = to_numpy(model.layers[1](keras.ops.convert_to_tensor(IDS)))
    for smaller in (
        km.compress(model, km.FoldBatchNorm()).model,
        apply_technique(km.PruneChannels(0.25, of="memory"), model)[0],
        km.compress(model, km.Quantize("int8-static"), data=np.tile(IDS, (2, 1))).model,
        km.quantization_aware(model, km.Quantize("int8-static")),
        km.make_student(model, 0.6),
    ):
        numbers = smaller.layers[1](keras.ops.convert_to_tensor(IDS))
        np.testing.assert_array_equal(to_numpy(numbers), expected)
