"""Refusals that state the true reason."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.recipe import apply_technique
from kerasmem.errors import ConfigError, ModelError

L = keras.layers


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("layer", "shape", "reason"),
    [
        (
            L.ConvLSTM2D(2, 3),
            (4, 2, 6, 6, 1),
            "ConvLSTM2D '[a-z_0-9]*' is not supported",
        ),
        (L.LSTM(4, stateful=True), (4, 2, 3), "'[a-z_0-9]*' is stateful"),
        (
            L.Bidirectional(L.GRU(4, stateful=True)),
            (4, 2, 3),
            "'[a-z_0-9]*' is stateful",
        ),
    ],
)
def test_channels_of_recurrent_layers_stay_for_the_stated_reason(layer, shape, reason):
    inputs = keras.Input(batch_shape=shape)
    outputs = L.Dense(2)(L.Flatten()(layer(inputs)))
    with pytest.raises(ModelError, match=f"no channels.*{reason}"):
        apply_technique(km.PruneChannels(0.25), keras.Model(inputs, outputs))


@pytest.mark.one_backend
def test_int8_static_names_the_open_size():
    inputs = keras.Input((None, None, 3))
    model = keras.Model(inputs, L.Conv2D(4, 3, name="wide")(inputs))
    x = np.random.default_rng(0).normal(size=(32, 6, 6, 3)).astype("float32")
    with pytest.raises(ModelError, match="'wide' has inputs of unknown size.*fixed"):
        km.compress(model, km.Quantize("int8-static"), data=x)


@pytest.mark.one_backend
def test_int8_static_names_the_input_of_texts():
    lookup = L.StringLookup(vocabulary=["a", "b"])
    inputs = keras.Input((2,), dtype="string", name="words")
    hidden = L.Flatten()(L.Embedding(3, 4)(lookup(inputs)))
    model = keras.Model(inputs, L.Dense(2)(hidden))
    texts = np.array([["a", "b"]] * 32)
    with pytest.raises(
        ConfigError, match="Expected numeric inputs.*'words' of dtype string"
    ):
        km.compress(model, km.Quantize("int8-static"), data=texts)
