"""A scheme of int8 activations warns before its work where it cannot help."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.static import apply
from kerasmem.errors import KerasMemWarning
from tests.models import L, chain

pytestmark = pytest.mark.one_backend

STATIC = km.Quantize("int8-static")


class Projection(L.Layer):
    """A layer of the user's own, with a kernel of 64 units."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 64), name="kernel")

    def call(self, x):
        return keras.ops.relu(x @ self.kernel)


def recurrent():
    first = L.GRU(32, return_sequences=True, name="first")
    return chain((20, 8), first, L.LSTM(16, name="second"), L.Dense(4))


def test_the_warning_has_the_layers_and_the_share_and_comes_first(monkeypatch):
    class CalibrationError(Exception):
        pass

    def calibrate(*_, **__):
        raise CalibrationError

    monkeypatch.setattr(apply, "calibrate", calibrate)
    x = np.zeros((40, 20, 8), "float32")
    with (
        pytest.warns(KerasMemWarning, match="int8 inputs") as warned,
        pytest.raises(CalibrationError),
    ):
        km.compress(recurrent(), STATIC, data=x)
    first, second = 20 * 3 * 32 * (8 + 32), 20 * 4 * 16 * (32 + 16)
    total = first + second + 16 * 4
    ours = [each for each in warned if each.category is KerasMemWarning]
    (text,) = [str(each.message) for each in ours]
    assert f"'first' ({first / total:.0%}), 'second' ({second / total:.0%})" in text
    assert f"{16 * 4 / total:.0%} of the multiplications have int8 inputs" in text
    assert "Next: use Quantize('int8')" in text


def test_a_layer_of_the_users_own_counts_at_every_position():
    model = chain((20, 8), Projection(name="own"), L.Flatten(), L.Dense(4))
    x = np.random.default_rng(0).normal(size=(40, 20, 8)).astype("float32")
    own, dense = 20 * 8 * 64, 20 * 64 * 4
    with pytest.warns(KerasMemWarning, match=f"'own' .{own / (own + dense):.0%}"):
        km.compress(model, STATIC, data=x)


def test_a_quantization_aware_training_warns_before_it():
    with pytest.warns(KerasMemWarning, match="'first'"):
        km.quantization_aware(recurrent(), STATIC)


@pytest.mark.parametrize(
    "layers",
    [
        [L.Conv1D(64, 9, activation="relu"), L.MaxPooling1D(4), L.GRU(4)],
        [L.SeparableConv1D(32, 3), L.Flatten()],
    ],
    ids=["GRU behind", "separable"],
)
def test_a_model_of_products_has_no_warning(layers):
    x = np.random.default_rng(0).normal(size=(40, 20, 8)).astype("float32")
    km.compress(chain((20, 8), *layers, L.Dense(4)), STATIC, data=x)


def test_excluded_layers_do_not_count():
    model = chain((20, 8), L.GRU(32, name="first"), L.Dense(4), L.Dense(4))
    x = np.random.default_rng(0).normal(size=(40, 20, 8)).astype("float32")
    km.compress(model, km.Quantize("int8-static", exclude=("first",)), data=x)
